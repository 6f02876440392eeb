"""Makes short cases that execute one length of a kernel; every other size is as small as
possible."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from evotune.problems import attention_features as features
from evotune.problems.attention import Attention
from evotune.problems.attention_features import Features
from evotune.problems.executed_sizes import (
    Pairs,
    Ranges,
    band_ends,
    band_pairs,
    joined_pairs,
    missing_pairs,
)
from evotune.problems.problem import Case, Place, Problem
from evotune.problems.ragged_attention import PagedAttention, RaggedAttention
from evotune.problems.user import UserProblem
from evotune.trial import Value

Made = TypeVar("Made")

SMALL = (1, 3, 8, 64)
"""Values for the other sizes of a user's problem, tried one after the other, because some kernels
take only multiples of a number."""
_FEW_ROWS, _FEW_KEYS = 6, 9
_HALF_LONG = 256
"""With more keys one key in half precision shows on needles alone, one too many on a ramp."""
_LONG = 1200
_MOST_SCORES = 1 << 22
_MOST_OPERATIONS = 1 << 33
MOST_BYTES = 1 << 25
"""The most bytes that a case for a pair of sizes of attention may move in a run's confirmation."""
_MOST_OF_USERS = 1 << 26, 1 << 19  # operations and bytes


def length_names(problem: Problem, kept: Collection[str] = ()) -> tuple[str, ...]:
    """The quantities of a case's place that are lengths. `kept` are symbols that a kernel has
    compiled in."""
    if isinstance(problem, Attention):
        found = ["seq_len_q", "seq_len_k"]
    elif isinstance(problem, PagedAttention):
        found = ["longest"]
    elif isinstance(problem, RaggedAttention):
        found = ["longest_q", "longest_k"]
    elif isinstance(problem, UserProblem):
        found = [name for name in problem.sizes if name not in problem.fixed]
    else:
        found = []
    return tuple(name for name in found if name not in kept)


def is_served_from_one(problem: Problem) -> bool:
    """Whether a package serves all lengths up to a measured one: lengths of sequences, and lengths
    of users' problems, which nothing else serves."""
    return isinstance(problem, RaggedAttention | UserProblem)


def each_upto(problem: Problem) -> int:
    """The length up to which each length is executed. It is smaller for users' problems, whose
    tolerances take longer."""
    return 128 if isinstance(problem, UserProblem) else 512


def ratios_of(problem: Problem, place: Place) -> dict[str, int]:
    """The ratios of sizes that short cases share with a case."""
    has_group = isinstance(problem, Attention | RaggedAttention)
    return {"group": int(place.ranged["group"])} if has_group else {}


def short_case(  # noqa: PLR0917
    problem: Problem, like: Case, name: str, length: int, kept: Collection[str], small: int
) -> Case:
    """A case with this length and with the fixed values, ratios and `kept` symbols of `like`.
    Raises ValueError if there is none. `small`: the value of the other sizes of a user's problem.
    """
    symbols = like.symbols
    if isinstance(problem, UserProblem):
        sizes: dict[str, Value] = {
            size: symbols[size] if size in kept or size in problem.fixed else small
            for size in problem.sizes
        }
        sizes |= {each: symbols[each] for each in problem.ranges}
        flags = {flag: symbols[flag] for flag in problem.flags}
        return problem.case({**sizes, name: length}, flags)
    group = int(symbols["heads"]) // int(symbols["kv_heads"])
    shape: dict[str, Value] = {"heads": group, "kv_heads": 1}
    if {"heads", "kv_heads"} & set(kept):
        shape = {each: symbols[each] for each in ("heads", "kv_heads")}
    shape |= {"head_dim": symbols["head_dim"], "scale": symbols["softmax_scale"]}
    if isinstance(problem, Attention):
        shape |= _dense_sizes(like, name, length, kept)
    elif isinstance(problem, PagedAttention):
        shape |= {"sequences": 1, "longest": length, "page_size": symbols["page_size"]}
        shape["queries"] = symbols["queries"] if "queries" in kept else 1
    else:
        other = {"longest_q": "longest_k", "longest_k": "longest_q"}[name]
        # Causal is bottom right: few rows see all keys.
        lengths = {name: length, other: _FEW_ROWS if name == "longest_k" else _FEW_KEYS}
        shape |= {"sequences": 1, **lengths}
        shape |= {f"tokens_{side}": lengths[f"longest_{side}"] for side in "qk"}
    return problem.case(shape, {"causal": symbols["causal"]})


def _dense_sizes(like: Case, name: str, length: int, kept: Collection[str]) -> Mapping[str, Value]:
    symbols, mine = like.symbols, Features.of(like)
    shape: dict[str, Value] = {"batch": symbols["batch"] if "batch" in kept else 1}
    shape |= {"value_dim": symbols["value_dim"], "layout": symbols["layout"], **mine.told()}
    if features.hides_late_keys(like):  # row i sees no key behind its own: many keys take many rows
        return {**shape, "seq_len": length}
    other = {"seq_len_q": "seq_len_k", "seq_len_k": "seq_len_q"}[name]
    return {**shape, name: length, other: _FEW_ROWS if name == "seq_len_k" else _FEW_KEYS}


