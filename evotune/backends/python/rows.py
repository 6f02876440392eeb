"""Rows of a callable's calls, released together and timed by this process's own clock.

A released call may leave a few microseconds of work to be done after its answer. In a row only the
last call can, and a stamp that lies says nothing: the clock is this process's.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence

from evotune.backends.base.session import Timed
from evotune.backends.python.host_process import BoundRow, CallableFault, Host
from evotune.backends.python.releases import CALLING, Release, Watching
from evotune.trial import OutcomeKind

_DISTURBED_SHARE, _DISTURBED_NS = 0.05, 30_000
_LATE_LOOKS, _LATE_S = 0.3, 0.0003
_SPOT_BYTES = 64


class ReleaseRow:
    """See `Row` of `backends/base/session.py`."""

    def __init__(
        self,
        releases: Sequence[Release],
        row: BoundRow,
        cost_ns: float,
        watching: Watching,
        before: Callable[[], object],
    ) -> None:
        """`cost_ns`: of a single release. `before`: what must be done before calls are timed."""
        self._releases = releases
        self._row = row
        self._cost_ns = cost_ns
        self._watching = watching
        self._before = before

    def at_once(self, wanted: int, *, complement: bool) -> Timed:
        """Raises CallableFault if random bytes of the outputs change after the end."""
        self._before()
        self._row.host.wake(CALLING)
        waits, spins = Waits(self._row.host), self._watching.spins
        nanoseconds, places = self._row.run_ns(wanted, CALLING, complement=complement, spin=spins)
        waited_ns = waits.end_ns()
        used = [self._releases[place] for place in places]
        self._read(used)
        rng = self._watching.rng
        spots = [(output, rng.random()) for release in used for output in release.outputs]
        early = [output.spot(share, _SPOT_BYTES) for output, share in spots]
        if rng.random() < _LATE_LOOKS:
            time.sleep(_LATE_S)
        self._read(used)
        if early != [output.spot(share, _SPOT_BYTES) for output, share in spots]:
            reason = "the callable wrote its outputs after the end of a row of calls"
            raise CallableFault(OutcomeKind.LAUNCH_ERROR, reason)
        is_disturbed = waited_ns > max(_DISTURBED_NS, _DISTURBED_SHARE * nanoseconds)
        return Timed(nanoseconds / 1000, self._with_own_results(places), is_disturbed)

    def one_by_one_us(self, places: Sequence[int]) -> float:
        self._before()
        taken_ns = [self._releases[place].call_ns() for place in places]
        return max(0.001, (statistics.median(taken_ns) - self._cost_ns) / 1000)

    def _with_own_results(self, places: Sequence[int]) -> list[int]:
        """The places whose results no later call of the row has replaced. A callable may return the
        same memory each time."""
        if not (places and self._releases[0].manner.reads):
            return list(places)
        addresses = self._row.host.result_addresses()
        count = len(addresses) // len(places)
        found, later = [], set[int]()
        for number in reversed(range(len(places))):
            own = set(addresses[number * count : (number + 1) * count])
            if later.isdisjoint(own):
                found.append(places[number])
            later |= own
        return found[::-1]

    def _read(self, releases: Sequence[Release]) -> None:
        if releases and releases[0].manner.reads:
            landings = [each for release in releases for each in release.landings]
            releases[0].host.read_results(landings, CALLING)
            for release in releases:
                for output in release.outputs:
                    output.settle()


class Waits:
    """How long this thread, and each thread of a host, was ready to run and had no core. Linux
    counts that for threads that are there now. It is read in microseconds: outputs are looked at
    next."""

    def __init__(self, host: Host) -> None:
        self._files: list[int] = []
        threads = [(os.getpid(), threading.get_native_id())]
        for pid in host.processes():
            with contextlib.suppress(OSError):
                threads += [(pid, int(thread)) for thread in os.listdir(f"/proc/{pid}/task")]
        for pid, thread in threads:
            with contextlib.suppress(OSError):
                path = f"/proc/{pid}/task/{thread}/schedstat"
                self._files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        self._began_ns = self._read_ns()

    def end_ns(self) -> int:
        """The wait of the thread that waited longest; 0 where nothing is counted."""
        pairs = zip(self._read_ns(), self._began_ns, strict=True)
        longest_ns = max((now - began for now, began in pairs), default=0)
        for file in self._files:
            os.close(file)
        return longest_ns

    def _read_ns(self) -> list[int]:
        found = []
        for file in self._files:
            words: list[bytes] = []
            with contextlib.suppress(OSError):  # the thread has ended
                words = os.pread(file, 64, 0).split()
            found.append(int(words[1]) if len(words) > 1 else 0)
        return found
