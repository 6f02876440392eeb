"""The third red team's wrong kernels: for each, a case on which it is wrong, and one next to it on
which it is right.

The C++ kernels and the CUDA ones of a topic have the same names and the same cases. The topic is
the middle of a space's name: `third_cpu_sizes.yaml` and `third_sizes_fp16_cuda.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from evotune.problems.problem import Tensors
from evotune.trial import Value

Change = Callable[[Tensors], None]
"""Changes normal inputs in place."""


def _as_they_are(_inputs: Tensors) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Point:
    """A case and its inputs. `behind` is what stands in memory behind x."""

    shape: Mapping[str, Value]
    change: Change = _as_they_are
    variant: Mapping[str, Value] = field(default_factory=dict)
    behind: float = float("nan")


@dataclass(frozen=True, slots=True)
class Both:
    wrong: Point
    right: Point


# --- attention: sizes -----------------------------------------------------------------------------


def _last_key_counts(inputs: Tensors) -> None:
    """The last key has about half of each row's weight."""
    q, k = inputs["q"], inputs["k"]
    q *= 0.1
    k[:, :, -1, 0] = 4.0 * k.shape[3] ** 0.5
    q[..., 0] = torch.log(torch.tensor(max(2.0, k.shape[2] - 1.0))) / 4.0


def _sizes(batch: int, heads: int, kv_heads: int, rows: int, keys: int) -> Point:
    shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads}
    shape |= {"seq_len_q": rows, "seq_len_k": keys}
    return Point(shape, _last_key_counts, {"causal": False})


SIZES = {
    "one_full_row_with_groups": Both(_sizes(1, 4, 2, 1, 50), _sizes(1, 4, 2, 2, 50)),
    "one_full_row_with_groups_of_5": Both(_sizes(1, 10, 2, 1, 50), _sizes(1, 8, 2, 1, 50)),
    "long_with_many_heads": Both(_sizes(1, 5, 5, 2, 601), _sizes(1, 4, 4, 2, 601)),
    "long_with_many_batches": Both(_sizes(3, 1, 1, 2, 601), _sizes(2, 1, 1, 2, 601)),
    "long_with_groups_of_8": Both(_sizes(1, 8, 1, 2, 601), _sizes(1, 8, 1, 2, 600)),
    "eight_key_heads_with_groups": Both(_sizes(1, 16, 8, 3, 20), _sizes(1, 14, 7, 3, 20)),
    "heads_32_to_8": Both(_sizes(1, 32, 8, 3, 20), _sizes(1, 32, 16, 3, 20)),
    "twice_as_many_rows_as_keys": Both(_sizes(1, 2, 2, 40, 20), _sizes(1, 2, 2, 41, 20)),
    "keys_63_mod_64_with_groups_of_4": Both(_sizes(1, 4, 1, 3, 127), _sizes(1, 4, 2, 3, 127)),
    "rows_127_in_the_last_batch": Both(_sizes(2, 1, 1, 127, 9), _sizes(1, 1, 1, 127, 9)),
    "multiples_of_384_keys": Both(_sizes(1, 1, 1, 3, 384), _sizes(1, 1, 1, 3, 383)),
    "keys_1_mod_256": Both(_sizes(1, 1, 1, 3, 257), _sizes(1, 1, 1, 3, 256)),
}
LENGTHS = {
    "exactly_2047_keys": Both(_sizes(1, 1, 1, 2, 2047), _sizes(1, 1, 1, 2, 2046)),
    "multiples_of_384_keys": Both(_sizes(1, 1, 1, 2, 768), _sizes(1, 1, 1, 2, 767)),
    "keys_1_mod_256": Both(_sizes(1, 1, 1, 2, 1025), _sizes(1, 1, 1, 2, 1024)),
    "long_with_groups": Both(_sizes(1, 4, 1, 1, 601), _sizes(1, 4, 2, 1, 601)),
}

# --- attention: values ----------------------------------------------------------------------------

_QUERY = 200.0


def _scores(of_keys: Callable[[torch.Tensor], torch.Tensor], values: float = 1.0) -> Change:
    """All rows have these scores: a function of each key's number."""

    def change(inputs: Tensors) -> None:
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        q.zero_()
        k.zero_()
        q[..., 0] = _QUERY
        scores = of_keys(torch.arange(k.shape[2]))
        k[..., 0] = scores.float() * k.shape[3] ** 0.5 / _QUERY
        v *= values

    return change


