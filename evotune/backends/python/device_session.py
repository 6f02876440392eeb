"""A GPU as an open device for callables: each runs in a host with a context of its own.

The worker has the buffers, the references, the baselines and the clock, in its own context; hosts
map the buffers. A candidate and its baseline are timed alike, as rows of calls: each call has a
place of its own, the number of calls is random, and a call's time is the slope. So the cost of a
release and of its end does not count. A row has ended when this process has read a random piece of
its outputs by a copy engine. What a host has left undone then is missing, or counts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.backends.base.launch import DeviceProfile, LaunchPlan
from evotune.backends.base.session import Disturb, Fault, Row, Sampler, Session
from evotune.backends.python.bundle import Bundle
from evotune.backends.python.callable_session import Candidate, host_environment, left_by
from evotune.backends.python.device_memory import (
    Capture,
    DeviceMemory,
    Driver,
    DriverError,
    OpenedMemory,
    cuda_driver,
)
from evotune.backends.python.device_rows import (
    DeviceRelease,
    HostRow,
    Output,
    OwnRow,
    SlopeSampler,
)
from evotune.backends.python.host_device import GraphCapture
from evotune.backends.python.host_messages import Answer
from evotune.backends.python.host_process import CallableFault, Host, Zygote, ZygoteLost
from evotune.backends.python.releases import CALLING, Manner
from evotune.errors import EnvironmentProblem
from evotune.trial import TOO_NOISY, DeviceState, OutcomeKind

if TYPE_CHECKING:
    import torch

_BUILD_S = 60.0  # until a trial says how long building may take
_BUSY_RATIO, _BUSY_S, _LOOKS, _REST_S = 1.7, 0.0005, 3, 0.01
_LOOKS_BESIDE = 1 / 6  # of a baseline's samples
_LEAST_BUSY = 3
_SHARE, _LEAST_SHARE = 0.75, 0.01  # of the free memory, for a host
_PROBE_CYCLES = 7_000_000  # some 4 ms
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Hosts ignore the user's: segments that grow cannot be exported."""


