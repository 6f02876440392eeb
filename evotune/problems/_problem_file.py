"""The Python file of a problem, and the line in it that is to blame for a mistake."""

from __future__ import annotations

import ast
import contextlib
import functools
import opcode
import sys
from collections.abc import Iterator
from types import CodeType, TracebackType

from evotune.errors import EvotuneError, ProblemMistake
from evotune.util.words import shorten

_MOST_TEXT = 300
_RAISE = opcode.opmap["RAISE_VARARGS"]


class _RuntimeMistake(ProblemMistake, RuntimeError):
    """A mistake that is a RuntimeError too, since the device's own errors (no memory left, say) are
    told from mistakes only later."""


class ProblemFile:
    """`path` is the file's name in tracebacks, `name` its name in messages."""

    def __init__(self, path: str, name: str, content: bytes) -> None:
        self._path = path
        self._name = name
        self._content = content

    @contextlib.contextmanager
    def running(self, line: int, hint: str = "") -> Iterator[None]:
        """A context for code of the file. Its prints go to stderr. Any exception, SystemExit too,
        becomes a ProblemMistake at the line that raised it; if no line of the file did, at `line`,
        with `hint`. Ctrl-C is no mistake."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except BaseException as error:
            mistake = self.mistake(error, line, hint)
            if mistake is None:
                raise
            raise mistake from error

    def mistake(self, error: BaseException, line: int = 0, hint: str = "") -> ProblemMistake | None:
        """The mistake behind an exception; None when the file is not to blame: for Ctrl-C, for an
        error of evotune's own and, without `line`, for an exception that no code of the file was
        part of."""
        if isinstance(error, ProblemMistake):
            return error
        if isinstance(error, SyntaxError) and error.filename == self._path:
            return self.at(error.lineno or 1, f"{type(error).__name__}: {error.msg}")
        place = self._innermost(error.__traceback__)
        if isinstance(error, EvotuneError) or not (place or line):
            return None
        if place:
            line, hint = place.tb_lineno, ""
        if isinstance(error, SystemExit):
            code = "" if error.code is None else shorten(repr(error.code))
            return ProblemMistake(f"{self._name}:{line} called sys.exit({code})")
        if isinstance(error, KeyboardInterrupt) and not (place and _raises(place)):
            return None
        kind = _RuntimeMistake if isinstance(error, RuntimeError) else ProblemMistake
        return self.at(line, f"{_words(error)}{hint}", kind)

    def at(
        self, line: int, message: str, kind: type[ProblemMistake] = ProblemMistake
    ) -> ProblemMistake:
        """A mistake at that line; without a file, only its message."""
        return kind(f"{self._name}:{line}: {message}" if self._name else message)

    def line_of(self, kind: type, attribute: str = "") -> int:
        """Line where the class or a base class sets `attribute`; else the class's first line."""
        for each in kind.__mro__:
            statement = self._classes.get(each.__name__)
            if statement is None or each.__module__ != kind.__module__:
                continue
            for inner in statement.body:
                if attribute in _names_of(inner):
                    return inner.lineno
        own = self._classes.get(kind.__name__)
        return own.lineno if own is not None else 1

    @functools.cached_property
    def _classes(self) -> dict[str, ast.ClassDef]:
        nodes = ast.walk(ast.parse(self._content)) if self._content else ()
        return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}

    def _innermost(self, trace: TracebackType | None) -> TracebackType | None:
        """The last step of a traceback that lies in the file; None without such a step."""
        found = None
        while trace is not None:
            code: CodeType = trace.tb_frame.f_code
            if code.co_filename == self._path:
                found = trace
            trace = trace.tb_next
        return found


def _names_of(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _raises(place: TracebackType) -> bool:
    """True if a `raise` raised there. Ctrl-C interrupts between other instructions as well."""
    instruction = place.tb_frame.f_code.co_code[place.tb_lasti]
    return place.tb_next is None and instruction == _RAISE


def _words(error: BaseException) -> str:
    try:
        text = shorten(str(error), _MOST_TEXT)
    except Exception as second:  # noqa: BLE001 - user code too: the class may be the file's
        text = f"(its text cannot be made: {type(second).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
