"""The red team's kernels with features of attention: wrong ones are refused, right ones pass.

Each goes through the gate on the timed shapes and the edge shapes. A right one also goes through
the checks that follow the timing, and random tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pytest
from _pytest.mark import ParameterSet

from evotune.trial import OutcomeKind

from .in_process import InProcess, in_process

SPACE = "cheats_cpu_features.yaml"
WRONG, NAN = OutcomeKind.WRONG_RESULT, OutcomeKind.NAN
OUT, LSE = "out is off by", "lse is off by"
RIGHT = ("right", "last_key_first", "base_2", "large_offset", "sink_as_the_last_key")
EXPECTED: dict[str, tuple[OutcomeKind | tuple[OutcomeKind, ...], str]] = {
    "left_one_more": (WRONG, OUT),
    "left_one_less": (WRONG, OUT),
    "right_one_more": (WRONG, OUT),
    "right_one_less": (WRONG, OUT),
    "left_by_tiles": (WRONG, OUT),
    "top_left": (WRONG, OUT),
    "bottom_right_one_late": (WRONG, OUT),
    "bottom_right_one_early": (WRONG, OUT),
    "values_of_head_dim": ((WRONG, NAN), "out"),
    "slope_of_the_group": (WRONG, OUT),
    "slope_of_the_next_head": (WRONG, OUT),
    "distance_has_a_sign": (WRONG, OUT),
    "distance_from_the_top_left": (WRONG, OUT),
    "no_cap": (WRONG, OUT),
    "cap_by_clamping": (WRONG, OUT),
    "cap_before_the_scale": (WRONG, OUT),
    "cap_after_alibi": (WRONG, OUT),
    "no_sink": (WRONG, OUT),
    "sink_counted_twice": (WRONG, OUT),
    "sink_not_in_the_maximum": ((WRONG, NAN), "large_logits inputs"),
    "sink_of_the_group": (WRONG, OUT),
    "lse_in_base_2": (WRONG, LSE),
    "lse_without_the_maximum": (WRONG, LSE),
    "lse_without_the_scale": (WRONG, LSE),
    "lse_without_the_sink": (WRONG, LSE),
    "no_lse_of_the_last_row": (NAN, "elements of lse are NaN"),
    "lse_of_nothing_is_zero": (WRONG, LSE),
    "lse_of_nothing_is_low": (WRONG, LSE),
    "empty_rows_divided": (NAN, "elements of out are NaN"),
    "empty_rows_kept": (WRONG, OUT),
}
SOON = {
    *("right", "left_one_more", "bottom_right_one_late", "cap_before_the_scale"),
    *("sink_counted_twice", "lse_without_the_scale", "empty_rows_divided"),
}
"""`make test` takes these; `make soak` takes all."""


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    with in_process(tmp_path_factory.mktemp("features"), SPACE) as made:
        yield made


def _marked(behaviours: Iterable[str]) -> list[ParameterSet]:
    return [
        pytest.param(each, marks=() if each in SOON else pytest.mark.soak) for each in behaviours
    ]


@pytest.mark.parametrize("behaviour", _marked(EXPECTED))
def test_a_kernel_that_is_wrong_in_a_feature_is_refused(team: InProcess, behaviour: str) -> None:
    kind, reason = EXPECTED[behaviour]
    verdict = team.judge(behaviour)
    assert verdict.kind in (kind if isinstance(kind, tuple) else (kind,)), verdict.reason
    assert re.search(reason, verdict.reason), verdict.reason


@pytest.mark.parametrize("behaviour", _marked(RIGHT))
def test_a_right_kernel_passes(team: InProcess, behaviour: str) -> None:
    verdict = team.judge(behaviour, timed=True, random_tests=12)
    assert verdict.passed, verdict.reason


def test_every_kernel_of_the_space_is_expected(team: InProcess) -> None:
    assert team.choices == [*RIGHT, *EXPECTED]
