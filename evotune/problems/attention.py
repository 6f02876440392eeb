"""Scaled dot-product attention, forward: out = softmax(scale * Q K^T + mask) V.

Layouts, row-major: q, out (batch, heads, seq_len_q, head_dim);
k, v (batch, kv_heads, seq_len_k, head_dim), kv_heads dividing heads (grouped query).
Causal is top-left aligned (query i sees keys j <= i), as SDPA's `is_causal`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from evotune.problems.base import Case, Tensors, TensorSpec
from evotune.trial import Value

_SHAPE_NAMES = ("batch", "heads", "kv_heads", "seq_len", "seq_len_q", "seq_len_k", "head_dim")
_SIZES = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim")
_LONGEST = 600  # of the random lengths: several blocks of keys and rows of any kernel's


class Attention:
    """The flagship problem. See `evotune.problems.attention_torch` for the tensor side."""

    name: ClassVar[str] = "attention"
    dtypes: ClassVar[tuple[str, ...]] = ("float16", "bfloat16", "float32")
    input_kinds: ClassVar[tuple[str, ...]] = ("normal", "needle", "ramp", "large_logits")

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def case(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> Case:
        sizes = _sizes(shape)
        for name, value in variant.items():
            if name != "causal" or not isinstance(value, bool):
                raise ValueError(f"expected a variant {{causal: true|false}}, got {name}: {value}")
        causal = bool(variant.get("causal", False))
        heads, kv_heads = sizes["heads"], sizes["kv_heads"]
        if heads % kv_heads:
            raise ValueError(f"heads ({heads}) must be a multiple of kv_heads ({kv_heads})")
        symbols: dict[str, Value] = dict(sizes)
        symbols["seq_len"] = sizes["seq_len_q"]
        symbols["causal"] = causal
        symbols["dtype"] = self.dtype
        symbols["softmax_scale"] = 1.0 / math.sqrt(sizes["head_dim"])
        return Case(_label(sizes, causal), symbols)

    def tensors(self, case: Case) -> tuple[TensorSpec, ...]:
        s = _integers(case)
        q_shape = (s["batch"], s["heads"], s["seq_len_q"], s["head_dim"])
        kv_shape = (s["batch"], s["kv_heads"], s["seq_len_k"], s["head_dim"])
        return (
            TensorSpec("q", q_shape, self.dtype),
            TensorSpec("k", kv_shape, self.dtype),
            TensorSpec("v", kv_shape, self.dtype),
            TensorSpec("out", q_shape, self.dtype, is_output=True),
        )

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

    def edge_cases(self, case: Case) -> Sequence[Case]:
        """Odd, short and unequal lengths, and grouped heads, with the case's head_dim and mask."""
        head_dim = case.symbols["head_dim"]
        causal = case.symbols["causal"]
        variant = {"causal": causal}
        shapes = (
            {"batch": 1, "heads": 2, "seq_len": 1},
            {"batch": 2, "heads": 2, "seq_len": 67},
            {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 33, "seq_len_k": 130},
            {"batch": 1, "heads": 3, "kv_heads": 1, "seq_len_q": 145, "seq_len_k": 29},
            # Row 0 of a causal case sees one key: only many rows see many keys.
            {"batch": 1, "heads": 1, "seq_len_q": 257 if causal else 1, "seq_len_k": 257},
        )
        return [self.case({**shape, "head_dim": head_dim}, variant) for shape in shapes]

    def siblings(self, case: Case) -> Sequence[Case]:
        """Without a mask and causal."""
        sizes = {name: value for name, value in case.symbols.items() if name in _SIZES}
        return [self.case(sizes, {"causal": causal}) for causal in (False, True)]

    def random_cases(self, cases: Sequence[Case], seed: int) -> Iterator[Case]:
        """Lengths of 1 to 600, half of them short and most of them odd, equal in half the
        shapes; up to two batches, six heads, and groups of up to four heads."""
        rng = random.Random(seed)
        while True:
            like = rng.choice(cases).symbols
            seq_len_q, seq_len_k = _random_length(rng), _random_length(rng)
            kv_heads = rng.randint(1, 3)
            shape = {
                "batch": rng.randint(1, 2),
                "heads": kv_heads * rng.choice((1, 1, 2, 4) if kv_heads == 1 else (1, 1, 2)),
                "kv_heads": kv_heads,
                "seq_len_q": seq_len_q,
                "seq_len_k": rng.choice((seq_len_q, seq_len_k)),
                "head_dim": like["head_dim"],
            }
            yield self.case(shape, {"causal": like["causal"]})

    def make_inputs(self, case: Case, kind: str, seed: int, device: str = "cpu") -> Tensors:
        from evotune.problems import attention_inputs

        return attention_inputs.make_inputs(self.tensors(case), case, kind, seed, device)

    def reference(self, case: Case, inputs: Tensors) -> Tensors:
        from evotune.problems import attention_torch

        return attention_torch.reference(case, inputs)

    def tolerances(self, case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
        from evotune.problems import attention_torch

        return attention_torch.tolerances(case, inputs, reference)

    def baselines(
        self, case: Case, inputs: Tensors, only: str = ""
    ) -> dict[str, Callable[[], Tensors]]:
        from evotune.problems import attention_torch

        return attention_torch.baselines(case, inputs, only)


def _sizes(shape: Mapping[str, Value]) -> dict[str, int]:
    """The shape with `seq_len` and `kv_heads` spelled out, every size at least 1."""
    sizes: dict[str, int] = {}
    for name, value in shape.items():
        if name not in _SHAPE_NAMES:
            raise ValueError(f"unknown size {name!r} in a shape; known: {', '.join(_SHAPE_NAMES)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"expected {name} to be an integer of at least 1, got {value!r}")
        sizes[name] = value
    if {"seq_len", "seq_len_q", "seq_len_k"} <= sizes.keys():
        raise ValueError("seq_len sets both lengths: leave it out beside seq_len_q and seq_len_k")
    seq_len = sizes.pop("seq_len", None)
    for name in ("seq_len_q", "seq_len_k"):
        if seq_len is not None:
            sizes.setdefault(name, seq_len)
    sizes.setdefault("kv_heads", sizes.get("heads", 1))
    missing = [name for name in _SIZES if name not in sizes]
    if missing:
        raise ValueError(f"the shape lacks {', '.join(missing)} (seq_len sets both lengths)")
    return {name: sizes[name] for name in _SIZES}


def _random_length(rng: random.Random) -> int:
    length = rng.randint(1, rng.choice((64, _LONGEST)))
    return length - 1 if length % 2 == 0 and rng.random() < 0.7 else length


def _label(sizes: Mapping[str, int], causal: bool) -> str:
    heads = str(sizes["heads"])
    if sizes["kv_heads"] != sizes["heads"]:
        heads += f"/{sizes['kv_heads']}"
    length = str(sizes["seq_len_q"])
    if sizes["seq_len_k"] != sizes["seq_len_q"]:
        length += f"x{sizes['seq_len_k']}"
    mask = "causal" if causal else "full"
    return f"({sizes['batch']},{heads},{length},{sizes['head_dim']}) {mask}"


def _integers(case: Case) -> dict[str, int]:
    return {
        name: value
        for name, value in case.symbols.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
