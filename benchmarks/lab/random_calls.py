"""Draws calls of scaled_dot_product_attention at random: most near the cases that a package serves,
some that no kernel may serve, some that SDPA itself refuses.

A call is a pure function of the package's regions, a seed, a number and the kind of device.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from call_layouts import LAYOUTS, MASK_LAYOUTS, ODD_SHAPES, SPECIAL
from exported import Sizes, device_of, domain, dtype_of, regions, sizes_in
from sdpa_crashes import MADE, rule

_OTHER_DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int32, torch.bool, torch.complex64),
)
_MOST_SCORES = {"cpu": 1 << 19, "cuda": 1 << 26}
_MOST_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 24}
_HUGE_ELEMENTS = 1 << 28
_HUGE = 0.002  # the share of calls on a GPU that may have so many
_MOST_DRAWN = 20  # for one number
_USUAL, _USUAL_CONTEXTS = 0.75, 3
"""The share of calls with masks of which only their sizes and the mask are drawn, and the number of
contexts that these are made in."""


@dataclass
class RandomCall:
    """A call, ready to be made.

    - words: the call in short, for people.
    - tensors: q, k, v.
    - options: the given arguments, by name.
    - context: one of `call_contexts.NAMES`.
    - memory: all memory that the call reads. No byte of it may change.
    - left_out: the rules of `sdpa_crashes` for which this call was drawn in another's place.
    """

    words: dict[str, Any]
    tensors: list[Any]
    options: dict[str, Any]
    context: str
    memory: list[torch.Tensor] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


class Calls:
    """The calls of one package and seed. `masks`: each has a mask, and most are near cases that the
    package serves with one."""

    def __init__(
        self,
        module: ModuleType,
        seed: int,
        contexts: Sequence[tuple[float, str]],
        masks: bool = False,
    ) -> None:
        self._masks = masks
        self._served = [each for each in regions(module) if not masks or "mask_sizes" in each]
        self._domain = domain(module)
        self._seed = seed
        self._contexts = contexts
        self._dtype = dtype_of(module)
        self._device = device_of(module)

    def call(self, number: int) -> RandomCall:
        left_out: list[str] = []
        for drawn in range(_MOST_DRAWN):
            drawing = _Drawing(f"{self._seed} {number} {drawn}", self._device, self._masks)
            call = drawing.call(self._served, self._domain, self._dtype, self._contexts)
            crashes = rule(call.tensors, call.options)
            if not crashes or drawing.rng.random() < MADE:
                break
            left_out.append(crashes)
        call.left_out = left_out
        return call


class _Drawing:
    """Draws one call."""

    def __init__(self, seed: str, device: torch.device, masks: bool = False) -> None:
        self.rng = random.Random(seed)
        self.masks = masks
        self.is_usual = masks and self.rng.random() < _USUAL
        self.device = device
        self.generator = torch.Generator(device).manual_seed(self.rng.getrandbits(48))
        self.memory: list[torch.Tensor] = []
        self.words: dict[str, Any] = {}

    def call(
        self,
        served: Sequence[Any],
        domain: Sequence[Any],
        dtype: torch.dtype,
        contexts: Sequence[tuple[float, str]],
    ) -> RandomCall:
        kind = "served"
        if not self.is_usual:
            kind = self.chosen((0.6, "served"), (0.12, "domain"), (0.2, "any"), (0.08, "odd"))
        devices = self.devices(self.device)
        on = "cpu" if "cpu" in devices else self.device.type
        sizes = self.sizes(kind, served, domain, on)
        causal = self.rng.random() < (0.05 if self.masks else 0.4) and not self.is_usual
        if kind == "served" and self.rng.random() < 0.8:
            causal = self.causal
        shapes = self.shapes(sizes, odd=kind == "odd")
        dtypes = self.dtypes(dtype)
        layouts = self.layouts(shapes)
        values = self.chosen((0.86, "normal"), (0.08, "large"), (0.03, "zero"), (0.03, "infinite"))
        self.words |= {"shapes": [list(s) for s in shapes], "layouts": list(layouts)}
        self.words |= {"dtypes": sorted({str(d) for d in dtypes}), "values": values}
        self.words["devices"] = sorted(set(devices))
        logical = [
            self.values(shape, kind, values) for shape, kind in zip(shapes, dtypes, strict=True)
        ]
        tensors = self.laid_out(logical, layouts, devices)
        tensors = self.special(tensors)
        self.require_grad(tensors)
        options = self.options(shapes, causal, sizes, tensors)
        context = self.chosen(*contexts[:_USUAL_CONTEXTS] if self.is_usual else contexts)
        self.words |= {"context": context, **{name: _said(v) for name, v in options.items()}}
        return RandomCall(self.words, tensors, options, context, self.memory)

    def chosen(self, *weighted: tuple[float, Any]) -> Any:
        """One of (weight, value)."""
        weights, values = zip(*weighted, strict=True)
        return self.rng.choices(values, weights)[0]

    causal = False

    def sizes(self, kind: str, served: Sequence[Any], domain: Sequence[Any], on: str) -> Sizes:
        if kind in ("served", "odd"):
            region = self.rng.choice(served)
        elif kind == "domain":
            region = self.rng.choice(domain)
        else:
            region = {"fixed": {}, "ranges": {"seq_len_q": [1, 300], "seq_len_k": [1, 300],
                      "heads": [1, 12], "head_dim": [1, 160], "group": [1, 3]}}  # fmt: skip
        self.causal = bool(region["fixed"].get("causal", False))
        self.region = region
        found = sizes_in(region, self.rng, 1 << 17)
        if self.is_usual:
            return _small_enough(found, on, _MOST_ELEMENTS[on])
        if self.rng.random() < 0.1:
            name = self.rng.choice(("batch", "heads", "seq_len_q", "seq_len_k", "head_dim"))
            found[name] = max(1, found[name] + self.rng.choice((-1, 1)))
            found["kv_heads"] = found["heads"] if name == "heads" else found["kv_heads"]
        if kind != "odd" and self.rng.random() < 0.03:
            found |= self.rng.choice(
                ({"seq_len_q": 1, "seq_len_k": 1 << 17}, {"seq_len_q": 1 << 16, "seq_len_k": 2},
                 {"batch": 70_000, "seq_len_q": 1, "seq_len_k": 2})
            )  # fmt: skip
        is_huge = on == "cuda" and self.rng.random() < _HUGE
        return _small_enough(found, on, _HUGE_ELEMENTS if is_huge else _MOST_ELEMENTS[on])

    def shapes(self, sizes: Sizes, odd: bool) -> list[tuple[int, ...]]:
        b, h, g, lq, lk, d = (
            sizes[name]
            for name in ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim")
        )
        shapes = [(b, h, lq, d), (b, g, lk, d), (b, g, lk, d)]
        if not odd:
            return shapes
        change = self.rng.choice(list(ODD_SHAPES))
        self.words["odd"] = change
        return ODD_SHAPES[change](shapes, self.rng.randrange(4))

    def dtypes(self, dtype: torch.dtype) -> list[torch.dtype]:
        chance = self.rng.random()
        if chance < 0.88 or self.is_usual:
            return [dtype] * 3
        if chance < 0.96:
            return [self.rng.choice(_OTHER_DTYPES)] * 3
        return [self.rng.choice((dtype, *_OTHER_DTYPES[:4])) for _ in range(3)]

    def devices(self, device: torch.device) -> list[str]:
        others = ["meta"] if device.type == "cpu" else ["cpu", "meta"]
        chance = self.rng.random()
        if chance < 0.96 or self.is_usual:
            return [device.type] * 3
        if chance < 0.98:
            return [self.rng.choice(others)] * 3
        return [self.rng.choice((device.type, *others)) for _ in range(3)]

    def layouts(self, shapes: Sequence[tuple[int, ...]]) -> list[str]:
        chance = self.rng.random()
        if chance < 0.4:
            return ["contiguous"] * 3
        if chance < 0.6 or (self.is_usual and chance >= 0.75):
            return ["across"] * 3
        if chance < 0.75 and _can_be_packed(shapes):
            return ["packed"] * 3
        return [self.rng.choice(list(LAYOUTS)) for _ in range(3)]

    def values(self, shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> torch.Tensor:
        found = torch.randn(shape, generator=self.generator, device=self.device)
        if kind == "large":
            found *= 10 ** self.rng.uniform(-6, 1.5)
        elif kind == "zero":
            found.zero_()
        elif kind == "infinite" and found.numel():
            where = self.rng.randrange(found.numel())
            found.view(-1)[where] = self.rng.choice((float("inf"), float("-inf"), float("nan")))
        return found.to(dtype)

    def laid_out(
        self, logical: Sequence[torch.Tensor], layouts: Sequence[str], devices: Sequence[str]
    ) -> list[Any]:
        if layouts[0] == "packed":
            one = torch.cat(
                [t.transpose(1, 2) for t in (logical[0].to(logical[1].dtype), *logical[1:])], 2
            )
            one = self.kept(one.to(devices[0]))
            heads, group = logical[0].shape[1], logical[1].shape[1]
            parts = one.split([heads, group, group], dim=2)
            return [part.transpose(1, 2) for part in parts]
        return [
            LAYOUTS[layout](self, values.to(device))
            for values, layout, device in zip(logical, layouts, devices, strict=True)
        ]

    def kept(self, memory: torch.Tensor) -> torch.Tensor:
        """The memory, noted as read by the call."""
        if memory.device.type != "meta":
            self.memory.append(memory)
        return memory

    def special(self, tensors: list[Any]) -> list[Any]:
        """Rarely, tensors that are no plain memory."""
        if self.rng.random() >= 0.04 or self.is_usual:
            return tensors
        change = self.rng.choice(list(SPECIAL))
        self.words["special"] = change
        which = self.rng.randrange(4)
        return [
            SPECIAL[change](tensor) if which in (place, 3) else tensor
            for place, tensor in enumerate(tensors)
        ]

    def require_grad(self, tensors: list[Any]) -> None:
        if self.rng.random() >= 0.08 or self.is_usual:
            return
        for place, tensor in enumerate(tensors):
            usable = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            if usable and self.rng.random() < 0.6 and not tensor.is_inference():
                tensors[place] = tensor.detach().requires_grad_()
                self.words["grad"] = True

    def options(
        self, shapes: Sequence[tuple[int, ...]], causal: bool, sizes: Sizes, tensors: list[Any]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if causal or self.rng.random() < 0.2:
            found["is_causal"] = causal
        grouped = len(shapes[0]) > 1 and shapes[0][1:2] != shapes[1][1:2]
        if grouped != (self.rng.random() < 0.03) or self.rng.random() < 0.1:
            found["enable_gqa"] = grouped or self.rng.random() < 0.5
        if self.is_usual:
            found["enable_gqa"] = grouped
            found["attn_mask"] = self.near_mask(sizes, tensors)
            return found
        chance = self.rng.random()
        if chance < 0.3:
            usual = max(1, sizes["head_dim"]) ** -0.5
            found["scale"] = self.chosen(
                (4, usual), (5, usual * self.rng.uniform(0.3, 3)), (1, 1), (1, 0.0), (1, -0.3),
                (1, float("nan")), (1, float("inf")), (1, 1e-3), (1, 100.0), (1, None),
            )  # fmt: skip
        if self.rng.random() < 0.08:
            found["dropout_p"] = self.rng.choice((0.1, 0.1, 0.1, 0, False, 0.0, -0.5, 1.5, 1.0))
        if self.rng.random() < 0.1 or self.masks:
            is_near = "mask_sizes" in self.region and self.rng.random() < 0.7
            made = self.near_mask(sizes, tensors) if is_near else self.mask(shapes, tensors)
            if self.masks and made.is_floating_point() and self.rng.random() < 0.1:
                made = made.detach().requires_grad_()
            found["attn_mask"] = made
        return found

    def near_mask(self, sizes: Sizes, tensors: list[Any]) -> torch.Tensor:
        """A mask of the kind that the region has, broadcast in one of its ways."""
        batch, heads, rows = self.rng.choice(self.region["mask_sizes"]).split()
        whole = tuple(sizes[name] for name in ("batch", "heads", "seq_len_q", "seq_len_k"))
        shape = [
            1 if word in ("1", "-") else size
            for word, size in zip((batch, heads, rows), whole, strict=False)
        ]
        shape.append(whole[3])
        while len(shape) > 2 and shape[0] == 1 and self.rng.random() < 0.4:
            shape.pop(0)
        values = torch.rand(shape, generator=self.generator, device=self.device)
        made = values < self.rng.choice((0.05, 0.5, 0.9, 1.0))
        if self.rng.random() < 0.3:  # a row that sees no key
            made.view(-1, whole[3])[self.rng.randrange(made.numel() // whole[3])] = False
        if self.region["fixed"]["mask"] == "bias":
            dtype = getattr(torch, self.region["fixed"]["mask_dtype"])
            lowest = self.rng.choice((float("-inf"), torch.finfo(dtype).min, -1e4))
            values = (values - 0.5) * self.rng.choice((1.0, 8.0, 60.0))
            made = torch.where(made, values.to(dtype), lowest)
            if self.rng.random() < 0.03:
                made.view(-1)[self.rng.randrange(made.numel())] = float("nan")
        layout = self.chosen((5, "contiguous"), (2, "expanded"), (2, "slice of columns"))
        if not self.is_usual:
            layout = self.rng.choice(list(MASK_LAYOUTS))
        self.words["mask"] = [self.region["fixed"]["mask"], list(shape), layout]
        made = made.to(getattr(tensors[0], "device", "cpu"))
        # A mask has no more dimensions than q: vmap alone hides that SDPA refuses more.
        dimensions = tensors[0].dim() if isinstance(tensors[0], torch.Tensor) else 4
        made = made[(0,) * max(0, made.dim() - max(2, dimensions))]
        return MASK_LAYOUTS[layout](self, made, whole)

    def mask(self, shapes: Sequence[tuple[int, ...]], tensors: list[Any]) -> torch.Tensor:
        """Masks that SDPA takes, and some that it refuses."""
        lengths = [shape[-2] if len(shape) > 1 else 1 for shape in shapes]
        leading = self.rng.choice(((), (1, 1), shapes[0][:2], (shapes[0][0], 1)))
        shape = (*leading, self.rng.choice((lengths[0], 1)), lengths[1])
        if self.rng.random() < 0.05:
            shape = (*shape[:-1], shape[-1] + 1)
        values = torch.randn(shape, generator=self.generator, device=self.device)
        kind = self.rng.choice(("bool", "float", "all", "none", "int"))
        self.words["mask"] = kind
        device = getattr(tensors[0], "device", "cpu")
        dtype = getattr(tensors[0], "dtype", torch.float32)
        made = {
            "bool": lambda: values > -0.5,
            "float": lambda: values.to(dtype),
            "all": lambda: torch.ones_like(values, dtype=torch.bool),
            "none": lambda: torch.zeros_like(values, dtype=torch.bool),
            "int": values.int,
        }[kind]()
        return self.kept(made.to(device))


def _said(value: Any) -> Any:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)


def _small_enough(sizes: Sizes, on: str, most: int) -> Sizes:
    """Sizes whose reference takes a fraction of a second: the lengths are cut."""

    def scores() -> int:
        return sizes["batch"] * sizes["heads"] * sizes["seq_len_q"] * sizes["seq_len_k"]

    def elements() -> int:
        longest = max(sizes["seq_len_q"], sizes["seq_len_k"])
        return sizes["batch"] * sizes["heads"] * longest * sizes["head_dim"]

    while scores() > _MOST_SCORES[on] or elements() > most:
        longest = max(("seq_len_q", "seq_len_k", "batch"), key=lambda name: sizes[name])
        sizes[longest] = max(1, sizes[longest] // 2)
        if sizes[longest] == 1:
            sizes["heads"] = sizes["kv_heads"] = 1
    return sizes


def _can_be_packed(shapes: Sequence[tuple[int, ...]]) -> bool:
    q, k, v = shapes
    return len(q) == len(k) == 4 and k == v and (q[0], q[2], q[3]) == (k[0], k[2], k[3])