def _level(score: float) -> Change:
    return _scores(lambda key: torch.full_like(key, score, dtype=torch.float32))


def _hidden_high(score: float) -> Change:
    """Scores of 0 in the first half, and this in the other, which the first half does not see."""
    return _scores(lambda key: torch.where(key < len(key) // 2, 0.0, score))


def _first_above(gap: float, *, others: float = 1.0) -> Change:
    """The first key is so far above the others. Its value is 0; theirs are about `others`."""

    def change(inputs: Tensors) -> None:
        _scores(lambda key: torch.where(key == 0, 0.0, -gap))(inputs)
        inputs["v"][:, :, 0] = 0.0
        inputs["v"][:, :, 1:] = others

    return change


def _beyond_400(inputs: Tensors) -> None:
    _scores(lambda key: torch.where(key == 0, 600.0, 500.0))(inputs)


def _large_values(inputs: Tensors) -> None:
    inputs["v"] *= 3000.0


def _opposite_values(inputs: Tensors) -> None:
    """Equal weights, and values that cancel over parts of keys, but for about 1."""
    _level(0.0)(inputs)
    v = inputs["v"]
    v *= 0.1
    v += 1.0
    half = v.shape[2] // 2
    v[:, :, :half] += 1000.3
    v[:, :, half:] -= 1000.3


def _of_values(change: Change, *, causal: bool = False, keys: int = 50) -> Point:
    return Point({"batch": 1, "heads": 2, "seq_len": keys}, change, {"causal": causal})


def _values(change: Change, *, right: Change = _as_they_are, causal: bool = False) -> Both:
    return Both(_of_values(change, causal=causal), _of_values(right, causal=causal))


VALUES = {
    "maximum_from_300": _values(_level(-600.0), right=_level(-290.0)),
    "maximum_from_1000": _values(_level(-1300.0), right=_level(-900.0)),
    "maximum_from_10000": _values(_level(-20000.0), right=_level(-9000.0)),
    "maximum_from_50000": _values(_level(-60000.0), right=_level(-40000.0)),
    "mask_adds_400": _values(_hidden_high(500.0), right=_hidden_high(200.0), causal=True),
    "mask_adds_1000": _values(_hidden_high(1200.0), right=_hidden_high(800.0), causal=True),
    "mask_adds_10000": _values(_hidden_high(15000.0), right=_hidden_high(8000.0), causal=True),
    "scores_within_400": _values(_beyond_400, right=_level(390.0)),
    "values_within_1000": _values(_large_values),
    "garbage_below_400": _values(_first_above(500.0), right=_first_above(390.0)),
    "garbage_below_1000": _values(_first_above(1200.0), right=_first_above(900.0)),
    "drops_weights_below_e9": _values(_first_above(9.5, others=30.0)),
    "drops_weights_below_e15": _values(_first_above(15.05, others=30.0)),
    "no_maximum_within_1000": _values(_level(900.0), right=_level(500.0)),
    "parts_in_half_precision": Both(
        _of_values(_opposite_values, keys=384), _of_values(_opposite_values, keys=90)
    ),
    "equal_maxima_count_once": _values(_level(3.0), right=_level(0.0)),
}


def _sinks(sink: float) -> Point:
    def change(inputs: Tensors) -> None:
        inputs["q"].zero_()
        inputs["sinks"].fill_(sink)

    shape: dict[str, Value] = {"batch": 1, "heads": 2, "seq_len": 9}
    return Point(shape, change, {"causal": True, "sinks": True, "lse": True})


SINKS = {
    "sink_lost_9_below": Both(_sinks(-9.5), _sinks(-8.5)),
    "sink_lost_16_bits_below": Both(_sinks(-11.5), _sinks(-10.5)),
}

# --- pages and packed sequences -------------------------------------------------------------------


def _paged(  # noqa: PLR0917
    sequences: int, queries: int, heads: int, kv_heads: int, longest: int, page_size: int
) -> Point:
    shape = {"sequences": sequences, "queries": queries, "heads": heads, "kv_heads": kv_heads}
    return Point({**shape, "longest": longest, "page_size": page_size}, variant={"causal": True})


PAGED = {
    "groups_of_6": Both(_paged(2, 1, 12, 2, 9, 4), _paged(2, 1, 10, 2, 9, 4)),
    "groups_of_7": Both(_paged(2, 1, 14, 2, 9, 4), _paged(2, 1, 12, 2, 9, 4)),
    "groups_of_16": Both(_paged(2, 1, 16, 1, 9, 4), _paged(2, 1, 15, 1, 9, 4)),
    "five_key_heads": Both(_paged(2, 1, 5, 5, 9, 4), _paged(2, 1, 4, 4, 9, 4)),
    "ninth_sequence": Both(_paged(9, 1, 1, 1, 9, 4), _paged(8, 1, 1, 1, 9, 4)),
    "keys_from_512": Both(_paged(2, 1, 1, 1, 512, 16), _paged(2, 1, 1, 1, 511, 16)),
    "sixteen_queries": Both(_paged(2, 16, 1, 1, 40, 4), _paged(2, 15, 1, 1, 40, 4)),
    "pages_from_32767": Both(_paged(8, 1, 1, 1, 4100, 1), _paged(7, 1, 1, 1, 4100, 1)),
    "pages_of_32": Both(_paged(2, 1, 1, 1, 40, 32), _paged(2, 1, 1, 1, 40, 31)),
    "pages_of_128": Both(_paged(2, 1, 1, 1, 140, 128), _paged(2, 1, 1, 1, 140, 64)),
    "pages_of_256": Both(_paged(2, 1, 1, 1, 140, 256), _paged(2, 1, 1, 1, 140, 128)),
}


def _packed(
    sequences: int, heads: tuple[int, int], rows: tuple[int, int], keys: tuple[int, int]
) -> Point:
    """`heads` of queries and of keys; `rows` and `keys`: of the longest sequence, and of all."""
    shape = {"sequences": sequences, "heads": heads[0], "kv_heads": heads[1]}
    shape |= {"longest_q": rows[0], "tokens_q": rows[1], "longest_k": keys[0], "tokens_k": keys[1]}
    return Point(shape, variant={"causal": True})


def _of_group(group: int) -> Point:
    return _packed(2, (2 * group, 2), (5, 8), (9, 14))


PACKED = {
    **{
        f"groups_of_{group}": Both(_of_group(group), _of_group(group - 1))
        for group in (5, 6, 7, 16)
    },
    "eighteenth_sequence": Both(
        _packed(18, (1, 1), (5, 90), (9, 160)), _packed(17, (1, 1), (5, 85), (9, 150))
    ),
    "rows_beyond_200": Both(
        _packed(2, (1, 1), (201, 250), (9, 14)), _packed(2, (1, 1), (200, 250), (9, 14))
    ),
    "keys_beyond_400": Both(
        _packed(2, (1, 1), (5, 8), (401, 450)), _packed(2, (1, 1), (5, 8), (400, 450))
    ),
    "tokens_from_8192": Both(
        _packed(9, (1, 1), (1000, 8500), (9, 80)), _packed(9, (1, 1), (1000, 8192), (9, 80))
    ),
}

# --- users' problems ------------------------------------------------------------------------------


def _rows(rows: int, columns: int, change: Change = _as_they_are, **more: float) -> Point:
    return Point({"rows": rows, "columns": columns}, change, **more)  # type: ignore[arg-type]


def _last_counts(inputs: Tensors) -> None:
    """The last column is above the others, or has a code that no other has."""
    for name, value in inputs.items():
        if value.is_floating_point():
            value[:, -1] = 20.0
        else:
            inputs[name] = value // 2
            inputs[name][:, -1] = 255


def _all(value: float) -> Change:
    def change(inputs: Tensors) -> None:
        inputs["x"].fill_(value)

    return change


def _others(value: float, name: str = "x") -> Change:
    """All columns but the first have this value."""

    def change(inputs: Tensors) -> None:
        inputs[name][:, 0] = 0.0
        inputs[name][:, 1:] = value

    return change


def _two(first: tuple[int, float], second: tuple[int, float]) -> Change:
    """Two columns stand out of columns that are -1."""

    def change(inputs: Tensors) -> None:
        inputs["x"].fill_(-1.0)
        for column, value in (first, second):
            inputs["x"][:, column] = value

    return change


ROWS = {
    "both_sizes_beyond_1000": Both(
        _rows(1001, 1001, _last_counts), _rows(1000, 1001, _last_counts)
    ),
    "multiples_of_4096_columns": Both(_rows(2, 8192, _last_counts), _rows(2, 8191, _last_counts)),
    "elements_beyond_2_24": Both(_rows(280, 60001, _last_counts), _rows(270, 60001, _last_counts)),
    "columns_from_70000": Both(_rows(2, 70000, _last_counts), _rows(2, 69999, _last_counts)),
}
MASKED = {
    "garbage_below_400": Both(
        _rows(2, 50, _others(-1e4, "mask")), _rows(2, 50, _others(-300.0, "mask"))
    ),
    "garbage_below_1000": Both(
        _rows(2, 50, _others(-3e38, "mask")), _rows(2, 50, _others(-900.0, "mask"))
    ),
}
SOFTMAX = {
    **ROWS,
    "maximum_from_1000": Both(_rows(2, 50, _all(-1300.0)), _rows(2, 50, _all(-900.0))),
    "maximum_from_10000": Both(_rows(2, 50, _all(-20000.0)), _rows(2, 50, _all(-9000.0))),
    "maximum_from_50000": Both(_rows(2, 50, _all(-1e6)), _rows(2, 50, _all(-40000.0))),
    "garbage_below_400": Both(_rows(2, 50, _others(-500.0)), _rows(2, 50, _others(-390.0))),
    "garbage_below_1000": Both(_rows(2, 50, _others(-1e4)), _rows(2, 50, _others(-900.0))),
}
ROW_SUM = {
    **ROWS,
    "saturates_at_1e6": Both(_rows(2, 4000, _all(300.0)), _rows(2, 3000, _all(300.0))),
}
INT32 = {"in_float": Both(_rows(2, 17001, _all(999)), _rows(2, 16001, _all(999)))}
INT64 = {
    "in_double": Both(_rows(2, 20001, _all((1 << 40) - 1)), _rows(2, 8000, _all((1 << 40) - 1)))
}
COUNT64 = {
    "in_32_bit_parts": Both(
        _rows(2, 5000, _all((1 << 20) - 1)), _rows(2, 4000, _all((1 << 20) - 1))
    )
}
_NEXT = float(torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)))
_AFTER_THAT = float(torch.nextafter(torch.tensor(_NEXT), torch.tensor(2.0)))
ARG_MAX = {
    "negative_zero_below_zero": Both(
        _rows(2, 50, _two((5, -0.0), (9, 0.0))), _rows(2, 50, _two((5, 0.0), (9, -0.0)))
    ),
    "neighbours_are_equal": Both(
        _rows(2, 50, _two((5, 1.0), (9, _NEXT))), _rows(2, 50, _two((5, 1.0), (9, _AFTER_THAT)))
    ),
    "later_ties_beyond_1024": Both(
        _rows(2, 3000, _two((5, 1.0), (2000, 1.0))), _rows(2, 3000, _two((5, 1.0), (1000, 1.0)))
    ),
    "places_modulo_65536": Both(
        _rows(2, 70000, _two((5, 1.0), (65536, 2.0))), _rows(2, 70000, _two((5, 1.0), (65535, 2.0)))
    ),
}
MAXIMUM = {
    "reads_past_the_end": Both(_rows(2, 50, behind=1e30), _rows(2, 50)),
}

