"""The parent's side of a device worker: starts it, gives it one trial, kills it when it hangs."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile
from evotune.backends.base.time_limits import HeldUp, WatchedTime, allowance_s
from evotune.errors import EnvironmentProblem, ProblemMistake
from evotune.problems import Case
from evotune.problems.loading import is_file_reference, problem_source
from evotune.trial import QUARANTINED, TOO_NOISY, Outcome, OutcomeKind
from evotune.user_code import trust
from evotune.util.processes import describe_status, free_memory_bytes
from evotune.workers.child import Child, kill_all
from evotune.workers.early_worker import EarlyWorker, Worker
from evotune.workers.entry import cannot_read
from evotune.workers.executor import WHEN_THERE_IS_TIME
from evotune.workers.messages import (
    DEVICE_WORKER,
    Answer,
    BaselineFailed,
    BaselinesTimed,
    FromDeviceWorker,
    GateSettings,
    Hello,
    Mistaken,
    Opened,
    Preload,
    Preloaded,
    Prepared,
    PrepareRequest,
    ProblemToLoad,
    Request,
    Step,
    ToDeviceWorker,
    TrialDone,
    TrialRequest,
    WriteTo,
)

_WHOLE_GATE = GateSettings()
_TRIALS_PER_WORKER = 200  # bounds what loaded candidates leave behind in one process
_TOO_MANY_EXCEPTIONS = 3
_MOST_STARTS = 3
_MOST_STEP = 80  # characters
_LOAD_S = 30.0  # for spare workers to import their libraries; a worker without one starts later


@dataclass(frozen=True, slots=True)
class ProblemSource:
    """A problem's name and dtype. If the name has the path of a file, the path is relative to
    `root`."""

    name: str
    dtype: str
    root: Path

    def told(self) -> ProblemToLoad:
        """The message that tells a worker which problem to load. For a problem from a file it has
        the hash of the bytes that the user agreed to; the worker runs no other bytes."""
        sha256 = ""
        if is_file_reference(self.name):
            path, content = problem_source(self.name, self.root)
            trust.require({self.root.absolute() / path: content})
            sha256 = hashlib.sha256(content).hexdigest()
        return ProblemToLoad(self.name, self.dtype, str(self.root), sha256)


class DeviceSlot:
    """One device's worker. At most one request is under way.

    - Opening a worker takes seconds and blocks nothing: a request waits in the slot until the
      worker is open.
    - If the backend has spare workers, the next worker has imported its libraries and waits until
      it replaces the present one. It opens the device while a champion's process makes its inputs.
      The workers that will time champions open the device while champions are checked.
    - Otherwise a champion's next worker imports its libraries while the present one waits without a
      request, because the import would disturb its measurements.
    - A trial's time limit starts when the worker has its inputs and references ready. Time in which
      the worker cannot run does not count (`evotune.backends.base.time_limits`).
    - A trial whose outcome an earlier candidate may have caused runs again in a fresh worker.
    - A trial whose worker died, or lost the device, runs once more in a fresh worker, because
      another process may have killed the worker, or an earlier candidate may have broken it. A
      trial whose second worker dies too is quarantined.
    - A mistake in the problem's file ends the run if the worker that reports it had served no
      request before.
    - A worker that is killed while it starts is started again, and no trial is to blame.
    """

    def __init__(
        self,
        folder: Path,
        profile: DeviceProfile,
        problem: ProblemSource,
        *,
        deterministic: bool,
        longest_trial_s: float = 120.0,
        cores: Sequence[int] = (),
        name: str = "device",
        gate: GateSettings = _WHOLE_GATE,
        spares: bool = True,
        early: EarlyWorker | None = None,
    ) -> None:
        """`cores`: the CPU cores that the worker is bound to; empty for all. The names of its logs
        begin with `name`. Without `spares` it keeps no spare workers. `early` may be its first
        worker."""
        self._early = early
        self._folder = folder
        self.profile = profile
        self._backend = registry.named(profile.backend)
        self._limits = TimeLimits(longest_trial_s, self._backend.sanitizer_limit_s())
        self._name = name
        self._hello = Hello(
            profile=profile,
            problem=problem.told(),
            deterministic=deterministic,
            cores=tuple(cores),
            gate=gate,
        )
        self._child: Worker | None = None
        self._spares = SpareWorkers(self._spawn)
        self._keeps_spares = spares and self._backend.spare_worker
        free = len(os.sched_getaffinity(0)) - 1
        self._loaded_beside = 0 if self._backend.spare_worker or not spares else min(2, free)
        """The number of spare workers that import their libraries while a champion's worker
        runs."""
        self._was_spare = False
        self._warm: Hello | None = None
        """The message to spare workers while nothing is timed."""
        self._timed_soon = 0
        self._for_champion = False
        self._opening = False
        self._failed_starts = 0  # in a row
        self._held_until_s: float | None = None
        """The request waits for spare workers to have their libraries, until then at most."""
        self._watched = WatchedTime()  # since the last message
        self._limit_s = 0.0
        self._sent = 0.0
        self._held: HeldUp | None = None
        self._token = ""  # of the last message
        self._request: Request | None = None
        self._ahead: PrepareRequest | None = None
        self._exceptions = 0
        self._deaths = 0
        self._served = 0  # requests that the present worker got
        self.busy = False
        self.step = ""
        """The present step of the request under way, in words; "" if it is unknown."""

    @property
    def child(self) -> Worker | None:
        """The worker while it must still send a message, else None."""
        return self._child if self.busy or self._opening else None

    def open(self) -> None:
        """Starts to open the worker before there is a request."""
        if self._child is None:
            self._open()

    def stand_by(self) -> None:
        """Starts a process that imports its libraries, and then waits until it is used as the
        worker."""
        if self._child is None:
            self._spares.keep(1)

    def refresh(self, ahead: PrepareRequest | None = None) -> None:
        """Starts to open a fresh worker before a champion's request comes, unless the present
        worker is fresh. `ahead`: what the worker does until the request comes."""
        if self._served:
            self.renew()
        self._for_champion = True
        self.open()
        self._ahead = ahead
        if not self._opening:
            self._tell_ahead()

    def expect(self, processes: int, warm: Sequence[Case]) -> None:
        """Notes that so many more fresh processes will time champions. Nothing is timed until the
        first of them gets its request. So until then they start, and make inputs of one of the
        cases `warm`."""
        self._timed_soon += processes
        self._warm = msgspec.structs.replace(self._hello, warm=tuple(warm))
        self.tend()

    def tend(self) -> None:
        """Opens spare workers as there is room. Must be called from time to time after `expect`."""
        if self._warm is not None:
            self._spares.open_loaded(self._warm)
            loading = min(_LOADING_AT_ONCE, spares_with_room())
            self._spares.keep(min(self._timed_soon - 1, _MOST_WARM), loading=loading)

    def _tell_ahead(self) -> None:
        if self._ahead is not None:
            self._tell(self._ahead)
            self._ahead = None

    def start(self, request: Request) -> None:
        """Sends a request, opening (or renewing) the worker first if need be."""
        self._deaths = 0
        self._for_champion = isinstance(request, TrialRequest) and request.thorough
        self._send(request)

    def _send(self, request: Request) -> None:
        if self._served >= _TRIALS_PER_WORKER:
            self.renew()
        self._request = request
        self._served += 1
        self.busy = True
        self.open()
        if not self._opening:
            self._hand_over()

    def _tell(self, message: ToDeviceWorker) -> None:
        assert self._child is not None
        self._token = _tell(self._child, message)

    def _hand_over(self) -> None:
        assert self._request is not None
        if self._loaded_beside and self._for_champion and not self._spares.are_loaded():
            self._held_until_s = time.monotonic() + _LOAD_S
            return
        if self._warm is not None and self._for_champion:
            self._warm, self._timed_soon = None, 0
            self._held_until_s = time.monotonic() + _LOAD_S
        if self._held_until_s is not None and not self._spares.are_open():
            return
        self._held_until_s = None
        self._tell(self._request)
        self._start_clock(self._limits.harness_s(self._request))
        if self._keeps_spares and self._for_champion:
            self._spares.open_one(self._hello)

    def _hold_on(self) -> None:
        """Hands a held request over once the spare workers have their libraries."""
        assert self._held_until_s is not None
        if time.monotonic() > self._held_until_s:
            self._spares.close()
        if self._spares.are_loaded() or not self._loaded_beside:
            self._hand_over()

    def handle(self) -> Answer | Outcome | None:
        """The worker's answer, or an Outcome that says how the worker was lost; None if there is
        neither yet."""
        assert self._child is not None
        messages = self._child.receive()
        if messages is None:
            return self._lost()
        for message in messages:
            if isinstance(message, Preloaded):  # it says nothing of a request
                continue
            if message.token != self._token or not isinstance(message, self._expected()):
                self._child.unreadable = "its answer belongs to no request"
                return self._lost()
            if isinstance(message, Mistaken):
                self._refuse(message)
                return None
            if isinstance(message, Opened):
                self._opened()
            elif isinstance(message, Prepared):
                self._prepared()
            elif isinstance(message, Step):
                self.step = step_words(message.text)
            else:
                return self._answered(message)
        return None

    def _expected(self) -> tuple[type[FromDeviceWorker], ...]:
        if self._opening:
            return (Opened, Mistaken)
        if isinstance(self._request, TrialRequest):
            return (Prepared, Step, TrialDone, Mistaken)
        return (BaselinesTimed, BaselineFailed, Mistaken)

    def _refuse(self, message: Mistaken) -> None:
        """Sends the request to a fresh worker if an earlier candidate may have caused the mistake,
        else raises ProblemMistake."""
        if self._served > 1 and not self._opening:
            self._run_again()
            return
        self.close()
        raise ProblemMistake(message.mistake)

    def _prepared(self) -> None:
        assert isinstance(self._request, TrialRequest)
        self._limits.prepared(self._request, time.monotonic() - self._sent)
        self._start_clock(self._limits.trial_s(self._request))

    def _answered(self, answer: Answer) -> Answer | None:
        """The answer; None if the trial runs again."""
        self.busy = False
        self.step = ""
        self._exceptions = 0
        if isinstance(answer, TrialDone):
            lost = answer.outcome.kind is OutcomeKind.DEVICE_LOST and not self._deaths
            # An earlier candidate may have overwritten inputs or references, or left no memory.
            if lost or (answer.doubtful and self._served > 1):
                self._deaths += lost
                self._run_again()
                return None
            assert self._request is not None
            seconds = time.monotonic() - self._sent
            self._limits.answered(self._request, answer.outcome, seconds)
            if answer.retire:
                self.renew()
        elif isinstance(answer, BaselineFailed):
            self.renew()
        return answer

    def expire(self) -> Answer | Outcome | None:
        """Kills the worker if it is past its deadline, and returns the outcome. A worker that has
        answered meanwhile is not late, because this process may have waited for something else, or
        have been stopped."""
        if self._held_until_s is not None:
            self._hold_on()
            return None
        if not self._late():
            return None
        answer = self.handle()
        if answer is not None or not self._late():
            return answer
        if self._opening:
            self._start_failed(hung=True)
            return None
        assert self._child is not None
        log = self._child.log_tail()
        self.renew()
        if self._allowance()[1]:
            reason = f"{TOO_NOISY}: the worker had no core for most of its time"
            return Outcome(OutcomeKind.UNDECIDED, reason=reason, log=log)
        reason = f"no answer within {self._limit_s:g} s; killed"
        return Outcome(OutcomeKind.TIMEOUT, reason=reason, log=log)

    def _late(self) -> bool:
        over_s = self._watched.seconds() - self._limit_s
        return self.child is not None and over_s > 0.0 and over_s > self._allowance()[0]

    def _allowance(self) -> tuple[float, bool]:
        return (0.0, False) if self._held is None else allowance_s(self._held, self._limit_s)

    def _run_again(self) -> None:
        """Sends the present request to a fresh worker."""
        assert self._request is not None
        self.renew()
        self._send(self._request)

    def renew(self) -> None:
        """Ends the worker, so that the next request gets a fresh process."""
        if self._child is not None:
            self._child.kill()
        self._child = None
        self._ahead = None
        self._held_until_s = None
        self._opening = False
        self.busy = False
        self.step = ""
        self._served = 0

    def close(self) -> None:
        self.renew()
        self._spares.close()

    def _start_clock(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._sent = time.monotonic()
        self._watched = WatchedTime()
        self._held = HeldUp(self._child.pid) if self._child is not None else None

    def _open(self) -> None:
        spare = self._spares.take()
        self._was_spare = spare is not None
        self._child = spare.worker if spare else self._spawn()
        if spare and spare.is_open:
            self._is_open()
            return
        if spare and spare.token:
            self._token = spare.token
        else:
            self._tell(self._warm or self._hello)
        if self._for_champion and not spare:
            self._spares.keep(self._loaded_beside)
        self._opening = True
        self.step = "starting a process"
        self._start_clock(OPEN_TIMEOUT_S)

    def _opened(self) -> None:
        self._is_open()
        if self.busy:
            self._hand_over()
        else:
            self._tell_ahead()

    def _is_open(self) -> None:
        self._opening = False
        self.step = ""
        self._failed_starts = 0
        if self._keeps_spares:
            # A champion's next processes follow sooner than a new worker has its libraries.
            self._spares.keep(3 if self._for_champion else 1)

    def _start_failed(self, *, hung: bool = False) -> None:
        """Starts a fresh worker if somebody killed this one, or if this was a spare one, which may
        have broken while it waited. Otherwise, and after `_MOST_STARTS` in a row, raises
        EnvironmentProblem."""
        assert self._child is not None
        status = self._child.kill() if hung else self._child.reap()
        log = self._child.log_tail(1 << 16)
        broke = self._child.unreadable or raised(status, log)
        self._failed_starts += 1
        again = self._was_spare or not (hung or broke)
        if again and self._failed_starts < _MOST_STARTS:
            self._open()
            if self.busy and not self._opening:
                self._hand_over()
            return
        unreadable = self._child.unreadable and self._child.end_in_words(status)
        self.close()
        last = unreadable or last_words(log) or "it said nothing"
        how = "" if hung or broke else f"it {describe_status(status)}: "
        raise EnvironmentProblem(f"the device worker does not start: {how}{last}")

    def _spawn(self) -> Worker:
        environment = self._backend.worker_environment(self.profile)
        if self._early is not None and (early := self._early.take(environment)) is not None:
            early.move_log(self._free_log())
            early.send(WriteTo(log=str(early.log)))
            self._was_spare = True
            return early
        worker: Worker = Child(DEVICE_WORKER, self._free_log(), environment)
        worker.send(Preload(backend=self._backend.name))
        return worker

    def _free_log(self) -> Path:
        """Workers of one time have separate logs, so that each log ends with its own last lines."""
        living = [*self._spares.workers(), *([self._child] if self._child is not None else [])]
        names = (f"{self._name}{f'-{n}' if n > 1 else ''}.log" for n in count(1))
        logs = {worker.log for worker in living}
        return next(log for name in names if (log := self._folder / name) not in logs)

    def _lost(self) -> Outcome | None:
        assert self._child is not None
        if self._opening:
            self._start_failed()
            return None
        status, step = self._child.reap(), self.step
        unreadable, reason = self._child.unreadable, self._child.end_in_words(status)
        log = self._child.log_tail()
        long_log = self._child.log_tail(1 << 16)
        broke = raised(status, long_log)
        last = last_words(long_log)
        kind = None if unreadable else crash_kind(status, log)
        if not (self._deaths or (self._served == 1 and (broke or kind is not None))):
            self._deaths += 1
            self._run_again()
            return None
        self.renew()
        self._exceptions = self._exceptions + 1 if broke else 0
        if self._exceptions >= _TOO_MANY_EXCEPTIONS:
            # The worker itself is broken: no candidate is to blame, and none would pass.
            raise EnvironmentProblem(
                f"the device worker failed {self._exceptions} times in a row: {last}"
            )
        # A memory access that crashes prints nothing: the log's last line may be about anything.
        if last and not unreadable and status != -signal.SIGSEGV:
            reason += f": {last}"
        if step and kind is not None:
            reason += f" ({step})"
        return Outcome(
            kind or OutcomeKind.WORKER_LOST,
            reason=reason,
            log=log,
            flags=(QUARANTINED,) if self._deaths and not broke else (),
        )


def step_words(text: str) -> str:
    """`text` as a terminal can show it: a candidate shares the worker's process, and could write
    anything there."""
    return "".join(filter(str.isprintable, text[:_MOST_STEP]))


def _tell(worker: Worker, message: ToDeviceWorker) -> str:
    """Sends the message and returns its token."""
    token = secrets.token_hex(16)
    worker.send(msgspec.structs.replace(message, token=token))
    return token


@dataclass(slots=True)
class Spare:
    """A worker that waits. `token` is that of the message by which it opens its device; "" before
    that message."""

    worker: Worker
    is_loaded: bool = False
    token: str = ""
    is_open: bool = False


class SpareWorkers:
    """The spare workers of one device. Importing PyTorch takes seconds, and opening a spare worker
    less than one."""

    def __init__(self, spawn: Callable[[], Worker]) -> None:
        self._spawn = spawn
        self._waiting: list[Spare] = []

    def workers(self) -> list[Worker]:
        return [spare.worker for spare in self._waiting]

    def keep(self, number: int, loading: float = math.inf) -> None:
        """Starts workers until so many of them wait, or so many are `loading` their libraries."""
        loading -= sum(not spare.is_loaded for spare in self._waiting)
        while len(self._waiting) < number and loading > 0:
            self._waiting.append(Spare(self._spawn()))
            loading -= 1

    def take(self) -> Spare | None:
        """Takes the worker that has opened its device, or is opening it, else the one that has
        waited longest; None if there is none."""
        self._waiting.sort(key=lambda spare: not spare.token)
        return self._waiting.pop(0) if self._waiting else None

    def are_loaded(self) -> bool:
        """Whether every spare worker has imported its libraries. Drops workers that have died."""
        self._look()
        return all(spare.is_loaded for spare in self._waiting)

    def are_open(self) -> bool:
        """Whether no spare worker is still opening its device. Drops workers that have died."""
        self._look()
        return all(spare.is_open for spare in self._waiting if spare.token)

    def open_loaded(self, hello: Hello) -> None:
        """Makes every worker that has imported its libraries open its device."""
        self._look()
        for spare in self._waiting:
            if spare.is_loaded and not spare.token:
                spare.token = _tell(spare.worker, hello)

    def open_one(self, hello: Hello) -> None:
        """Makes one worker open its device, unless one does already or none has imported its
        libraries. A worker without its libraries would open the device at an unknown time, and
        disturb a measurement."""
        self._look()
        loaded = [spare for spare in self._waiting if spare.is_loaded]
        if loaded and not any(spare.token for spare in loaded):
            loaded[0].token = _tell(loaded[0].worker, hello)

    def _look(self) -> None:
        """Reads the messages of workers whose device is not open yet."""
        for spare in [spare for spare in self._waiting if not spare.is_open]:
            messages = spare.worker.receive()
            if messages is None or any(isinstance(each, Mistaken) for each in messages):
                spare.worker.kill()
                self._waiting.remove(spare)
                continue
            for message in messages:
                spare.is_loaded |= isinstance(message, Preloaded)
                spare.is_open |= isinstance(message, Opened) and message.token == spare.token

    def close(self) -> None:
        kill_all(self.workers())
        self._waiting.clear()


_MOST_WARM = 8
_LOADING_AT_ONCE = 4  # an import keeps a core busy for seconds, beside champions' checks
_SPARE_BYTES = 4 << 30
"""Of this machine's memory, for a process with PyTorch and an open device, and some to spare."""


