"""A run on a Dask cluster: the coordinator's connection and messages, and the task that workers
run."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import os
import re
import threading
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from evotune.backends import registry
from evotune.backends.base.cpu_cores import core_of, shares
from evotune.backends.base.launch import DeviceProfile
from evotune.errors import EnvironmentProblem, EvotuneError, UsageError
from evotune.packages import __version__
from evotune.problems.libraries import asked
from evotune.runs.confirming import timed_again
from evotune.runs.folder import RunFolder
from evotune.runs.given_cases import stored_cases
from evotune.runs.kernel_executor import calibrate, open_kernel_executor
from evotune.runs.setup import KernelSetup, load_kernel_setup
from evotune.trial import Calibration, Configuration, Outcome
from evotune.user_code import trust
from evotune.util.channel import decode, encode
from evotune.util.files import read_regular, scratch_folder
from evotune.util.processes import interruptible, started_by_a_library
from evotune.workers.cluster_executor import ClusterExecutor, ask_each, workers_of
from evotune.workers.executor import HELD_OUT, TIMED, BaselineReport
from evotune.workers.in_flight import Twins
from evotune.workers.local import BackgroundExecutor
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

_CONNECT_S = 15
_WORKER_S = 60
_END_S = 5
_ADDRESS = re.compile(r"(?:tcp|tls|ws|wss)://\S+:[0-9]+")
_LOCAL = re.compile(r"local:([1-9][0-9]{0,2})")
_BESIDE_COMPILERS = 4  # trials in flight on a worker beyond one for each core


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """A user's request to measure on a cluster. `address`: tcp://host:port of a scheduler, or
    local:N."""

    address: str
    allow_mixed: bool = False


class Cluster:
    """A connection to a cluster with at least one worker. `part` identifies this start or
    resumption of a run."""

    def __init__(self, client: Any, *, allow_mixed: bool) -> None:
        self.client = client
        self.allow_mixed = allow_mixed
        self.part = uuid.uuid4().hex

    def devices(self, backend: str) -> list[DeviceProfile]:
        """The device of each worker that can measure. Raises EnvironmentProblem if none can."""
        answers = self.ask(DescribeDevice(backend, __version__))
        found = [each.profile for each in answers.values() if isinstance(each, DeviceFound)]
        if not found:
            workers = len(answers)
            problem = _refusals(answers)[0]
            raise EnvironmentProblem(
                f"none of the cluster's workers ({workers}) can measure: {problem}"
            )
        return found

    def workers_of(
        self, run: RunFolder, setup: KernelSetup, *, fixed_sampling: bool
    ) -> ClusterRunWorkers:
        """The cluster's workers for one run, whose files lie in the run's folder."""
        told = ClusterRun(
            part=self.part,
            files=pack(run),
            space_file=setup.space_file,
            backend=setup.profile.backend,
            device_name=setup.profile.name,
            device_arch=setup.profile.arch,
            allow_mixed=self.allow_mixed,
            fixed_sampling=fixed_sampling,
            secret=setup.secret,
            cases=setup.problem_spec.cases,
        )
        return ClusterRunWorkers(self, told, [device.name for device in setup.devices])

    def ask(
        self, message: ToClusterWorker, workers: Sequence[str] | None = None
    ) -> dict[str, FromClusterWorker]:
        """Sends a message to the named workers, or to all, and returns the answers by worker."""
        return ask_each(self.client, answer, message, workers)

    def end_part(self) -> None:
        """Makes the workers that can be reached release their devices."""
        if self.client.status == "running":
            with contextlib.suppress(OSError):  # TimeoutError is one
                # `run` goes beside the tasks: trials may hold all threads of a worker.
                self.client.run(end_part, self.part, on_error="ignore", callback_timeout=_END_S)


class ClusterRunWorkers:
    """The cluster's workers, for one run. `models`: the models of the run's devices, in order."""

    def __init__(self, cluster: Cluster, told: ClusterRun, models: Sequence[str]) -> None:
        self._cluster = cluster
        self._told = told
        self._models = models

    def time_baselines(self) -> BaselineReport:
        """The baselines' times, measured by the first worker that can. Raises EnvironmentProblem if
        none can.
        """
        answers: dict[str, FromClusterWorker] = {}
        for address in workers_of(self._cluster.client):
            asked = self._cluster.ask(TimeBaselines(self._told), [address])
            for answer in asked.values():
                if isinstance(answer, BaselineReport):
                    return answer
            answers |= asked
        _refuse_if_all_refuse(answers)
        raise EnvironmentProblem("the cluster's workers have gone; start some, then try again")

    def executor(
        self, baselines: Mapping[str, str], twins: Twins
    ) -> tuple[ClusterExecutor, list[Calibration]]:
        """The executor, and the calibrations of all workers that have joined, measured against the
        chosen `baselines` (by case)."""
        told = msgspec.structs.replace(self._told, baselines=dict(baselines))
        answers = self._cluster.ask(Calibrate(told))
        _refuse_if_all_refuse(answers)
        calibrated = [each for each in answers.values() if isinstance(each, Calibrated)]
        executor = ClusterExecutor(
            self._cluster.client, answer, told, twins=twins, models=self._models
        )
        return executor, [device for each in calibrated for device in each.devices]


def _refusals(answers: Mapping[str, FromClusterWorker]) -> list[str]:
    return [answer.reason for answer in answers.values() if isinstance(answer, Refused)]


def _refuse_if_all_refuse(answers: Mapping[str, FromClusterWorker]) -> None:
    reasons = _refusals(answers)
    if reasons and len(reasons) == len(answers):
        raise EnvironmentProblem(f"no worker of the cluster can work for this run: {reasons[0]}")


def cluster_request(
    address: str | None, device: str, gpus: object, *, allow_mixed: bool
) -> ClusterRequest | None:
    """Makes the request from the user's options. Raises UsageError for an address that is not
    valid, and for options that do not go with a cluster.
    """
    if address is None:
        return None
    if not (_ADDRESS.fullmatch(address) or _LOCAL.fullmatch(address)):
        raise UsageError(
            f"--cluster {address}: expected tcp://HOST:PORT of a Dask scheduler, or local:N"
        )
    if gpus is not None or device != "auto":
        raise UsageError(
            "a cluster's workers choose their own devices: leave out --device and --gpus"
        )
    return ClusterRequest(address, allow_mixed)


@contextlib.contextmanager
def connected(request: ClusterRequest | None) -> Iterator[Cluster | None]:
    """Connects to the cluster for the block; yields None without a request. Raises
    EnvironmentProblem if Dask is missing, if no scheduler answers, or if no worker joins."""
    if request is None:
        yield None
        return
    try:
        distributed: Any = importlib.import_module("distributed")
        # A worker that comes or goes is no error, and evotune says in its own words if one is.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
    except ImportError as error:
        raise EnvironmentProblem(
            "--cluster needs Dask's distributed; fix: pip install 'evotune[cluster]'"
        ) from error
    with contextlib.ExitStack() as stack:
        stack.enter_context(interruptible())  # so that a local cluster's processes are ended
        local = _LOCAL.fullmatch(request.address)
        address: Any = request.address
        if local:
            stack.enter_context(started_by_a_library())
            address = stack.enter_context(_local_cluster(distributed, int(local[1])))
        try:
            client = stack.enter_context(
                distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
            )
        except (OSError, TimeoutError) as error:
            raise EnvironmentProblem(
                f"no Dask scheduler answers at {request.address} (within {_CONNECT_S} s); fix: "
                "start one (`dask scheduler`), or check the address"
            ) from error
        try:
            client.wait_for_workers(1, timeout=_WORKER_S)
        except TimeoutError as error:
            raise EnvironmentProblem(
                f"no worker joined {request.address} within {_WORKER_S} s; fix: start some "
                "(`dask worker`)"
            ) from error
        cluster = Cluster(client, allow_mixed=request.allow_mixed)
        stack.callback(cluster.end_part)
        yield cluster


def _local_cluster(distributed: Any, count: int) -> Any:
    """Workers on this machine, each with its share of the cores."""
    cpus = os.sched_getaffinity(0)
    dealt = shares(cpus, count)
    if not all(dealt):
        raise UsageError(f"--cluster local:{count}: this machine has {len(cpus)} cores")
    options = {"memory_limit": 0, "dashboard": False, "host": "127.0.0.1"}
    options["silence_logs"] = logging.ERROR
    return distributed.SpecCluster(
        scheduler={
            "cls": distributed.Scheduler,
            "options": {"dashboard": False, "host": "127.0.0.1", "port": 0},
        },
        workers={
            index: {
                "cls": distributed.Nanny,
                "options": {
                    **options,
                    "nthreads": len(share) + _BESIDE_COMPILERS,
                    "env": _environment(share),
                },
            }
            for index, share in enumerate(dealt)
        },
        silence_logs=logging.ERROR,
    )


def _environment(share: Sequence[int]) -> dict[str, str]:
    return {
        CORES_VARIABLE: ",".join(map(str, share)),
        "OMP_NUM_THREADS": str(len(set(map(core_of, share)))),  # as PyTorch chooses it
    }


# The task that a cluster's workers run: a local executor for one run, kept between its trials.
#
# The space and its sources travel with every trial, since a worker may join late and shares no
# folder with the others.
CORES_VARIABLE = "EVOTUNE_WORKER_CORES"
"""The CPU cores of a worker of `--cluster local:N`, which shares its machine with the others."""


def pack(run: RunFolder) -> dict[str, bytes]:
    """A run's own copies of its files, by path. They are compressed, because they are sent with
    each trial."""
    files = (path for path in sorted(run.sources.rglob("*")) if path.is_file())
    return {str(path.relative_to(run.sources)): zlib.compress(read_regular(path)) for path in files}


def answer(message: bytes) -> bytes:
    """The task that Dask calls on a worker, in as many threads as the worker may have trials in
    flight. Raises UnreadableMessage for a message that it cannot read; Dask passes that on to the
    coordinator."""
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
                f"({told.device_name}, {told.device_arch}); --allow-mixed ranks models "
                "separately if they run the same machine code"
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
        return Calibrated(
            tuple(msgspec.structs.replace(each, id=each.id or _own_address()) for each in found)
        )

    def trial(self, told: ClusterTrial) -> Outcome:
        """The trial's outcome. A trial that Dask requests again while it runs, runs only once. Its
        confirmation waits until it is done, because the executor identifies outcomes by number
        only."""
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
    """Releases this worker's device when a part of a run has ended."""
    global _here  # noqa: PLW0603 (as above)
    with _lock:
        _ended.add(part)
        if _here is not None and _here.id == part:
            _here.close()
            _here = None


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
