"""The red team's kernels with a mask of attention: wrong ones are refused, right ones pass.

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

SPACE = "cheats_cpu_masks.yaml"
WRONG, NAN = OutcomeKind.WRONG_RESULT, OutcomeKind.NAN
PADDING, BOOL, BIAS = "padding=", "bool=", "bias="
RIGHT = ("right", "last_key_first", "blocks_skipped")
EXPECTED: dict[str, tuple[OutcomeKind | tuple[OutcomeKind, ...], str]] = {
    "batch_of_the_next": ((WRONG, NAN), PADDING),
    "first_batch_for_all": (WRONG, PADDING),
    "head_of_the_group": (WRONG, BOOL),
    "first_head_for_all": (WRONG, BOOL),
    "first_row_for_all": (WRONG, BOOL),
    "rows_and_heads_swapped": ((WRONG, NAN), BOOL),
    "packed_rows": ((WRONG, NAN), BOOL),
    "packed_batches": ((WRONG, NAN), PADDING),
    "next_key": (WRONG, PADDING),
    "key_by_words": (WRONG, PADDING),
    "mask_ignored": (WRONG, PADDING),
    "inverted": (WRONG, PADDING),
    "last_key_always_seen": (WRONG, PADDING),
    "last_key_never_seen": (WRONG, PADDING),
    "first_key_always_seen": (WRONG, PADDING),
    "rest_of_the_keys_seen": (WRONG, PADDING),
    "block_by_its_first_key": (WRONG, PADDING),
    "block_by_its_ends": (WRONG, PADDING),
    "block_by_most_keys": (WRONG, PADDING),
    "block_of_the_first_row": (WRONG, BOOL),
    "padding_by_count": (WRONG, PADDING),
    "padding_by_first_hidden": (WRONG, PADDING),
    "no_causal_beside_the_mask": (WRONG, BOOL),
    "hidden_score_is_zero": (WRONG, PADDING),
    "hidden_is_30": (WRONG, PADDING),
    "hidden_is_1e4": (WRONG, PADDING),
    "hidden_keys_in_the_sum": (WRONG, PADDING),
    "hidden_in_the_maximum": (WRONG, "large_logits inputs"),
    "maximum_from_zero": (WRONG, "large_logits inputs"),
    "empty_rows_are_nan": (NAN, "elements of out are NaN"),
    "empty_rows_are_the_mean": (WRONG, "out is off by"),
    "bias_ignored": (WRONG, BIAS),
    "bias_before_the_scale": (WRONG, BIAS),
    "bias_in_base_2": (WRONG, BIAS),
    "bias_subtracted": (WRONG, BIAS),
    "bias_not_in_the_maximum": ((WRONG, NAN), BIAS),
    "bias_clamped": (WRONG, BIAS),
    "bias_in_bfloat16": (WRONG, BIAS),
    "bias_as_a_boolean": (WRONG, BIAS),
    "positive_bias_ignored": (WRONG, BIAS),
    "lowest_is_minus_infinity": (WRONG, BIAS),
}
SOON = {
    *("right", "blocks_skipped", "batch_of_the_next", "packed_rows", "last_key_never_seen"),
    *("block_by_its_ends", "padding_by_count", "inverted", "empty_rows_are_nan"),
    *("bias_before_the_scale", "bias_not_in_the_maximum", "lowest_is_minus_infinity"),
}
"""`make test` takes these; `make soak` takes all."""


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    with in_process(tmp_path_factory.mktemp("masks"), SPACE) as made:
        yield made


def _marked(behaviours: Iterable[str]) -> list[ParameterSet]:
    return [
        pytest.param(each, marks=() if each in SOON else pytest.mark.soak) for each in behaviours
    ]


@pytest.mark.parametrize("behaviour", _marked(EXPECTED))
def test_a_kernel_that_is_wrong_in_the_mask_is_refused(team: InProcess, behaviour: str) -> None:
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
