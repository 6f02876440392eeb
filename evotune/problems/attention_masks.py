"""The mask of attention, SDPA's `attn_mask`, as symbols of a case.

    mask           its kind: padding (boolean, the same for all heads and rows, known by its shape
                   alone, so it may have holes), bool (boolean: true where a row sees the key), or
                   bias (added to the scores, after all else that changes them)
    mask_batch     its sizes: 1 where it is broadcast, else the case's size, which is the default
    mask_heads
    mask_rows
    mask_dtype     of a bias: the case's dtype, which is the default, or float32

The tensor `attn_mask` has the sizes (mask_batch, mask_heads, mask_rows, seq_len_k) and strides of
its own; the stride is 0 where it is broadcast. Booleans are bytes of 0 and 1.

Rows that see no key are 0, whether false or -inf hides their keys, as in SDPA's math backend since
PyTorch 2.5. A bias of the lowest float hides a key unless it hides all keys of the row: then each
has the same weight. NaN in a bias makes the rows that read it NaN.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from evotune.problems.problem import TensorSpec, WrongSymbol
from evotune.trial import Value

TENSOR = "attn_mask"
KEYS = ("mask", "mask_batch", "mask_heads", "mask_rows", "mask_dtype")
"""The names that a shape or a variant may give."""
NONE, PADDING, BOOL, BIAS = "none", "padding", "bool", "bias"
STRIDES = tuple(f"{TENSOR}_stride_{dimension}" for dimension in ("batch", "head", "row"))
SIZES = {"mask_batch": "batch", "mask_heads": "heads", "mask_rows": "seq_len_q"}
"""The sizes of the tensor except the last one, and what each is if the mask is not broadcast."""
_GAPS = {"packed_qkv": 16, "mixed": 24}
"""Elements between the rows of a mask: it is a part of one for longer sequences."""
_FULL = 0
"""A size of a mask that is not broadcast, until the case's sizes are known."""
_PATTERNS = (
    *((_FULL, _FULL, _FULL), (1, _FULL, _FULL), (_FULL, 1, _FULL), (1, 1, _FULL)),
    *((_FULL, _FULL, 1), (_FULL, 1, 1), (1, _FULL, 1), (1, 1, 1)),
)
_EDGE_SHAPES = (
    {"batch": 3, "heads": 4, "kv_heads": 2, "seq_len_q": 33, "seq_len_k": 200},
    {"batch": 4, "heads": 2, "kv_heads": 2, "seq_len_q": 70, "seq_len_k": 131},
    {"batch": 2, "heads": 3, "kv_heads": 3, "seq_len_q": 5, "seq_len_k": 1},
    {"batch": 3, "heads": 2, "kv_heads": 2, "seq_len_q": 64, "seq_len_k": 256},
    {"batch": 2, "heads": 6, "kv_heads": 2, "seq_len_q": 131, "seq_len_k": 65},
    {"batch": 2, "heads": 2, "kv_heads": 1, "seq_len_q": 200, "seq_len_k": 300},
    {"batch": 2, "heads": 2, "kv_heads": 2, "seq_len_q": 33, "seq_len_k": 96},
    {"batch": 2, "heads": 4, "kv_heads": 4, "seq_len_q": 17, "seq_len_k": 50},
)
"""One for each way of broadcasting, with several batches, heads and rows, so that a wrong way
shows; keys in whole blocks and with a rest."""


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of a case; `kind` is none without one. `batch`, `heads`, `rows`: 1 where it is
    broadcast. `dtype`: of a bias, none for a boolean mask."""

    kind: str = NONE
    batch: int = 1
    heads: int = 1
    rows: int = 1
    dtype: str = NONE

    @classmethod
    def given(cls, told: Mapping[str, Value], sizes: Mapping[str, int], dtype: str) -> Mask:
        """`told`: the values of some of `KEYS`. `sizes`: the case's. `dtype`: the case's. Raises
        WrongSymbol for the first invalid value."""
        kind = told.get("mask", NONE)
        if kind not in (NONE, PADDING, BOOL, BIAS):
            known = ", ".join((PADDING, BOOL, BIAS))
            raise WrongSymbol(f"unknown mask {kind!r}; known: {known}", "mask")
        if kind == NONE:
            return cls._none(told)
        batch, heads, rows = (
            _size(told, name, sizes[size], one=kind == PADDING and name != "mask_batch")
            for name, size in SIZES.items()
        )
        return cls(str(kind), batch, heads, rows, _bias_dtype(told, str(kind), dtype))

    @classmethod
    def _none(cls, told: Mapping[str, Value]) -> Mask:
        for name in KEYS[1:]:
            if name in told:
                raise WrongSymbol(f"{name} of a case without a mask: say mask, too", name)
        return cls()

    @classmethod
    def of(cls, symbols: Mapping[str, Value]) -> Mask:
        batch, heads, rows = (int(symbols[name]) for name in SIZES)
        return cls(str(symbols["mask"]), batch, heads, rows, str(symbols["mask_dtype"]))

    def __bool__(self) -> bool:
        return self.kind != NONE

    @property
    def is_bias(self) -> bool:
        return self.kind == BIAS

    @property
    def _sizes(self) -> dict[str, int]:
        return dict(zip(SIZES, (self.batch, self.heads, self.rows), strict=True))

    def symbols(self) -> dict[str, Value]:
        """All names by which kernels and expressions know the mask, but for its strides."""
        return {
            "mask": self.kind,
            **self._sizes,
            "mask_dtype": self.dtype,
            "has_mask": bool(self),
            "mask_is_padding": self.kind == PADDING,
            "mask_is_bias": self.is_bias,
            "mask_is_float32": self.dtype == "float32",
        }

    def told(self) -> dict[str, Value]:
        """The mask as a shape would give it."""
        if not self:
            return {}
        own: dict[str, Value] = {name: 1 for name, size in self._sizes.items() if size == 1}
        if self.kind == PADDING:
            own = {name: 1 for name in own if name == "mask_batch"}
        return {"mask": self.kind, **own} | ({"mask_dtype": self.dtype} if self.is_bias else {})

    def words(self) -> str:
        """For a label: "" without a mask."""
        if not self:
            return ""
        sizes = "x".join(map(str, self._sizes.values()))
        return f",{self.kind}={sizes}" + (f":{self.dtype}" if self.is_bias else "")

    def broadcast(self, symbols: Mapping[str, Value]) -> str:
        """How the mask of a case with these symbols is broadcast, as in `Place.mask_sizes`."""
        if not self:
            return ""
        whole = {size: int(symbols[name]) for size, name in SIZES.items()}
        return " ".join(
            "-" if whole[name] == 1 else "1" if size == 1 else name.removeprefix("mask_")
            for name, size in self._sizes.items()
        )

    def kept(self) -> dict[str, Value]:
        """What every test of a case has, as symbols of its domain."""
        own: dict[str, Value] = {"mask": self.kind} if self else {}
        return own | ({"mask_dtype": self.dtype} if self.is_bias else {})

    def strides(self, layout: str, keys: int) -> dict[str, int]:
        """The strides of the tensor by their symbols, in elements; 0 where it is broadcast."""
        row = keys + _GAPS.get(layout, 0)
        head = self.rows * row
        batch = self.heads * head
        if layout == "mixed":  # (heads, batch, rows)
            batch, head = head, self.batch * head
        steps = zip(STRIDES, self._sizes.values(), (batch, head, row), strict=True)
        return {name: step if self and size > 1 else 0 for name, size, step in steps}

    def tensor(self, symbols: Mapping[str, Value]) -> TensorSpec:
        """The tensor of a case with these symbols. It is steady, since a kernel may read an element
        twice: to find the blocks that it may skip, and to hide keys."""
        shape = (*self._sizes.values(), int(symbols["seq_len_k"]))
        strides = (*(int(symbols[name]) for name in STRIDES), 1)
        if _are_contiguous(shape, strides):
            strides = ()
        dtype = self.dtype if self.is_bias else "uint8"
        return TensorSpec(TENSOR, shape, dtype, False, strides, STRIDES, is_steady=True)

    def edge_shapes(self, kept: Collection[str]) -> Iterator[dict[str, Value]]:
        """Small shapes at the borders of the mask, each broadcast in another way."""
        if not self:
            return
        patterns = self._patterns(kept)
        for number, sizes in enumerate(_EDGE_SHAPES):
            yield {**sizes, **_as_told(patterns[number % len(patterns)])}

    def others(self, kept: Collection[str]) -> Iterator[dict[str, Value]]:
        """The other ways of broadcasting that a kernel can take."""
        own = tuple(1 if size == 1 else _FULL for size in self._sizes.values())
        return (_as_told(each) for each in self._patterns(kept) if self and each != own)

    def drawn(self, rng: random.Random, kept: Collection[str]) -> dict[str, Value]:
        """Another way of broadcasting, for a random test."""
        return _as_told(rng.choice(self._patterns(kept))) if self else {}

    def changed(self, told: Mapping[str, Value]) -> Mask:
        """The mask as broadcast as `told` says, for a case of other sizes."""
        own = {size.removeprefix("mask_"): int(told[size]) for size in self._sizes if size in told}
        return replace(self, **own)  # type: ignore[arg-type]

    def _patterns(self, kept: Collection[str]) -> Sequence[tuple[int, int, int]]:
        """The ways of broadcasting that a kernel can take: all where it is told the strides."""
        if {"layout", *SIZES} & set(kept):
            own = [1 if size == 1 else _FULL for size in self._sizes.values()]
            return [(own[0], own[1], own[2])]
        return [each for each in _PATTERNS if self.kind != PADDING or each[1:] == (1, 1)]


NO_MASK = Mask()


def called(shape: Sequence[int], told: Mapping[str, Value]) -> dict[str, Value]:
    """What a case says, `told`, with a mask of a call's sizes."""
    if len(shape) != 4:
        raise ValueError(f"expected {TENSOR} of four dimensions: batch, heads, rows, keys")
    return {**told, **dict(zip(SIZES, shape[:3], strict=True))}


def _as_told(pattern: Sequence[int]) -> dict[str, Value]:
    return dict(zip(SIZES, pattern, strict=True))


def _size(told: Mapping[str, Value], name: str, full: int, *, one: bool) -> int:
    size = told.get(name, 1 if one else full)
    known = "1" if one or full == 1 else f"1 or {full}"
    if isinstance(size, bool) or size not in (1, *(() if one else (full,))):
        raise WrongSymbol(f"expected {name} to be {known}, got {size!r}", name)
    return int(size)


def _bias_dtype(told: Mapping[str, Value], kind: str, dtype: str) -> str:
    found = told.get("mask_dtype", dtype if kind == BIAS else BOOL)
    known = tuple(dict.fromkeys((dtype, "float32"))) if kind == BIAS else (BOOL,)
    if found not in known:
        expected = " or ".join(known)
        raise WrongSymbol(f"expected mask_dtype to be {expected}, got {found!r}", "mask_dtype")
    return str(found) if kind == BIAS else NONE


def _are_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements lie one behind the other. A stride along a size of 1 counts for
    nothing."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
