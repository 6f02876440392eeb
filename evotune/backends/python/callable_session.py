"""The CPU as an open device for callables: each runs in a host, and this process judges it.

Buffers are shared memory. A bound call releases the host and waits for its answer; baselines run
in this process, as for C++ kernels.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.backends.base.launch import CallPlan, LaunchPlan
from evotune.backends.base.session import Fault, Sampler
from evotune.backends.cpu import cpu_profile, native_runtime
from evotune.backends.cpu.cpu_session import CpuSampler, CpuSession, Write, timed_ns
from evotune.backends.python.bundle import Bundle
from evotune.backends.python.host_limits import hide_memory
from evotune.backends.python.host_messages import Bind, Build, Load
from evotune.backends.python.host_process import (
    Bound,
    CallableFault,
    Host,
    SharedMemory,
    Stage,
    Zygote,
    ZygoteLost,
)
from evotune.backends.python.releases import (
    CALLING,
    Manner,
    NullCalls,
    Release,
    ReleaseClock,
    Watching,
    bind_nothing,
)
from evotune.backends.python.rows import ReleaseRow
from evotune.trial import DeviceState
from evotune.util.files import default_cache_dir, worker_folder

if TYPE_CHECKING:
    import torch

_CACHES = ("TORCHINDUCTOR", "TRITON", "NUMBA")
_BUILD_S = 60.0  # until a trial says how long building may take
_REST_S, _LONGEST_REST_S = 0.002, 2.0
_GLANCE_S, _LOOK_S = 0.0005, 0.003
_BUSY_SHARE = 0.02  # of a core
_SETTLING_S = 0.05  # of processor time: a host that comes to rest needs less
_DISTURBED = 4  # samples, and at least a tenth of all


class CallableSession(CpuSession):
    """See `evotune.backends.base.session.Session`."""

    allocates = False  # the host allocates in each call
    has_rows = True
    sample_us = champion_sample_us = 300.0  # a call is known to a microsecond

    def __init__(self) -> None:
        self._all_cores = os.sched_getaffinity(0)
        super().__init__()
        self._cores = self._here = os.sched_getaffinity(0)
        self._own_core = self._all_cores - self._cores
        """The cores that no host uses, for this process while it waits for hosts."""
        self._zygote: Zygote | None = None
        self._memory = SharedMemory()
        self._null: Host | None = None
        self._null_calls = NullCalls()
        self._candidates: dict[Path, Candidate] = {}
        self._build_s = _BUILD_S
        self._reads: bool | None = None
        self._watching = Watching(self._stand_apart, bool(self._own_core), random.Random())
        self._manner = Manner(given=False)
        self._busy = BusyHosts()
        hide_memory()  # from candidates
        self._start_zygote()  # it imports PyTorch while this process makes inputs

    def memory(self, nbytes: int) -> torch.Tensor:
        return self._memory.allocate(nbytes)

    # Processes

    def _start_zygote(self) -> Zygote:
        if self._zygote is None:
            self._move_to(self._cores)  # hosts inherit them
            self._zygote = Zygote(cpu_profile.threads(), host_environment())
            self._move_to(self._all_cores)
        return self._zygote

    def _host(self) -> Host:
        try:
            return Host(self._start_zygote(), self._memory)
        except ZygoteLost:  # a candidate may have killed it
            self._end_zygote()
            return Host(self._start_zygote(), self._memory)

    def _nothing(self) -> Host:
        """The null host."""
        if self._null is not None and self._null.ended:
            self._null.close()
            self._null = None
        if self._null is None:
            self._null = self._host()
        return self._null

    def close(self) -> None:
        """Ends all its processes, which otherwise end with this one."""
        self.take_stock()
        self._end_zygote()
        hide_memory(False)

    def _end_zygote(self) -> None:
        if self._null is not None:
            with contextlib.suppress(ZygoteLost):
                self._null.close()
        if self._zygote is not None:
            self._zygote.close()
        self._zygote = self._null = None

    def _hosts(self) -> list[Host]:
        found = (each.host for each in self._candidates.values())
        return [host for host in found if host is not None and not host.ended]

    # A trial's candidates

    def take_stock(self) -> str:
        """Ends the hosts of the trial before."""
        for candidate in self._candidates.values():
            candidate.end()
        self._candidates.clear()
        self._busy.words()
        return ""

    def load(self, path: Path, plan: LaunchPlan) -> Candidate:
        """One host for each configuration: a rival has its own."""
        if path not in self._candidates:
            self._candidates[path] = Candidate(Bundle.read(path), self._host)
        return self._candidates[path]

    def build(
        self,
        kernel: Callable[..., object],
        plan: LaunchPlan,
        inputs: Mapping[str, torch.Tensor],
        limit_s: float,
    ) -> None:
        assert isinstance(kernel, Candidate)
        assert plan.call is not None
        self._build_s = limit_s
        if not self._hosts():
            self._stand_apart()
            self._null_calls.measure_first(plan.call, self._nothing())
            self.settle()
        shared = {name: self._shared_copy(value) for name, value in inputs.items()}
        kernel.build(plan.call, {n: v.data_ptr() for n, v in shared.items()}, limit_s)

    def _shared_copy(self, value: torch.Tensor) -> torch.Tensor:
        copy = self.memory(value.numel() * value.element_size()).view(value.dtype)
        copy.copy_(value.flatten())
        return copy

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Release:
        assert isinstance(kernel, Candidate)
        assert plan.call is not None
        given = kernel.build(plan.call, pointers, self._build_s)
        copies = not given and not self._can_read_results(plan.call, pointers)
        self._manner = Manner(given, copies)
        bound = kernel.bind(plan.call, pointers, self._manner)
        return Release(bound, plan.call, pointers, self._manner, self._watching)

    def _can_read_results(self, plan: CallPlan, pointers: Mapping[str, int]) -> bool:
        """Whether the system lets this process read a host's memory: tried once."""
        if self._reads is None:
            null, manner = self._nothing(), Manner(given=False)
            addresses = [pointers[spec.name] for spec in plan.tensors]
            bind_nothing(null, plan, addresses, manner).call_ns(CALLING)
            self._reads = null.lets_read_results()
        return self._reads

    # Calls

    def settle(self) -> None:
        """Gives this thread all cores again. A host cannot change how this process computes."""
        self._move_to(self._all_cores)

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> CpuSampler:
        release = next((call for call in calls if isinstance(call, Release)), None)
        if release is None:
            return CpuSampler(calls, self._before_baseline, untimed, _one_by_one_ns)
        self._stand_apart()
        cost_ns = self._null_calls.cost_ns(release, self._nothing())
        self.settle()
        clock = ReleaseClock(release, cost_ns, self._watching)
        before = functools.partial(self._before_release, release.host)
        return CpuSampler(calls, before, untimed, clock.timed_ns)

    def row(self, calls: Sequence[Callable[[], object]]) -> ReleaseRow:
        releases = [call for call in calls if isinstance(call, Release)]
        host, first = releases[0].host, releases[0]
        bound, _ = host.row([release.bound.slot for release in releases], CALLING)
        self._stand_apart()
        cost_ns = self._null_calls.cost_ns(first, self._nothing())
        self.settle()
        before = functools.partial(self._before_release, host)
        return ReleaseRow(releases, bound, cost_ns, self._watching, before)

    def _before_baseline(self) -> None:
        for host in self._hosts():
            host.rest(CALLING)
        self._move_to(self._cores)
        self._before_sample()

    def _before_release(self, host: Host) -> None:
        """The threads of this process's pool would take the host's cores, and so would another
        host's."""
        native_runtime.rest()
        for other in self._hosts():
            if other is not host:
                other.rest(CALLING)
        self._stand_apart()

    def _stand_apart(self) -> None:
        """Leaves the hosts' cores to them, until `settle`."""
        self._move_to(self._own_core or self._all_cores)

    def _move_to(self, cores: set[int]) -> None:
        if cores != self._here:
            os.sched_setaffinity(0, cores)
            self._here = cores

    def undisturbed(self, sampler: Sampler) -> Sampler:
        return QuietSampler(sampler, self._hosts, self._busy)

    # What a candidate leaves

    def left_running(self, run: Callable[[], object] | None = None) -> str:
        if run is not None:
            run()
        self.settle()
        for host in self._hosts():
            if words := left_by(host):
                return words
        if self._start_zygote().has_strangers():
            return "left a process running"
        return self._busy.words()

    def fault(self, error: RuntimeError) -> Fault | None:
        if isinstance(error, CallableFault):
            return Fault(error.kind, error.reason)
        return super().fault(error)

    def state(self) -> DeviceState:
        """Also says how calls were made: one by one (`eager`), with outputs that were `given`,
        `new` or `copied`. It comes after a case's last sample: this thread has no core to keep."""
        self.settle()
        outputs = "given" if self._manner.given else "copied" if self._manner.copies else "new"
        return {**super().state(), "calls": "eager", "outputs": outputs}


