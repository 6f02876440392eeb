"""Layouts in memory, shapes and kinds of tensors that `random_calls` draws from."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

import torch

Shapes = list[tuple[int, ...]]
_FAR = (1 << 31) + 8


class Draw(Protocol):
    """A drawing of one call."""

    rng: random.Random

    def kept(self, memory: torch.Tensor) -> torch.Tensor:
        """The memory, noted as read by the call."""


def _padded(draw: Draw, values: torch.Tensor, last: int = 0) -> torch.Tensor:
    """A slice of a larger tensor."""
    extra = [draw.rng.randrange(3) for _ in values.shape[:-1]]
    shape = [size + more for size, more in zip(values.shape, [*extra, last], strict=True)]
    large = draw.kept(torch.zeros(shape, dtype=values.dtype, device=values.device))
    where = tuple(
        slice(large.shape[i] - values.shape[i], large.shape[i]) if i < values.dim() - 1
        else slice(0, values.shape[i])
        for i in range(values.dim())
    )  # fmt: skip
    large[where] = values
    return large[where]


def _shifted(draw: Draw, values: torch.Tensor) -> torch.Tensor:
    """Begins a few elements into its memory."""
    by = draw.rng.randint(1, 16)
    room = torch.zeros(values.numel() + by, dtype=values.dtype, device=values.device)
    room[by:] = values.flatten()
    return draw.kept(room)[by:].view(values.shape)


def _moved(draw: Draw, values: torch.Tensor) -> torch.Tensor:
    """Its dimensions lie in another order in memory."""
    order = list(range(values.dim()))
    draw.rng.shuffle(order)
    back = [order.index(i) for i in range(values.dim())]
    return draw.kept(values.permute(order).contiguous()).permute(back)


def _expanded(draw: Draw, values: torch.Tensor) -> torch.Tensor:
    """Stride 0 in one of its dimensions."""
    if values.dim() < 2 or 0 in values.shape:
        return draw.kept(values)
    place = draw.rng.randrange(values.dim())
    return draw.kept(values.narrow(place, 0, 1).contiguous()).expand(values.shape)


def _stepped(draw: Draw, values: torch.Tensor) -> torch.Tensor:
    """Every second element of a dimension."""
    place = draw.rng.randrange(max(1, values.dim()))
    return draw.kept(values.repeat_interleave(2, place)).movedim(place, 0)[::2].movedim(0, place)


def _overlapping(draw: Draw, values: torch.Tensor) -> torch.Tensor:
    """Each row begins within the row before."""
    if values.dim() != 4 or 0 in values.shape:
        return draw.kept(values)
    step = max(1, values.shape[3] // 4)
    base = draw.kept(values.contiguous())
    return base.as_strided(values.shape, (*base.stride()[:2], step, 1))


def _odd_ones(draw: Draw, values: torch.Tensor) -> torch.Tensor:
    """Dimensions of one element have strides that nobody expects."""
    base = draw.kept(values.contiguous())
    strides = [
        draw.rng.choice((0, 1, 7, 1 << 20)) if size == 1 else stride
        for size, stride in zip(base.shape, base.stride(), strict=True)
    ]
    return base.as_strided(base.shape, strides)


def _far(draw: Draw, values: torch.Tensor) -> torch.Tensor:
    """The last two heads, or batches, lie more than 2^31 elements apart. Few do, since it takes
    gigabytes of addresses, though not of memory on a CPU."""
    if values.dim() != 4 or not 2 <= values.shape[1] <= 2 or draw.rng.random() > 0.1:
        return _padded(draw, values)
    inner = values.numel() // 2
    room = torch.empty(_FAR + inner, dtype=values.dtype, device=values.device)
    strides = (0 if values.shape[0] == 1 else values[0, 0].numel(), _FAR, values.shape[3], 1)
    if values.device.type == "meta" or values.element_size() > 4:
        return _padded(draw, values)
    return room.as_strided(values.shape, strides).copy_(values)


LAYOUTS: dict[str, Callable[[Draw, torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda draw, values: draw.kept(values.contiguous()),
    "across": lambda draw, values: (
        draw.kept(values.transpose(-3, -2).contiguous()).transpose(-3, -2)
        if values.dim() > 2
        else draw.kept(values)
    ),
    "slice": _padded,
    "slice of columns": lambda draw, values: _padded(draw, values, draw.rng.randint(1, 16)),
    "shifted": _shifted,
    "moved": _moved,
    "expanded": _expanded,
    "stepped": _stepped,
    "overlapping": _overlapping,
    "odd ones": _odd_ones,
    "far": _far,
}


MASK_LAYOUTS: dict[str, Callable[[Draw, torch.Tensor, tuple[int, ...]], torch.Tensor]] = {
    **{
        name: lambda draw, values, _, lay=lay: lay(draw, values)
        for name, lay in LAYOUTS.items()
        if name != "far"
    },
    "expanded": lambda draw, values, whole: draw.kept(values).expand(whole),
}


def _without(place: int) -> Callable[[Shapes, int], Shapes]:
    """Nothing along one dimension: of q, of k and v, or of all."""

    def change(shapes: Shapes, which: int) -> Shapes:
        emptied = {0: (0,), 1: (1, 2), 2: (0, 1, 2), 3: (0, 1, 2)}[which]
        return [
            (*shape[:place], 0, *shape[place + 1 :]) if number in emptied else shape
            for number, shape in enumerate(shapes)
        ]

    return change


def _longer(number: int, place: int) -> Callable[[Shapes, int], Shapes]:
    def change(shapes: Shapes, which: int) -> Shapes:
        shape = list(shapes[number])
        shape[place] += 1 + which
        return [tuple(shape) if i == number else other for i, other in enumerate(shapes)]

    return change


ODD_SHAPES: dict[str, Callable[[Shapes, int], Shapes]] = {
    "no batch": _without(0),
    "no head": _without(1),
    "no row": _without(2),
    "no column": _without(3),
    "wider values": _longer(2, 3),
    "wider keys": _longer(1, 3),
    "more heads of keys": _longer(1, 1),
    "more batches of queries": _longer(0, 0),
    "keys of one batch": lambda shapes, _: [shapes[0], *((1, *s[1:]) for s in shapes[1:])],
    "keys of one head": lambda shapes, _: [shapes[0], *((s[0], 1, *s[2:]) for s in shapes[1:])],
    "three dimensions": lambda shapes, _: [s[1:] for s in shapes],
    "two dimensions": lambda shapes, _: [s[2:] for s in shapes],
    "one dimension": lambda shapes, _: [s[3:] for s in shapes],
    "five dimensions": lambda shapes, _: [(1, *s) for s in shapes],
    "mixed dimensions": lambda shapes, which: [
        s[1:] if which in (number, 3 - number) else s for number, s in enumerate(shapes)
    ],
    "wide heads": lambda shapes, _: [(*s[:3], 1024) for s in shapes],
}
"""Changes of the shapes of q, k and v; the number, 0 to 3, says which. Fewer keys than values are
not among them: SDPA on a CPU reads keys beyond the last."""


class Subclass(torch.Tensor):
    """A tensor of a type of its own."""


def _nested(tensor: torch.Tensor) -> Any:
    if tensor.dim() < 2 or 0 in tensor.shape or tensor.device.type == "meta":
        return tensor
    return torch.nested.nested_tensor(list(tensor.unbind(0)))


def _inference(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return tensor.clone()


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )


SPECIAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "subclass": lambda t: t.as_subclass(Subclass),
    "negated": lambda t: torch._neg_view(t) if t.is_floating_point() else t,
    "no memory": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype, device=t.device),
    "nested": _nested,
    "sparse": lambda t: t.to_sparse() if t.device.type != "meta" else t,
    "nothing": lambda t: None,
    "array": lambda t: t.shape,
    "inference": _inference,
    "fake": _fake,
}
"""Changes of one tensor into something else."""
