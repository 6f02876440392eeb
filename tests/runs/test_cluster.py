"""A run on Dask, with real schedulers and workers as processes that die and are replaced."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evotune.backends.base.recorded import read_recorded_space
from evotune.errors import EnvironmentProblem, UsageError
from evotune.runs import cluster_run
from evotune.runs.cluster_run import ClusterRequest, cluster_request, connected
from evotune.runs.folder import list_runs
from evotune.runs.kernel_run import InlineExecutor
from evotune.store import RunStore
from evotune.user_code import trust
from evotune.workers import cluster_executor
from evotune.workers.cluster_executor import ClusterExecutor
from evotune.workers.in_flight import Twins
from tests.patience import PATIENCE_S

from .cluster_tasks import RUN, trial
from .dask_processes import Dask
from .runs import RECORDING, evotune, history
from .test_cpu_run import SPACE, replayed
from .test_many_devices import search

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("default")  # Dask's, and those of killed workers' sockets
distributed = pytest.importorskip("distributed")


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Dask]:
    made = Dask(tmp_path)
    yield made
    made.close()


@pytest.mark.soak
def test_workers_that_die_refuse_or_join_late_change_nothing(
    tmp_path: Path, dask: Dask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_executor, "_SCHEDULER_GONE_S", 1.0)
    monkeypatch.setattr(cluster_executor, "_WORKERS_GONE_S", 600.0)
    recording = read_recorded_space(RECORDING)
    alone = search(
        tmp_path / "alone.sqlite",
        InlineExecutor(recording.outcome),
        recording.space,
        trials=60,
        lookahead=12,
    )
    journal = tmp_path / "journal"
    first, refusing = dask.add_worker(), dask.add_worker()
    task = functools.partial(trial, journal=str(journal), takes_s=0.02, refuse=refusing)

    def trouble() -> None:
        while not journal.exists() or len(journal.read_text().split()) < 20:
            time.sleep(0.01)
        dask.kill(first)
        dask.add_worker()

    with distributed.Client(dask.address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=PATIENCE_S)
        troublemaker = threading.Thread(target=trouble)
        troublemaker.start()
        executor = ClusterExecutor(client, task, RUN, twins=Twins())
        trials = search(
            tmp_path / "cluster_run.sqlite", executor, recording.space, trials=60, lookahead=12
        )
        troublemaker.join()
        os.killpg(dask.scheduler.pid, signal.SIGKILL)
        with pytest.raises(EnvironmentProblem, match="scheduler is gone"):
            executor.poll(PATIENCE_S)
    assert trials == alone


@pytest.mark.parametrize("address", ["tcp://somewhere", "local:0", "local:", "host:1", "local:4x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"expected tcp://HOST:PORT .* or local:N"):
        cluster_request(address, "auto", None, allow_mixed=False)


def test_devices_of_this_machine_do_not_go_with_a_cluster() -> None:
    with pytest.raises(UsageError, match="leave out --device and --gpus"):
        cluster_request("local:2", "auto", 2, allow_mixed=False)
    with pytest.raises(UsageError, match="leave out --device and --gpus"):
        cluster_request("local:2", "h200", None, allow_mixed=False)


def test_a_scheduler_that_does_not_answer_ends_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_run, "_CONNECT_S", 0.5)
    with (
        pytest.raises(EnvironmentProblem, match=r"no Dask scheduler answers at tcp://127") as found,
        connected(ClusterRequest("tcp://127.0.0.1:9")),
    ):
        pass
    assert found.value.exit_code == 3


@pytest.mark.soak
def test_a_real_run_outlives_workers_killed_at_random(
    tmp_path: Path, dask: Dask, keep_result: Callable[..., None]
) -> None:
    trials, rng, killed = 40, random.Random(0), 0
    space = tmp_path / "tiny.yaml"
    space.write_text(SPACE)
    os.environ["EVOTUNE_CACHE_DIR"] = str(tmp_path / "cache")
    for _ in range(2):
        dask.add_worker()
    command = evotune("run", space, "--trials", str(trials), "--cluster", dask.address)
    with (tmp_path / "run.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
        while process.poll() is None:
            time.sleep(rng.uniform(10, 40))
            runs = list_runs(tmp_path / "runs")
            if runs and len(history(runs[0])) > 0 and process.poll() is None:
                dask.kill(rng.choice(list(dask.workers)))
                killed += 1
                dask.add_worker()
    assert process.returncode == 0, (tmp_path / "run.log").read_text()
    (run,) = list_runs(tmp_path / "runs")
    found = history(run)
    assert [t.number for t in found] == list(range(trials))
    assert [t.configuration for t in found] == replayed(run)
    assert all(t.outcome.ok for t in found)
    resumed = subprocess.run(
        evotune("resume", "latest", "--trials", str(trials + 5)),
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # as the workers had, for comparable times
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr
    assert [t.configuration for t in history(run)] == replayed(run)
    with RunStore.open_for_reading(run.store) as store:
        devices = store.meta("devices")
    keep_result(device="cpu", workers=2, killed=killed, trials=trials, calibrated=len(devices))


@pytest.mark.usefixtures("nobody_agreed")
def test_what_the_coordinator_agreed_to_runs_on_its_workers_too(tmp_path: Path) -> None:
    content = b"class Doubling: ..."
    path = tmp_path / "problem.py"
    with pytest.raises(UsageError, match="lies outside this folder"):
        trust.require({path: content})
    cluster_run._unpack({"problem.py": zlib.compress(content)}, tmp_path)
    assert path.read_bytes() == content
    trust.require({path: content})
    assert not (tmp_path / "state").exists(), "nobody agreed on the worker's machine"