def host_environment() -> dict[str, str]:
    """Compilers of callables leave no processes, and share no cache with a baseline's: nobody could
    put a slower kernel there for it."""
    cache = default_cache_dir() / "callables"
    own = {f"{name}_CACHE_DIR": str(cache / name.lower()) for name in _CACHES}
    return {"TORCHINDUCTOR_COMPILE_THREADS": "1", **own}


def _one_by_one_ns(calls: Sequence[Callable[[], object]], write: Write) -> float:
    """Times calls in this process as released ones are timed."""
    return len(calls) * statistics.median(timed_ns([call], write) for call in calls)


class Candidate:
    """A configuration's callable, built in its host for each case that it is called on."""

    def __init__(self, bundle: Bundle, start: Callable[[], Host], *, graphs: bool = False) -> None:
        """`graphs`: calls are captured into CUDA graphs, if they can be."""
        self._bundle = bundle
        self.graphs = graphs
        self._start = start
        self._folder: Path | None = None
        self._built: dict[CallPlan, tuple[int, bool]] = {}
        self.host: Host | None = None

    def __call__(self) -> None:
        raise TypeError("a callable is called through Session.bind")

    def build(
        self,
        plan: CallPlan,
        addresses: Mapping[str, int],
        limit_s: float,
        *,
        captures: bool = False,
    ) -> bool:
        """Builds it for the case, once. `addresses` of inputs in shared memory. Returns whether it
        takes the outputs. `captures`: also tries a graph, and begins anew without graphs if that
        fails; nothing may have been bound before."""
        if plan not in self._built:
            stage = Stage.building(limit_s)
            host = self._opened(stage)
            inputs = [0 if each.is_output else addresses[each.name] for each in plan.tensors]
            number = len(self._built)
            captures = captures and self.graphs
            message = Build(number, plan, host.places(inputs, stage), captures)
            answer = host.ask(message, stage)
            if captures and not answer.graph:
                # A process in which a capture failed cannot go on.
                self.end()
                self.host, self.graphs = None, False
                self._built.clear()
                return self.build(plan, addresses, limit_s)
            self._built[plan] = number, answer.given
        return self._built[plan][1]

    def _opened(self, stage: Stage) -> Host:
        if self.host is None:
            self.host = self._start()
            self._folder = Path(tempfile.mkdtemp(prefix="callable-", dir=worker_folder()))
            self._bundle.write(self._folder)
            place = self._bundle.place
            load = Load(
                folder=str(self._folder / place.folder),
                module=place.name,
                entry=self._bundle.entry,
                configuration=self._bundle.configuration,
                graphs=self.graphs,
            )
            self.host.ask(load, stage)
        return self.host

    def bind(self, plan: CallPlan, addresses: Mapping[str, int], manner: Manner) -> Bound:
        """Calls on the tensors at these addresses."""
        assert self.host is not None
        number, _ = self._built[plan]
        places = self.host.places([addresses[each.name] for each in plan.tensors], CALLING)
        message = Bind(0, number, plan, places, copies=manner.copies)
        return self.host.bind(message, CALLING)

    def end(self) -> None:
        """Ends its host, if it has one."""
        if self.host is not None:
            with contextlib.suppress(ZygoteLost):
                self.host.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