def spares_with_room() -> int:
    """How many more spare workers this machine's free memory allows."""
    return free_memory_bytes() // _SPARE_BYTES


OPEN_TIMEOUT_S = 120.0
_HARNESS_TIMEOUT_S = 900.0  # for references and baselines, which evotune and PyTorch compute
_LEAST_HARNESS_TIMEOUT_S = 60.0
_KNOWN_AFTER = 5  # answers, after which time limits are multiples of the longest time
_THOROUGH_CASE_S = 30.0  # a champion's case is timed for ten seconds, and more than once
_LEAST_TIMEOUT_S = 20.0


class TimeLimits:
    """Time limits of trials, learned from the trials of the search. `sanitizer_s`: the time that
    compute-sanitizer may take for a champion."""

    def __init__(self, longest_trial_s: float, sanitizer_s: float) -> None:
        self._longest_trial_s = longest_trial_s
        self._sanitizer_s = sanitizer_s
        self._slowest_s = 0.0
        self._slowest_preparation_s = 0.0
        self._answers = 0

    def prepared(self, request: Request, seconds: float) -> None:
        """Notes how long a trial's inputs and references took."""
        if _is_search_trial(request):
            self._slowest_preparation_s = max(self._slowest_preparation_s, seconds)

    def answered(self, request: Request, outcome: Outcome, seconds: float) -> None:
        """Notes how long a prepared trial took."""
        if _is_search_trial(request):
            self._answers += 1
            # A candidate that fails early says nothing of how long measuring takes.
            if outcome.ok:
                self._slowest_s = max(self._slowest_s, seconds)

    def harness_s(self, request: Request) -> float:
        """The limit on preparing a trial's inputs and references, because a worker can hang there
        too. It is wide at first. Later it is 20 times the longest preparation of this run, within
        bounds."""
        if self._answers < _KNOWN_AFTER or not _is_search_trial(request):
            return _HARNESS_TIMEOUT_S
        room_s = max(_LEAST_HARNESS_TIMEOUT_S, 20 * self._slowest_preparation_s)
        return min(_HARNESS_TIMEOUT_S, room_s)

    def trial_s(self, request: TrialRequest) -> float:
        """The limit on a trial once it is prepared. In the search it is wide at first; later it is
        10 times the longest that this run's passing trials took, within bounds. Building in the
        worker has limits of its own."""
        cases = sum(case.role not in WHEN_THERE_IS_TIME for case in request.cases)
        build_s = request.build_s * (cases + len(request.rival))
        if request.thorough or request.rival:
            further_s = request.served_s if request.only_served else self._sanitizer_s
            return self._longest_trial_s + _THOROUGH_CASE_S * cases + further_s + build_s
        if self._answers < _KNOWN_AFTER or not self._slowest_s:
            return self._longest_trial_s + build_s
        limit_s = min(self._longest_trial_s, max(_LEAST_TIMEOUT_S, 10 * self._slowest_s))
        return limit_s + build_s


