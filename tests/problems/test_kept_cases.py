"""Spaces that use no feature of attention are checked as they were before there were features."""

from __future__ import annotations

import json

import pytest

from . import kept_cases

KEPT = json.loads(kept_cases.PATH.read_text())


@pytest.mark.sweep(4)
@pytest.mark.parametrize("space", KEPT["cases"])
def test_a_shipped_space_has_the_same_cases(space: str) -> None:
    assert kept_cases.cases(space) == KEPT["cases"][space]


@pytest.mark.parametrize("dtype", kept_cases.MEASURED)
def test_inputs_references_and_limits_are_the_same(dtype: str) -> None:
    found, wanted = kept_cases.measures(dtype), KEPT["measures"][dtype]
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        assert found[key] == pytest.approx(values, rel=1e-6), key
