"""Scaled dot-product attention, forward: out = softmax(scale * Q K^T + mask) V.

Shapes: q (batch, heads, seq_len_q, head_dim); k (batch, kv_heads, seq_len_k, head_dim); v, out the
same with value_dim, which is head_dim unless it is given; kv_heads divides heads (grouped query).
A case's `layout` gives their strides. Causal is top-left aligned (query i sees keys j <= i), as
SDPA's `is_causal`, unless the case says otherwise: `attention_features` has all that it may say.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from evotune.problems import attention_features as features
from evotune.problems import attention_masks as masks
from evotune.problems import attention_shapes as layouts
from evotune.problems.attention_features import Features
from evotune.problems.attention_masks import Mask
from evotune.problems.attention_shapes import edge_shapes, far_shapes, keeping, random_shapes
from evotune.problems.pair_cover import drawn_once, key_of
from evotune.problems.problem import (
    CONTIGUOUS,
    Case,
    Index,
    Parts,
    Place,
    Tensors,
    TensorSpec,
    WrongSymbol,
    contiguous_strides,
    grouped,
)
from evotune.trial import Value

if TYPE_CHECKING:
    import torch


_SIZES = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim", "value_dim")
_DRAWN_SIZES = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k")
_SHAPE_NAMES = (*_SIZES, "seq_len", "scale")
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "q": ("batch", "heads", "seq_len_q", "head_dim"),
    "k": ("batch", "kv_heads", "seq_len_k", "head_dim"),
    "v": ("batch", "kv_heads", "seq_len_k", "value_dim"),
    "out": ("batch", "heads", "seq_len_q", "value_dim"),
}
"""The names of each tensor's sizes, outermost dimension first, for the tensors of every case."""
OPTIONAL: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "alibi_slopes": ("alibi", ("heads",)),
    "sinks": ("sinks", ("heads",)),
    "lse": ("lse", ("batch", "heads", "seq_len_q")),
}
"""float32 tensors that only cases with a feature have: the symbol of the feature, and the names of
their sizes."""
_EDGE_LAYOUTS = ("blhd", "mixed", "packed_qkv", "mixed", layouts.DEFAULT)
_RANDOM_LAYOUTS = (*layouts.LAYOUTS, "mixed")
_FAR_EVERY = 4
"""After this many random shapes comes a far one, until there are no more."""
_LONG = 1200  # from this length on, one key hardly shows on normal inputs
_FEW_ROWS = 24


