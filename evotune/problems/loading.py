"""Problems from a Python file: `name: path/to/problem.py:ClassName` in a space.

Reading such a space runs that file. It is done without asking for files in or under the folder
that evotune works in, and for those that ship with it; for any other only after somebody agreed
to (`on_doubt`). Agreement is to the file's content: a run's own copy of it needs no second one.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path

import evotune
from evotune.errors import UsageError
from evotune.problems.user import UserProblem

_REFERENCE = re.compile(r"([^:]+\.py):([A-Za-z_][A-Za-z0-9_]*)")
_MOST_BYTES = 1 << 20


class Trust:
    """Which problem files may be run in this process. `ask` decides about the others."""

    def __init__(self) -> None:
        self._agreed: set[str] = set()
        self.ask: Callable[[Path], bool] = lambda path: False

    def agree(self, sha256: str) -> None:
        self._agreed.add(sha256)

    def require(self, path: Path, sha256: str) -> None:
        """UsageError when nobody agreed to run the file."""
        if sha256 in self._agreed or _belongs_here(path) or self.ask(path):
            self._agreed.add(sha256)
            return
        raise UsageError(
            f"the space would run the Python file {path}, which lies outside this folder: read it, "
            "then add --trust-problem"
        )


trust = Trust()


def is_file_reference(name: str) -> bool:
    """Whether a problem's name means a class in a file rather than a built-in problem."""
    return ".py" in name or ":" in name


def problem_source(name: str, root: Path) -> tuple[str, bytes]:
    """(path under `root`, content) of the file that a reference names; UsageError if unusable."""
    found = _REFERENCE.fullmatch(name)
    if found is None:
        raise UsageError(f"problem {name!r}: expected path/to/problem.py:ClassName")
    path = (root / found[1]).resolve()
    if not path.is_relative_to(root.resolve()):
        raise UsageError(f"problem {name!r} lies outside the space's root {root}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"problem {name!r}: {error.strerror}: {path}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"problem {name!r}: the file is larger than {_MOST_BYTES} bytes")
    return path.relative_to(root.resolve()).as_posix(), content


def load_problem(name: str, dtype: str, root: Path) -> UserProblem:
    """An instance of the class; UsageError, one line, whatever is wrong with the file."""
    relative, content = problem_source(name, root)
    sha256 = hashlib.sha256(content).hexdigest()
    trust.require((root / relative).resolve(), sha256)
    kind = _class(name, root / relative, content, f"evotune_problem_{sha256[:16]}")
    if dtype not in kind.dtypes:
        raise UsageError(f"problem {name} has no dtype {dtype!r}; it has {', '.join(kind.dtypes)}")
    return kind(dtype)


class _ContentLoader(importlib.abc.SourceLoader):
    """Runs the very bytes that somebody agreed to: neither a newer file nor cached bytecode."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._content = content

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_data(self, path: str) -> bytes:
        return self._content


def _class(name: str, path: Path, content: bytes, module_name: str) -> type[UserProblem]:
    wanted = name.rpartition(":")[2]
    module = sys.modules.get(module_name)
    if module is None:
        loader = _ContentLoader(path, content)
        spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        try:
            loader.exec_module(module)
        except Exception as error:
            raise UsageError(f"{path} cannot be imported: {_in_words(error)}") from error
        sys.modules[module_name] = module
    kind = getattr(module, wanted, None)
    if not isinstance(kind, type) or not issubclass(kind, UserProblem):
        raise UsageError(f"{path} has no class {wanted} derived from evotune.problems.UserProblem")
    missing = sorted(kind.__abstractmethods__)
    if missing:
        raise UsageError(f"{path}: {wanted} lacks {', '.join(missing)}")
    if not kind.sizes:
        raise UsageError(f"{path}: {wanted} lacks sizes, the names that a shape must give")
    return kind


def _in_words(error: Exception) -> str:
    line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
    return " ".join(f"{type(error).__name__}: {error}{line}".split())


def _belongs_here(path: Path) -> bool:
    package = Path(evotune.__file__).parent
    # `shipped` in an installed package, `kernels` beside it in a working tree.
    places = (Path.cwd().resolve(), package / "shipped", package.parent / "kernels")
    return any(path.resolve().is_relative_to(place) for place in places)
