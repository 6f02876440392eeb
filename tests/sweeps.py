"""Sweeps over many cases that are alike: `make test` takes some of them, `make soak` all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

Each = TypeVar("Each")


def swept(values: Iterable[Each], soon: Callable[[Each], bool]) -> list[ParameterSet]:
    """The values as parameters; those that are not `soon` are soak tests."""
    found = []
    for value in values:
        marks = () if soon(value) else pytest.mark.soak
        several = value if isinstance(value, tuple) else (value,)
        found.append(pytest.param(*several, marks=marks))
    return found