# What hosts do while nothing was released.


def left_by(host: Host) -> str:
    """What a candidate left running after its call, in words that follow "the kernel"; "" if all
    rests."""
    host.wake(CALLING)
    host.rest(CALLING)
    if sum(1 for _ in host.processes()) > 1:
        return "left a process running"
    begun_s, started_s = host.cpu_s(), time.perf_counter()
    rests = _wait_for_rest(host, _LONGEST_REST_S)
    # On a busy machine a thread that never rests may get no core during one look.
    if rests or host.cpu_s() - begun_s < _SETTLING_S:
        begun_s, started_s = host.cpu_s(), time.perf_counter()
        time.sleep(_LOOK_S)
    share = (host.cpu_s() - begun_s) / (time.perf_counter() - started_s)
    if share <= _BUSY_SHARE:
        return ""
    host.wake(CALLING)  # a process that ends is busy too, and this says why
    return f"kept {share:.2f} cores busy after it returned"


def _wait_for_rest(host: Host, longest_s: float) -> bool:
    """Waits until no thread of the host runs, for a while. Whether that came."""
    until = time.monotonic() + longest_s
    while host.is_running():
        if time.monotonic() > until:
            return False
        time.sleep(_GLANCE_S)
    return True


@dataclass
class BusyHosts:
    """Counts the samples of a baseline in which hosts worked."""

    samples: int = 0
    disturbed: int = 0
    cores: float = 0.0

    def count(self, cores: float) -> None:
        self.samples += 1
        if cores > _BUSY_SHARE:
            self.disturbed += 1
            self.cores += cores

    def words(self) -> str:
        """How busy hosts were since the last call, in words that follow "the kernel"; "" for too
        few samples."""
        samples, disturbed, cores = self.samples, self.disturbed, self.cores
        self.samples, self.disturbed, self.cores = 0, 0, 0.0
        if disturbed < _DISTURBED or 10 * disturbed < samples:
            return ""
        return f"kept {cores / disturbed:.2f} cores busy while the baseline was timed"


class QuietSampler:
    """A baseline's sampler. Hosts must rest before each sample, and during it."""

    def __init__(self, sampler: Sampler, hosts: Callable[[], list[Host]], busy: BusyHosts) -> None:
        self._sampler = sampler
        self._hosts = hosts
        self._busy = busy

    def run(self) -> None:
        self._sampler.run()

    def time_us(self) -> float:
        hosts = self._hosts()
        for host in hosts:
            host.rest(CALLING)
            _wait_for_rest(host, _REST_S)
        begun_s, started_s = sum(host.cpu_s() for host in hosts), time.perf_counter()
        time_us = self._sampler.time_us()
        worked_s = sum(host.cpu_s() for host in hosts) - begun_s
        self._busy.count(worked_s / (time.perf_counter() - started_s))
        return time_us
