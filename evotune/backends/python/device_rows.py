"""Rows of calls on a GPU, in a host or in this process, and their times by the slope."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from evotune.backends.base.launch import CallTensor
from evotune.backends.base.session import Intervention, Renewal
from evotune.backends.python.device_memory import Capture, Driver
from evotune.backends.python.host_messages import chosen, segments
from evotune.backends.python.host_process import Bound, BoundRow, CallableFault
from evotune.backends.python.releases import CALLING
from evotune.problems.problem import torch_dtype
from evotune.trial import OutcomeKind

if TYPE_CHECKING:
    import torch

_SPOT_BYTES = 64
_LATE_LOOKS, _LATE_S = 1 / 6, 0.0003
_LEAST_PAIRS, _MOST_PAIRS = 3, 9  # rows of few calls and of many, for one sample
_PART = 4  # a row of few calls has at most a quarter of them
_SCATTER = 0.1
"""A sample has more rows while half of them are further from the line than this share of the time
of all calls."""


class Output:
    """Where an output of a call belongs."""

    def __init__(self, driver: Driver, spec: CallTensor, address: int) -> None:
        self._driver = driver
        self._spec = spec
        self._dtype = torch_dtype(spec.dtype)
        self.address = address
        last = sum((n - 1) * step for n, step in zip(spec.shape, spec.strides, strict=True))
        self.span_bytes = 0 if 0 in spec.shape else self._dtype.itemsize * (1 + last)
        count = 1
        for size in spec.shape:
            count *= size
        self.result_bytes = count * self._dtype.itemsize

    def view(self) -> torch.Tensor:
        whole = self._driver.tensor(self.address, self.span_bytes).view(self._dtype)
        return whole.as_strided(self._spec.shape, self._spec.strides)

    def result(self, address: int) -> torch.Tensor:
        """A result of its shape, contiguous, at an address of the host's memory."""
        whole = self._driver.tensor(address, self.result_bytes)
        return whole.view(self._dtype).view(self._spec.shape)


class DeviceRelease:
    """A bound call. The host copies what the callable returns into the outputs: the time of a
    single call is never taken."""

    def __init__(
        self,
        bound: Bound,
        given: bool,
        outputs: Sequence[Output],
        synchronize: Callable[[], object],
    ) -> None:
        self.bound = bound
        self.given = given
        self.outputs = outputs
        self._synchronize = synchronize

    def __call__(self) -> None:
        self._synchronize()  # the host's context does not wait for this one's work
        self.bound.call_ns(CALLING)


class TimedRow(Protocol):
    """Calls of which any number can be made at once."""

    count: int

    def run(self) -> None:
        """Makes all calls."""

    def time_us(self, wanted: int, *, complement: bool) -> float:
        """Makes so many calls, others with `complement`; the time until they have ended."""


class HostRow:
    """Calls of a candidate in its host. `results`: the addresses of what they return, in memory of
    the host that this process has opened; none if results are in the outputs."""

    def __init__(
        self,
        driver: Driver,
        releases: Sequence[DeviceRelease],
        row: BoundRow,
        results: Sequence[int],
        *,
        synchronize: Callable[[], object],
        rng: random.Random,
    ) -> None:
        self.count = len(releases)
        self._driver = driver
        self._row = row
        self._synchronize = synchronize
        self._rng = rng
        outputs = [output for each in releases for output in each.outputs]
        spots = list(results) or [output.address for output in outputs]
        sizes = [o.result_bytes if results else o.span_bytes for o in outputs]
        each = len(releases[0].outputs)
        self._spots = [
            [spot for spot in zip(spots[n : n + each], sizes[n : n + each], strict=True) if spot[1]]
            for n in range(0, len(spots), each)
        ]
        """Of each call its outputs' addresses and sizes."""
        pairs = [
            (output.view(), output.result(address))
            for output, address in zip(outputs, results, strict=False)
            if output.result_bytes
        ]
        self._targets = [target for target, _ in pairs]
        self._results = [result for _, result in pairs]

    def run(self) -> None:
        self.time_us(self.count, complement=False)

    def time_us(self, wanted: int, *, complement: bool) -> float:
        """Raises CallableFault if an output changes after the end."""
        import torch

        if self._results:  # they get the poison
            torch._foreach_copy_(self._results, self._targets)
        self._synchronize()
        self._row.host.wake(CALLING)
        begun_ns = time.perf_counter_ns()
        _, places = self._row.run_ns(wanted, CALLING, complement=complement, spin=True)
        spot = self._draw(places or range(self.count))
        early = self._driver.read(*spot) if spot else b""
        taken_us = (time.perf_counter_ns() - begun_ns) / 1000
        if self._rng.random() < _LATE_LOOKS:
            time.sleep(_LATE_S)
        if spot and self._driver.read(*spot) != early:
            reason = "the callable wrote its outputs after the end of a row of calls"
            raise CallableFault(OutcomeKind.LAUNCH_ERROR, reason)
        if self._results:
            torch._foreach_copy_(self._targets, self._results)
        return taken_us

    def _draw(self, places: Sequence[int]) -> tuple[int, int] | None:
        """The address and size of a random piece of an output of these calls."""
        spots = self._spots[self._rng.choice(places)]
        if not spots:
            return None
        address, nbytes = self._rng.choice(spots)
        size = min(_SPOT_BYTES, nbytes)
        return address + self._rng.randint(0, nbytes - size), size


