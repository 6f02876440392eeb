"""Launches in quick succession with an input changed before each: has a result been reused?

A kernel that keeps results between launches is right as long as it looks at every input, and
then its time says nothing: the timed launches see the same inputs again and again. So the same
burst is timed twice, once with inputs the kernel never saw and once with those it just saw.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Callable, Sequence

import torch

from evotune.device.protocol import Session
from evotune.problems.base import Tensors
from evotune.verify.buffers import BufferSets
from evotune.verify.pool import Alteration

_RATIO = 1.3  # what launches on new inputs may take longer
# In a burst. The first comes after a pause, and so does one whose write was interrupted: a kernel
# that keeps results only while launches are close together gives itself away in the others.
_LAUNCHES = 4
_LEAST_ROUNDS = 3
# Where the machine is so busy that every burst is interrupted, one of two alike takes 1.3 times as
# long as the other in two rounds of five: a share of the rounds must be beyond what that makes
# likely. Nearly all, soon; more than half, after many.
_SOON = (30, 0.8)
_AT_LAST = (100, 0.6)
_REST_S = 0.002


class Burst:
    """One sampler that launches once after each group of writes, without a pause."""

    def __init__(
        self,
        session: Session,
        launch: Callable[[], object],
        groups: Sequence[Sequence[torch.Tensor]],
    ) -> None:
        """`groups`: the elements that are written before each launch."""
        self._targets = targets = [target for group in groups for target in group]
        self._values = [torch.zeros_like(target) for target in targets]
        self._launches = len(groups)
        values = iter(self._values)
        calls: list[Callable[[], object]] = []
        for group in groups:
            calls += [_writing(next(values), target) for target in group]
            calls.append(launch)
        # What is captured must have run before (a GPU's code is loaded at its first call).
        torch.mul(self._values[0], 1, out=torch.zeros_like(self._values[0]))
        self._calls = len(calls)
        self._sampler = session.sampler(calls)

    def time_us(self, values: Sequence[torch.Tensor]) -> float:
        """Mean over the launches, the writes before them included."""
        for mine, value in zip(self._values, values, strict=True):
            mine.copy_(value)
        return self._sampler.time_us() * self._calls / self._launches


def altered_outputs(
    session: Session,
    launch: Callable[[], object],
    buffers: BufferSets,
    variants: Sequence[Sequence[Alteration]],
) -> list[Tensors]:
    """Copies of the outputs after each variant: a launch after each of its alterations, all
    variants in one burst, which may run more than once. What the variant before changed is put back
    at the start of each; at the end the inputs are those of the last one."""
    targets = [
        [buffers.elements(each.name, each.place, len(each.values)) for each in variant]
        for variant in variants
    ]
    originals = [[target.clone() for target in each] for each in targets]
    restoring = [list(map(_writing, *each)) for each in zip(originals, targets, strict=True)]
    outputs = buffers.outputs()
    copies = [buffers.snapshot() for _ in variants]
    calls: list[Callable[[], object]] = []
    for variant, places, restored, copy in zip(
        variants, targets, [restoring[-1], *restoring[:-1]], copies, strict=True
    ):
        calls += restored
        for alteration, place in zip(variant, places, strict=True):
            calls += [_writing(alteration.values, place), launch]
        calls += [functools.partial(copy[name].copy_, view) for name, view in outputs.items()]
    for call in (*itertools.chain(*restoring), calls[-1]):  # what is captured must have run before
        call()
    session.sampler(calls).run()
    return copies


def _writing(value: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
    """Both must outlive the call. On a GPU by a kernel: in a CUDA graph, a copy of a few bytes
    takes longer. On a CPU not by torch, which takes so long that launches are no longer close."""
    if target.device.type == "cpu":
        return functools.partial(ctypes.memmove, target.data_ptr(), value.data_ptr(), target.nbytes)
    return functools.partial(torch.mul, value, 1, out=target)


def reuse(
    session: Session,
    launch: Callable[[], object],
    buffers: BufferSets,
    alterations: Sequence[Alteration],
    generator: torch.Generator,
) -> str:
    """That launches on familiar inputs are much faster, in words; "" when they are not.

    All `alterations` are made before each launch. The familiar burst does the same writes, but
    elsewhere. Honest kernels nearly always pass after three rounds.
    """
    targets = [buffers.elements(change.name, change.place) for change in alterations]
    fresh = Burst(session, launch, [targets] * _LAUNCHES)
    elsewhere = [torch.zeros_like(target) for target in targets]
    familiar = Burst(session, launch, [elsewhere] * _LAUNCHES)
    times_us: dict[Burst, list[float]] = {fresh: [], familiar: []}
    fresh_us, familiar_us = times_us[fresh], times_us[familiar]
    while len(fresh_us) < _AT_LAST[0]:
        first = fresh if float(torch.rand(1, generator=generator)) < 0.5 else familiar
        for burst in (first, familiar if first is fresh else fresh):
            values = torch.randn(_LAUNCHES * len(alterations), generator=generator)
            if len(fresh_us) >= _LEAST_ROUNDS:
                # Two bursts in a fixed order can fall into step with the time slices of a busy
                # machine: one is always interrupted. One that was asleep is not.
                time.sleep(_REST_S)
            times_us[burst].append(burst.time_us(list(values)))
        if len(fresh_us) >= _LEAST_ROUNDS and min(fresh_us) <= _RATIO * min(familiar_us):
            return ""
        if len(fresh_us) == _SOON[0] and _slower_share(fresh_us, familiar_us) >= _SOON[1]:
            break
    # The shortest times alone may meet one lucky burst.
    if _slower_share(fresh_us, familiar_us) < _AT_LAST[1]:
        return ""
    return (
        f"takes {min(fresh_us):.1f} us on new inputs but "
        f"{min(familiar_us):.1f} us on those of the launch before"
    )


def _slower_share(fresh_us: Sequence[float], familiar_us: Sequence[float]) -> float:
    """Of the rounds."""
    slower = [a > _RATIO * b for a, b in zip(fresh_us, familiar_us, strict=True)]
    return sum(slower) / len(slower)
