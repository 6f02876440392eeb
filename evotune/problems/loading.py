"""Finds a space's problem: by its name, or in a Python file as `path/to/problem.py:ClassName`.

Reading such a space runs that file: see `evotune.user_code`.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from evotune.errors import ProblemMistake, UsageError
from evotune.plugins import PROBLEMS
from evotune.problems.problem import Problem, WrongKey
from evotune.problems.user import UserProblem
from evotune.problems.written import ProblemFile, Tolerance
from evotune.user_code import run_content, trust
from evotune.util.files import read_regular

BUILT_IN = ("attention", "attention_varlen", "attention_paged")
"""The problems that ship with evotune, whose baselines are PyTorch's SDPA."""


def create_problem(name: str, dtype: str, root: Path = Path()) -> Problem:
    """The problem `name` in `dtype`; files lie under `root`. Raises WrongKey if the name or the
    dtype is unknown, and EnvironmentProblem if an installed package has the problem but cannot be
    loaded."""
    if is_file_reference(name):
        return load_problem(name, dtype, root)
    problem: Any = _built_in(name) if name in BUILT_IN else PROBLEMS.load(name)
    if problem is None:
        raise WrongKey(
            f"unknown problem {name!r}; known: {', '.join(problem_names())}, "
            "or path/to/problem.py:ClassName",
            "name",
        )
    if dtype not in problem.dtypes:
        known = ", ".join(problem.dtypes)
        raise WrongKey(f"problem {name} has no dtype {dtype!r}; it has {known}", "dtype")
    made: Problem = problem(dtype)
    return made


def problem_names() -> tuple[str, ...]:
    """The names of all problems that are not in files."""
    return tuple(sorted({*BUILT_IN, *PROBLEMS.names()}))


def _built_in(name: str) -> type[Problem]:
    # Here, since a worker that compiles needs none of them. They import NumPy, which nearly doubles
    # the CPU time of its start.
    from evotune.problems.attention import Attention
    from evotune.problems.ragged_attention import PagedAttention, VarlenAttention

    kinds: tuple[type[Problem], ...] = (Attention, VarlenAttention, PagedAttention)
    return next(kind for kind in kinds if kind.name == name)


def is_file_reference(name: str) -> bool:
    """True if a problem's name means a class in a file, not a built-in problem."""
    return ".py" in name or ":" in name


def load_problem(name: str, dtype: str, root: Path) -> UserProblem:
    """An instance of the class. Raises UsageError if the file has no such class. Raises
    ProblemMistake for a mistake in the file, with its line."""
    relative, content = problem_source(name, root)
    sha256 = hashlib.sha256(content).hexdigest()
    trust.require({root.absolute() / relative: content})
    module = _module(f"evotune_problem_{sha256[:16]}", root / relative, relative, content)
    file = ProblemFile(str(module.__file__), relative, content)
    kind = _class(module, file, relative, name.rpartition(":")[2])
    if dtype not in kind.dtypes:
        known = ", ".join(kind.dtypes)
        raise WrongKey(f"problem {name} has no dtype {dtype!r}; it has {known}", "dtype")
    with file.running(file.line_of(kind, "__init__")):
        problem = kind(dtype)
    problem.problem_file = file
    return problem


_REFERENCE = re.compile(r"([^:]+\.py):([A-Za-z_][A-Za-z0-9_]*)")
_MOST_BYTES = 1 << 20


