"""A row of launches with changed inputs before each; all their outputs are checked."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch

from evotune.device.protocol import Session
from evotune.problems.base import Tensors
from evotune.verify.buffers import BufferSets
from evotune.verify.pool import InputSet, elements_of


class AlteredRow:
    """One launch on each of `sets` in turn, as often as it is run. The first and the last set are
    the inputs before and after the row, the others are variants of them. Outputs are not cleared
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
        for call in writes:  # what a GPU captures must have run before
            call()
        self._sampler = session.sampler(calls)

    def run(self) -> Tensors:
        """Copies of each launch's outputs, which the next run overwrites."""
        self._sampler.run()
        return self._copies


def _writing(value: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
    """Copy; both tensors must outlive the call. On a GPU a kernel copies, since a graph's copy node
    takes longer for a few bytes. On a CPU torch would take so long that launches are no
    longer close to each other."""
    if target.device.type == "cpu":
        return functools.partial(ctypes.memmove, target.data_ptr(), value.data_ptr(), target.nbytes)
    return functools.partial(torch.mul, value, 1, out=target)
