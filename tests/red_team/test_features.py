"""The red team's kernels with features of attention, or with a mask: wrong ones are refused, right
ones pass.

Each goes through the gate on the timed shapes and the edge shapes. A right one also goes through
the checks that follow the timing, and random tests.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import pytest
from _pytest.mark import ParameterSet

from evotune.trial import OutcomeKind
from tests.sweeps import swept

from .in_process import Teams

WRONG, NAN = OutcomeKind.WRONG_RESULT, OutcomeKind.NAN
OUT, LSE = "out is off by", "lse is off by"
PADDING, BOOL, BIAS = "padding=", "bool=", "bias="
FEATURES, MASKS = "cheats_cpu_features.yaml", "cheats_cpu_masks.yaml"
RIGHT = {
    FEATURES: ("right", "last_key_first", "base_2", "large_offset", "sink_as_the_last_key"),
    MASKS: ("right", "last_key_first", "blocks_skipped"),
}
EXPECTED: dict[str, dict[str, tuple[OutcomeKind | tuple[OutcomeKind, ...], str]]] = {
    FEATURES: {
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
    },
    MASKS: {
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
    },
}
SOON = {
    FEATURES: {
        *("right", "left_one_more", "bottom_right_one_late", "cap_before_the_scale"),
        *("sink_counted_twice", "lse_without_the_scale", "empty_rows_divided"),
    },
    MASKS: {
        *("batch_of_the_next", "packed_rows", "last_key_never_seen"),
        *("block_by_its_ends", "padding_by_count"),
        *("bias_before_the_scale", "bias_not_in_the_maximum", "lowest_is_minus_infinity"),
    },
}
"""`make test` takes these; `make soak` takes all."""


def _marked(kinds: Mapping[str, Collection[str]]) -> list[ParameterSet]:
    rows = ((space, behaviour) for space in kinds for behaviour in kinds[space])
    return swept(rows, lambda row: row[1] in SOON[row[0]])


@pytest.mark.parametrize(("space", "behaviour"), _marked(EXPECTED))
def test_a_wrong_kernel_is_refused(teams: Teams, space: str, behaviour: str) -> None:
    kind, reason = EXPECTED[space][behaviour]
    verdict = teams.of(space).judge(behaviour)
    assert verdict.kind in (kind if isinstance(kind, tuple) else (kind,)), verdict.reason
    assert re.search(reason, verdict.reason), verdict.reason


@pytest.mark.parametrize(("space", "behaviour"), _marked(RIGHT))
def test_a_right_kernel_passes(teams: Teams, space: str, behaviour: str) -> None:
    verdict = teams.of(space).judge(behaviour, timed=True, random_tests=12)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("space", EXPECTED)
def test_every_kernel_of_the_space_is_expected(teams: Teams, space: str) -> None:
    assert teams.of(space).choices == [*RIGHT[space], *EXPECTED[space]]