class DeviceCallableSession:
    """See `evotune.backends.base.session.Session`. `device` is the GPU's session for this
    process."""

    cold_bytes = 0
    warm_bytes = 0  # rows have a place for each call
    sample_us = 1000.0  # a row's end is known to some microseconds
    champion_sample_us = 2000.0
    untimed_calls = 0
    step_bytes = 0
    allocates = False
    in_order = True  # each release waits for the one before
    has_rows = False
    calls_once = True

    def __init__(
        self,
        device: Session,
        driver: Driver,
        capture: Capture,
        *,
        gpu_share: Callable[[], float],
        probe_s: Callable[[], float],
    ) -> None:
        """`gpu_share`: the share of the GPU's memory that a host may take. `probe_s`: the seconds
        that a fixed piece of work takes on the GPU now."""
        self.torch_device = device.torch_device
        self.pool_bytes = device.pool_bytes
        self._device = device
        self._driver = driver
        self._capture = capture
        self._gpu_share = gpu_share
        self._memory = DeviceMemory(driver)
        self._rng = random.Random()
        self._zygote: Zygote | None = None
        self._candidates: dict[Path, Candidate] = {}
        self._opened = OpenedMemory(driver)
        self._build_s = _BUILD_S
        self._calls, self._outputs = "graph", "given"
        self._quiet = Quiet(probe_s, self._rng)
        self._start_zygote()  # it imports PyTorch while this process makes inputs

    def memory(self, nbytes: int) -> torch.Tensor:
        try:
            return self._memory.allocate(nbytes)
        except RuntimeError:
            self._device.free()  # what PyTorch keeps for later
            return self._memory.allocate(nbytes)

    # Processes

    def _start_zygote(self) -> Zygote:
        if self._zygote is None:
            import torch

            environment = {**host_environment(), **dict.fromkeys(_ALLOCATOR, "")}
            self._zygote = Zygote(torch.get_num_threads(), environment, self._gpu_share)
        return self._zygote

    def _host(self) -> Host:
        try:
            return Host(self._start_zygote(), self._memory)
        except ZygoteLost:  # a candidate may have killed it
            self.close_zygote()
            return Host(self._start_zygote(), self._memory)

    def close_zygote(self) -> None:
        """Ends all its processes."""
        if self._zygote is not None:
            self._zygote.close()
        self._zygote = None

    def close(self) -> None:
        """Ends all its processes, which otherwise end with this one."""
        self.take_stock()
        self.close_zygote()

    def _hosts(self) -> list[Host]:
        found = (each.host for each in self._candidates.values())
        return [host for host in found if host is not None and not host.ended]

    # A trial's candidates

    def take_stock(self) -> str:
        """Ends the hosts of the trial before."""
        for candidate in self._candidates.values():
            candidate.end()
        self._candidates.clear()
        self._opened.close()
        self._memory.trim()
        self._quiet.words()
        return self._device.take_stock()

    def load(self, path: Path, plan: LaunchPlan) -> Candidate:
        """One host for each configuration: a rival has its own."""
        if path not in self._candidates:
            self._quiet.learn()  # while no candidate can keep the GPU busy
            self._candidates[path] = Candidate(Bundle.read(path), self._host, graphs=True)
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
        shared = {name: self._shared_copy(value) for name, value in inputs.items()}
        self.synchronize()
        pointers = {name: value.data_ptr() for name, value in shared.items()}
        kernel.build(plan.call, pointers, limit_s, captures=True)

    def _shared_copy(self, value: torch.Tensor) -> torch.Tensor:
        copy = self.memory(value.numel() * value.element_size()).view(value.dtype)
        copy.copy_(value.flatten())
        return copy

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> DeviceRelease:
        assert isinstance(kernel, Candidate)
        assert plan.call is not None
        given = kernel.build(plan.call, pointers, self._build_s)
        bound = kernel.bind(plan.call, pointers, Manner(given, copies=not given))
        outputs = [
            Output(self._driver, spec, pointers[spec.name])
            for spec in plan.call.tensors
            if spec.is_output
        ]
        return DeviceRelease(bound, given, outputs, self.synchronize)

    # Calls

    def synchronize(self) -> None:
        self._device.synchronize()

    def settle(self) -> None:
        """Does nothing: a release waits for this process's work, and for its own end."""

    def free(self) -> None:
        self._device.free()

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> SlopeSampler:
        assert not untimed
        releases = [call for call in calls if isinstance(call, DeviceRelease)]
        if len(releases) == len(calls):
            return SlopeSampler(self._row(releases), self._rng)
        captures = self._captures
        own = OwnRow(calls, self._capture, self.synchronize, captures=captures)
        return SlopeSampler(own, self._rng)

    def _captures(self) -> bool:
        """Whether a baseline is timed as a graph: as the candidate beside it."""
        return self._calls == "graph"

    def _row(self, releases: Sequence[DeviceRelease]) -> HostRow:
        """A row in the host. Where it can, this process reads the results in the host's memory."""
        host, given = releases[0].bound.host, releases[0].given
        slots = [release.bound.slot for release in releases]
        self.synchronize()
        bound, answer = host.row(slots, CALLING)
        results: list[int] = []
        if answer.graph and not given:
            results = self._results(releases, answer)
            if len(set(results)) < len(results):  # each call returns the same memory
                results = []
            if not results:
                bound, answer = host.row(slots, CALLING, copies=True)
        self._calls = "graph" if answer.graph else "eager"
        self._outputs = "given" if given else "new" if results else "copied"
        return HostRow(
            *(self._driver, releases, bound, results), synchronize=self.synchronize, rng=self._rng
        )

    def _results(self, releases: Sequence[DeviceRelease], answer: Answer) -> list[int]:
        """The addresses of all results in the host's memory; none if it cannot be opened."""
        outputs = [output for release in releases for output in release.outputs]
        try:
            return [
                self._opened.address(answer.handles[place.block], place.offset, output.result_bytes)
                for output, place in zip(outputs, answer.results, strict=True)
            ]
        except (DriverError, IndexError, ValueError):
            return []

    def row(self, calls: Sequence[Callable[[], object]]) -> Row:
        raise NotImplementedError  # samples are rows already

    def eager_sampler(self, calls: Sequence[Callable[[], object]]) -> Sampler | None:
        """Returns None: calls are timed in graphs or eagerly, and the record says which."""
        return None

    def undisturbed(self, sampler: Sampler) -> Sampler:
        return QuietBaseline(sampler, self._quiet)

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        """Returns none: kernels of two processes take turns on a GPU."""
        return {}

    def copy_gbps(self) -> float:
        return self._device.copy_gbps()

    # What a candidate leaves

    def left_running(self, run: Callable[[], object] | None = None) -> str:
        if run is not None:
            run()
        for host in self._hosts():
            if words := left_by(host):
                return words
        if self._start_zygote().has_strangers():
            return "left a process running"
        words = self._quiet.words()
        if not words and self._quiet.is_busy():
            words = "kept the GPU busy after it had returned"
        if words:
            self._require_quiet_without_hosts()
        return words

    def _require_quiet_without_hosts(self) -> None:
        """Ends the hosts. Raises CallableFault if the GPU is busy even then."""
        for candidate in self._candidates.values():
            candidate.end()
        if self._quiet.is_busy():
            reason = f"{TOO_NOISY}: another program keeps the GPU busy"
            raise CallableFault(OutcomeKind.UNDECIDED, reason)

    def fault(self, error: RuntimeError) -> Fault | None:
        if isinstance(error, CallableFault):
            return Fault(error.kind, error.reason)
        return self._device.fault(error)

    def state(self) -> DeviceState:
        """Also says how calls were made: in a `graph` or one by one (`eager`), with outputs that
        were `given`, `new` or `copied`."""
        return {**self._device.state(), "calls": self._calls, "outputs": self._outputs}


