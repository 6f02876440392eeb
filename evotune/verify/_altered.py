"""A row of launches whose inputs change before each one; all their outputs are checked."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch

from evotune.backends.base.session import Session
from evotune.problems.problem import Tensors
from evotune.verify.buffers import BufferSets
from evotune.verify.pool import InputSet, elements_of


class AlteredRow:
    """A row with one launch on each of `sets` in turn; it can be run repeatedly. The last set is
    also the inputs before the row, and the others are variants of it. Outputs are not cleared
    between launches."""

    def __init__(
        self,
        session: Session,
        launch: Callable[[], object],
        buffers: BufferSets,
        sets: Sequence[InputSet],
    ) -> None:
        self.buffers, self.sets = buffers, sets
        outputs = buffers.outputs()
        self._copies = {
            name: torch.empty((len(sets), *value.shape[1:]), dtype=value.dtype, device=value.device)
            for name, value in outputs.items()
        }
        calls: list[Callable[[], object]] = []
        writes: list[Callable[[], object]] = []
        for number, (before, wanted) in enumerate(zip([sets[-1], *sets[:-1]], sets, strict=True)):
            changed = [
                _writing(
                    elements_of(wanted, each),
                    buffers.elements(each.name, each.place, len(each.values))[0],
                )
                for each in (*before.alterations, *wanted.alterations)
            ]
            copying = [
                functools.partial(self._copies[name][number].copy_, value[0])
                for name, value in outputs.items()
            ]
            calls += [*changed, launch, *copying]
            writes = [*changed, *copying] or writes
        for call in writes:  # a call must have run before a GPU's graph captures it
            call()
        self._sampler = session.sampler(calls)

    def run(self) -> Tensors:
        """Runs the row. Returns copies of each launch's outputs; the next run overwrites them."""
        self._sampler.run()
        return self._copies


def _writing(value: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
    """A call that copies; both tensors must outlive it. On a GPU a kernel copies, since a graph's
    copy node takes longer for a few bytes. On a CPU torch would take so long that launches are no
    longer close to each other; only for several rows it takes less time than a call for each."""
    value = value.view(target.shape)
    if value.element_size() == 1:  # torch multiplies no floats of 8 bits
        value, target = value.view(torch.int8), target.view(torch.int8)
    if target.device.type == "cpu" and target.is_contiguous():
        return functools.partial(ctypes.memmove, target.data_ptr(), value.data_ptr(), target.nbytes)
    return functools.partial(torch.mul, value, 1, out=target)
