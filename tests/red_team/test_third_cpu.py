"""The third red team on the CPU: kernels that are wrong for sizes and numbers that nobody drew.

Each goes through the search and, if it passes there, through the confirmation of a champion. None
may end as `ok`: at the latest the confirmation draws a case of its class. test_third_direct.py
shows that each is wrong there, and right next to it.

`make test` takes the kernels in SOON; `make soak` takes all.
"""

from __future__ import annotations

import functools
import re

import pytest
from _pytest.mark import ParameterSet

from evotune.trial import OutcomeKind

from .conftest import Pipelines
from .cuda_expected import RIGHT
from .pipeline import choices, problem_of
from .third_cases import CASES

KINDS = (OutcomeKind.WRONG_RESULT, OutcomeKind.NAN, OutcomeKind.OUT_OF_BOUNDS)
REASON = "(out|lse) is off by|NaN or infinite|change with what lies outside all tensors"
SOON = {
    ("values", "maximum_from_10000"),
    ("row_maximum", "reads_past_the_end"),
}


def _space(topic: str) -> str:
    return f"third_cpu_{topic}.yaml"


@functools.cache
def _together(topic: str) -> tuple[str, ...]:
    """The spaces of the same problem, which share a worker with this one."""
    problem = problem_of(_space(topic))
    return tuple(_space(each) for each in CASES if problem_of(_space(each)) == problem)


def _rows() -> list[ParameterSet]:
    return [
        pytest.param(
            topic,
            behaviour,
            id=f"{topic}-{behaviour}",
            marks=() if (topic, behaviour) in SOON else pytest.mark.soak,
        )
        for topic, cases in CASES.items()
        for behaviour in cases
    ]


@pytest.mark.parametrize(("topic", "behaviour"), _rows())
def test_a_kernel_that_is_wrong_where_nobody_looked_is_refused(
    pipelines: Pipelines, topic: str, behaviour: str
) -> None:
    stage, outcome = pipelines.of(*_together(topic)).judge(behaviour, _space(topic))
    assert outcome.kind in KINDS, (stage, outcome.kind, outcome.reason)
    assert re.search(REASON, outcome.reason), (stage, outcome.reason)
    assert outcome.fitness is None


@pytest.mark.soak
@pytest.mark.parametrize("topic", CASES)
def test_the_same_code_without_a_fault_passes(pipelines: Pipelines, topic: str) -> None:
    stage, outcome = pipelines.of(*_together(topic)).judge(RIGHT, _space(topic))
    assert outcome.ok, (stage, outcome)


def test_every_kernel_of_the_spaces_is_expected_to_fail_or_right() -> None:
    """No kernel of a space is forgotten, and every expected kernel exists."""
    for topic, cases in CASES.items():
        assert set(choices(_space(topic))[1]) == {RIGHT, *cases}, topic
    assert {(topic, name) for topic, cases in CASES.items() for name in cases} >= SOON
