"""Calls of a callable that was bound to buffers, each released in its host, checked and timed."""

from __future__ import annotations

import ctypes
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evotune.backends.base.launch import CallPlan, CallTensor
from evotune.backends.cpu.cpu_session import Write
from evotune.backends.python.host_messages import Bind
from evotune.backends.python.host_process import Bound, CallableFault, Host, Stage
from evotune.problems.problem import contiguous_strides, torch_dtype
from evotune.trial import OutcomeKind

if TYPE_CHECKING:
    import torch

CALLING = Stage.calling(60.0)
"""How long one call may take, in seconds."""
NULL = -1
"""The callable that does nothing."""
_ROWS, _ROW = 6, 7  # releases of the null host
_AFTER_SLEEP = 2  # calls that are not timed
_LATE_LOOKS = 1 / 6  # of the calls
_SPINS = 1 / 2  # of the checked calls: during the others this thread sleeps, as in timed ones
_READS = 2 / 3  # of the timed calls: most are followed by the same pause as checked ones
_LATE_S = 0.0003
_LATE_BYTES = 4 << 20


class OutputPlace:
    """Where a call's output belongs in this process's memory. Results are read from a host as they
    lie there, contiguous."""

    def __init__(self, spec: CallTensor, address: int) -> None:
        self.spec = spec
        dtype = torch_dtype(spec.dtype)
        last = sum((n - 1) * step for n, step in zip(spec.shape, spec.strides, strict=True))
        self.span_bytes = 0 if 0 in spec.shape else dtype.itemsize * (1 + last)
        self.address = address
        self._aside: torch.Tensor | None = None
        self._view: torch.Tensor | None = None
        if spec.strides != contiguous_strides(spec.shape):
            self._open_gaps(dtype)

    def _open_gaps(self, dtype: torch.dtype) -> None:
        import torch

        memory = (ctypes.c_char * self.span_bytes).from_address(self.address)
        whole = torch.frombuffer(memory, dtype=dtype)
        self._view = whole.as_strided(self.spec.shape, self.spec.strides)
        self._aside = torch.empty(self.spec.shape, dtype=dtype)

    @property
    def landing(self) -> tuple[int, int]:
        """The address to which results are read, and their bytes."""
        if self._aside is not None:
            return self._aside.data_ptr(), self._aside.nbytes
        return self.address, self.span_bytes

    def settle(self) -> None:
        """Puts results that were just read between the gaps."""
        if self._view is not None and self._aside is not None:
            self._view.copy_(self._aside)

    def spot(self, share: float, nbytes: int) -> bytes:
        """So many bytes from this share of the output on; fewer at its end."""
        first = int(share * self.span_bytes)
        return ctypes.string_at(self.address + first, min(nbytes, self.span_bytes - first))

    def beginning(self) -> bytes:
        return ctypes.string_at(self.address, min(self.span_bytes, _LATE_BYTES))


@dataclass(frozen=True, slots=True)
class Manner:
    """How a callable is called: it takes the outputs (`given`) or returns them, and the host
    `copies` what it returns, because the system lets nobody read its memory."""

    given: bool
    copies: bool = False

    @property
    def reads(self) -> bool:
        """Whether this process reads the results in the host's memory."""
        return not (self.given or self.copies)


