"""Turns what a user has into a kernel for the gate: a file, a Python function, "module:function".

Nothing of the candidate is executed here: files are read as text, and modules are found as `import`
finds them.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import TypeAlias

from evotune.api.given_space import AnySpace, SpaceKeywords
from evotune.errors import UsageError
from evotune.languages import Language, own_languages
from evotune.problems.loading import is_file_reference
from evotune.space.objects import CppKernel, Kernel, PythonCallable, Space
from evotune.space.objects.kernel_objects import module_file
from evotune.space.objects.space_object import module_of_definition
from evotune.space.reading.yaml_source import Position
from evotune.user_code import trust
from evotune.util.files import read_regular
from evotune.util.words import describe

Candidate: TypeAlias = "AnySpace | Callable[..., object]"
"""What the gate judges: a kernel object, a Python function, "module:function", the path of a .cpp
or .py file, or a space."""

_MAKE = "make"
_MAKES = ["configuration", "case"]
"""The parameters of a function that makes the callable; any other function is the callable."""
_PYTHON = ".py"


def gated(
    candidate: Candidate, keywords: SpaceKeywords, entry: str | None = None
) -> tuple[AnySpace, SpaceKeywords]:
    """The kernel, and the keywords of its space: a root that holds the candidate and the problem.

    A space stays as it is. `entry` names the function in a file. Raises UsageError for a candidate
    that is none of `Candidate`, and SpaceError for one that cannot be read.
    """
    if isinstance(candidate, Kernel):
        return candidate, keywords
    if isinstance(candidate, str | Path):
        path = Path(candidate)
        if languages := [each for each in own_languages() if path.suffix in each.suffixes]:
            return _file(path.absolute(), languages[0], keywords, entry)
        if isinstance(candidate, str) and _is_reference(candidate):
            module, _, function = candidate.rpartition(":")
            return _module(module, function, keywords)
        return candidate, keywords
    if isinstance(candidate, Space | type) or not callable(candidate):
        return candidate, keywords  # type: ignore[return-value]  # what is no space is refused
    return _function(candidate, keywords)


def _is_reference(text: str) -> bool:
    module, _, function = text.rpartition(":")
    return function.isidentifier() and all(part.isidentifier() for part in module.split("."))


# A file


def _file(
    path: Path, language: Language, keywords: SpaceKeywords, entry: str | None
) -> tuple[Kernel, SpaceKeywords]:
    if language.launched and path.suffix != _PYTHON:
        raise UsageError(
            f"{path.name}: a CUDA kernel also needs its launches: pass evotune.CudaKernel(…), or "
            "a space file as the task"
        )
    try:
        text = read_regular(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise UsageError(f"cannot read {path}: {why}") from error
    if path.suffix == _PYTHON:
        trust.require({path: text.encode()})
        return _python_file(path, text, entry or _python_entry(path.name, text), keywords)
    entry, arguments = _cpp_signature(path.name, text, entry)
    kernel = CppKernel(path, entry=entry, arguments=arguments)
    return kernel, _rooted(path.parent, keywords)


def _python_file(
    path: Path, text: str, entry: str, keywords: SpaceKeywords
) -> tuple[Kernel, SpaceKeywords]:
    """The file itself, with a `make` at its end that returns the function. A file whose name is no
    module's gets another one."""
    given = _rooted(path.parent, keywords)
    name = path.name if path.stem.isidentifier() else f"{_WRAPPER}{entry}.py"
    source = _under_root(path.parent / name, given)
    if _is_maker(text, entry):
        return PythonCallable(source, source_text=text, entry=entry, name=entry), given
    text += _maker(entry)
    return PythonCallable(source, source_text=text, entry=_MADE, name=entry), given


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DEFINITION = re.compile(r"([A-Za-z_]\w*)\s*\(([^()]*)\)\s*\{")
_EXTERN = re.compile(r'extern\s+"C"\s+[^;{}]*?([A-Za-z_]\w*)\s*\([^()]*\)\s*\{')
_NAME = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)?$")


def _cpp_signature(file: str, text: str, entry: str | None) -> tuple[str, list[str]]:
    """The function, and its parameters' names, which are tensors and sizes of the problem."""
    code = _COMMENT.sub(" ", text)
    if entry is None:
        found = list(dict.fromkeys(_EXTERN.findall(code)))
        if len(found) != 1:
            known = f"several: {', '.join(found)}" if found else 'none declared extern "C"'
            raise UsageError(f"{file} must have one function, it has {known}; name it as the entry")
        entry = found[0]
    for name, parameters in _DEFINITION.findall(code):
        if name == entry:
            parts = [part for part in parameters.split(",") if part.strip() not in ("", "void")]
            names = [_NAME.search(part.strip()) for part in parts]
            if all(names):
                return entry, [str(each[1]) for each in names if each]
            raise UsageError(f"{file}: each parameter of {entry} needs a name of the problem")
    raise UsageError(f"{file} defines no function {entry}")