class OwnRow:
    """Calls that this process makes: a baseline's, or calls with writes between them. They are
    captured when they are timed first."""

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        capture: Capture,
        synchronize: Callable[[], object],
        *,
        captures: Callable[[], bool],
    ) -> None:
        """`captures`: whether a row is timed as graphs now."""
        self.count = len(calls)
        self._calls = list(calls)
        self._capture = capture
        self._synchronize = synchronize
        self._captures = captures
        self._graphs: list[Callable[[], object]] = []

    def run(self) -> None:
        for call in self._calls:
            call()
        self._synchronize()

    def time_us(self, wanted: int, *, complement: bool) -> float:
        bits = chosen(wanted, self.count, complement=complement)
        parts = self._parts()
        numbers = [n for n in reversed(range(len(parts))) if bits >> n & 1]
        self._synchronize()
        begun_ns = time.perf_counter_ns()
        for number in numbers:
            parts[number]()
        self._synchronize()
        return (time.perf_counter_ns() - begun_ns) / 1000

    def _parts(self) -> Sequence[Callable[[], object]]:
        parts = [[self._calls[n] for n in part] for part in segments(self.count)]
        if not self._captures():
            return [_in_order(part) for part in parts]
        if not self._graphs:
            self._graphs = [self._capture(part) for part in parts]
        return self._graphs


def _in_order(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    def made() -> None:
        kept = [call() for call in calls]  # noqa: F841 (a graph keeps all results, too)

    return made


class SlopeSampler:
    """See `WatchableSampler` of `backends/base/session.py`. A call's time is the slope over rows of
    few and of many calls, whose numbers are random."""

    def __init__(self, row: TimedRow, rng: random.Random) -> None:
        self._row = row
        self._rng = rng
        self.before_repeating: Callable[[], None] = _nothing

    @property
    def count(self) -> int:
        return self._row.count

    def run(self) -> None:
        self._row.run()

    def time_us(self) -> float:
        """The median of the slopes between rows of few calls and of many. Where other work on the
        machine makes that nonsense, the time of a row for each of its calls: nothing is faster."""
        few: list[tuple[int, float]] = []
        many: list[tuple[int, float]] = []
        for pair in range(1, _MOST_PAIRS + 1):
            if pair > 1:
                self.before_repeating()
            self._take(few, many)
            slope_us = statistics.median(
                (longer_us - shorter_us) / (more - less)
                for less, shorter_us in few
                for more, longer_us in many
            )
            rests = [taken_us - slope_us * wanted for wanted, taken_us in (*few, *many)]
            middle = statistics.median(rests)
            scatter = statistics.median(abs(each - middle) for each in rests)
            settled = slope_us > 0.0 and scatter <= _SCATTER * slope_us * self.count
            if pair >= _LEAST_PAIRS and settled:
                return slope_us
        return min(taken_us / wanted for wanted, taken_us in many)

    def _take(self, few: list[tuple[int, float]], many: list[tuple[int, float]]) -> None:
        """Times a row of few calls and one of many, in random order."""
        count, rng = self.count, self._rng
        less = rng.randint(int(count >= _PART), max(count // _PART, int(count > 1)))
        more = rng.randint(count - count // _PART, count)
        complement = rng.random() < 0.5
        asked = [(less, few), (more, many)]
        rng.shuffle(asked)
        for number, (wanted, taken) in enumerate(asked):
            if number:
                self.before_repeating()
            taken.append((wanted, self._row.time_us(wanted, complement=complement)))

    def watch(self, interventions: Sequence[Intervention], call_us: float) -> Sequence[float]:
        """Makes all calls. Each has a place of its own, so there is nothing to write meanwhile."""
        assert not interventions
        self.run()
        return []

    def time_while_renewing(self, renewals: Sequence[Sequence[Renewal]], turn: int) -> float:
        raise AssertionError("each call has a place of its own, so it is renewed before a row")


def _nothing() -> None:
    pass
