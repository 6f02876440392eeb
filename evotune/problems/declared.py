"""Checks the class variables of a user's problem when its file has been read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from evotune.errors import ProblemMistake
from evotune.problems.problem_file import ProblemFile

DTYPES = ("float16", "bfloat16", "float32")


def check_declarations(kind: Any, file: ProblemFile) -> None:
    """ProblemMistake for the first wrong class variable, with its line."""

    def wrong(name: str, message: str) -> ProblemMistake:
        return file.at(file.line_of(kind, name), message)

    if not kind.sizes:
        raise wrong("sizes", f"{kind.__name__} lacks sizes, the names that a shape must give")
    names: dict[str, Callable[[str], bool]] = {
        "sizes": str.isidentifier,
        "fixed": lambda name: name in kind.sizes,
        "dtypes": lambda name: name in DTYPES,
        "input_kinds": bool,
    }
    expected = {
        "sizes": "the names of sizes",
        "fixed": f"some of {', '.join(kind.sizes)}",
        "dtypes": f"some of {', '.join(DTYPES)}",
        "input_kinds": "the names of kinds, normal the first",
    }
    for name, fits in names.items():
        found = getattr(kind, name)
        listed = isinstance(found, tuple | list)
        if not listed or not all(isinstance(each, str) and fits(each) for each in found):
            raise wrong(name, f"{name} is {found!r}, expected a tuple of {expected[name]}")
    if not kind.dtypes or tuple(kind.input_kinds[:1]) != ("normal",):
        name = "input_kinds" if kind.dtypes else "dtypes"
        raise wrong(name, f"{name} is {getattr(kind, name)!r}, expected {expected[name]}")
    if not _numbers(kind.constants):
        message = f"constants is {kind.constants!r}, expected a dict, name -> number"
        raise wrong("constants", message)
    if not isinstance(kind.ranges, Mapping) or not all(map(_is_range, kind.ranges.values())):
        expected_range = "a dict, name -> (least, most)"
        raise wrong("ranges", f"ranges is {kind.ranges!r}, expected {expected_range}")
    for name in kind.ranges:
        if name not in kind.constants:
            raise wrong("ranges", f"ranges names {name!r}, which is none of the constants")


def _numbers(found: object) -> bool:
    return isinstance(found, Mapping) and all(
        isinstance(name, str) and name.isidentifier() and isinstance(value, int | float)
        for name, value in found.items()
    )


def _is_range(found: object) -> bool:
    if not isinstance(found, tuple | list) or len(found) != 2:
        return False
    least, most = found
    if not (isinstance(least, int | float) and isinstance(most, int | float)):
        return False
    return math.isfinite(least) and math.isfinite(most) and least <= most