def problem_source(name: str, root: Path) -> tuple[str, bytes]:
    """The path under `root` and the content of the file that a reference names. Raises UsageError
    if the file cannot be used."""
    found = _REFERENCE.fullmatch(name)
    if found is None:
        raise UsageError(f"problem {name!r}: expected path/to/problem.py:ClassName")
    # `Path.resolve` raises if links form a circle.
    path, folder = (Path(os.path.realpath(place)) for place in (root / found[1], root))
    if not path.is_relative_to(folder):
        raise UsageError(f"problem {name!r} lies outside the space's root {root}")
    if path.suffix != ".py":
        raise UsageError(f"problem {name!r} is a link to a file without the suffix .py")
    try:
        content = read_regular(path, _MOST_BYTES + 1)
    except OSError as error:
        lost = isinstance(error, FileNotFoundError)
        hint = "; `root:` in the space says where to look" if lost else ""
        raise UsageError(f"problem {name!r}: {error.strerror}: {path}{hint}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"problem {name!r}: the file is larger than {_MOST_BYTES} bytes")
    return path.relative_to(folder).as_posix(), content


def _module(name: str, path: Path, relative: str, content: bytes) -> ModuleType:
    """Runs the file as a module. Files with the same content share the first one's module."""
    module = sys.modules.get(name)
    if module is None:
        with ProblemFile(str(path), relative, content).running(1):
            module = run_content(name, str(path), content)
        sys.modules[name] = module
    return module


def _class(module: ModuleType, file: ProblemFile, relative: str, wanted: str) -> type[UserProblem]:
    kind = getattr(module, wanted, None)
    if not isinstance(kind, type) or not issubclass(kind, UserProblem):
        base = "evotune.problems.UserProblem"
        raise WrongKey(f"{relative} has no class {wanted} derived from {base}", "name")
    missing = sorted(kind.__abstractmethods__)
    if missing:
        message = f"{wanted} lacks {', '.join(missing)}"
        raise file.at(file.line_of(kind), message)
    check_declarations(kind, file)
    return kind


DTYPES = ("float16", "bfloat16", "float32", "float64")


def check_declarations(kind: Any, file: ProblemFile) -> None:
    """Raises ProblemMistake for the first wrong class variable, with its line."""

    def wrong(name: str, message: str) -> ProblemMistake:
        return file.at(file.line_of(kind, name), message)

    if not kind.sizes:
        raise wrong("sizes", f"{kind.__name__} lacks sizes, the names that a shape must give")
    names: dict[str, Callable[[str], bool]] = {
        "sizes": str.isidentifier,
        "fixed": lambda name: name in kind.sizes,
        "flags": str.isidentifier,
        "optional": str.isidentifier,
        "dtypes": lambda name: name in DTYPES,
        "input_kinds": bool,
    }
    expected = {
        "sizes": "the names of sizes",
        "fixed": f"some of {', '.join(kind.sizes)}",
        "flags": "the names of variants that are true or false",
        "optional": "the names of tensors",
        "dtypes": f"some of {', '.join(DTYPES)}",
        "input_kinds": "the names of kinds, normal the first",
    }
    for name, fits in names.items():
        found = getattr(kind, name)
        listed = isinstance(found, tuple | list)
        if not listed or not all(isinstance(each, str) and fits(each) for each in found):
            raise wrong(name, f"{name} is {found!r}, expected a tuple of {expected[name]}")
    if twice := _named_twice(kind):
        raise wrong(*twice)
    if not kind.dtypes or tuple(kind.input_kinds[:1]) != ("normal",):
        name = "input_kinds" if kind.dtypes else "dtypes"
        raise wrong(name, f"{name} is {getattr(kind, name)!r}, expected {expected[name]}")
    if not _numbers(kind.constants):
        message = f"constants is {kind.constants!r}, expected a dict, name -> number"
        raise wrong("constants", message)
    if not isinstance(kind.ranges, Mapping) or not all(map(_is_range, kind.ranges.values())):
        expected_range = "a dict, name -> (least, most), or a range of integers"
        raise wrong("ranges", f"ranges is {kind.ranges!r}, expected {expected_range}")
    _check_tolerance(kind, wrong)
    for name in kind.ranges:
        if name not in kind.constants:
            raise wrong("ranges", f"ranges names {name!r}, which is none of the constants")
        values, default = kind.ranges[name], kind.constants[name]
        if isinstance(values, range) and default not in values:
            raise wrong(
                "constants", f"constants gives {name} as {default}, which is not in {values}"
            )


def _check_tolerance(kind: Any, wrong: Callable[[str, str], ProblemMistake]) -> None:
    tolerance = kind.tolerance
    if tolerance is None:
        return
    if not isinstance(tolerance, Tolerance):
        message = f"tolerance is {tolerance!r}, expected a Tolerance with a reason"
        raise wrong("tolerance", message)
    if why := tolerance.wrong():
        raise wrong("tolerance", f"tolerance {why}")
    if kind.same is not UserProblem.same:
        raise wrong("tolerance", "tolerance has no effect: same alone judges the outputs")


def _named_twice(kind: Any) -> tuple[str, str] | None:
    """The class variable that names a size or a flag again, and the message; None without one."""
    known: list[str] = []
    for variable in ("sizes", "flags"):
        for name in getattr(kind, variable):
            if name in known:
                return variable, f"{variable} names {name!r} again; each name stands once"
            known.append(name)
    return None


def _numbers(found: object) -> bool:
    return isinstance(found, Mapping) and all(
        isinstance(name, str)
        and name.isidentifier()
        and isinstance(value, int | float)
        and not math.isnan(value)
        for name, value in found.items()
    )


def _is_range(found: object) -> bool:
    if isinstance(found, range):
        return len(found) > 0
    if not isinstance(found, tuple | list) or len(found) != 2:
        return False
    least, most = found
    if not (isinstance(least, int | float) and isinstance(most, int | float)):
        return False
    return math.isfinite(least) and math.isfinite(most) and least <= most


_SDPA = ("sdpa:flash", "sdpa:cudnn", "sdpa:efficient", "sdpa:math")


def baseline_names(problem: Problem) -> tuple[str, ...]:
    """The names on all devices, optional libraries included; empty if they are not known."""
    # Here, for the reason that `_built_in` states.
    from evotune.problems.attention import Attention
    from evotune.problems.libraries import LIBRARIES
    from evotune.problems.ragged_attention import RaggedAttention

    if isinstance(problem, Attention) and not _replaces(problem, Attention, "baselines"):
        return (*_SDPA, "unfused", *LIBRARIES)
    if isinstance(problem, RaggedAttention) and not _replaces(
        problem, RaggedAttention, "baselines"
    ):
        return ("sdpa:looped", "sdpa:padded", *LIBRARIES)
    if isinstance(problem, UserProblem) and not _replaces(
        problem, UserProblem, "baselines", "baselines_of"
    ):
        return ("torch:eager",)
    return ()


def _replaces(problem: Problem, base: type, *names: str) -> bool:
    """Whether the problem's class overrides this method of the base class."""
    return any(getattr(type(problem), name) is not getattr(base, name) for name in names)