class Release:
    """A bound call. Outside of a timed run each call is also checked: often this process does not
    sleep meanwhile, and sometimes it looks whether outputs still change after the host answered. A
    candidate could see whether this process sleeps; so it must not learn whether it is checked."""

    def __init__(
        self,
        bound: Bound,
        plan: CallPlan,
        addresses: Mapping[str, int],
        manner: Manner,
        watching: Watching,
    ) -> None:
        self.host = bound.host
        self.plan = plan
        self.addresses = [addresses[spec.name] for spec in plan.tensors]
        self.manner = manner
        self.clock: ReleaseClock | None = None
        """Set while the calls are timed."""
        self.bound = bound
        self._watching = watching
        self.outputs = [
            OutputPlace(spec, address)
            for spec, address in zip(plan.tensors, self.addresses, strict=True)
            if spec.is_output
        ]
        self.landings = [place.landing for place in self.outputs]

    def __call__(self) -> None:
        if self.clock is not None:
            self.clock.take(self)
        else:
            self.check()

    def call_ns(self, write: Write = int) -> float:
        """Makes one call, after a write; the time of both."""
        return self.bound.call_ns(CALLING, before=write)

    def check(self, write: Write = int) -> None:
        """Makes a call. Raises CallableFault if its outputs change after it has ended."""
        watching = self._watching
        watching.begin()
        spin = watching.spins and watching.rng.random() < _SPINS
        self.bound.call_ns(CALLING, spin=spin, before=write)
        self.read()
        if self._watching.rng.random() > _LATE_LOOKS:
            return
        early = [place.beginning() for place in self.outputs]
        time.sleep(_LATE_S)
        self.read()
        if early != [place.beginning() for place in self.outputs]:
            reason = "the callable wrote its outputs after it had returned"
            raise CallableFault(OutcomeKind.LAUNCH_ERROR, reason)

    def read(self) -> None:
        """Reads the results of the last call, if the callable returned them."""
        if self.manner.reads:
            self.host.read_results(self.landings, CALLING)
            for place in self.outputs:
                place.settle()

    @property
    def kind(self) -> tuple[Manner, int]:
        """Releases of one kind cost the same. A copy is a part of the call."""
        return Manner(self.manner.given), len(self.outputs)


@dataclass(frozen=True, slots=True)
class Watching:
    """How this process waits for calls. `begin` is called before a call: it leaves the host's cores
    to it. `spins`: it has a core of its own, and may keep it."""

    begin: Callable[[], object]
    spins: bool
    rng: random.Random


class NullCalls:
    """Calls in a host that does nothing: what a release costs, in ns, whoever is called."""

    def __init__(self) -> None:
        self._least_ns: dict[tuple[Manner, int], float] = {}

    def cost_ns(self, release: Release, null: Host) -> float:
        """Measured now; the least so far, since other work on the machine can only add to it."""
        bound = bind_nothing(null, release.plan, release.addresses, release.manner)
        return self._least(bound, release.kind)

    def measure_first(self, plan: CallPlan, null: Host) -> None:
        """Measures both manners of calls, before a candidate can slow the null host down: what is
        measured later can only be less."""
        outputs = sum(spec.is_output for spec in plan.tensors)
        nowhere = [0] * len(plan.tensors)
        for manner in (Manner(given=True), Manner(given=False)):
            if (manner, outputs) not in self._least_ns:
                self._least(bind_nothing(null, plan, nowhere, manner), (manner, outputs))

    def _least(self, bound: Bound, kind: tuple[Manner, int]) -> float:
        found = min(
            statistics.median(bound.call_ns(CALLING) for _ in range(_ROW)) for _ in range(_ROWS)
        )
        least = min(found, self._least_ns.get(kind, found))
        self._least_ns[kind] = least
        return least


def bind_nothing(null: Host, plan: CallPlan, addresses: Sequence[int], manner: Manner) -> Bound:
    """Calls of this manner in the null host. A copy is part of a call's time, so nothing is copied
    there."""
    places = null.places(addresses, CALLING)
    return null.bind(Bind(0, NULL, plan, places, given=manner.given), CALLING)


class ReleaseClock:
    """Times runs of a release. A write comes before each call, inside of its time, as for a
    baseline. A run's time is the median of its calls: on a busy machine some of them wait for a
    core. Some calls, drawn at random, are checked and not timed."""

    def __init__(self, release: Release, cost_ns: float, watching: Watching) -> None:
        """`cost_ns`: of a release."""
        self._release = release
        self._cost_ns = cost_ns
        self._watching = watching
        self._calls_ns: list[float] = []

    def timed_ns(self, calls: Sequence[Callable[[], object]], write: Write) -> float:
        """Makes the calls; the time of all, without the cost of releases."""
        release = self._release
        for _ in range(0 if release.host.is_awake else _AFTER_SLEEP):
            release.call_ns()
        self._calls_ns = []
        release.clock = self
        try:
            for call in calls:
                if isinstance(call, Release):
                    self.take(call, write)
                else:  # a release after more writes
                    write()
                    call()
        finally:
            release.clock = None
        return len(calls) * max(1.0, statistics.median(self._calls_ns) - self._cost_ns)

    def take(self, release: Release, write: Write = int) -> None:
        """Makes one call."""
        if self._calls_ns and self._watching.rng.random() < _LATE_LOOKS:
            release.check(write)
        else:
            self._calls_ns.append(release.call_ns(write))
            if self._watching.rng.random() < _READS:
                release.read()