class Quiet:
    """Whether a candidate keeps the GPU busy while nothing was released. Two processes take turns
    on a GPU, so work of this process takes at least twice as long then."""

    def __init__(self, probe_s: Callable[[], float], rng: random.Random) -> None:
        self._probe_s = probe_s
        self._rng = rng
        self._least_s = 0.0
        self._looks = self._busy = 0

    def learn(self) -> None:
        """Must be called while there are no hosts."""
        found = min(self._probe_s() for _ in range(_LOOKS))
        self._least_s = min(self._least_s or found, found)

    def is_busy(self, looks: int = _LOOKS) -> bool:
        """Whether the GPU is busy at each of some looks."""
        for number in range(looks):
            if number:
                time.sleep(_REST_S)
            if self._probe_s() <= _BUSY_RATIO * self._least_s + _BUSY_S:
                return False
        return self._least_s > 0.0

    def look_beside(self) -> None:
        """Looks once, at random, before a baseline's sample."""
        if self._rng.random() < _LOOKS_BESIDE:
            self._looks += 1
            self._busy += self.is_busy(1)

    def words(self) -> str:
        """Whether the GPU was busy while a baseline was timed, since the last call, in words that
        follow "the kernel"."""
        looks, busy = self._looks, self._busy
        self._looks = self._busy = 0
        often = busy >= _LEAST_BUSY and 2 * busy > looks
        return "kept the GPU busy while the baseline was timed" if often else ""


class QuietBaseline:
    """A baseline's sampler, before some of whose samples this process looks for other work."""

    def __init__(self, sampler: Sampler, quiet: Quiet) -> None:
        self._sampler = sampler
        self._quiet = quiet

    def run(self) -> None:
        self._sampler.run()

    def time_us(self) -> float:
        self._quiet.look_beside()
        return self._sampler.time_us()


def open_gpu_session(profile: DeviceProfile) -> DeviceCallableSession:
    """Opens the GPU. Raises EnvironmentProblem if processes cannot share its memory."""
    import torch

    from evotune.backends.cuda.cuda_session import CudaSession

    device, driver = CudaSession(profile), cuda_driver()
    try:
        address = driver.allocate(1)
        driver.export(address)
        driver.free(address)
    except DriverError as error:
        reason = f"processes cannot share memory of {profile.name}, as callables need: {error}"
        raise EnvironmentProblem(reason) from error

    def gpu_share() -> float:
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return max(_LEAST_SHARE, _SHARE * free_bytes / total_bytes)

    def probe_s() -> float:
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        torch.cuda._sleep(_PROBE_CYCLES)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        return time.perf_counter() - begun_s

    return DeviceCallableSession(
        device, driver, GraphCapture(), gpu_share=gpu_share, probe_s=probe_s
    )