def _python_entry(file: str, text: str) -> str:
    """`make`, or else the only public function of the file."""
    names = [node.name for node in _functions(file, text)]
    if _MAKE in names:
        return _MAKE
    public = [name for name in dict.fromkeys(names) if not name.startswith("_")]
    if len(public) != 1:
        known = f"has {', '.join(public)}" if public else "has none"
        raise UsageError(
            f"{file} must have a function `make`, or one function, and {known}; name "
            "it as the entry"
        )
    return public[0]


def _functions(file: str, text: str) -> Iterator[ast.FunctionDef]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the gate refuses the file, and says where
    yield from (node for node in tree.body if isinstance(node, ast.FunctionDef))


def _is_maker(text: str, entry: str) -> bool:
    for node in _functions("", text):
        if node.name == entry:
            return [each.arg for each in node.args.args] == _MAKES
    return False


# A module and a function


def _module(module: str, function: str, keywords: SpaceKeywords) -> tuple[Kernel, SpaceKeywords]:
    path = module_file(module)
    if _is_installed(path):
        return _wrapper(module, function, None, keywords)
    try:
        text = read_regular(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    return _callable(path, module, function, _is_maker(text, function), keywords)


def _is_installed(path: Path) -> bool:
    paths = sysconfig.get_paths()
    places = {paths[key] for key in ("stdlib", "purelib", "platlib")}
    return any(path.is_relative_to(place) for place in places)


def _function(
    candidate: Callable[..., object], keywords: SpaceKeywords
) -> tuple[Kernel, SpaceKeywords]:
    module = str(getattr(candidate, "__module__", ""))
    name = str(getattr(candidate, "__qualname__", ""))
    home = sys.modules.get(module)
    if module != "__main__" and home is not None and getattr(home, name, None) is candidate:
        if not _is_installed(path := module_file(module)):
            trust.own(read_regular(path))  # the caller's process has executed it
        return _module(module, name, keywords)
    inner = inspect.unwrap(candidate)
    if not isinstance(inner, FunctionType) or inner.__name__ == "<lambda>":
        raise UsageError(
            f"the source of {describe(candidate)} cannot be found: define it as a function of a "
            'module, and pass "module:function"'
        )
    position = Position(place=f"gate({inner.__name__})")
    _, text = module_of_definition(inner, position)
    if [*inspect.signature(inner).parameters] != _MAKES:
        text += _maker(inner.__name__)
    return PythonCallable(
        f"{_WRAPPER}{inner.__name__}.py", source_text=text, entry=_entry(inner), name=inner.__name__
    ), keywords


def _entry(function: FunctionType) -> str:
    makes = [*inspect.signature(function).parameters] == _MAKES
    return function.__name__ if makes else _MADE


_WRAPPER = "gated_"
_MADE = "make_gated"


def _maker(function: str) -> str:
    return f"\n\ndef {_MADE}(configuration, case):\n    return {function}\n"


def _callable(
    path: Path, module: str, entry: str, is_maker: bool, keywords: SpaceKeywords
) -> tuple[Kernel, SpaceKeywords]:
    """The kernel of a function in a file that is found as `module`."""
    folder = path.parents[module.count(".") + (path.name == "__init__.py")]
    if is_maker:
        return PythonCallable(path, entry=entry, name=entry), _rooted(folder, keywords)
    return _wrapper(module, entry, folder, keywords)


def _wrapper(
    module: str, function: str, folder: Path | None, keywords: SpaceKeywords
) -> tuple[Kernel, SpaceKeywords]:
    """A callable without parameters: a module that returns the function. It lies in the `folder`
    from which the function's module is imported, or anywhere if that is installed."""
    given = keywords if folder is None else _rooted(folder, keywords)
    source = f"{_WRAPPER}{function}.py"
    if folder is not None:
        source = _under_root(folder / source, given)
    text = f"from {module} import {function}\n{_maker(function)}"
    return PythonCallable(source, source_text=text, entry=_MADE, name=function), given


def _under_root(path: Path, keywords: SpaceKeywords) -> str:
    root = Path(keywords.get("root") or Path.cwd()).absolute()
    return path.relative_to(root).as_posix()


def _rooted(folder: Path, keywords: SpaceKeywords) -> SpaceKeywords:
    """The keywords with a root that holds the folder, and the problem's file if it has one."""
    root = Path(keywords.get("root") or Path.cwd()).absolute()
    if folder.is_relative_to(root):
        return keywords
    problem = keywords.get("problem")
    given: SpaceKeywords = {**keywords}
    if isinstance(problem, str) and is_file_reference(problem):
        file, _, name = problem.rpartition(":")
        place = root / file
        common = Path(os.path.commonpath([folder, place.parent]))
        given["problem"] = f"{place.relative_to(common).as_posix()}:{name}"
        given["root"] = common
    else:
        given["root"] = folder
    return given
