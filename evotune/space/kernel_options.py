"""Compiler options with a parameter's value in them: `-O{LEVEL}`, `-f{MATH}`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from evotune.trial import Value

_PLACE = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")


def parameters_in(option: str) -> list[str]:
    """The parameters that the option names in braces."""
    return _PLACE.findall(option)


def filled(option: str, values: Mapping[str, Value]) -> str:
    """The option with these values of its parameters. `no_fast_math` becomes no-fast-math, and a
    boolean becomes true or false."""
    return _PLACE.sub(lambda place: _text(values[place[1]]), option)


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value.replace("_", "-") if isinstance(value, str) else str(value)
