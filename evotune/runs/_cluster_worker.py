"""The task that a cluster's workers run: a local executor for one run, kept between its trials.

The space and its sources travel with every trial, since a worker may join late and shares no folder
with the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import zlib
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import msgspec

from evotune.backends import registry
from evotune.errors import EnvironmentProblem, EvotuneError
from evotune.problems.libraries.library_catalog import asked
from evotune.runs._calibration import calibrate
from evotune.runs.confirming import timed_again
from evotune.runs.folder import RunFolder
from evotune.runs.given_cases import stored_cases
from evotune.runs.kernel_executor import open_kernel_executor
from evotune.runs.setup import load_kernel_setup
from evotune.trial import Configuration, Outcome
from evotune.user_code import trust
from evotune.util.channel import decode, encode
from evotune.util.regular_file import read_regular
from evotune.util.scratch import scratch_folder
from evotune.version import __version__
from evotune.workers.background import BackgroundExecutor
from evotune.workers.executor import HELD_OUT, TIMED, BaselineReport
from evotune.workers.messages import (
    TO_CLUSTER_WORKER,
    Calibrate,
    Calibrated,
    ClusterRun,
    ClusterTrial,
    ClusterTrialDone,
    DescribeDevice,
    DeviceFound,
    FromClusterWorker,
    Refused,
    TimeBaselines,
    ToClusterWorker,
)

CORES_VARIABLE = "EVOTUNE_WORKER_CORES"
"""The CPU cores of a worker of `--cluster local:N`, which shares its machine with the others."""


def pack(run: RunFolder) -> dict[str, bytes]:
    """A run's own copies, by path; compressed, as they travel with each trial."""
    files = (path for path in sorted(run.sources.rglob("*")) if path.is_file())
    return {str(path.relative_to(run.sources)): zlib.compress(read_regular(path)) for path in files}


def answer(message: bytes) -> bytes:
    """The task that Dask calls, from as many threads as this worker may have trials in flight.
    UnreadableMessage for a message that cannot be read; Dask passes it on to the coordinator."""
    return encode(_answer(decode(TO_CLUSTER_WORKER, message)))


def _answer(told: ToClusterWorker) -> FromClusterWorker:
    try:
        if isinstance(told, DescribeDevice):
            return _describe(told)
        here = _open(told.run)
        if isinstance(told, TimeBaselines):
            return here.time_baselines()
        if isinstance(told, Calibrate):
            return here.calibrate(told.run.baselines)
        return ClusterTrialDone(here.trial(told), _own_address())
    except EvotuneError as error:
        return Refused(str(error), _own_address())


def _describe(told: DescribeDevice) -> DeviceFound:
    """The device that this worker would measure on."""
    if told.evotune != __version__:
        raise EnvironmentProblem(
            f"it has evotune {__version__}; fix: install evotune {told.evotune} there"
        )
    return DeviceFound(registry.named(told.backend).offered())


def _own_address() -> str:
    from distributed import get_worker

    return str(get_worker().address)


_PART_ENDED = "this part of the run has ended"
_lock = threading.Lock()
_here: _RunHere | None = None
_ended: set[str] = set()
"""Parts of runs. A task that was cancelled too late must not open its part again."""


def _open(run: ClusterRun) -> _RunHere:
    """This worker's part in the run; its part in another run, or a broken one, is closed."""
    global _here  # noqa: PLW0603 (a Dask worker is a process, and tasks are functions)
    with _lock:
        if run.part in _ended:
            raise EnvironmentProblem(_PART_ENDED)
        if _here is not None and (_here.id != run.part or _here.broken):
            _here.close()
            _here = None
        if _here is None:
            _here = _RunHere(run)
        return _here


def end_part(part: str) -> None:
    """Gives this worker's device back when a part of a run has ended."""
    global _here  # noqa: PLW0603 (as above)
    with _lock:
        _ended.add(part)
        if _here is not None and _here.id == part:
            _here.close()
            _here = None