def _is_search_trial(request: Request) -> bool:
    return isinstance(request, TrialRequest) and not request.thorough


_CRASHES: dict[int, OutcomeKind] = {
    signal.SIGSEGV: OutcomeKind.ILLEGAL_ACCESS,
    signal.SIGBUS: OutcomeKind.ILLEGAL_ACCESS,
    signal.SIGABRT: OutcomeKind.LAUNCH_ERROR,
    signal.SIGILL: OutcomeKind.LAUNCH_ERROR,
    signal.SIGFPE: OutcomeKind.LAUNCH_ERROR,
}
_TRACEBACK = "Traceback (most recent call last)"
# glibc prints one of these before SIGABRT when it finds its heap or stack overwritten.
_OVERWRITTEN = ("corrupt", "invalid size", "invalid next size", "invalid pointer", "double free",
                "smashing", "buffer overflow detected")  # fmt: skip


def raised(status: int, log: str) -> bool:
    """Whether a worker ended with a Python exception, or could not read a message."""
    return (status == 1 and _TRACEBACK in log) or cannot_read(status, log)


def last_words(log: str) -> str:
    """The log's last line, or the line that names its last exception: PyTorch's exceptions have
    more lines after that one."""
    lines = log.splitlines()
    if _TRACEBACK in log:
        trace = log.rpartition(_TRACEBACK)[2].splitlines()[1:]
        lines = [line for line in trace if line and not line.startswith(" ")][:1] or lines
    return lines[-1] if lines else ""


def crash_kind(status: int, log: str) -> OutcomeKind | None:
    """The candidate's kind of outcome if the worker's exit status and log show one, else None."""
    if status == -signal.SIGABRT and any(word in log[-300:] for word in _OVERWRITTEN):
        return OutcomeKind.ILLEGAL_ACCESS
    return _CRASHES.get(-status)