CASES: dict[str, dict[str, Both]] = {
    "sizes": SIZES,
    "lengths": LENGTHS,
    "values": VALUES,
    "sinks": SINKS,
    "paged": PAGED,
    "packed": PACKED,
    "softmax": SOFTMAX,
    "masked_softmax": MASKED,
    "row_sum": ROW_SUM,
    "row_sum_int32": INT32,
    "row_sum_int64": INT64,
    "row_count_int64": COUNT64,
    "arg_max": ARG_MAX,
    "row_maximum": MAXIMUM,
    "histogram": ROWS,
}
"""By topic and name."""
TYPED = ("sizes", "lengths", "values", "sinks", "paged", "packed")
"""The topics whose CUDA kernels are in float16 and in float32."""
FLOAT32_ONLY = {
    *("drops_weights_below_e15", "parts_in_half_precision"),
    *("sink_lost_9_below", "sink_lost_16_bits_below"),
}
"""In float16 these errors lie within the tolerance, since a right kernel may round weights."""


def spaces() -> dict[str, tuple[str, dict[str, Both]]]:
    """The spaces by file name: topic, and cases of each wrong kernel."""
    found = {f"third_cpu_{topic}.yaml": (topic, cases) for topic, cases in CASES.items()}
    for topic, cases in CASES.items():
        if topic not in TYPED:
            found[f"third_{topic}_cuda.yaml"] = topic, cases
            continue
        narrow = {name: both for name, both in cases.items() if name not in FLOAT32_ONLY}
        if narrow:
            found[f"third_{topic}_fp16_cuda.yaml"] = topic, narrow
        found[f"third_{topic}_fp32_cuda.yaml"] = topic, cases
    return found
