"""Memory a candidate runs on: poisoned outputs, guard bands, inputs that must not change."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from evotune.device.launch import LaunchPlan
from evotune.device.protocol import LaunchFailure
from evotune.problems.base import Tensors, TensorSpec

_GUARD_BYTES = 128 << 10
_GUARD_BYTE = 0xC5
_POISON_BYTE = 0xFF  # all ones is a NaN in float16, bfloat16, float32 and float64
_ALIGNMENT = 256
_STAGGER_BYTES = 5 * _ALIGNMENT
"""Each band is longer than the one before by this: payloads of 2^n bytes at distances of 2^m would
meet in the same sets of a cache."""
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as integers: equal bits, equal numbers."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def unwritten(output: torch.Tensor) -> torch.Tensor:
    """Which elements of `output` still hold the poison."""
    return bits(output) == -1


@dataclass(frozen=True, slots=True)
class _Segment:
    """The payload of one tensor or workspace, in bytes of the arena."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """`kept_bytes` are those before the first payload that is written."""

    segments: Mapping[str, _Segment]
    kept_bytes: int
    arena_bytes: int


@functools.lru_cache(maxsize=1024)
def _layout(kept: tuple[tuple[str, int], ...], written: tuple[tuple[str, int], ...]) -> _Layout:
    """Names and sizes in bytes of what must stay as it is, and of what is written."""
    segments: dict[str, _Segment] = {}
    end = 0
    kept_bytes = None
    for index, (name, nbytes) in enumerate((*kept, *written)):
        if nbytes < 0:
            raise LaunchFailure(f"a buffer of {nbytes} bytes")
        # A payload's end has no padding: the first byte past it is guard.
        start = end + _GUARD_BYTES + index * _STAGGER_BYTES
        start += -start % _ALIGNMENT
        if index == len(kept):
            kept_bytes = start
        segments[name] = _Segment(name, start, end := start + nbytes)
    arena_bytes = end + _GUARD_BYTES
    return _Layout(segments, arena_bytes if kept_bytes is None else kept_bytes, arena_bytes)


class Inspection:
    """Whether launches touched what they must not, as it was when this was taken. `flags` are two
    bools on the device: reading them costs more than taking them, so that many are read at once.
    """

    def __init__(self, buffers: BufferSet, changed: torch.Tensor, outside: torch.Tensor) -> None:
        self._buffers = buffers
        self._changed = changed
        self._outside = outside
        self.flags = (changed.any(), outside.any())

    def damage(self) -> str:
        """What the kernel touched, in words; "" when nothing, or a zero_once workspace alone."""
        return self._buffers._damage(self._wrong())

    def not_zeroed(self) -> str:
        """A zero_once workspace that the launch did not leave zero; "" when there is none."""
        return self._buffers._not_zeroed(self._wrong())

    def _wrong(self) -> torch.Tensor:
        return self._buffers._wrong(self._changed, self._outside)


class BufferSet:
    """Fresh memory for every tensor and workspace of one case, inputs filled in.

    One arena: what must stay as it is (inputs, zero_once workspaces, and the guard bands around
    them) comes first, with a copy of what it should hold, so that one comparison is enough; then
    what is written.
    """

    def __init__(
        self, specs: Sequence[TensorSpec], plan: LaunchPlan, inputs: Tensors, device: str
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._inputs = [spec.name for spec in specs if not spec.is_output]
        self._outputs = [spec.name for spec in specs if spec.is_output]
        self._zeroed = [w.name for w in plan.workspaces if w.init == "zero_once"]
        scratch = [w.name for w in plan.workspaces if w.init != "zero_once"]
        self._written = [*self._outputs, *scratch]
        sizes = {spec.name: _nbytes(spec) for spec in specs}
        sizes |= {workspace.name: workspace.bytes for workspace in plan.workspaces}
        layout = _layout(
            tuple((name, sizes[name]) for name in (*self._inputs, *self._zeroed)),
            tuple((name, sizes[name]) for name in self._written),
        )
        self._segments = layout.segments
        room = layout.arena_bytes + _ALIGNMENT
        storage = torch.full((room,), _GUARD_BYTE, dtype=torch.uint8, device=device)
        base = -storage.data_ptr() % _ALIGNMENT
        self._arena = storage[base : base + layout.arena_bytes]
        self._kept = self._arena[: layout.kept_bytes]
        self._views = {name: self._view(name, self._arena) for name in self._segments}
        for name in self._inputs:
            if name in inputs:
                self._views[name].copy_(inputs[name])
        for name in self._zeroed:
            self._views[name].zero_()
        self._expected = self._kept.clone()
        self._payloads = [self._payload(name, self._arena) for name in self._written]
        ends = [self._segments[name].end for name in self._written]
        starts = [self._segments[name].start for name in self._written[1:]]
        self._bands = [
            self._arena[end:start]
            for end, start in zip(ends, (*starts, layout.arena_bytes), strict=False)
        ]
        """Behind each payload that is written."""
        self.poison()

    def _payload(self, name: str, memory: torch.Tensor) -> torch.Tensor:
        segment = self._segments[name]
        return memory[segment.start : segment.end]

    def _view(self, name: str, memory: torch.Tensor) -> torch.Tensor:
        """Of the arena, or of what it should hold: a tensor in its shape, a workspace in bytes."""
        payload = self._payload(name, memory)
        if name not in self._specs:
            return payload
        spec = self._specs[name]
        return payload.view(getattr(torch, spec.dtype)).view(*spec.shape)

    @functools.cached_property
    def _expected_views(self) -> dict[str, torch.Tensor]:
        return {name: self._view(name, self._expected) for name in self._inputs}

    @property
    def pointers(self) -> dict[str, int]:
        base = self._arena.data_ptr()
        return {name: base + segment.start for name, segment in self._segments.items()}

    def overwrite_inputs(self, inputs: Tensors) -> None:
        """New input values in the same places."""
        self.expect_inputs(inputs)
        for name, value in inputs.items():
            self._views[name].copy_(value)

    def nudge(self, generator: torch.Generator) -> None:
        """One element of each input becomes another, so that no launch sees the same inputs."""
        values = torch.randn(len(self._inputs), generator=generator).tolist()
        for name, value in zip(self._inputs, values, strict=True):
            count = self._views[name].numel()
            place = int(torch.randint(count, (1,), generator=generator))
            for view in (self._views[name], self._expected_views[name]):
                view.view(-1)[place : place + 1].fill_(value)

    def element(self, name: str, place: int) -> torch.Tensor:
        """A view of one element of a tensor, by its flat index."""
        return self._views[name].view(-1)[place : place + 1]

    def expect_inputs(self, inputs: Tensors) -> None:
        """These values are in the inputs now."""
        for name, value in inputs.items():
            self._expected_views[name].copy_(value)

    def poison(self) -> None:
        """Every byte a launch must write becomes NaN."""
        for payload in self._payloads:
            payload.fill_(_POISON_BYTE)

    def outputs(self) -> Tensors:
        """Views, not copies."""
        return {name: self._views[name] for name in self._outputs}

    def snapshot(self) -> Tensors:
        """Copies of the outputs as they are now: later writes come too late."""
        return {name: value.clone() for name, value in self.outputs().items()}

    def inspect(self) -> Inspection:
        """Compares all that launches must leave alone with what it should hold, bit by bit."""
        changed = torch.ne(self._kept, self._expected)
        bands = self._bands or [self._arena[:0]]
        outside = torch.ne(torch.cat(bands) if len(bands) > 1 else bands[0], _GUARD_BYTE)
        return Inspection(self, changed, outside)

    def _wrong(self, changed: torch.Tensor, outside: torch.Tensor) -> torch.Tensor:
        """For each byte of the arena whether it is other than it must be."""
        wrong = torch.zeros(self._arena.numel(), dtype=torch.bool, device=changed.device)
        wrong[: changed.numel()] = changed
        at = 0
        for name, band in zip(self._written, self._bands, strict=True):
            start = self._segments[name].end
            wrong[start : start + band.numel()] = outside[at : at + band.numel()]
            at += band.numel()
        return wrong

    def _damage(self, wrong: torch.Tensor) -> str:
        segments = list(self._segments.values())
        for before, after in zip((None, *segments), (*segments, None), strict=True):
            start = before.end if before else 0
            end = after.start if after else wrong.numel()
            places = wrong[start:end].nonzero()
            if not len(places):
                continue
            # The neighbour whose end is nearer is the one that was left.
            is_after = after and end - int(places[-1]) - start < int(places[0])
            near = after if before is None or is_after else before
            return f"wrote outside {near.name}" if near else "wrote outside all"
        for name in self._inputs:
            if bool(wrong[self._segments[name].start : self._segments[name].end].any()):
                return f"changed its input {name}"
        return ""

    def _not_zeroed(self, wrong: torch.Tensor) -> str:
        segments = (self._segments[name] for name in self._zeroed)
        return next((s.name for s in segments if bool(wrong[s.start : s.end].any())), "")


def _nbytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * int(getattr(torch, spec.dtype).itemsize)
