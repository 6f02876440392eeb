"""The kernels of `data`, those that are right and the outcomes of those that are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from evotune.trial import OutcomeKind

SPACES = Path(__file__).parent / "data"
WRONG, NAN = OutcomeKind.WRONG_RESULT, OutcomeKind.NAN
BOUNDS, RANDOM = OutcomeKind.OUT_OF_BOUNDS, OutcomeKind.NONDETERMINISTIC
KEPT = "watched|altered in place|replayed|changing"

RIGHT = {
    "adamw": ("right", "backwards"),
    "top_k": ("right", "last_of_equal_ones"),
    "histogram": ("right", "by_parts"),
    "int8_gemv": ("right", "by_fours"),
    "layernorm_backward": ("right", "backwards"),
    "numbers": ("right", "backwards"),
}
Expected: TypeAlias = "Mapping[str, Mapping[str, tuple[tuple[OutcomeKind, ...], str]]]"
EXPECTED: Expected = {
    "adamw": {
        "no_update": ((WRONG,), "p is off by"),
        "keeps_v": ((WRONG,), "v is off by"),
        "updates_twice": ((WRONG,), "p is off by"),
        "twice_when_timed": ((WRONG, RANDOM), "is off by|differ"),
        "from_the_launch_before": ((WRONG, RANDOM), "is off by|differ"),
        "step_of_one": ((WRONG,), "p is off by"),
        "counts_launches": ((WRONG, RANDOM), "p is off by|p differ"),
        "lr_of_the_default": ((WRONG,), r"lr=1e-05,.*p is off by"),
        "old_v": ((WRONG,), "p is off by"),
        "decays_the_new_p": ((WRONG,), "p is off by"),
        "loses_the_last": ((WRONG,), "p is off by"),
        "moves_m_only": ((WRONG,), "p is off by"),
        "one_behind": ((BOUNDS,), "wrote outside m"),
        "skips_what_it_did": ((WRONG,), "updated normal inputs: p is off by"),
        "remembers_the_result": ((WRONG,), KEPT),
    },
    "top_k": {
        "same_place_twice": ((WRONG,), "same refuses the outputs"),
        "one_place_behind": ((WRONG,), "same refuses the outputs|which is not of 0 to"),
        "not_in_order": ((WRONG,), "same refuses the outputs; values"),
        "second_best": ((WRONG,), "same refuses the outputs"),
        "starts_at_zero": ((WRONG,), "same refuses the outputs"),
        "no_places": ((WRONG,), "which is not of 0 to .* elements of places were never written"),
        "place_of_minus_one": ((WRONG,), "is -1, which is not of 0 to"),
        "wild_place": ((WRONG,), "is 1099511627776, which is not of 0 to"),
        "any_tie_by_turns": ((RANDOM,), "differ between two equal launches"),
        "values_of_others": ((WRONG,), "same refuses the outputs; values"),
    },
    "histogram": {
        "starts_at_zero": ((WRONG,), "counts is off by"),
        "loses_the_last": ((WRONG,), "counts is off by 1"),
        "counts_in_16_bits": ((WRONG,), "counts is off by"),
        "counts_in_8_bits": ((WRONG,), "counts is off by"),
        "twice": ((WRONG,), "counts is off by"),
        "no_last_bin": ((WRONG,), "counts is off by"),
        "adds_to_the_launch_before": ((WRONG, RANDOM), "counts"),
        "one_behind": ((BOUNDS,), "wrote outside counts"),
        "sums_in_float": ((WRONG,), r"counts\[\d+\] is \d+ instead of \d+;"),
    },
    "int8_gemv": {
        "sums_in_16_bits": ((WRONG,), "is off by"),
        "products_in_8_bits": ((WRONG,), "is off by"),
        "unsigned_weights": ((WRONG,), "is off by"),
        "least_is_minus_127": ((WRONG,), "is off by"),
        "loses_the_tail": ((WRONG,), "is off by"),
        "scale_of_the_first": ((WRONG,), "out is off by"),
        "sums_in_float": ((WRONG,), "sums is off by"),
        "no_sums": ((WRONG,), "sums is off by"),
        "changes_x": ((BOUNDS,), "changed its input x"),
    },
    "layernorm_backward": {
        "no_mean_term": ((WRONG,), "dx is off by"),
        "no_norm_term": ((WRONG,), "dx is off by"),
        "adds_to_what_is_there": ((NAN,), "dweight are NaN"),
        "last_row_alone": ((WRONG,), "dweight is off by"),
        "weight_left_out": ((WRONG,), "dx is off by"),
        "divides_by_rows": ((WRONG,), "dx is off by"),
        "sums_in_half": ((WRONG,), "dx is off by"),
        "rstd_of_the_first": ((WRONG,), "is off by"),
        "no_dbias": ((NAN,), "dbias are NaN"),
    },
    "numbers": {
        "unsigned_codes": ((WRONG,), "total is off by"),
        "clamps_at_126": ((WRONG,), "total is off by 1"),
        "clamps_at_minus_127": ((WRONG,), "total is off by 1"),
        "doubles_and_wraps": ((WRONG,), "twice is off by"),
        "doubles_in_int8": ((WRONG,), "twice is off by"),
        "starts_at_2_to_62": ((WRONG,), "least is off by"),
        "keys_in_double": ((WRONG,), "least is off by"),
        "counts_in_a_bool": ((WRONG,), r"any\[\d+\] is \d+ instead of 1"),
        "only_writes_true": ((WRONG,), r"any\[\d+\] is 165 instead of 0"),
        "sees_all_ones": ((WRONG,), "is off by"),
        "sums_in_float": ((WRONG,), "mean is off by"),
        "reads_floats": ((WRONG,), "mean is off by"),
        "rounds_the_mean_to_float": ((WRONG,), "mean is off by"),
        "constant_in_float": ((WRONG,), "shifted is off by"),
        "expf": ((WRONG,), "shifted is off by"),
        "loses_the_last": ((WRONG,), "mean is off by"),
        "conjugates_both": ((WRONG,), "squares is off by"),
        "conjugates_none": ((WRONG,), "squares is off by"),
        "swaps_parts": ((WRONG,), "squares is off by"),
        "real_part_only": ((NAN,), "never written"),
        "products_in_half": ((WRONG,), "squares is off by"),
        "one_bool_behind": ((BOUNDS,), "wrote outside any"),
        "one_part_behind": ((BOUNDS,), "wrote outside squares"),
        "changes_a_mask": ((BOUNDS,), "changed its input seen"),
    },
}

RIGHT_ON_A_GPU = {
    "adamw": ("right", "backwards"),
    "top_k": ("right", "last_of_equal_ones"),
    "histogram": ("right", "by_blocks"),
    "int8_gemv": ("right", "byte_by_byte"),
    "layernorm_backward": ("right", "backwards"),
    "numbers": ("right", "backwards"),
}
EXPECTED_ON_A_GPU: Expected = {
    "adamw": {
        "no_update": ((WRONG,), "p is off by"),
        "keeps_v": ((WRONG,), "p is off by|v is off by"),
        "updates_twice": ((WRONG,), "p is off by"),
        "from_the_launch_before": ((WRONG, RANDOM), "is off by|differ"),
        "step_of_one": ((WRONG,), "p is off by"),
        "counts_launches": ((WRONG, RANDOM), "p is off by|p differ"),
        "loses_the_last": ((WRONG,), "p is off by"),
        "one_behind": ((BOUNDS,), "wrote outside m"),
        "skips_what_it_did": ((WRONG, RANDOM), "updated normal inputs: p is off by|m differ"),
    },
    "top_k": {
        "same_place_twice": ((WRONG,), "same refuses the outputs"),
        "not_in_order": ((WRONG,), "same refuses the outputs; values"),
        "no_places": ((WRONG,), "which is not of 0 to .* elements of places were never written"),
        "wild_place": ((WRONG,), "is 1099511627776, which is not of 0 to"),
        "any_tie_by_turns": ((RANDOM,), "differ between two equal launches"),
        "first_warp_only": ((WRONG,), "same refuses the outputs"),
    },
    "histogram": {
        "without_atomics": ((WRONG, RANDOM), "counts"),
        "loses_the_last": ((WRONG,), "counts is off by 1"),
        "twice": ((WRONG,), "counts is off by"),
        "no_last_bin": ((WRONG,), "counts is off by"),
        "one_behind": ((BOUNDS,), "wrote outside counts"),
        "blocks_of_7_bits": ((WRONG,), "counts is off by"),
    },
    "int8_gemv": {
        "unsigned_weights": ((WRONG,), "is off by"),
        "loses_the_tail": ((WRONG,), "is off by"),
        "scale_of_the_first": ((WRONG,), "out is off by"),
        "sums_in_half": ((WRONG,), "is off by"),
        "no_sums": ((WRONG,), "sums is off by"),
    },
    "layernorm_backward": {
        "no_mean_term": ((WRONG,), "dx is off by"),
        "no_norm_term": ((WRONG,), "dx is off by"),
        "adds_to_what_is_there": ((NAN,), "dweight are NaN"),
        "last_row_alone": ((WRONG,), "dweight is off by"),
        "weight_left_out": ((WRONG,), "dx is off by"),
    },
    "numbers": {
        "unsigned_codes": ((WRONG,), "total is off by"),
        "doubles_and_wraps": ((WRONG,), "twice is off by"),
        "starts_at_2_to_62": ((WRONG,), "least is off by"),
        "counts_in_a_bool": ((WRONG,), r"any\[\d+\] is \d+ instead of 1"),
        "only_writes_true": ((WRONG,), r"any\[\d+\] is 165 instead of 0"),
        "sums_in_float": ((WRONG,), "mean is off by"),
        "reads_floats": ((WRONG,), "mean is off by"),
        "expf_of_double": ((WRONG,), "shifted is off by"),
        "conjugates_both": ((WRONG,), "squares is off by"),
        "real_part_only": ((NAN,), "never written"),
        "one_bool_behind": ((BOUNDS,), "wrote outside any"),
    },
}