class Attention:
    """The flagship problem. See `evotune.problems.attention_torch` for the tensor side."""

    name: ClassVar[str] = "attention"
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16", "float32")
    input_kinds: ClassVar[tuple[str, ...]] = ("normal", "needle", "ramp", "large_logits")
    variant_symbols: ClassVar[tuple[str, ...]] = ("causal", "layout", *features.KEYS)
    layout_sizes: ClassVar[tuple[str, ...]] = ("heads", "kv_heads")
    optional: ClassVar[tuple[str, ...]] = (*OPTIONAL, masks.TENSOR)

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def features_of(self, case: Case) -> Mapping[str, frozenset[str]]:
        found = Features.of(case).known_by()
        if case.symbols["seq_len_q"] == case.symbols["seq_len_k"]:
            found.pop("alignment", None)  # both alignments are one
        if case.symbols["value_dim"] != case.symbols["head_dim"]:
            found["value_dim"] = frozenset({"value_dim"})
        return found

    def scalars(self, case: Case) -> tuple[str, ...]:
        return ("softmax_scale", *Features.of(case).scalars())

    def case(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> Case:
        scale = shape.get("scale")
        others = ("scale", "layout", *features.KEYS)
        sizes = _sizes({name: value for name, value in shape.items() if name not in others})
        for name, value in variant.items():
            known = name == "causal" and isinstance(value, bool)
            if not known and name not in ("layout", *features.KEYS):
                message = f"expected a variant {{causal: true|false}}, got {name}: {value}"
                raise WrongSymbol(message, name)
            if name in shape:
                raise WrongSymbol(f"both the shape and the variant set {name}: set it in one", name)
        layout = _layout(variant.get("layout", shape.get("layout", layouts.DEFAULT)))
        causal = bool(variant.get("causal", False))
        heads, kv_heads = sizes["heads"], sizes["kv_heads"]
        if heads % kv_heads:
            message = f"heads ({heads}) must be a multiple of kv_heads ({kv_heads})"
            raise WrongSymbol(message, "kv_heads")
        symbols: dict[str, Value] = dict(sizes)
        symbols["seq_len"] = sizes["seq_len_q"]
        symbols["causal"] = causal
        symbols["dtype"] = self.dtype
        usual = 1.0 / math.sqrt(sizes["head_dim"])
        symbols["softmax_scale"] = usual if scale is None else _scale(scale, usual)
        both = {**shape, **variant}
        told = {name: both[name] for name in features.KEYS if name in both}
        mine = Features.given(told, causal=causal, sizes=sizes, dtype=self.dtype)
        symbols |= mine.symbols()
        return _laid_out(symbols, layout)

    def advice(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> str:
        return features.unsaid_alignment({**shape, **variant}, self.case(shape, variant))

    def tensors(self, case: Case) -> tuple[TensorSpec, ...]:
        s = _integers(case)

        def tensor(name: str, sizes: Sequence[str]) -> TensorSpec:
            shape = tuple(s[size] for size in sizes)
            names = layouts.symbols_of(name)
            strides = (*(s[symbol] for symbol in names), 1)
            if strides == contiguous_strides(shape):
                strides = ()
            return TensorSpec(name, shape, self.dtype, name == "out", strides, names)

        found = [tensor(name, sizes) for name, sizes in DIMENSIONS.items()]
        for name, (feature, sizes) in OPTIONAL.items():
            if case.symbols[feature]:
                shape, is_lse = tuple(s[size] for size in sizes), name == "lse"
                found.append(TensorSpec(name, shape, "float32", is_lse, may_be_infinite=is_lse))
        mask = Features.of(case).mask
        return (*found, mask.tensor(case.symbols)) if mask else tuple(found)

    def flops(self, case: Case) -> int:
        """2 per visible score and element of k and of v; the softmax is not counted, as usual."""
        s = _integers(case)
        visible = features.visible(Features.of(case), **_lengths(case))
        return 2 * s["batch"] * s["heads"] * visible * (s["head_dim"] + s["value_dim"])

    def bytes_moved(self, case: Case) -> int:
        """The least number of bytes that a kernel must move. Keys that a window hides from every
        row are not counted.
        """
        mine = Features.of(case)
        found = sum(spec.nbytes for spec in self.tensors(case))
        if mine.has_window:
            keys = int(case.symbols["seq_len_k"])
            hidden = keys - features.keys_read(mine, **_lengths(case))
            found -= sum(s.nbytes * hidden // keys for s in self.tensors(case) if s.name in "kv")
        return found

    def count_exponentials(self, case: Case) -> int:
        """The number of exponentials: one for each visible score. `evotune explain` counts them as
        work."""
        s = case.symbols
        return self.flops(case) // (2 * (int(s["head_dim"]) + int(s["value_dim"])))

    def edge_cases(self, case: Case, kept: Collection[str] = ()) -> Sequence[Case]:
        """The `edge_shapes` with the case's head_dim and mask; all but one have its scale too."""
        mine, sizes = Features.of(case), _kept_sizes(case, kept)
        shapes = edge_shapes(
            causal=features.hides_late_keys(case),
            usual_scale=float(case.symbols["softmax_scale"]),
            kept=sizes,
        )
        further = (keeping(shape, sizes) for shape in features.edge_shapes(mine, kept))
        return [
            self._like(case, shape, kept, layout)
            for shape, layout in zip((*shapes, *further), itertools.cycle(_EDGE_LAYOUTS))
        ]

    def siblings(self, case: Case) -> Sequence[Case]:
        """The case's shape without a mask and with a causal mask. A window to the right excludes a
        causal mask."""
        mine = Features.of(case)
        if mine.window_right >= 0:
            return [case]
        sizes = {name: value for name, value in case.symbols.items() if name in _SIZES}
        shape = {
            **sizes,
            "scale": case.symbols["softmax_scale"],
            "layout": case.symbols["layout"],
            **mine.told(),
        }
        return [self.case(shape, {"causal": causal}) for causal in (False, True)]

    def other_layouts(self, case: Case) -> Sequence[Case]:
        """The case with contiguous tensors, and with tensors in the layout that a projection
        produces."""
        others = {layouts.DEFAULT, "blhd"} - {case.symbols["layout"]}
        return [_laid_out(case.symbols, other) for other in sorted(others)]

    def odd_layout(self, case: Case) -> Case:
        return _laid_out(case.symbols, "mixed")

    def other_masks(self, case: Case, kept: Collection[str]) -> Sequence[Case]:
        group = int(case.symbols["heads"]) // int(case.symbols["kv_heads"])
        rows = int(case.symbols["seq_len_q"])
        if not features.hides_late_keys(case):  # a row sees all keys
            rows = min(rows, _FEW_ROWS)
        sizes = {"batch": 2, "heads": 2 * group, "kv_heads": 2, "seq_len_q": rows}
        sizes |= {"seq_len_k": int(case.symbols["seq_len_k"]), **_kept_sizes(case, kept)}
        layout = str(case.symbols["layout"])
        others = Features.of(case).mask.others(kept)
        return [self._like(case, {**sizes, **told}, kept, layout) for told in others]

    def random_cases(
        self, cases: Sequence[Case], seed: int, kept: Collection[str] = ()
    ) -> Iterator[Case]:
        """The `random_shapes`, alternating over the groups of cases with equal kept symbols."""
        rng, of_layouts = random.Random(seed), random.Random(f"layouts {seed}")
        of_features = random.Random(f"features {seed}")
        longest = max(int(c.symbols[n]) for c in cases for n in ("seq_len_q", "seq_len_k"))
        names = {"head_dim", "causal", "softmax_scale", "value_dim", *Features().symbols(), *kept}
        names -= set() if "layout" in kept else {"layout"}
        streams = [
            (alike[-1], self._drawn(rng.getrandbits(64), alike, longest, kept))
            for alike in grouped(cases, names)
        ]
        far: list[tuple[dict[str, Value], str]] = []
        if not {"layout", "batch", "heads", "kv_heads"} & set(kept):
            far = list(far_shapes(of_layouts, layouts.FAR, _kept_sizes(cases[0], kept)))
        count = 0
        while True:
            for like, shapes in rng.sample(streams, len(streams)):
                shape = next(shapes)
                most = max(int(shape[name]) for name in ("seq_len_q", "seq_len_k"))
                shape |= features.drawn(of_features, Features.of(like), kept, most)
                yield self._like(like, shape, kept, of_layouts.choice(_RANDOM_LAYOUTS))
                count += 1
                if far and count % _FAR_EVERY == 0:
                    shape, layout = far.pop()
                    yield self._like(like, shape, kept, layout)

    @staticmethod
    def _drawn(
        seed: int, cases: Sequence[Case], longest: int, kept: Collection[str]
    ) -> Iterator[dict[str, Value]]:
        like = cases[-1]
        own = [{name: int(case.symbols[name]) for name in _DRAWN_SIZES} for case in cases]
        causal, scale = features.hides_late_keys(like), float(like.symbols["softmax_scale"])
        sizes = _kept_sizes(like, kept)

        def draw() -> Iterator[dict[str, Value]]:
            return random_shapes(
                random.Random(seed),
                own,
                longest=longest,
                causal=causal,
                usual_scale=scale,
                kept=sizes,
            )

        return drawn_once(key_of("attention", seed, longest, causal, scale, sizes, *own), draw)

    def random_kinds(self, case: Case, number: int) -> Sequence[str]:
        """One kind of inputs, in turn. For a long case it is `needle`, because other kinds hardly
        show an error of one key."""
        longest = max(int(case.symbols[name]) for name in ("seq_len_q", "seq_len_k"))
        if longest > _LONG:
            return ("needle",)
        return (self.input_kinds[number % len(self.input_kinds)],)

    def formulas(self, case: Case) -> Mapping[str, tuple[str, str]]:
        return Features.of(case).formulas()

    def called_case(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        options: Mapping[str, Value],
        tuned: Sequence[Case],
    ) -> Case:
        """The case of a call with these shapes and options. Without an option, `causal` and the
        features are as in the tuned cases, if they agree, and the scale is the usual one.
        """
        if any(len(shapes[name]) != 4 for name in ("q", "k", "v")):
            raise ValueError("expected q, k and v of four dimensions: batch, heads, length, head")
        (batch, heads, seq_len_q, head_dim), (_, kv_heads, seq_len_k, _) = shapes["q"], shapes["k"]
        sizes: dict[str, Value] = {"value_dim": shapes["v"][3]}
        causals = {bool(case.symbols["causal"]) for case in tuned}
        causal = options.get("causal", next(iter(causals)) if len(causals) == 1 else None)
        if causal is None:
            raise ValueError("the cases differ in causal: pass causal=True or causal=False")
        sizes |= {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        sizes |= {"seq_len_q": seq_len_q, "seq_len_k": seq_len_k}
        others = {name: value for name, value in options.items() if name != "causal"}
        if others.get("scale", 0) is None:  # in PyTorch None means the usual scale
            del others["scale"]
        if unknown := [name for name in others if name not in ("scale", *features.KEYS)]:
            known = ", ".join(("causal", "scale", *features.KEYS))
            raise ValueError(f"unknown argument {unknown[0]!r}; known: {known}")
        agreed = [Features.of(case).told() for case in tuned]
        if masks.TENSOR in shapes:
            agreed = [masks.called(shapes[masks.TENSOR], each) for each in agreed]
        told = agreed[0] if agreed and all(each == agreed[0] for each in agreed) else {}
        return self.case({**sizes, **told, **others}, {"causal": causal})

    def place(self, case: Case) -> Place:
        s = _integers(case)
        names = ("batch", "heads", "seq_len_q", "seq_len_k")
        mine = Features.of(case)
        fixed = {name: case.symbols[name] for name in ("dtype", "head_dim", "causal")}
        if s["value_dim"] != s["head_dim"]:
            fixed["value_dim"] = s["value_dim"]
        layout = str(case.symbols["layout"])
        return Place(
            {**fixed, **mine.kept()},
            {
                **{name: s[name] for name in names},
                "group": s["heads"] // s["kv_heads"],
                "softmax_scale": float(case.symbols["softmax_scale"]),
                **{name: getattr(mine, name) for name in mine.scalars()},
                "elements": max(spec.span for spec in self.tensors(case)),
            },
            CONTIGUOUS if layout == layouts.DEFAULT else layout,
            mine.mask.broadcast(case.symbols),
        )

    @staticmethod
    def is_plain(case: Case) -> bool:
        """Whether SDPA's own arguments describe the whole case."""
        return not Features.of(case).any and case.symbols["value_dim"] == case.symbols["head_dim"]

    def _like(
        self, case: Case, shape: Mapping[str, Value], kept: Collection[str], layout: str
    ) -> Case:
        """A case of this shape with the head_dim, mask and features of `case`, with its scale if
        the shape has none or the scale is kept, and with its layout if that is kept."""
        scale = case.symbols["softmax_scale"]
        if "softmax_scale" not in kept:
            scale = shape.get("scale", scale)
        if "layout" in kept:
            layout = str(case.symbols["layout"])
        mine = features.changed(Features.of(case), shape, kept)
        own = {name: case.symbols[name] for name in ("head_dim", "value_dim")}
        sizes = {name: value for name, value in shape.items() if name not in features.KEYS}
        whole = {**sizes, **own, **mine.told(), "scale": scale}
        made = self.case(whole, {"causal": case.symbols["causal"]})
        return made if layout == layouts.DEFAULT else _laid_out(made.symbols, layout)

    def parts(self, case: Case, touched: Sequence[tuple[str, int, int]]) -> Parts | None:
        """See `HasParts`. The parts are heads of keys, with the heads of queries that use them."""
        found = heads_touched(_integers(case), touched)
        if not self.is_plain(case) or not found:
            return None
        sizes, regions = heads_as_batch(_integers(case), found)
        return Parts(self._like(case, sizes, ("softmax_scale",), layouts.DEFAULT), regions)

    def make_inputs(self, case: Case, kind: str, seed: int, device: str = "cpu") -> Tensors:
        from evotune.problems import attention_torch

        return attention_torch.make_inputs(self.tensors(case), case, kind, seed, device)

    def reference(self, case: Case, inputs: Tensors) -> Tensors:
        from evotune.problems import attention_torch

        return attention_torch.reference(case, inputs)

    def altered_indices(
        self, case: Case, inputs: Tensors, name: str, most: int, rng: random.Random
    ) -> tuple[int, torch.Tensor] | None:
        """Always None: no tensor has lengths or indices."""
        return None

    def tolerances(self, case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
        from evotune.problems import attention_torch

        return attention_torch.tolerances(case, inputs, reference)

    def baselines(
        self, case: Case, inputs: Tensors, only: str = ""
    ) -> dict[str, Callable[[], Tensors]]:
        from evotune.problems import attention_torch

        return attention_torch.baselines(case, self.tensors(case), inputs, only)


def layout_strides(layout: str, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The strides of q, k, v and out, from one batch, head and row to the next, in elements."""
    found = layouts.stride_symbols(layout, sizes)
    return {
        name: tuple(found[symbol] for symbol in layouts.symbols_of(name)) for name in DIMENSIONS
    }


def _sizes(shape: Mapping[str, Value]) -> dict[str, int]:
    """The shape with `seq_len` and `kv_heads` spelled out, every size at least 1."""
    sizes: dict[str, int] = {}
    for name, value in shape.items():
        if name not in _SHAPE_NAMES:
            known = ", ".join(_SHAPE_NAMES)
            raise WrongSymbol(f"unknown size {name!r} in a shape; known: {known}", name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            message = f"expected {name} to be an integer of at least 1, got {value!r}"
            raise WrongSymbol(message, name)
        sizes[name] = value
    if {"seq_len", "seq_len_q", "seq_len_k"} <= sizes.keys():
        message = "seq_len sets both lengths: omit it if the shape has seq_len_q or seq_len_k"
        raise WrongSymbol(message, "seq_len")
    seq_len = sizes.pop("seq_len", None)
    for name in ("seq_len_q", "seq_len_k"):
        if seq_len is not None:
            sizes.setdefault(name, seq_len)
    sizes.setdefault("kv_heads", sizes.get("heads", 1))
    sizes.setdefault("value_dim", sizes.get("head_dim", 1))
    missing = [name for name in _SIZES if name not in sizes]
    if missing:
        raise ValueError(f"the shape lacks {', '.join(missing)} (seq_len sets both lengths)")
    return {name: sizes[name] for name in _SIZES}


def _scale(value: Value, usual: float) -> float:
    if isinstance(value, bool | str) or not 0.0 < value < math.inf:
        raise WrongSymbol(f"expected scale to be a positive number, got {value!r}", "scale")
    return usual if math.isclose(value, usual) else float(value)


def _laid_out(symbols: Mapping[str, Value], layout: str) -> Case:
    """The case of these symbols, whose layout and strides follow."""
    sizes = {name: int(symbols[name]) for name in _SIZES}
    whole = {**symbols, "layout": layout, **layouts.stride_symbols(layout, sizes)}
    whole |= Mask.of(symbols).strides(layout, sizes["seq_len_k"])
    return Case(label_of(whole, 1.0 / math.sqrt(sizes["head_dim"])), whole)


def _layout(value: Value) -> str:
    if isinstance(value, str) and value in layouts.LAYOUTS:
        return value
    known = ", ".join(layouts.LAYOUTS)
    raise WrongSymbol(f"unknown layout {value!r}; known: {known}", "layout")


def _kept_sizes(case: Case, kept: Collection[str]) -> dict[str, int]:
    """The case's values of the kept sizes; `seq_len` is another name of the queries' length."""
    names = ["seq_len_q" if name == "seq_len" else name for name in kept]
    return {name: int(case.symbols[name]) for name in names if name in _SIZES}


def _lengths(case: Case) -> dict[str, Any]:
    s = case.symbols
    return {"causal": bool(s["causal"]), "queries": s["seq_len_q"], "keys": s["seq_len_k"]}


def _integers(case: Case) -> dict[str, int]:
    return {
        name: value
        for name, value in case.symbols.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }


Heads: TypeAlias = "tuple[tuple[int, int], ...]"
"""Heads, each as a pair of a batch and a head of keys."""


def heads_touched(sizes: Mapping[str, int], touched: Sequence[tuple[str, int, int]]) -> Heads:
    """The heads that depend on these elements (see `HasParts.parts`); none if they are more than
    half of all heads."""
    found: dict[tuple[int, int], None] = {}
    for name, first, count in touched:
        rows, heads = ("seq_len_q", "heads") if name == "q" else ("seq_len_k", "kv_heads")
        elements = sizes[rows] * sizes["head_dim"]
        for number in range(first // elements, (first + count - 1) // elements + 1):
            batch, head = divmod(number, sizes[heads])
            found[batch, head * sizes["kv_heads"] // sizes[heads]] = None
    return tuple(found) if 2 * len(found) <= sizes["batch"] * sizes["kv_heads"] else ()


def heads_as_batch(
    sizes: Mapping[str, int], heads: Heads
) -> tuple[dict[str, Value], Mapping[str, Sequence[Index]]]:
    """The sizes of a case whose batch consists of these heads, and the heads' place in each
    tensor."""
    group = sizes["heads"] // sizes["kv_heads"]
    found: dict[str, Value] = {"batch": len(heads), "heads": group, "kv_heads": 1}
    found |= {name: sizes[name] for name in ("seq_len_q", "seq_len_k")}
    queries = [(batch, slice(head * group, (head + 1) * group)) for batch, head in heads]
    keys = [(batch, slice(head, head + 1)) for batch, head in heads]
    return found, {"q": queries, "k": keys, "v": keys, "out": queries}


def label_of(symbols: Mapping[str, Value], usual_scale: float) -> str:
    """The label, such as `(1,8/2,512x1024,64,scale=0.1) causal`: batch, heads (of queries / of
    keys), length (of queries x of keys), head size (of k / of v), features, mask. A part that has
    its usual value is left out."""
    heads = str(symbols["heads"])
    if symbols["kv_heads"] != symbols["heads"]:
        heads += f"/{symbols['kv_heads']}"
    length = str(symbols["seq_len_q"])
    if symbols["seq_len_k"] != symbols["seq_len_q"]:
        length += f"x{symbols['seq_len_k']}"
    scale = symbols["softmax_scale"]
    told = "" if scale == usual_scale else f",scale={scale}"
    if symbols["layout"] != layouts.DEFAULT:
        told += f",{symbols['layout']}"
    mine = Features.of(Case("", symbols))
    mask = "causal" if symbols["causal"] else "full"
    if mine.bottom_right:
        mask += " bottom_right"
    head_dim = str(symbols["head_dim"])
    if symbols["value_dim"] != symbols["head_dim"]:
        head_dim += f"/{symbols['value_dim']}"
    return f"({symbols['batch']},{heads},{length},{head_dim}{told}{mine.words()}) {mask}"