def pair_cases(  # noqa: PLR0917
    problem: Problem,
    like: Case,
    met: list[Place],
    ranges: Ranges,
    kept: Collection[str],
    made_of: Callable[[Case], Made | None],
    before: Pairs = MappingProxyType({}),
    most_bytes: int = MOST_BYTES,
) -> Iterator[Made]:
    """Makes a small case for each pair of bands in the ranges that no place in `met` has and that
    is not among the pairs `before`. Yields what `made_of` returns for it, and adds its place to
    `met`; skips cases for which `made_of` returns None because the kernel cannot compute them.
    `most_bytes`: the most bytes that a case of attention may move.
    """
    made_pairs: set[tuple[str, tuple[int, int]]] = set()
    missing = missing_pairs(joined_pairs(before, band_pairs(met)), ranges)
    for one, other, first, second in missing:
        if (f"{one} {other}", (first, second)) in made_pairs:
            continue  # a case for an earlier pair has it
        bands = (one, first), (other, second)
        sizes = {name: _least(name, number, ranges[name]) for name, number in bands}
        fixed = {name for name in sizes if ranges[name][0] == ranges[name][1]}
        for small in SMALL:
            try:
                case = pair_case(problem, like, sizes, set(kept) - fixed, small, most_bytes)
            except ValueError:
                continue
            if (made := made_of(case)) is not None:
                place = problem.place(case)
                met.append(place)
                made_pairs |= {
                    (names, pair) for names, pairs in band_pairs([place]).items() for pair in pairs
                }
                yield made
                break


def _least(name: str, number: int, ends: tuple[int | float, int | float]) -> int:
    """The smallest size of the band within the range, an odd one if there is one."""
    low, high = band_ends(name, number)
    return min(max(low, int(ends[0])) | 1, high, int(ends[1]))


def pair_case(  # noqa: PLR0917
    problem: Problem,
    like: Case,
    sizes: Mapping[str, int],
    kept: Collection[str],
    small: int,
    most_bytes: int,
) -> Case:
    """A small case with these two sizes. Raises ValueError if there is none, for sizes that `kept`
    fixes, for a case that would take long, and for packed and paged attention."""
    if isinstance(problem, RaggedAttention) or set(sizes) & set(kept):
        raise ValueError("no other case has these sizes")
    if isinstance(problem, UserProblem):
        (name, length), *others = sizes.items()
        short = short_case(problem, like, name, length, kept, small)
        whole = {each: short.symbols[each] for each in (*problem.sizes, *problem.ranges)}
        flags = {flag: short.symbols[flag] for flag in problem.flags}
        case = problem.case({**whole, **dict(others)}, flags)
        most_operations = max(_MOST_OF_USERS[0], problem.flops(like))
        most_bytes = max(_MOST_OF_USERS[1], problem.bytes_moved(like))
    else:
        assert isinstance(problem, Attention)
        shape = _pair_shape(like, sizes)
        case = problem.case(shape, {"causal": like.symbols["causal"]})
        most_operations = max(_MOST_OPERATIONS, problem.flops(like) // 2)
    if problem.flops(case) > most_operations or problem.bytes_moved(case) > most_bytes:
        raise ValueError("the case would take long")
    return case


def _pair_shape(like: Case, sizes: Mapping[str, int]) -> dict[str, Value]:
    symbols = like.symbols
    group = sizes.get("group", int(symbols["heads"]) // int(symbols["kv_heads"]))
    asked = sizes.get("heads", group)
    heads = max(1, asked // group) * group
    if heads.bit_length() < asked.bit_length():  # the multiple below lies in another band
        heads += group
    shape: dict[str, Value] = {
        "batch": 1,
        **Features.of(like).told(),
        **{name: symbols[name] for name in ("head_dim", "value_dim", "layout")},
        "scale": symbols["softmax_scale"],
        "seq_len_q": _FEW_ROWS,
        "seq_len_k": _FEW_KEYS,
        **{name: value for name, value in sizes.items() if name != "group"},
        **{"heads": heads, "kv_heads": heads // group},
    }
    longest = max(sizes.get("seq_len_q", 1), sizes.get("seq_len_k", 1))
    scores = int(shape["batch"]) * heads * longest**2
    if (
        features.hides_late_keys(like)
        and len({"seq_len_q", "seq_len_k"} & set(sizes)) == 1
        and scores <= _MOST_SCORES
    ):
        shape |= {"seq_len_q": longest, "seq_len_k": longest}
    return shape


def place_with_ratio(problem: Problem, case: Case) -> Place:
    """The case's place. For attention it also has `length_ratio`, keys / queries."""
    place = problem.place(case)
    if not isinstance(problem, Attention):
        return place
    ratio = int(case.symbols["seq_len_k"]) / int(case.symbols["seq_len_q"])
    return replace(place, ranged={**place.ranged, "length_ratio": ratio})


def short_kinds(problem: Problem, case: Case, number: int) -> Sequence[str]:
    """The kinds of inputs that show one key, row or element too few or too many."""
    if isinstance(problem, UserProblem):
        long = max(problem.sizes_of(case).values(), default=0) > _LONG
        return problem.random_kinds(case, number) if long else problem.input_kinds[:1]
    if isinstance(problem, Attention):
        if features.hides_late_keys(
            case
        ):  # of the last key the last row alone knows, and it looks there
            return ("needle",)
        keys = int(case.symbols["seq_len_k"])
    else:
        keys = int(case.symbols.get("longest_k", case.symbols.get("longest", 0)))
    if problem.dtype == "float32" or keys <= _HALF_LONG:
        return ("ramp",)
    return ("ramp", "needle")
