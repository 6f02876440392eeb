"""The executor of one machine: a compile pool and a worker for each device, joined by a scheduler.

Each proposal moves through `compiling`, `ready` and `measuring`. With `exclusive` (the CPU),
compilers and devices never run at once: everything queued is compiled, then everything
compiled is measured, so that no compiler disturbs a measurement. While a champion is measured no
compiler runs anywhere.

Checks of several champions may run in parallel, each in a separate process, together with compilers
but never during a measurement.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from evotune.backends import registry
from evotune.backends.base.launch import Binary, CompileFailure, CompileJob, DeviceProfile
from evotune.errors import EnvironmentProblem
from evotune.problems.problem import Case
from evotune.timing.processes import LEAST
from evotune.trial import Outcome, OutcomeKind
from evotune.workers.child import Child, wait_readable
from evotune.workers.compile_pool import CompilePool
from evotune.workers.device_slot import DeviceSlot, ProblemSource
from evotune.workers.early_worker import EarlyWorker
from evotune.workers.executor import CHECKS, EDGE, TIMED, TIMING, BaselineReport, Proposal
from evotune.workers.in_flight import (
    BuildRules,
    InFlight,
    Twins,
    failed_to_compile,
    speaks_for_its_code,
)
from evotune.workers.messages import (
    Answer,
    BaselineFailed,
    BaselinesRequest,
    BaselinesTimed,
    GateSettings,
    PrepareRequest,
    TrialDone,
)

_TURN_S = 0.2
_MOST_AT_ONCE = 4  # checks of champions: their processes share the GPU's memory


class LocalExecutor:
    """See `evotune.workers.executor.Executor`.

    - `baselines`: the baseline's name by case label.
    - `fixed_sampling`: candidates that cannot win get as many samples as contenders.
    - `name_devices`: an outcome names the device that measured it.
    - `twins`: earlier outcomes by machine code, so that no code is measured twice in a run.
    - `rules`: a binary that breaks them is not launched.
    - `checkers`: additional workers of the first device, for proposals of the part CHECKS.
    """

    def __init__(
        self,
        compile_pool: CompilePool,
        devices: Sequence[DeviceSlot],
        *,
        exclusive: bool,
        checkers: Sequence[DeviceSlot] = (),
        twins: Twins | None = None,
        rules: BuildRules | None = None,
    ) -> None:
        self._pool = compile_pool
        self._devices = tuple(devices)
        self._slots = (*devices, *checkers)
        self._exclusive = exclusive
        self._twins = twins or Twins()
        self._rules = rules
        self.baselines: Mapping[str, str] = {}
        self.fixed_sampling = False
        self.name_devices = len(devices) > 1
        builds = any(registry.named(d.profile.backend).builds_in_worker for d in devices)
        self._build_s = compile_pool.timeout_s if builds else 0.0
        self._contender = float("-inf")
        self._compile_phase = True
        self._compiling: dict[int, InFlight] = {}
        self._ready: dict[int, InFlight] = {}
        self._measuring: dict[int, InFlight] = {}  # by slot
        self._reserved: dict[int, int] = {}
        """The slots of checks that wait for their compilers, by the proposal's number."""
        self._done: list[tuple[int, Outcome]] = []
        self._wake_fd, self._waker_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._waker_fd, False)

    @property
    def devices(self) -> Sequence[DeviceProfile]:
        return tuple(device.profile for device in self._devices)

    @property
    def checks_at_once(self) -> int:
        """The number of champions that may be checked in parallel."""
        return len(self._slots) - len(self._devices)

    @property
    def step(self) -> str:
        """See `Executor`. Any thread may read it."""
        if self._compiling:
            return "compiling"
        return next((slot.step for slot in self._slots if slot.step), "")

    def open_devices(self) -> None:
        """Starts all workers, and the compilers that may run at the same time, without waiting for
        them. Each needs seconds until it is ready."""
        for device in self._devices:
            device.open()
        if not self._exclusive:
            self._pool.warm(registry.named(self.devices[0].backend).languages[0].name)

    def expect_champions(self) -> None:
        """Starts the processes that will check champions in parallel, while the search
        continues."""
        for checker in self._slots[len(self._devices) :]:
            checker.stand_by()

    def compile_ahead(self, jobs: Iterable[CompileJob]) -> None:
        """Compiles jobs of later proposals whenever compilers have nothing else to do. Does nothing
        if that would disturb measurements."""
        if not self._exclusive:
            for job in jobs:
                self._pool.submit_later(job)

    def submit(self, proposal: Proposal) -> None:
        if proposal.rejection:
            outcome = Outcome(OutcomeKind.REJECTED, reason=proposal.rejection)
            self._done.append((proposal.number, outcome))
            return
        self._compile(InFlight(proposal))
        if proposal.needs_fresh_process:  # it opens while the compilers work
            index = self._slot_of(proposal)
            if index is not None and index not in self._measuring:
                self._slots[index].refresh(_ahead(proposal))
            times = proposal.device or 0
            if proposal.part == CHECKS and times not in self._measuring:
                small = [job.case for job in proposal.cases if job.role in (EDGE, TIMED)]
                self._slots[times].expect(LEAST, small)
                self._slots[times].refresh()  # the timing follows, in a fresh process

    def _slot_of(self, proposal: Proposal) -> int | None:
        """The slot of a champion's proposal. For checks it is the first one that no other proposal
        will take; None if there is none yet."""
        if proposal.part != CHECKS:
            return proposal.device or 0
        if proposal.number not in self._reserved:
            taken = {*self._reserved.values(), *self._measuring}
            free = [n for n in range(len(self._devices), len(self._slots)) if n not in taken]
            if not free:
                return None
            self._reserved[proposal.number] = free[0]
        return self._reserved[proposal.number]

    def set_contender(self, fitness: float) -> None:
        self._contender = fitness

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        deadline = time.monotonic() + timeout_s
        while True:
            self._advance()
            if self._done or time.monotonic() >= deadline or self._woken():
                done, self._done = self._done, []
                return done
            self._wait(deadline)

    def wake(self) -> None:
        """Ends the `poll` in which another thread waits, else the next `poll`. Any thread may call
        it."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups
            os.write(self._waker_fd, b"\0")

    def _woken(self) -> bool:
        try:
            return bool(os.read(self._wake_fd, 1 << 16))
        except BlockingIOError:
            return False

    def drop(self) -> None:
        if not (self._compiling or self._ready or self._measuring or self._reserved or self._done):
            return  # what is compiled ahead goes on
        self._pool.drop()
        for index in {*self._measuring, *self._reserved.values()}:
            self._slots[index].close()
        self._measuring.clear()
        self._reserved.clear()
        self._compiling.clear()
        self._ready.clear()
        self._done.clear()

    def close(self) -> None:
        self._pool.close()
        for slot in self._slots:
            slot.close()
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            os.close(self._waker_fd)
            self._wake_fd = -1

    def time_baselines(
        self,
        cases: Sequence[Case],
        libraries: Sequence[str] = (),
        index: int = 0,
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> BaselineReport:
        """Times all baselines, those of the named optional libraries too, on all cases on the
        device with this `index`. Nothing else may be running, except jobs of `compile_ahead`. A
        baseline that raises an error gets a reason instead of a time, and a fresh worker times the
        others. Raises KeyboardInterrupt once `stop` returns True, as a signal does."""
        device = self._devices[index]
        request = BaselinesRequest(cases=tuple(cases), libraries=tuple(libraries))
        device.start(request)
        while True:
            if stop():
                raise KeyboardInterrupt
            answer: Answer | Outcome | None = None
            workers = [] if device.child is None else [device.child]
            readable = self._compile_further(workers)
            if device.child in readable:
                answer = device.handle()
            if answer is None:
                answer = device.expire()
            if isinstance(answer, Outcome):
                raise EnvironmentProblem(f"the baselines could not be timed: {answer.reason}")
            if isinstance(answer, BaselineFailed):
                failed = (*request.failed, answer.timing)
                request = msgspec.structs.replace(request, failed=failed)
                device.start(request)
            if isinstance(answer, BaselinesTimed):
                return answer.report

    def _compile_further(self, workers: Sequence[Child[Any, Any]]) -> list[Child[Any, Any]]:
        """Compiles ahead until one of the `workers` is readable, but for a short time. Returns
        those that are. The cache has what was compiled."""
        if not self._exclusive:
            self._pool.start_queued()
        compilers = self._pool.children()
        readable = wait_readable([*compilers, *workers], _TURN_S)
        for child in compilers:
            if child in readable:
                self._pool.handle(child)
        self._pool.expire()
        return readable

    # --- the scheduler ---------------------------------------------------------------------------

    def _advance(self) -> None:
        """Starts whatever may start now."""
        if self._exclusive:
            # Two phases: compile all that is queued, then measure all that is compiled.
            if self._compile_phase and not (self._pool.running or self._pool.queued):
                self._compile_phase = False
            elif not self._compile_phase and not (self._measuring or self._ready):
                self._compile_phase = True
        if (self._compile_phase or not self._exclusive) and not self._confirming():
            self._pool.start_queued()
        if not (self._compile_phase and self._exclusive):
            for index in range(len(self._slots)):
                while index not in self._measuring and (item := self._next(index)) is not None:
                    self._measure(index, item)

    def _confirming(self) -> bool:
        items = (*self._ready.values(), *self._measuring.values())
        alone = (i for i in items if i.proposal.part != CHECKS)
        return any(item.proposal.needs_fresh_process for item in alone)

    def _next(self, index: int) -> InFlight | None:
        """Takes the oldest proposal that this device may measure out of `_ready`."""
        for number in sorted(self._ready):
            if self._may_start(self._ready[number], index):
                return self._ready.pop(number)
        return None

    def _may_start(self, item: InFlight, index: int) -> bool:
        checking = [n for n in self._measuring if n >= len(self._devices)]
        if item.proposal.part == CHECKS:
            return self._slot_of(item.proposal) == index and len(checking) == len(self._measuring)
        if index >= len(self._devices) or checking:
            return False
        if item.proposal.device not in (None, index):
            return False
        if item.proposal.needs_fresh_process:
            return not self._pool.running
        # While another device measures the same code, this one waits for its outcome.
        return not item.searched or all(
            item.fingerprint != other.fingerprint for other in self._measuring.values()
        )

    def _compile(self, item: InFlight) -> None:
        self._compiling[item.proposal.number] = item
        for job in item.missing:
            self._pool.submit(job)

    def _measure(self, index: int, item: InFlight) -> None:
        if item.lost_binaries():
            self._compile(item)
            return
        self._reserved.pop(item.proposal.number, None)
        if item.proposal.needs_fresh_process:
            self._slots[index].refresh()
        elif item.searched and (twin := item.twin or self._twins.recent(item.fingerprint)):
            number, outcome = twin
            same = msgspec.structs.replace(outcome, duplicate_of=number, stage_s={})
            self._finish(item, item.with_build(same))
            return
        self._measuring[index] = item
        self._slots[index].start(
            item.request(
                contender=float("-inf") if self.fixed_sampling else self._contender,
                fixed_sampling=self.fixed_sampling,
                baselines=self.baselines,
                build_s=self._build_s,
            )
        )

    def _wait(self, deadline: float) -> None:
        """Waits until a child answers, `wake` is called or a short time has passed, and handles the
        answers."""
        workers = {slot.child: index for index, slot in enumerate(self._slots) if slot.child}
        compilers = self._pool.children()
        timeout_s = min(_TURN_S, max(0.0, deadline - time.monotonic()))
        waiting: list[Child[Any, Any] | int] = [*compilers, *workers, self._wake_fd]
        readable = wait_readable(waiting, timeout_s)
        answered = [index for child, index in workers.items() if child in readable]
        for index in answered:
            self._device_answered(index, self._slots[index].handle())
        if answered:
            self._advance()  # first of all, as a device is idle
        results: list[tuple[CompileJob, Binary | CompileFailure]] = []
        for child in compilers:
            if child in readable:
                results += self._pool.handle(child)
        results += self._pool.expire()
        for job, result in results:
            self._compiled(job, result)
        for index, slot in enumerate(self._slots):
            self._device_answered(index, slot.expire())
            slot.tend()

    def _device_answered(self, index: int, answer: Answer | Outcome | None) -> None:
        """Finishes the trial that is measured on the device. `answer` is what the device's slot
        returned for it."""
        if not isinstance(answer, TrialDone | Outcome) or index not in self._measuring:
            return
        item, device = self._measuring.pop(index), self._slots[index]
        done = TrialDone(outcome=answer) if isinstance(answer, Outcome) else answer
        outcome = item.with_build(done.outcome)
        if self.name_devices:
            state = {**outcome.device_state, **_identity(device.profile)}
            resources = {**outcome.resources, "device": state}
            outcome = msgspec.structs.replace(outcome, resources=resources)
        if outcome.kind is OutcomeKind.OUT_OF_BOUNDS:
            device.renew()  # who knows what else it overwrote
        if item.proposal.part == CHECKS:
            device.close()  # it holds memory of the device, and may wake up during a measurement
        if item.searched and speaks_for_its_code(outcome):
            self._twins.remember(item.proposal.number, outcome)
        self._finish(item, outcome)

    def _compiled(self, job: CompileJob, result: Binary | CompileFailure) -> None:
        """Hands a compile result to every proposal that waits for it."""
        for number, item in list(self._compiling.items()):
            if job.key not in item.proposal.compile_jobs:
                continue
            if isinstance(result, CompileFailure):
                del self._compiling[number]
                self._finish(item, failed_to_compile(result))
                continue
            item.binaries[job.key] = result
            if not item.missing:
                del self._compiling[number]
                self._reviewed(number, item)

    def _reviewed(self, number: int, item: InFlight) -> None:
        """A candidate whose compiled figures break a limit is never launched."""
        violation = item.review(self._rules)
        if violation:
            self._finish(item, item.beyond_limit(violation))
        else:
            if item.searched:  # now: it takes a while, and no device waits for it yet
                item.twin = self._twins.find(item.fingerprint)
            self._ready[number] = item

    def _finish(self, item: InFlight, outcome: Outcome) -> None:
        index = self._reserved.pop(item.proposal.number, None)
        if index is not None:  # it will not be measured
            self._slots[index].close()
        self._done.append((item.proposal.number, outcome))


def _ahead(proposal: Proposal) -> PrepareRequest | None:
    """The work on a champion that needs no binary. A process that only times it makes few inputs,
    and compiles nothing."""
    if not proposal.confirm or proposal.part == TIMING:
        return None
    cases = tuple((job.case, job.role) for job in proposal.cases)
    return PrepareRequest(number=proposal.number, cases=cases)


def _identity(profile: DeviceProfile) -> dict[str, str]:
    return {"model": profile.name, "id": profile.id}


def compile_processes(device_workers: int, cores: int = 0) -> int:
    """The number of compile processes on `cores` CPU cores (0: the cores of this process), if
    `device_workers` workers measure at the same time.

    A core for each worker and one for the coordinator stay free, so that no device waits for its
    worker, but never more than an eighth of the cores.
    """
    cores = cores or len(os.sched_getaffinity(0))
    return cores - min(device_workers + 1, cores // 8) if device_workers else cores


def checkers_on(cores: int = 0) -> int:
    """The number of champions that are checked in parallel on a GPU with `cores` CPU cores (0: the
    cores of this process). 0 means one after the other, each in one process with its timing. Checks
    keep a core busy, and their tools some more."""
    at_once = min(_MOST_AT_ONCE, (cores or len(os.sched_getaffinity(0))) // 3)
    return at_once if at_once > 1 else 0


def open_local_executor(
    *,
    folder: Path,
    cache: Path,
    profiles: Sequence[DeviceProfile],
    problem: str,
    dtype: str,
    deterministic: bool,
    root: Path = Path(),
    compile_timeout_s: float = 60.0,
    trial_timeout_s: float = 120.0,
    cores: Sequence[Sequence[int]] = (),
    twins: Twins | None = None,
    rules: BuildRules | None = None,
    secret: str = "",
    without: Collection[str] = (),
    early: EarlyWorker | None = None,
) -> LocalExecutor:
    """Opens an executor with one worker for each profile; all profiles are of one backend.

    - `folder`: where children write their logs and scratch files.
    - `root`: the folder of the problem's own file.
    - `cores`: binds each worker to its own CPU cores; their number decides how many compilers run.
    - `twins`, `rules`: see `LocalExecutor`.
    - `secret`: the gate draws its inputs and places from it.
    - `without`: checks that are left out, to measure what each of them finds.
    - `early`: a worker that may become the first device's worker.
    """
    folder.mkdir(parents=True, exist_ok=True)
    exclusive = registry.named(profiles[0].backend).exclusive
    at_once = 0 if exclusive or len(profiles) > 1 else checkers_on(sum(map(len, cores)))
    own_cores = {core for each in cores for core in each}
    compilers = compile_processes(0 if exclusive else len(profiles), len(own_cores))
    pool = CompilePool(folder, cache, processes=compilers, timeout_s=compile_timeout_s)
    source = ProblemSource(problem, dtype, root)
    slot = functools.partial(
        DeviceSlot,
        folder,
        problem=source,
        deterministic=deterministic,
        longest_trial_s=trial_timeout_s,
        gate=GateSettings(secret, frozenset(without)),
    )
    devices = [
        slot(
            profile=profile,
            cores=cores[index] if cores else (),
            name=f"device-gpu{index}" if index else "device",
            early=None if index else early,
        )
        for index, profile in enumerate(profiles)
    ]
    checkers = [
        slot(profile=profiles[0], name=f"checks-{number + 1}", spares=False)
        for number in range(at_once)
    ]
    return LocalExecutor(
        pool, devices, exclusive=exclusive, checkers=checkers, twins=twins, rules=rules
    )


# Runs an executor in a thread of its own, so that it hands out work while the search computes.
#
# The search's model now and then takes a tenth of a second. Devices and compilers need not wait for
# it: proposals that were submitted before go on.
class BackgroundExecutor:
    """Runs the executor `inner` in a thread of its own. See `evotune.workers.executor.Executor`.
    Until `close` other threads only call `inner.wake` and read `inner.step`.

    The thread lives until `close`, because the kernel kills a child process when the thread that
    started it ends. An error of `inner` ends the thread; the next call raises it.
    """

    def __init__(self, inner: LocalExecutor) -> None:
        self._inner = inner
        self._commands: deque[Callable[[], None]] = deque()
        self._done: queue.SimpleQueue[tuple[int, Outcome] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="executor", daemon=True)
        self._thread.start()

    @property
    def step(self) -> str:
        return self._inner.step

    def submit(self, proposal: Proposal) -> None:
        self._command(lambda: self._inner.submit(proposal))

    def set_contender(self, fitness: float) -> None:
        self._command(lambda: self._inner.set_contender(fitness))

    def compile_ahead(self, jobs: Iterable[CompileJob]) -> None:
        self._command(lambda: self._inner.compile_ahead(jobs))

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        done: list[tuple[int, Outcome]] = []
        try:
            item = self._done.get(timeout=timeout_s)
            while True:
                if item is not None:
                    done.append(item)
                item = self._done.get_nowait()
        except queue.Empty:
            pass
        if not done and self._error is not None:
            raise self._error
        return done

    def drop(self) -> None:
        dropped: Future[None] = Future()

        def drop() -> None:
            self._inner.drop()
            dropped.set_result(None)

        self._command(drop)
        while not dropped.done() and self._thread.is_alive():
            self._thread.join(0.005)
        self.poll(0.0)  # raises if the thread failed; drops outcomes that were ready, too

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._inner.wake()
            try:
                self._thread.join()
            finally:  # also at a second Ctrl-C: in a notebook the workers would live on
                self._thread.join()
                self._inner.close()

    def _command(self, action: Callable[[], None]) -> None:
        if self._error is not None:
            raise self._error
        self._commands.append(action)
        self._inner.wake()

    def _work(self) -> None:
        try:
            while not self._closing:
                while self._commands:
                    self._commands.popleft()()
                for item in self._inner.poll(_TURN_S):
                    self._done.put(item)
        except BaseException as error:  # noqa: BLE001 (raised again in the thread that polls)
            self._error = error
            self._done.put(None)
