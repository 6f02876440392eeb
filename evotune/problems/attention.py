"""Scaled dot-product attention, forward: out = softmax(scale * Q K^T + mask) V.

Shapes: q, out (batch, heads, seq_len_q, head_dim); k, v (batch, kv_heads, seq_len_k, head_dim),
kv_heads dividing heads (grouped query). A case's `layout` gives their strides.
Causal is top-left aligned (query i sees keys j <= i), as SDPA's `is_causal`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import ClassVar

from evotune.problems import _attention_layouts as layouts
from evotune.problems._attention_shapes import edge_shapes, far_shapes, random_shapes
from evotune.problems.problem import (
    CONTIGUOUS,
    Case,
    Place,
    Tensors,
    TensorSpec,
    WrongSymbol,
    contiguous_strides,
)
from evotune.trial import Value

_SHAPE_NAMES = (
    *("batch", "heads", "kv_heads", "seq_len", "seq_len_q", "seq_len_k", "head_dim", "scale"),
)
_SIZES = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim")
DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "q": ("batch", "heads", "seq_len_q", "head_dim"),
    "k": ("batch", "kv_heads", "seq_len_k", "head_dim"),
    "v": ("batch", "kv_heads", "seq_len_k", "head_dim"),
    "out": ("batch", "heads", "seq_len_q", "head_dim"),
}
"""The sizes of each tensor, outermost dimension first."""
_EDGE_LAYOUTS = ("blhd", "mixed", "packed_qkv", "mixed", layouts.DEFAULT)
_RANDOM_LAYOUTS = (*layouts.LAYOUTS, "mixed")
_FAR_EVERY = 4
"""Of so many random shapes one is followed by a far one, until all were."""
_LONG = 1200  # from this length on, one key hardly shows on normal inputs


class Attention:
    """The flagship problem. See `evotune.problems._attention_torch` for the tensor side."""

    name: ClassVar[str] = "attention"
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16", "float32")
    input_kinds: ClassVar[tuple[str, ...]] = ("normal", "needle", "ramp", "large_logits")
    variant_symbols: ClassVar[tuple[str, ...]] = ("causal", "layout")
    optional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def scalars(self, case: Case) -> tuple[str, ...]:
        return ("softmax_scale",)

    def case(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> Case:
        scale = shape.get("scale")
        others = ("scale", "layout")
        sizes = _sizes({name: value for name, value in shape.items() if name not in others})
        for name, value in variant.items():
            if name != "layout" and (name != "causal" or not isinstance(value, bool)):
                message = f"expected a variant {{causal: true|false}}, got {name}: {value}"
                raise WrongSymbol(message, name)
        if "layout" in shape and "layout" in variant:
            raise WrongSymbol("the shape names a layout already", "layout")
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
        return _laid_out(symbols, layout)

    def tensors(self, case: Case) -> tuple[TensorSpec, ...]:
        s = _integers(case)

        def tensor(name: str, sizes: Sequence[str]) -> TensorSpec:
            shape = tuple(s[size] for size in sizes)
            names = layouts.symbols_of(name)
            strides = (*(s[symbol] for symbol in names), 1)
            if strides == contiguous_strides(shape):
                strides = ()
            return TensorSpec(name, shape, self.dtype, name == "out", strides, names)

        return tuple(tensor(name, sizes) for name, sizes in DIMENSIONS.items())

    def flops(self, case: Case) -> int:
        """4 * head_dim per visible score (two products); the softmax is not counted, as usual."""
        s = _integers(case)
        visible = s["seq_len_q"] * s["seq_len_k"]
        if case.symbols["causal"]:
            short = min(s["seq_len_q"], s["seq_len_k"])
            visible = short * (short + 1) // 2 + max(0, s["seq_len_q"] - short) * s["seq_len_k"]
        return 4 * s["batch"] * s["heads"] * visible * s["head_dim"]

    def bytes_moved(self, case: Case) -> int:
        size = 4 if self.dtype == "float32" else 2
        return size * sum(math.prod(spec.shape) for spec in self.tensors(case))

    def exponentials(self, case: Case) -> int:
        """One for each visible score (`evotune explain` holds them against MUFU)."""
        return self.flops(case) // (4 * int(case.symbols["head_dim"]))

    def edge_cases(self, case: Case, kept: Collection[str] = ()) -> Sequence[Case]:
        """`edge_shapes` with the case's head_dim and mask; all but one have its scale too."""
        shapes = edge_shapes(
            causal=bool(case.symbols["causal"]),
            usual_scale=float(case.symbols["softmax_scale"]),
            kept=_kept_sizes(case, kept),
        )
        return [
            self._like(case, shape, kept, layout)
            for shape, layout in zip(shapes, _EDGE_LAYOUTS, strict=True)
        ]

    def siblings(self, case: Case) -> Sequence[Case]:
        """The shape without a mask, and causal."""
        sizes = {name: value for name, value in case.symbols.items() if name in _SIZES}
        shape = {
            **sizes,
            "scale": case.symbols["softmax_scale"],
            "layout": case.symbols["layout"],
        }
        return [self.case(shape, {"causal": causal}) for causal in (False, True)]

    def random_cases(
        self, cases: Sequence[Case], seed: int, kept: Collection[str] = ()
    ) -> Iterator[Case]:
        """`random_shapes` for each group of cases with the same kept symbols, in turn."""
        rng, of_layouts = random.Random(seed), random.Random(f"layouts {seed}")
        longest = max(int(c.symbols[n]) for c in cases for n in ("seq_len_q", "seq_len_k"))
        names = {"head_dim", "causal", "softmax_scale", *kept}
        names -= set() if "layout" in kept else {"layout"}
        likes = {tuple(case.symbols[name] for name in sorted(names)): case for case in cases}
        streams = [
            (
                like,
                random_shapes(
                    random.Random(rng.getrandbits(64)),
                    longest=longest,
                    causal=bool(like.symbols["causal"]),
                    usual_scale=float(like.symbols["softmax_scale"]),
                    kept=_kept_sizes(like, kept),
                ),
            )
            for like in likes.values()
        ]
        far: list[tuple[dict[str, Value], str]] = []
        if not {"layout", "batch", "heads", "kv_heads"} & set(kept):
            far = list(far_shapes(of_layouts, layouts.FAR, _kept_sizes(cases[0], kept)))
        count = 0
        while True:
            for like, shapes in rng.sample(streams, len(streams)):
                yield self._like(like, next(shapes), kept, of_layouts.choice(_RANDOM_LAYOUTS))
                count += 1
                if far and count % _FAR_EVERY == 0:
                    shape, layout = far.pop()
                    yield self._like(like, shape, kept, layout)

    def random_kinds(self, case: Case, number: int) -> Sequence[str]:
        """One kind, in turn; for a long case the needle, since other kinds hardly show one key."""
        longest = max(int(case.symbols[name]) for name in ("seq_len_q", "seq_len_k"))
        if longest > _LONG:
            return ("needle",)
        return (self.input_kinds[number % len(self.input_kinds)],)

    def called_case(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        options: Mapping[str, Value],
        tuned: Sequence[Case],
    ) -> Case:
        """Without an option, `causal` is as in the tuned cases, if they agree, and the scale is the
        usual one."""
        if any(len(shapes[name]) != 4 for name in ("q", "k", "v")):
            raise ValueError("expected q, k and v of four dimensions: batch, heads, length, head")
        (batch, heads, seq_len_q, head_dim), (_, kv_heads, seq_len_k, _) = shapes["q"], shapes["k"]
        masks = {bool(case.symbols["causal"]) for case in tuned}
        causal = options.get("causal", next(iter(masks)) if len(masks) == 1 else None)
        if causal is None:
            raise ValueError("the cases differ in causal: say causal=True or causal=False")
        sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        sizes |= {"seq_len_q": seq_len_q, "seq_len_k": seq_len_k}
        others = {name: value for name, value in options.items() if name != "causal"}
        if others.get("scale", 0) is None:  # in PyTorch None means the usual scale
            del others["scale"]
        if unknown := [name for name in others if name != "scale"]:
            raise ValueError(f"unknown argument {unknown[0]!r}; known: causal, scale")
        return self.case({**sizes, **others}, {"causal": causal})

    def place(self, case: Case) -> Place:
        s = _integers(case)
        names = ("batch", "heads", "seq_len_q", "seq_len_k")
        return Place(
            {name: case.symbols[name] for name in ("dtype", "head_dim", "causal")},
            {
                **{name: s[name] for name in names},
                "group": s["heads"] // s["kv_heads"],
                "softmax_scale": float(case.symbols["softmax_scale"]),
                "elements": max(spec.span for spec in self.tensors(case)),
            },
            _layout_name(str(case.symbols["layout"])),
        )

    def _like(
        self, case: Case, shape: Mapping[str, Value], kept: Collection[str], layout: str
    ) -> Case:
        """A case of this shape with the head_dim and mask of `case`, with its scale if the shape
        has none or the scale is kept, and with its layout if that is kept."""
        scale = case.symbols["softmax_scale"]
        if "softmax_scale" not in kept:
            scale = shape.get("scale", scale)
        if "layout" in kept:
            layout = str(case.symbols["layout"])
        whole = {**shape, "head_dim": case.symbols["head_dim"], "scale": scale}
        made = self.case(whole, {"causal": case.symbols["causal"]})
        return made if layout == layouts.DEFAULT else _laid_out(made.symbols, layout)

    def make_inputs(self, case: Case, kind: str, seed: int, device: str = "cpu") -> Tensors:
        from evotune.problems import _attention_inputs

        return _attention_inputs.make_inputs(self.tensors(case), case, kind, seed, device)

    def reference(self, case: Case, inputs: Tensors) -> Tensors:
        from evotune.problems import _attention_torch

        return _attention_torch.reference(case, inputs)

    def tolerances(self, case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
        from evotune.problems import _attention_torch

        return _attention_torch.tolerances(case, inputs, reference)

    def baselines(
        self, case: Case, inputs: Tensors, only: str = ""
    ) -> dict[str, Callable[[], Tensors]]:
        from evotune.problems import _attention_torch

        return _attention_torch.baselines(case, self.tensors(case), inputs, only)


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
        message = "seq_len sets both lengths: leave it out beside seq_len_q and seq_len_k"
        raise WrongSymbol(message, "seq_len")
    seq_len = sizes.pop("seq_len", None)
    for name in ("seq_len_q", "seq_len_k"):
        if seq_len is not None:
            sizes.setdefault(name, seq_len)
    sizes.setdefault("kv_heads", sizes.get("heads", 1))
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
    return Case(_label(whole, 1.0 / math.sqrt(sizes["head_dim"])), whole)


def _layout(value: Value) -> str:
    if isinstance(value, str) and value in layouts.LAYOUTS:
        return value
    known = ", ".join(layouts.LAYOUTS)
    raise WrongSymbol(f"unknown layout {value!r}; known: {known}", "layout")


def _layout_name(layout: str) -> str:
    """The layout's name in a domain."""
    return CONTIGUOUS if layout == layouts.DEFAULT else layout


def _kept_sizes(case: Case, kept: Collection[str]) -> dict[str, int]:
    """The case's values of the kept sizes; `seq_len` is another name of the queries' length."""
    names = ["seq_len_q" if name == "seq_len" else name for name in kept]
    return {name: int(case.symbols[name]) for name in names if name in _SIZES}


def _label(symbols: Mapping[str, Value], usual_scale: float) -> str:
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
    mask = "causal" if symbols["causal"] else "full"
    return f"({symbols['batch']},{heads},{length},{symbols['head_dim']}{told}) {mask}"


def _integers(case: Case) -> dict[str, int]:
    return {
        name: value
        for name, value in case.symbols.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
