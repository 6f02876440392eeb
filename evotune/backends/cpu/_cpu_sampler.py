"""Times a row of calls on the CPU by the clock around them, or makes writes between the calls."""

from __future__ import annotations

import ctypes
import itertools
import time
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from evotune.backends.base.session import Intervention, Renewal

if TYPE_CHECKING:
    import torch

_LONGEST_RENEWING_NS = 30_000_000
_A_LOOK = 16  # calls between two looks at the clock
STEP_BYTES = 256
"""So much is written before a call, or less, where there are enough calls for all writes."""


_Copy: TypeAlias = tuple[int, int, int]
"""Where to, where from, how many bytes."""


class CpuSampler:
    """A call returns when it is done, so the clock around the calls gives the device's time. The
    clock starts after the first `untimed` calls.

    Something is written before each call: to inputs and outputs where the run is watched or renews
    inputs, and else to memory that no call reads. So the time since the call before does not tell a
    call whether its inputs changed.
    """

    def __init__(
        self, calls: Sequence[Callable[[], object]], before: Callable[[], None], untimed: int = 0
    ) -> None:
        self._calls = calls
        self._before = before
        self._untimed = untimed
        self._idle = _Writes(len(calls))

    @property
    def count(self) -> int:
        return len(self._calls)

    def run(self) -> None:
        self._before()
        _make(self._calls, self._idle.begin())

    def time_us(self) -> float:
        self._before()
        untimed, timed = self._calls[: self._untimed], self._calls[self._untimed :]
        write = self._idle.begin()
        _make(untimed, write)
        started = time.perf_counter_ns()
        _make(timed, write)
        return (time.perf_counter_ns() - started) / 1000 / len(timed)

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[float]:
        """Makes the writes between calls. With enough calls there is one write between two: the
        pause stays as short as between any two calls, and no call can tell that inputs changed."""
        calls, writes = list(self._calls), _Writes(len(self._calls))
        made = 0
        for each in interventions:
            write = each.first + int(each.begin * (each.last - each.first))
            pauses = range(max(made, each.first + 1), write + 1) or range(write, write + 1)
            nbytes = sum(target.nbytes for target, _ in each.writes)
            # Whole blocks, so that no call finds half of an element new and half old.
            step = STEP_BYTES * max(1, -(-nbytes // (len(pauses) * STEP_BYTES)))
            copies = [copy for pair in each.writes for copy in writes.copies(*pair, step)]
            ends = [len(copies) * (n + 1) // len(pauses) for n in range(len(pauses))]
            for pause, (begin, end) in zip(pauses, itertools.pairwise((0, *ends)), strict=True):
                if begin < end:
                    writes.put(pause, copies[begin])
                if begin + 1 < end:
                    calls[pause] = _after(copies[begin + 1 : end], calls[pause])
            made = write
        self._before()
        _make(calls, writes.begin())
        return [0.0] * len(interventions)

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        """Makes one renewal before each call. As in `time_us`, the clock starts after the first
        `untimed` calls. Calls that keep results take far longer than others, so the row ends after
        30 ms."""
        calls, writes = list(self._calls), _Writes(len(self._calls))
        each = itertools.cycle([renewal for group in renewals for renewal in group])
        for number in range(len(calls)) if any(renewals) else ():
            renewal = next(each)
            value = renewal.values[(turn + number) % len(renewal.values)]
            copies = [
                copy
                for target in renewal.target
                for copy in writes.copies(target[None], value[None, None])
            ]
            writes.put(number, copies[0])
            if copies[1:]:
                calls[number] = _after(copies[1:], calls[number])
        self._before()
        write = writes.begin()
        _make(calls[: self._untimed], write)
        timed, made = calls[self._untimed :], 0
        started = now = time.perf_counter_ns()
        while made < len(timed) and now - started <= _LONGEST_RENEWING_NS:
            _make(timed[made : made + _A_LOOK], write)
            made += _A_LOOK
            now = time.perf_counter_ns()
        return (now - started) / 1000 / min(made, len(timed))


class _Writes:
    """The write before each of `count` calls; at first all go to memory that no call reads.

    A call could tell a write by the time that it takes. So each one is a block of STEP_BYTES, with
    the bytes beside the changed ones as they are; where it goes stands in arrays, since a Python
    object of its own may not be in a cache; and the block is in one when the row begins.
    """

    def __init__(self, count: int) -> None:
        place = ctypes.addressof(_NOWHERE)
        place += -place % STEP_BYTES
        self._targets = array("Q", [place]) * count
        self._sources = array("Q", [place + STEP_BYTES]) * count
        self._sizes = array("Q", [STEP_BYTES]) * count
        self._before: list[tuple[int, bytes]] = []
        self._held: list[ctypes.Array[ctypes.c_char]] = []

    def put(self, number: int, copy: _Copy) -> None:
        """Make this the write before call `number`."""
        self._targets[number], self._sources[number], self._sizes[number] = copy

    def copies(
        self, target: torch.Tensor, source: torch.Tensor, step: int = STEP_BYTES
    ) -> list[_Copy]:
        """Copies of up to `step` bytes that write each row of `source` to that of `target`. They
        are to be made in the order of these calls, since their blocks may overlap: until `begin`
        the memory is as it will be after them."""
        storage = target.untyped_storage()
        start, stop = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        made: list[_Copy] = []
        for to, from_ in zip(target, source, strict=True):
            place = to.data_ptr()
            first = max(start, place - place % STEP_BYTES)
            end = min(stop, place + to.nbytes + -(place + to.nbytes) % STEP_BYTES)
            self._before.append((first, ctypes.string_at(first, end - first)))
            ctypes.memmove(place, from_.data_ptr(), to.nbytes)
            block = ctypes.create_string_buffer(ctypes.string_at(first, end - first), end - first)
            self._held.append(block)
            made += [
                (first + at, ctypes.addressof(block) + at, min(step, end - first - at))
                for at in range(0, end - first, step)
            ]
        return made

    def begin(self) -> Callable[[], object]:
        """A function that makes the next write at each call. Undoes what `copies` did."""
        for place, before in reversed(self._before):
            ctypes.memmove(place, before, len(before))
        self._before.clear()
        return map(ctypes.memmove, self._targets, self._sources, self._sizes).__next__


_NOWHERE = ctypes.create_string_buffer(3 * STEP_BYTES)


def _make(calls: Sequence[Callable[[], object]], write: Callable[[], object]) -> None:
    for call in calls:
        write()
        call()


def _after(copies: Sequence[_Copy], call: Callable[[], object]) -> Callable[[], object]:
    """The call after these further copies."""

    def made() -> object:
        for copy in copies:
            ctypes.memmove(*copy)
        return call()

    return made
