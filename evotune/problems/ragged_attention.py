"""Attention over sequences of different lengths: packed one after the other, or with paged keys.

`attention_varlen`: q, out (tokens_q, heads, head_dim); k, v (tokens_k, kv_heads, head_dim).
Sequence i has the rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1, and the keys likewise; the
tables have sequences + 1 int32. None is longer than longest_q and longest_k; some are empty.

`attention_paged`: q, out (sequences, queries, heads, head_dim); k_pages, v_pages (pages, page_size,
kv_heads, head_dim). Key j of sequence i is slot j % page_size of the page page_table[i, j //
page_size]; page_table (sequences, most_pages) and seq_lens (sequences) are int32. Pages may be
shared. Entries beyond a length are no valid pages; unused slots hold garbage, NaN included.

Causal is aligned to the bottom right, as users of both need it: a sequence's last row sees all of
its keys. A row that sees no key is 0. `lengths` says how long sequences are on timed inputs:
`zipf`, the n-th longest has 1/n of the longest one, or `even`; paged ones may be `geometric`, each
shorter by the same factor, down to 1/128 of the longest. `ragged_torch` has the tensor side.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from evotune.problems.pair_cover import (
    COARSE,
    MODEL,
    MODELS,
    PairCover,
    SizeClass,
    Sizes,
    count_classes,
    drawn_once,
    head_classes,
    key_of,
    length_classes,
    other_scalar,
)
from evotune.problems.problem import Case, Place, Tensors, TensorSpec, WrongSymbol, grouped
from evotune.trial import Value

if TYPE_CHECKING:
    import torch


_PAGES_BESIDE = 3
"""Pages that no sequence has."""
_LENGTH_TABLES = ("cu_seqlens_q", "cu_seqlens_k", "seq_lens")
_TABLES = (*_LENGTH_TABLES, "page_table")
Shape = dict[str, Value]
Extent = Mapping[str, int]
"""A sum: the factor of each size, and a constant under ""."""


def _extents(*sizes: str) -> tuple[Extent, ...]:
    return tuple({size: 1} for size in sizes)


class RaggedAttention(ABC):
    """The parts that packed and paged attention share."""

    name: ClassVar[str]
    sizes: ClassVar[tuple[str, ...]]
    extents: ClassVar[Mapping[str, tuple[Extent, ...]]]
    """The extents of each tensor, `out` last, as sums of symbols."""
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16", "float32")
    input_kinds: ClassVar[tuple[str, ...]] = ("normal", "needle", "ramp", "large_logits")
    variant_symbols: ClassVar[tuple[str, ...]] = ("causal",)
    optional: ClassVar[tuple[str, ...]] = ()
    length_kinds: ClassVar[tuple[str, ...]] = ("zipf", "even")

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def scalars(self, case: Case) -> tuple[str, ...]:
        return ("softmax_scale",)

    def case(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> Case:
        for name, value in variant.items():
            if name != "causal" or not isinstance(value, bool):
                message = f"expected a variant {{causal: true|false}}, got {name}: {value}"
                raise WrongSymbol(message, name)
        known = (*self.sizes, "scale", "lengths")
        sizes: dict[str, int] = {}
        for name, value in shape.items():
            if name not in known:
                message = f"unknown size {name!r} in a shape; known: {', '.join(known)}"
                raise WrongSymbol(message, name)
            if name not in self.sizes:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                message = f"expected {name} to be an integer of at least 1, got {value!r}"
                raise WrongSymbol(message, name)
            sizes[name] = value
        sizes.setdefault("kv_heads", sizes.get("heads", 1))
        if missing := [name for name in self.sizes if name not in sizes]:
            raise ValueError(f"the shape lacks {', '.join(missing)}")
        if sizes["heads"] % sizes["kv_heads"]:
            message = f"heads ({sizes['heads']}) must be a multiple of kv_heads"
            raise WrongSymbol(message, "kv_heads")
        usual_lengths, *_ = self.length_kinds
        lengths = shape.get("lengths", usual_lengths)
        if lengths not in self.length_kinds:
            message = f"expected lengths to be {' or '.join(self.length_kinds)}, got {lengths!r}"
            raise WrongSymbol(message, "lengths")
        usual = 1.0 / math.sqrt(sizes["head_dim"])
        scale = shape.get("scale", usual)
        if isinstance(scale, bool | str) or not 0.0 < scale < math.inf:
            raise WrongSymbol(f"expected scale to be a positive number, got {scale!r}", "scale")
        causal = bool(variant.get("causal", False))
        symbols: dict[str, Value] = {**sizes, "causal": causal, "dtype": self.dtype}
        symbols |= {"softmax_scale": float(scale), "lengths": str(lengths)}
        symbols |= self.derived(sizes)
        told = f",scale={scale}" if not math.isclose(scale, usual) else ""
        told += f",{lengths}" if lengths != usual_lengths else ""
        numbers = ",".join(f"{name}={sizes[name]}" for name in self.sizes)
        mask = "causal" if causal else "full"
        return Case(f"({numbers}{told}) {mask}", symbols)

    @abstractmethod
    def derived(self, sizes: Mapping[str, int]) -> dict[str, Value]:
        """The symbols that follow from the sizes. Raises ValueError for sizes that are invalid
        together."""

    def tensors(self, case: Case) -> tuple[TensorSpec, ...]:
        symbols: dict[str, Any] = {**case.symbols, "": 1}
        return tuple(
            TensorSpec(
                name,
                tuple(sum(n * symbols[size] for size, n in each.items()) for each in extents),
                "int32" if name in _TABLES else self.dtype,
                is_output=name == "out",
                is_index=name in _TABLES,
                is_steady=name in _LENGTH_TABLES,
            )
            for name, extents in self.extents.items()
        )

    @abstractmethod
    def timed_lengths(self, case: Case) -> list[tuple[int, int]]:
        """Rows and keys of each sequence on timed inputs, longest first."""

    @abstractmethod
    def edge_shapes(self, case: Case) -> Iterator[Shape]:
        """Small shapes for every candidate of a search."""

    @abstractmethod
    def random_shapes(
        self, rng: random.Random, own: Sequence[Sizes], kept: Collection[str], made: Made
    ) -> Iterator[Sizes]:
        """An endless iterator over sizes drawn from `_packed_classes`."""

    def flops(self, case: Case) -> int:
        s: Any = case.symbols
        scores = sum(visible(q, k, s["causal"]) for q, k in self.timed_lengths(case))
        size: int = s["heads"] * s["head_dim"]
        return 4 * size * scores

    def bytes_moved(self, case: Case) -> int:
        s: Any = case.symbols
        size = 4 if self.dtype == "float32" else 2
        rows, keys = (sum(each) for each in zip(*self.timed_lengths(case), strict=True))
        elements: int = s["head_dim"] * (rows * s["heads"] + keys * s["kv_heads"])
        return 2 * size * elements

    def edge_cases(self, case: Case, kept: Collection[str] = ()) -> Sequence[Case]:
        return [self._like(case, shape, kept) for shape in self.edge_shapes(case)]

    def siblings(self, case: Case) -> Sequence[Case]:
        """Two cases with the case's shape: one without a mask, one causal."""
        shape = {name: case.symbols[name] for name in (*self.sizes, "lengths")}
        shape["scale"] = case.symbols["softmax_scale"]
        return [self.case(shape, {"causal": causal}) for causal in (False, True)]

    def random_cases(
        self, cases: Sequence[Case], seed: int, kept: Collection[str] = ()
    ) -> Iterator[Case]:
        """Cases of random shapes, in turn for each group of cases with equal kept symbols. Every
        second one has an unusual scale."""
        rng = random.Random(seed)
        groups = grouped(cases, {"head_dim", "causal", *kept} & {*cases[0].symbols})
        streams = [(alike[-1], self._drawn(rng, alike, kept)) for alike in groups]
        while True:
            for like, shapes in rng.sample(streams, len(streams)):
                shape: Shape = _told(next(shapes))
                if rng.random() < 0.5:
                    shape["scale"] = other_scalar(rng, float(like.symbols["softmax_scale"]))
                yield self._like(like, shape, kept)

    def _drawn(
        self, rng: random.Random, cases: Sequence[Case], kept: Collection[str]
    ) -> Iterator[Sizes]:
        def made(sizes: Sizes) -> Sizes:
            return self._sizes(self._like(cases[-1], _told(sizes), kept))

        own, seed = [self._sizes(case) for case in cases], rng.getrandbits(64)
        key = key_of(self.name, seed, frozenset(kept), cases[-1].symbols, *own)
        return drawn_once(key, lambda: self.random_shapes(random.Random(seed), own, kept, made))

    def _sizes(self, case: Case) -> Sizes:
        """The sizes that are drawn: groups in place of heads, and no head_dim."""
        found = {name: int(case.symbols[name]) for name in self.sizes if name != "head_dim"}
        return {**found, "group": found.pop("heads") // found["kv_heads"]}

    def random_kinds(self, case: Case, number: int) -> Sequence[str]:
        return (self.input_kinds[number % len(self.input_kinds)],)

    def formulas(self, case: Case) -> Mapping[str, tuple[str, str]]:
        return {}

    def called_case(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        options: Mapping[str, Value],
        tuned: Sequence[Case],
    ) -> Case:
        """See `Problem.called_case`. The maximum lengths, which no shape implies, are options."""
        sizes = {**self.shape_of(shapes), **{k: v for k, v in options.items() if k != "causal"}}
        masks = {bool(case.symbols["causal"]) for case in tuned}
        causal = options.get("causal", next(iter(masks)) if len(masks) == 1 else None)
        if causal is None:
            raise ValueError("the cases differ in causal: pass causal=True or causal=False")
        return self.case(sizes, {"causal": causal})

    @abstractmethod
    def shape_of(self, shapes: Mapping[str, tuple[int, ...]]) -> Shape:
        """The sizes that follow from the shapes of a call's inputs."""

    def place(self, case: Case) -> Place:
        s: Any = case.symbols
        fixed = {name: s[name] for name in ("dtype", "head_dim", "causal")}
        ranged = {name: s[name] for name in self.sizes if name not in ("head_dim", "kv_heads")}
        ranged |= {"group": s["heads"] // s["kv_heads"], "softmax_scale": s["softmax_scale"]}
        if "page_size" in ranged:
            fixed["page_size"] = ranged.pop("page_size")
        return Place(fixed, ranged)

    def make_inputs(self, case: Case, kind: str, seed: int, device: str = "cpu") -> Tensors:
        from evotune.problems import ragged_torch

        lengths = self.timed_lengths(case)
        return ragged_torch.make_inputs(case, lengths, kind, seed, device)

    def altered_indices(
        self, case: Case, inputs: Tensors, name: str, most: int, rng: random.Random
    ) -> tuple[int, torch.Tensor] | None:
        from evotune.problems import ragged_torch

        return ragged_torch.altered_indices(case, inputs, name, rng)

    def reference(self, case: Case, inputs: Tensors) -> Tensors:
        from evotune.problems import ragged_torch

        return ragged_torch.reference(case, inputs)

    def tolerances(self, case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
        from evotune.problems import ragged_torch

        return ragged_torch.tolerances(case, inputs, reference)

    def baselines(
        self, case: Case, inputs: Tensors, only: str = ""
    ) -> dict[str, Callable[[], Tensors]]:
        from evotune.problems import ragged_torch

        return ragged_torch.baselines(case, inputs, only)

    def _like(self, case: Case, shape: Shape, kept: Collection[str]) -> Case:
        """A case of this shape with the head_dim, mask and kept symbols of `case`."""
        whole: Shape = {"scale": case.symbols["softmax_scale"], **shape}
        whole["head_dim"] = case.symbols["head_dim"]
        whole |= {name: case.symbols[name] for name in kept if name in self.sizes}
        if "softmax_scale" in kept:
            whole["scale"] = case.symbols["softmax_scale"]
        if int(whole["heads"]) % int(whole["kv_heads"]):
            whole["kv_heads" if "kv_heads" not in kept else "heads"] = whole[
                "heads" if "kv_heads" not in kept else "kv_heads"
            ]
        return self.case(self.fitted(whole, kept), {"causal": case.symbols["causal"]})

    @abstractmethod
    def fitted(self, shape: Shape, kept: Collection[str]) -> Shape:
        """The shape with sizes that fit the kept ones, which are those of a case."""


class VarlenAttention(RaggedAttention):
    """Sequences packed one after the other."""

    name: ClassVar[str] = "attention_varlen"
    sizes: ClassVar[tuple[str, ...]] = (
        *("sequences", "heads", "kv_heads", "tokens_q", "tokens_k", "longest_q", "longest_k"),
        "head_dim",
    )
    extents: ClassVar[Mapping[str, tuple[Extent, ...]]] = {
        "q": _extents("tokens_q", "heads", "head_dim"),
        "k": _extents("tokens_k", "kv_heads", "head_dim"),
        "v": _extents("tokens_k", "kv_heads", "head_dim"),
        "cu_seqlens_q": ({"sequences": 1, "": 1},),
        "cu_seqlens_k": ({"sequences": 1, "": 1},),
        "out": _extents("tokens_q", "heads", "head_dim"),
    }

    def derived(self, sizes: Mapping[str, int]) -> dict[str, Value]:
        for side in ("q", "k"):
            tokens, longest = sizes[f"tokens_{side}"], sizes[f"longest_{side}"]
            if not longest <= tokens <= sizes["sequences"] * longest:
                raise WrongSymbol(
                    f"tokens_{side} must lie between longest_{side} ({longest}) and sequences * "
                    f"longest_{side} ({sizes['sequences'] * longest}), got {tokens}",
                    f"tokens_{side}",
                )
        return {}

    def timed_lengths(self, case: Case) -> list[tuple[int, int]]:
        s: Any = case.symbols
        rows, keys = (
            partition(s["lengths"], s["sequences"], s[f"tokens_{side}"], s[f"longest_{side}"])
            for side in ("q", "k")
        )
        return list(zip(rows, keys, strict=True))

    def edge_shapes(self, case: Case) -> Iterator[Shape]:
        return map(_told, packed_edges())

    def random_shapes(
        self, rng: random.Random, own: Sequence[Sizes], kept: Collection[str], made: Made
    ) -> Iterator[Sizes]:
        return packed_shapes(rng, own, kept, made)

    def fitted(self, shape: Shape, kept: Collection[str]) -> Shape:
        sides = (("tokens_q", "longest_q"), ("tokens_k", "longest_k"))
        for name, most in sides:
            tokens, longest, sequences = (int(shape[each]) for each in (name, most, "sequences"))
            if name in kept and most in kept:
                shape["sequences"] = max(sequences, -(-tokens // longest))
            elif name in kept:
                shape[most] = max(-(-tokens // sequences), min(longest, tokens))
        for name, most in sides:
            longest, room = int(shape[most]), int(shape["sequences"]) * int(shape[most])
            shape[name] = max(longest, min(int(shape[name]), room))
        return shape

    def shape_of(self, shapes: Mapping[str, tuple[int, ...]]) -> Shape:
        (tokens_q, heads, head_dim), (tokens_k, kv_heads, _) = shapes["q"], shapes["k"]
        sizes: Shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        sizes |= {"tokens_q": tokens_q, "tokens_k": tokens_k}
        return sizes | {"sequences": shapes["cu_seqlens_q"][0] - 1}


class PagedAttention(RaggedAttention):
    """Decoding: each sequence has a few rows, and its keys lie in pages."""

    name: ClassVar[str] = "attention_paged"
    sizes: ClassVar[tuple[str, ...]] = (
        *("sequences", "queries", "heads", "kv_heads", "longest", "page_size", "head_dim"),
    )
    length_kinds: ClassVar[tuple[str, ...]] = ("zipf", "even", "geometric")
    extents: ClassVar[Mapping[str, tuple[Extent, ...]]] = {
        "q": _extents("sequences", "queries", "heads", "head_dim"),
        "k_pages": _extents("pages", "page_size", "kv_heads", "head_dim"),
        "v_pages": _extents("pages", "page_size", "kv_heads", "head_dim"),
        "page_table": _extents("sequences", "most_pages"),
        "seq_lens": _extents("sequences"),
        "out": _extents("sequences", "queries", "heads", "head_dim"),
    }

    def derived(self, sizes: Mapping[str, int]) -> dict[str, Value]:
        if sizes["queries"] > sizes["longest"]:
            raise WrongSymbol(
                f"queries ({sizes['queries']}) must not exceed longest ({sizes['longest']})",
                "queries",
            )
        most_pages = -(-sizes["longest"] // sizes["page_size"])
        return {"most_pages": most_pages, "pages": sizes["sequences"] * most_pages + _PAGES_BESIDE}

    def timed_lengths(self, case: Case) -> list[tuple[int, int]]:
        s: Any = case.symbols
        each = paged_lengths(s["lengths"], s["sequences"], s["longest"])
        return [(s["queries"], max(s["queries"], keys)) for keys in each]

    def edge_shapes(self, case: Case) -> Iterator[Shape]:
        return map(_told, paged_edges(int(case.symbols["page_size"])))

    def random_shapes(
        self, rng: random.Random, own: Sequence[Sizes], kept: Collection[str], made: Made
    ) -> Iterator[Sizes]:
        return paged_shapes(rng, own, kept, made)

    def fitted(self, shape: Shape, kept: Collection[str]) -> Shape:
        if int(shape["queries"]) > int(shape["longest"]):
            name, other = ("queries", "longest") if "longest" in kept else ("longest", "queries")
            shape[name] = shape[other]
        return shape

    def shape_of(self, shapes: Mapping[str, tuple[int, ...]]) -> Shape:
        sequences, queries, heads, head_dim = shapes["q"]
        _, page_size, kv_heads, _ = shapes["k_pages"]
        sizes: Shape = {"sequences": sequences, "queries": queries, "heads": heads}
        return sizes | {"kv_heads": kv_heads, "head_dim": head_dim, "page_size": page_size}


def _told(sizes: Mapping[str, int]) -> Shape:
    """Drawn sizes as those of a shape."""
    found: Shape = {name: size for name, size in sizes.items() if name != "group"}
    return {**found, "heads": sizes["group"] * sizes["kv_heads"]}


_SHORTEST = 1 / 128
"""As a share of the longest one, if lengths are geometric."""


def partition(lengths: str, sequences: int, tokens: int, longest: int) -> list[int]:
    """Lengths of at most `longest` that add up to `tokens`, longest first."""
    if lengths == "even":
        return [tokens // sequences + (n < tokens % sequences) for n in range(sequences)]
    found = [longest // n for n in range(1, sequences + 1)]
    missing = tokens - sum(found)
    for n in range(1, sequences):  # the later ones get or lose the rest
        place = n if missing > 0 else sequences - n
        by = max(-found[place], min(missing, longest - found[place]))
        found[place] += by
        missing -= by
    return sorted(found, reverse=True)


def paged_lengths(lengths: str, sequences: int, longest: int) -> list[int]:
    """The number of keys of each sequence, longest first."""
    match lengths:
        case "even":
            return [longest] * sequences
        case "zipf":
            return [longest // n for n in range(1, sequences + 1)]
        case _:
            steps = max(1, sequences - 1)
            return [round(longest * _SHORTEST ** (n / steps)) for n in range(sequences)]


def visible(rows: int, keys: int, causal: bool) -> int:
    """The number of scores of a sequence that are not hidden."""
    if not causal:
        return rows * keys
    rows_seeing = min(rows, keys)  # the last ones; the last of them sees all keys
    return rows_seeing * keys - rows_seeing * (rows_seeing - 1) // 2


Made = Callable[[Sizes], Sizes]
"""Turns drawn sizes into those of a case that has the kept sizes."""

_SCORES = 1 << 18  # heads * rows * longest_k
_ROWS = 1 << 14  # of queries and of keys, over all heads
_SPECIAL_EVERY = 4
_SPECIAL_COST = 8
_MOST_OWN = 10
_PAGE_SIZES = (1, 8, 16, 32, 64, 128, 256)
_MANY_PAGES = 33_000  # more than 15 bits count
_MOST_SLOTS = 1 << 20  # pages * page_size * kv_heads
_REDUCED = (
    *("sequences", "kv_heads", "group", "tokens_k", "tokens_q"),
    *("longest", "longest_k", "longest_q", "queries"),
)


def packed_edges() -> Iterator[Sizes]:
    """Small shapes for every candidate of a search."""
    for sequences, kv_heads, group, tokens, longest in (
        (1, 3, 1, (1, 1), (1, 1)),
        (5, 2, 2, (77, 131), (33, 65)),
        (9, 1, 8, (20, 300), (7, 129)),
        (4, 2, 1, (200, 31), (129, 17)),
    ):
        found = {"sequences": sequences, "kv_heads": kv_heads, "group": group}
        found |= zip(("tokens_q", "tokens_k"), tokens, strict=True)
        yield found | dict(zip(("longest_q", "longest_k"), longest, strict=True))


def paged_edges(page: int) -> Iterator[Sizes]:
    """Small shapes with pages of `page` keys, for every candidate of a search."""
    names = ("sequences", "queries", "kv_heads", "group", "longest")
    for sizes in (
        (1, 1, 1, 1, 1),
        (3, 1, 2, 3, 3 * page + 1),
        (5, 4, 1, 8, 4 * page),
        (2, 7, 4, 1, 2 * page + 9),
    ):
        found = dict(zip(names, sizes, strict=True))
        longest = max(found["longest"], found["queries"])
        yield {**found, "longest": longest, "page_size": page}


def packed_shapes(
    rng: random.Random, own: Sequence[Mapping[str, int]], kept: Collection[str], made: Made
) -> Iterator[Sizes]:
    """An endless iterator over sizes of packed sequences. `own`: the sizes of the space's cases.
    `kept`: names of sizes that `made` replaces."""
    long_sides = [
        {"sequences": 18, "longest_q": 517, "longest_k": 777, "tokens_q": 8209, "tokens_k": 8300},
        {"sequences": 40, "longest_q": 9, "longest_k": 801, "tokens_q": 300, "tokens_k": 12_001},
        {"sequences": 33, "longest_q": 601, "longest_k": 9, "tokens_q": 9001, "tokens_k": 250},
    ]
    special = [{**each, "kv_heads": 1, "group": 1} for each in long_sides]
    changes = [{"sequences": rng.randint(41, 70)}]
    return _shapes(rng, _packed_classes(own), own, special, changes, kept, made)


def paged_shapes(
    rng: random.Random, own: Sequence[Mapping[str, int]], kept: Collection[str], made: Made
) -> Iterator[Sizes]:
    """Like `packed_shapes`, but of paged sequences."""
    page = own[0]["page_size"] if "page_size" in kept else 1
    alone = {"queries": 1, "kv_heads": 1, "group": 1, "page_size": page}
    sequences = rng.randint(9, 12)
    special = [{**alone, "sequences": 9, "longest": rng.randint(4097, 5000)}]
    if _MANY_PAGES * page <= _MOST_SLOTS:
        longest = page * (_MANY_PAGES // sequences + 1)
        special.append({**alone, "sequences": sequences, "longest": longest})
    changes: list[Sizes] = [{"queries": n} for n in (1, 2, 16)]
    classes = _paged_classes(own, own_page="page_size" in kept)
    return _shapes(rng, classes, own, special, changes, kept, made)


def _shapes(  # noqa: PLR0917
    rng: random.Random,
    classes: Iterator[SizeClass],
    own: Sequence[Mapping[str, int]],
    special: list[Sizes],
    changes: Sequence[Sizes],
    kept: Collection[str],
    made: Made,
) -> Iterator[Sizes]:
    """Every fourth shape, until these are used up, is one of the `own` ones with one size changed,
    or a `special` one; all others are those of a cover."""

    def settled(sizes: Sizes, asked: Collection[str], cost: int) -> Sizes | None:
        found = made(sizes)
        bound = {*asked, *kept, *(("kv_heads", "group") if "heads" in kept else ())}
        if "kv_heads" in kept:
            bound.add("kv_heads")
        for name in _REDUCED:
            over = _over(found, cost)
            if over > 1 and name in found and name not in bound:
                found = made({**found, name: max(1, int(found[name] / over))})
        return found if _over(found, cost) <= 1 or set(kept) - {"page_size", "head_dim"} else None

    cover = PairCover(rng, list(classes), settled)
    changed = list(_changed(rng, own, changes))
    waiting = [*special, *rng.sample(changed, min(len(changed), _MOST_OWN))]
    rng.shuffle(waiting)
    covered, number = iter(cover), 0
    while True:
        found = None
        if waiting and number % _SPECIAL_EVERY == 0:
            asked = waiting.pop()
            found = made(asked) if asked in special else settled(asked, (), _SPECIAL_COST)
            if found is not None:
                cover.met(found)
        found = found or next(covered)
        number += 1
        if found is not None:
            yield found


def _over(sizes: Sizes, cost: int) -> float:
    """By what factor the shape is too large; at most 1 if it is not."""
    if "longest" in sizes:
        rows, keys = (sizes["sequences"] * sizes[name] for name in ("queries", "longest"))
        longest = sizes["longest"]
        if keys * sizes["kv_heads"] > _MOST_SLOTS:
            return keys * sizes["kv_heads"] / _MOST_SLOTS
    else:
        rows, keys, longest = (sizes[name] for name in ("tokens_q", "tokens_k", "longest_k"))
    heads = sizes["kv_heads"] * sizes["group"]
    all_rows = heads * rows + sizes["kv_heads"] * keys
    return max(heads * rows * longest / (cost * _SCORES), all_rows / (cost * _ROWS))


def _changed(
    rng: random.Random, own: Sequence[Mapping[str, int]], changes: Sequence[Sizes]
) -> Iterator[Sizes]:
    """The space's own shapes with one size changed."""
    for sizes in own:
        heads, kv_heads = rng.choice(MODELS)
        further: list[Sizes] = [{"kv_heads": kv_heads, "group": heads // kv_heads}]
        further += [{"sequences": sizes["sequences"] + 1}, {"sequences": 1}]
        for name in ("longest", "longest_q", "longest_k"):
            further += [{name: sizes[name] + n} for n in (-1, 1) if sizes.get(name, 0) > 1]
        for change in (*changes, *further):
            if any(sizes.get(name) != size for name, size in change.items()):
                yield {**sizes, **change}


def _sequences() -> Iterator[SizeClass]:
    for each in count_classes("sequences", ((1, 1), (2, 4), (5, 8), (9, 9), (10, 17), (18, 40))):
        yield replace(each, level=COARSE)


def _packed_classes(own: Sequence[Mapping[str, int]]) -> Iterator[SizeClass]:
    yield from _sequences()
    yield from head_classes(_heads(own))
    for side in ("q", "k"):
        yield from length_classes(f"longest_{side}", long_cost=4, exact_cost=_exact_cost)
        for each in count_classes(f"tokens_{side}", ((1, 64), (65, 512), (513, 4096))):
            yield replace(each, level=MODEL)
    yield from _several_rows("longest_q", "longest_k")


def _paged_classes(own: Sequence[Mapping[str, int]], *, own_page: bool) -> Iterator[SizeClass]:
    yield from _sequences()
    yield from head_classes(_heads(own))
    yield from length_classes("longest", long_cost=4, exact_cost=_exact_cost)
    queries = ((1, 1), (2, 2), (3, 8), (9, 15), (16, 16), (17, 32))
    for place, each in enumerate(count_classes("queries", queries)):
        yield replace(each, level=COARSE) if place == 0 else each
    yield from _several_rows("queries", "longest")
    if not own_page:
        sizes = dict.fromkeys((*_PAGE_SIZES, *(each["page_size"] for each in own)))
        yield from count_classes("page_size", [(size, size) for size in sizes])


def _several_rows(rows: str, keys: str) -> Iterator[SizeClass]:
    """Shapes of one row and of several rows, with many keys."""
    for name, low, high, least in (("one row, many keys", 1, 1, 601), ("several rows", 5, 16, 65)):
        yield SizeClass(
            name,
            frozenset((rows, keys)),
            lambda s, a=low, b=high, k=least: a <= s[rows] <= b and s[keys] >= k,  # type: ignore[misc]
            lambda rng, a=low, b=high, k=least: {  # type: ignore[misc]
                rows: rng.randint(a, b),
                keys: k + rng.randint(0, k // 4),
            },
            COARSE,
            2.0,
            4,
        )


def _heads(own: Sequence[Mapping[str, int]]) -> list[tuple[int, int]]:
    return [(sizes["kv_heads"] * sizes["group"], sizes["kv_heads"]) for sizes in own]


def _exact_cost(length: int) -> int:
    return 1 + length // 600
