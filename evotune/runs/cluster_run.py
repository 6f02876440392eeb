"""A run on a Dask cluster, seen from its coordinator: the connection, the devices, the messages."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from evotune.backends.base.physical_cores import core_of, shares
from evotune.backends.base.profile import DeviceProfile
from evotune.errors import EnvironmentProblem, UsageError
from evotune.runs import _cluster_worker
from evotune.runs.folder import RunFolder
from evotune.runs.setup import KernelSetup
from evotune.runs.stop_signal import interruptible
from evotune.trial import Json
from evotune.util.python_process import started_by_a_library
from evotune.version import __version__
from evotune.workers.cluster_executor import ClusterExecutor, ask_each, workers_of
from evotune.workers.executor import BaselineReport
from evotune.workers.in_flight import Twins
from evotune.workers.messages import (
    Calibrate,
    Calibrated,
    ClusterRun,
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
    """`address`: tcp://host:port of a scheduler, or local:N."""

    address: str
    allow_mixed: bool = False


class Cluster:
    """Connected, with at least one worker. `part`: the part of a run that the connection is for."""

    def __init__(self, client: Any, *, allow_mixed: bool) -> None:
        self.client = client
        self.allow_mixed = allow_mixed
        self.part = uuid.uuid4().hex

    def devices(self, backend: str) -> list[DeviceProfile]:
        """The device of each worker that can measure. EnvironmentProblem when none can."""
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
        """The cluster's workers, for a run whose files lie in its folder."""
        told = ClusterRun(
            part=self.part,
            files=_cluster_worker.pack(run),
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
        """The answers by worker. Asks all workers if none are named."""
        return ask_each(self.client, _cluster_worker.answer, message, workers)

    def end_part(self) -> None:
        """Has the workers give their devices back, as far as they can be reached."""
        if self.client.status == "running":
            with contextlib.suppress(OSError):  # TimeoutError is one
                # `run` goes beside the tasks: trials may hold all threads of a worker.
                self.client.run(
                    _cluster_worker.end_part, self.part, on_error="ignore", callback_timeout=_END_S
                )


class ClusterRunWorkers:
    """The cluster's workers, for one run. `models`: those of its devices, in order."""

    def __init__(self, cluster: Cluster, told: ClusterRun, models: Sequence[str]) -> None:
        self._cluster = cluster
        self._told = told
        self._models = models

    def time_baselines(self) -> BaselineReport:
        """By the first worker that can. EnvironmentProblem when none can."""
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
    ) -> tuple[ClusterExecutor, list[Mapping[str, Json]]]:
        """The executor, and the calibration of every worker that has joined, against the chosen
        `baselines` (by case)."""
        told = msgspec.structs.replace(self._told, baselines=dict(baselines))
        answers = self._cluster.ask(Calibrate(told))
        _refuse_if_all_refuse(answers)
        calibrated = [each for each in answers.values() if isinstance(each, Calibrated)]
        executor = ClusterExecutor(
            self._cluster.client, _cluster_worker.answer, told, twins=twins, models=self._models
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
    """From the user's options. UsageError for an address that is not valid, and for options that do
    not go with a cluster."""
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
    """The cluster while it is needed; None without a request. EnvironmentProblem when Dask is
    missing, no scheduler answers, or no worker joins it."""
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
        _cluster_worker.CORES_VARIABLE: ",".join(map(str, share)),
        "OMP_NUM_THREADS": str(len(set(map(core_of, share)))),  # as PyTorch chooses it
    }