class _RunHere:
    """This worker's device, for one part of one run: from a start or a resumption to its end."""

    def __init__(self, told: ClusterRun) -> None:
        self.id = told.part
        self._error: Exception | None = None
        self._exit = contextlib.ExitStack()
        self._folder = self._exit.enter_context(scratch_folder())
        self._waiting: dict[tuple[int, bool, int], Future[Outcome]] = {}
        self._lock = threading.Condition()  # notified when trials are done
        self._background: BackgroundExecutor | None = None
        try:
            run = RunFolder(self._folder)
            _unpack(told.files, run.sources)
            device = registry.named(told.backend).take_device(self._exit)
            self.setup = load_kernel_setup(
                run.sources / told.space_file,
                device,
                run,
                secret=told.secret,
                cases=stored_cases(msgspec.to_builtins(told.cases)),
            )
            self._check_model(told)
            cores = [_own_cores()] if _own_cores() else []
            self.local = open_kernel_executor(self.setup, run.logs, cores=cores)
        except BaseException:
            self._exit.close()
            raise
        self.local.name_devices = True
        self.local.fixed_sampling = told.fixed_sampling

    @property
    def broken(self) -> bool:
        """Whether no trial can be run any more."""
        return self._error is not None

    def _check_model(self, told: ClusterRun) -> None:
        mine = self.setup.profile
        if mine.arch != told.device_arch or not (told.allow_mixed or mine.name == told.device_name):
            raise EnvironmentProblem(
                f"its device ({mine.name}, {mine.arch}) is not the run's "
                f"({told.device_name}, {told.device_arch}); --allow-mixed ranks models apart "
                "where they run the same machine code"
            )

    def time_baselines(self) -> BaselineReport:
        cases = self.setup.cases
        return self.local.time_baselines(
            [*cases[TIMED], *cases[HELD_OUT]], asked(self.setup.document.baseline)
        )

    def calibrate(self, baselines: Mapping[str, str]) -> Calibrated:
        """This worker's device, measured against the chosen baselines with the space's default."""
        planner = self.setup.planner
        self.local.baselines = baselines
        reference = planner.proposal(0, self.setup.space.default())
        found = calibrate(self.local, reference, self.setup.cases[TIMED])
        # A CPU has no id of its own.
        return Calibrated(tuple({**d, "id": d["id"] or _own_address()} for d in found))

    def trial(self, told: ClusterTrial) -> Outcome:
        """The trial's outcome. A trial that Dask asks for again while it is under way runs once.
        Its confirmation waits until it is done: the executor tells outcomes by number alone."""
        planner = self.setup.planner
        key = (told.number, told.confirm, told.repeat)
        with self._lock:
            while any(other[0] == told.number and other != key for other in self._waiting):
                self._lock.wait()
            if self._error is not None:
                raise self._error
            if self._background is None:
                self.local.baselines = told.run.baselines
                self._background = BackgroundExecutor(self.local)
                threading.Thread(target=self._dispatch, daemon=True).start()
            waiting = self._waiting.get(key)
            if waiting is None:
                waiting = self._waiting[key] = Future()
                configuration = Configuration(told.configuration)
                thorough = told.confirm or told.repeat > 0
                proposal = planner.proposal(told.number, configuration, confirm=thorough)
                proposal = timed_again(proposal, told.repeat) if told.repeat else proposal
                self._background.set_contender(told.contender)
                self._background.submit(proposal)
        return waiting.result()

    def _dispatch(self) -> None:
        assert self._background is not None
        try:
            while not self.broken:
                for number, outcome in self._background.poll(0.5):
                    with self._lock:
                        known = [key for key in self._waiting if key[0] == number]
                        for key in known:
                            self._waiting.pop(key).set_result(outcome)
                        self._lock.notify_all()
        except Exception as error:  # noqa: BLE001 (every trial that waits is told)
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Every trial that waits, and every later one, ends with the error."""
        with self._lock:
            self._error = error
            for waiting in self._waiting.values():
                waiting.set_exception(error)
            self._waiting.clear()
            self._lock.notify_all()

    def close(self) -> None:
        self._fail(EnvironmentProblem(_PART_ENDED))
        (self._background or self.local).close()
        self._exit.close()


def _unpack(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes the run's `files` into the folder. The user who started the run agreed to its code."""
    for name, packed in files.items():
        target = (folder / name).resolve()
        if not target.is_relative_to(folder.resolve()):
            raise EnvironmentProblem(f"{name} lies outside the run's sources")
        target.parent.mkdir(parents=True, exist_ok=True)
        content = zlib.decompress(packed)
        target.write_bytes(content)
        trust.agree(hashlib.sha256(content).hexdigest())


def _own_cores() -> list[int]:
    return [int(core) for core in os.environ.get(CORES_VARIABLE, "").split(",") if core]
