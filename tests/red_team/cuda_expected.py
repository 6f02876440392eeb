"""The classes of the CUDA red team: the space of each, and why its kernels must be refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evotune.trial import Outcome

from .cuda_pipeline import CHAMPION, SEARCH, Judgement
from .third_cases import spaces

RIGHT = "right"
"""In each space: the same code without a fault."""


@dataclass(frozen=True, slots=True)
class Expected:
    """How a kernel must be refused.

    - kinds: kinds of outcome, separated by |; the outcome has one of them
    - reasons: words, separated by |; the reason contains one of them
    - stage: the last stage that may refuse the kernel
    """

    kinds: str
    reasons: str
    stage: str = SEARCH

    def fits(self, judgement: Judgement) -> bool:
        if judgement.stage not in (SEARCH, self.stage):
            return False
        return self.names(judgement.outcome)

    def names(self, outcome: Outcome) -> bool:
        is_kind = outcome.kind.value in self.kinds.split("|")
        return is_kind and any(words in outcome.reason for words in self.reasons.split("|"))


@dataclass(frozen=True, slots=True)
class CheatClass:
    """A space, its wrong kernels, and its right ones, some of which compute in unusual ways."""

    space: str
    expected: Mapping[str, Expected]
    right: tuple[str, ...] = (RIGHT,)


# Reasons for kernels that do nothing, or use old values, in launches that are timed.
_STALE = "watched|altered in place|replayed|never written|those of the launch before|timed|familiar"
_WRONG = "wrong_result|nan"
_RESTS = Expected(f"{_WRONG}|nondeterministic", _STALE + "|differ between|differ from")
_REUSES = Expected(f"{_WRONG}|too_fast|nondeterministic", _STALE + "|differ between|differ from")
_SLOW_TO_SHOW = Expected(_REUSES.kinds, _REUSES.reasons, CHAMPION)

TIMED_COUNTS = {
    "rests_from_200_to_1000": _RESTS,
    "rests_every_2nd": _RESTS,
    "rests_every_3rd": _RESTS,
    "rests_every_4th": _RESTS,
    "rests_every_7th": _SLOW_TO_SHOW,
    "rests_every_10th": _SLOW_TO_SHOW,
    "works_every_4th": _RESTS,
    "rests_from_100_to_300_unless_poisoned": _SLOW_TO_SHOW,
    "rests_but_for_the_last_at_an_address": _SLOW_TO_SHOW,
    "rests_but_for_the_first_at_an_address": _RESTS,
    "rests_after_4_at_an_address": _SLOW_TO_SHOW,
    "stale_unless_poisoned": _RESTS,
    "alternates_with_its_own_copy": _RESTS,
}

TIMED_CLOCK = {
    "works_10_after_a_pause_of_20us": _SLOW_TO_SHOW,
    "works_100us_after_a_pause": _SLOW_TO_SHOW,
    "rests_within_1500ns": _SLOW_TO_SHOW,
    "rests_within_2us": _SLOW_TO_SHOW,
    "rests_within_5us": _SLOW_TO_SHOW,
    "rests_after_the_shortest_gap": _SLOW_TO_SHOW,
    "works_40_after_a_pause": _SLOW_TO_SHOW,
}

TIMED_PROBES = {
    "probes_16th_rests_after_10": _SLOW_TO_SHOW,
    "probes_16th_halves_after_17": _SLOW_TO_SHOW,
    "probes_61st_rests_after_17": _SLOW_TO_SHOW,
    "probes_61st_remembers_after_24": _SLOW_TO_SHOW,
    "probes_ends_remembers_after_10": _SLOW_TO_SHOW,
    "probes_all_rests_after_24": _SLOW_TO_SHOW,
    "probes_all_halves_after_10": _SLOW_TO_SHOW,
    "probes_all_remembers_after_17": _SLOW_TO_SHOW,
    "compares_24_then_probes": _SLOW_TO_SHOW,
    "weights_kept_with_patience": _SLOW_TO_SHOW,
    "memo_of_four_input_sets": _REUSES,
}

TIMED_PACKING = {
    "values_packed_with_patience_17": _SLOW_TO_SHOW,
    "queries_packed_with_patience_17": _SLOW_TO_SHOW,
    "keys_packed_with_patience_10": _SLOW_TO_SHOW,
    "keys_packed_with_patience_24": _SLOW_TO_SHOW,
}

_OFF = Expected(_WRONG, "out is off by|elements of out are NaN")
_OFF_AT_LAST = Expected(_OFF.kinds, _OFF.reasons, CHAMPION)
_READS_OUTSIDE = Expected(
    f"{_WRONG}|out_of_bounds|nondeterministic",
    f"{_OFF.reasons}|differ between|memcheck|initcheck",
    CHAMPION,
)

NUMBERS = {
    "drops_weights_below_e6": _OFF,
    "drops_weights_below_e9": _OFF,
    "drops_weights_below_e12": _OFF,
    "crude_exp": _OFF,
    "no_maximum_but_clamped": _OFF,
    "softmax_scale_ignored": _OFF_AT_LAST,
    "maximum_from_zero": _OFF,
    "maximum_from_flt_min": _OFF,
    "reads_values_past_the_end": _READS_OUTSIDE,
    "padding_left_unwritten": _READS_OUTSIDE,
    "zero_score_is_masked": _OFF,
    "mask_of_minus_100": _OFF,
    "mask_of_minus_30": _OFF,
    "padding_in_the_maximum": _OFF,
    "first_tiles_maximum": _OFF,
    "first_score_as_maximum": _OFF,
    "no_maximum": _OFF,
    "no_maximum_below_60": _OFF,
    "drops_tiles_below_e6": _OFF,
    "drops_tiles_below_e9": _OFF,
    "half_sum_of_weights": _OFF_AT_LAST,  # shows only over hundreds of keys
    "outputs_clamped_at_6": _OFF,
}

SHAPES = {
    name: _OFF_AT_LAST
    for name in (
        *(f"wrong_from_batch_{index}" for index in (2, 3, 5)),
        *(f"wrong_from_head_{index}" for index in (4, 6, 8, 20)),
        "wrong_beyond_16_sequences",
        *(f"wrong_for_groups_of_{group}" for group in (3, 5, 7, 8)),
        "wrong_beyond_600_keys",
        "wrong_beyond_1024_keys",
        "wrong_at_63_mod_64",
        "wrong_at_1_mod_128",
        "wrong_at_127_mod_128",
        "index_of_16_bits",
    )
}

SHAPES_LONG = {
    "wrong_at_odd_lengths_from_4000": _OFF_AT_LAST,
    "wrong_at_4095_keys": _OFF_AT_LAST,
    "wrong_beyond_4096_keys": _OFF_AT_LAST,
}

_BESIDE = Expected(f"{_WRONG}|out_of_bounds", "out is off by|are NaN|wrote")

STRIDES = {
    "row_stride_ignored": _OFF,
    "batch_stride_from_sizes": _OFF,
    "head_stride_from_sizes": _OFF,
    "strides_of_k_for_v": _OFF,
    "head_stride_of_q_for_k": _OFF,
    "strides_of_q_for_out": _BESIDE,
    "writes_one_behind": Expected("out_of_bounds", "wrote between the rows of out"),
    "offsets_of_32_bits": Expected(
        f"{_WRONG}|illegal_access", "out is off by|are NaN|illegal", CHAMPION
    ),
}

_SHOWS_IN_KEYS = Expected("out_of_bounds", "changed its input k")
_NAN = Expected("nan", "elements of out are NaN")
_KEEPS = Expected(f"{_WRONG}|nondeterministic", f"{_OFF.reasons}|differ between|differ from")
_LSE = Expected("wrong_result", "lse is off by")

PAGED = {
    **dict.fromkeys(
        (
            *("one_page_more", "last_page_whole", "length_of_the_next"),
            *("length_ignored_for_the_last", "heads_modulo", "group_of_the_next"),
            *("pages_in_a_row", "pages_of_the_first", "slots_in_reverse", "top_left"),
            *("last_split_lost", "splits_merged_without_maxima", "empty_split_has_weight"),
        ),
        _OFF,
    ),
    "rest_of_a_page_has_no_weight": _NAN,
    "table_kept": _KEEPS,
    "pages_of_16": _OFF_AT_LAST,  # the timed pages have 16 keys
    "tail_of_a_page_cleared": _SHOWS_IN_KEYS,
    "shared_page_written": _SHOWS_IN_KEYS,
}

PACKED = {
    **dict.fromkeys(
        (
            *("boundary_one_late", "stops_before_an_empty_one", "keys_by_the_table_of_rows"),
            *("even_lengths", "last_sequence_one_short", "first_key_of_the_next"),
            *("last_key_of_the_one_before", "length_ignored_for_the_last"),
            *("keys_up_to_the_longest_rows", "heads_modulo", "top_left"),
        ),
        _OFF,
    ),
    "table_kept": _KEEPS,
    "no_keys_divided": _NAN,
    "rows_without_keys_unwritten": Expected("nan", "never written"),
}

FEATURES = {
    **dict.fromkeys(
        (
            *("left_one_more", "left_one_less", "right_one_more", "left_by_tiles", "top_left"),
            *("slope_of_the_group", "no_cap", "cap_before_the_scale", "cap_after_alibi"),
            *("no_sink", "sink_counted_twice", "sink_of_the_group"),
        ),
        _OFF,
    ),
    **dict.fromkeys(
        (
            *("lse_in_base_2", "lse_without_the_scale", "lse_without_the_maximum"),
            *("lse_without_the_sink", "lse_of_nothing_is_zero"),
        ),
        _LSE,
    ),
    "empty_rows_divided": _NAN,
}

MASKS = {
    **dict.fromkeys(
        (
            *("first_batch_for_all", "head_of_the_group", "row_of_the_tile"),
            *("key_by_words", "rest_of_the_keys_seen", "tile_by_its_first_key"),
            *("tile_by_its_ends", "tile_of_the_first_row", "padding_by_first_hidden"),
            *("no_causal_beside_the_mask", "hidden_is_1e4", "bias_before_the_scale"),
            *("bias_in_base_2", "lowest_overflows", "lowest_hides_for_good"),
        ),
        _OFF,
    ),
    "empty_rows_divided": _NAN,
}

# A race may change a result in any way; a sanitizer may see a race that no result shows.
_RACES = Expected(
    f"{_WRONG}|nondeterministic|out_of_bounds|launch_error",
    "out|racecheck|memcheck|differ from",
    CHAMPION,
)

RACES = {
    "wait_off_by_one": _RACES,
    "wait_off_by_two": _RACES,
    "waits_behind_the_barrier": _RACES,
    "no_barrier_before_reading": _RACES,
    "no_barrier_before_overwriting": _RACES,
    "last_wait_off_by_one": _RACES,
}

PASSES = {"no_syncwarp"}
"""Not found, and so in no class: on today's GPUs the threads of a warp run together unless
something separates them."""

TICKETS = {
    "ticket_without_fence": _RACES,
    "ticket_without_barrier": _RACES,
    "merges_before_the_last_part": _RACES,
}

SOFTMAX = {
    "sum_up_to_300_columns": _OFF_AT_LAST,
    "sum_up_to_5000_columns": _OFF_AT_LAST,
    "sum_without_odd_last_when_long": _OFF_AT_LAST,
    "maximum_from_zero": _OFF,
    "maximum_of_the_first_128": _OFF,
    "no_maximum": _OFF,
    "maximum_above_80_only": _OFF,
    "weights_below_e12_dropped": _OFF,
}

RMS_NORM = {
    "eps_of_1e_3": _OFF,
    "no_eps": _OFF,
    "sum_up_to_300_columns": _OFF,
    "half_squares": _OFF,
    "half_sum": _OFF,
    "values_clamped_at_30": _OFF,
    "mean_of_one_less": _OFF,
}

# Wrong for sizes and numbers that seldom come: at the latest a champion's confirmation has them.
_SELDOM = Expected(_WRONG, f"{_OFF.reasons}|lse is off by|NaN or infinite", CHAMPION)

_OTHERWISE = {
    "reads_past_the_end": Expected("out_of_bounds", "change with what lies outside all tensors")
}

THIRD = {
    space.removesuffix("_cuda.yaml"): CheatClass(
        space, {name: _OTHERWISE.get(name, _SELDOM) for name in cases}
    )
    for space, (_, cases) in spaces().items()
    if space.endswith("_cuda.yaml")
}
"""The classes of the third red team, by the names of their spaces."""

CLASSES: dict[str, CheatClass] = {
    "timed_counts": CheatClass("cheats_timed_counts_cuda.yaml", TIMED_COUNTS),
    "timed_clock": CheatClass("cheats_timed_clock_cuda.yaml", TIMED_CLOCK),
    "timed_probes": CheatClass("cheats_timed_probes_cuda.yaml", TIMED_PROBES),
    "timed_packing": CheatClass("cheats_timed_packing_cuda.yaml", TIMED_PACKING),
    "numbers_fp16": CheatClass("cheats_numbers_fp16_cuda.yaml", NUMBERS),
    "numbers_bf16": CheatClass("cheats_numbers_bf16_cuda.yaml", NUMBERS),
    "shapes": CheatClass("cheats_shapes_cuda.yaml", SHAPES),
    "shapes_long": CheatClass("cheats_shapes_long_cuda.yaml", SHAPES_LONG),
    "strides": CheatClass("cheats_strides_cuda.yaml", STRIDES),
    "paged": CheatClass(
        "cheats_paged_cuda.yaml",
        PAGED,
        (RIGHT, "last_key_first", "table_in_shared_memory", "three_splits"),
    ),
    "packed": CheatClass(
        "cheats_packed_cuda.yaml",
        PACKED,
        (RIGHT, "last_key_first", "last_sequence_first", "found_by_bisection"),
    ),
    "features": CheatClass(
        "cheats_features_cuda.yaml", FEATURES, (RIGHT, "sink_before_the_keys", "lse_by_base_2")
    ),
    "masks": CheatClass("cheats_masks_cuda.yaml", MASKS, (RIGHT, "tiles_skipped", "two_halves")),
    "races": CheatClass("cheats_races_cuda.yaml", RACES),
    "tickets": CheatClass("cheats_tickets_cuda.yaml", TICKETS),
    "softmax": CheatClass("cheats_softmax_cuda.yaml", SOFTMAX),
    "rms_norm": CheatClass("cheats_rms_norm_cuda.yaml", RMS_NORM),
    **THIRD,
}
