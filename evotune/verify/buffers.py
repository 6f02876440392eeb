"""Memory a candidate runs on: poisoned outputs, guard bands, inputs that must not change."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evotune.device.launch import LaunchPlan
from evotune.device.protocol import LaunchFailure
from evotune.problems.base import Tensors, TensorSpec

_GUARD_BYTES = 64 << 10
_GUARD_BYTE = 0xC5
_POISON_BYTE = 0xFF  # all ones is a NaN in float16, bfloat16, float32 and float64
_ALIGNMENT = 256
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def unwritten(output: torch.Tensor) -> int:
    """How many elements of `output` still hold the poison."""
    return int((output.view(_INTEGERS[output.element_size()]) == -1).sum())


class GuardedBuffer:
    """`nbytes` of device memory between two guard bands."""

    def __init__(self, nbytes: int, device: str) -> None:
        if nbytes < 0:
            raise LaunchFailure(f"a buffer of {nbytes} bytes")
        self.nbytes = nbytes
        room = nbytes + 2 * _GUARD_BYTES + _ALIGNMENT
        self._storage = torch.full((room,), _GUARD_BYTE, dtype=torch.uint8, device=device)
        # The payload's end has no padding: the first byte past it is guard.
        self._start = _GUARD_BYTES + (-(self._storage.data_ptr() + _GUARD_BYTES)) % _ALIGNMENT
        self.payload = self._storage[self._start : self._start + nbytes]

    @property
    def pointer(self) -> int:
        return self.payload.data_ptr()

    def fill(self, byte: int) -> None:
        self.payload.fill_(byte)

    def guards(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The bytes before and after the payload."""
        return self._storage[: self._start], self._storage[self._start + self.nbytes :]

    def guards_intact(self) -> bool:
        return bool((torch.cat(self.guards()) == _GUARD_BYTE).all())

    def typed(self, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        return self.payload.view(dtype).view(*shape)


class BufferSet:
    """Fresh buffers for every tensor and workspace of one case, inputs filled in."""

    def __init__(
        self, specs: Sequence[TensorSpec], plan: LaunchPlan, inputs: Tensors, device: str
    ) -> None:
        self._buffers: dict[str, GuardedBuffer] = {}
        self._views: dict[str, torch.Tensor] = {}
        self._inputs = dict(inputs)
        self._nudged: set[str] = set()
        self._outputs = [spec.name for spec in specs if spec.is_output]
        self._poisoned = list(self._outputs)
        self._zeroed: list[str] = []
        for spec in specs:
            dtype: torch.dtype = getattr(torch, spec.dtype)
            count = 1
            for extent in spec.shape:
                count *= extent
            buffer = GuardedBuffer(count * dtype.itemsize, device)
            self._buffers[spec.name] = buffer
            self._views[spec.name] = buffer.typed(dtype, spec.shape)
        for workspace in plan.workspaces:
            buffer = GuardedBuffer(workspace.bytes, device)
            self._buffers[workspace.name] = buffer
            if workspace.init == "zero_once":
                buffer.fill(0)
                self._zeroed.append(workspace.name)
            else:
                self._poisoned.append(workspace.name)
        self.overwrite_inputs(inputs)
        self.poison()

    @property
    def pointers(self) -> dict[str, int]:
        return {name: buffer.pointer for name, buffer in self._buffers.items()}

    def overwrite_inputs(self, inputs: Tensors) -> None:
        """New input values in the same places."""
        self.expect_inputs(inputs)
        for name, value in inputs.items():
            self._views[name].copy_(value)

    def nudge(self, generator: torch.Generator) -> None:
        """One element of each input becomes another, so that no launch sees the same inputs."""
        for name, view in self._views.items():
            if name not in self._inputs:
                continue
            if name not in self._nudged:
                self._nudged.add(name)
                self._inputs[name] = self._inputs[name].clone()
            expected = self._inputs[name].view(-1)
            place = int(torch.randint(expected.numel(), (1,), generator=generator))
            expected[place] = torch.randn(1, generator=generator).item()
            view.view(-1)[place] = expected[place]

    def element(self, name: str, place: int) -> torch.Tensor:
        """A view of one element of a tensor, by its flat index."""
        return self._views[name].view(-1)[place : place + 1]

    def expect_inputs(self, inputs: Tensors) -> None:
        """These values are in the inputs now."""
        self._inputs = dict(inputs)
        self._nudged = set()

    def poison(self) -> None:
        """Every byte a launch must write becomes NaN."""
        for name in self._poisoned:
            self._buffers[name].fill(_POISON_BYTE)

    def outputs(self) -> Tensors:
        """Views, not copies."""
        return {name: self._views[name] for name in self._outputs}

    def snapshot(self) -> Tensors:
        """Copies of the outputs as they are now: later writes come too late."""
        return {name: value.clone() for name, value in self.outputs().items()}

    def written(self) -> str:
        """An output that no longer holds its poison everywhere; "" when there is none."""
        outputs = self.outputs().items()
        return next((name for name, value in outputs if unwritten(value) != value.numel()), "")

    def not_zeroed(self) -> str:
        """A zero_once workspace that the launch did not leave zero; "" when there is none."""
        dirty = (n for n in self._zeroed if bool(self._buffers[n].payload.any()))
        return next(dirty, "")

    def damage(self) -> str:
        """What the kernel touched that it must not, in words; "" when nothing."""
        if not self._buffers:
            return ""
        # One answer from the device for all of it: asking costs more than most comparisons.
        guards = torch.cat([guard for each in self._buffers.values() for guard in each.guards()])
        changed = {name: self._changed(name) for name in self._inputs}
        if not bool(torch.stack([(guards != _GUARD_BYTE).any(), *changed.values()]).any()):
            return ""
        outside = (n for n, buffer in self._buffers.items() if not buffer.guards_intact())
        if (name := next(outside, None)) is not None:
            return f"wrote outside {name}"
        return f"changed its input {next(name for name, flag in changed.items() if flag)}"

    def _changed(self, name: str) -> torch.Tensor:
        """Whether an input's bits are other than expected: one bool, on the device."""
        mine = self._views[name].view(torch.uint8)
        value = self._inputs[name].to(mine.device).contiguous().view(torch.uint8)
        return torch.ne(mine, value).any()
