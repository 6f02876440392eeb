"""What runs on the workers of a cluster: a local executor for one run, kept between its trials.

The space and its sources travel with every trial: a worker may join late, and shares no folder
with anybody.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

from evotune.device import cpu
from evotune.device.cuda.lock import GpuLock
from evotune.device.discover import find_gpus
from evotune.device.profile import DeviceProfile
from evotune.engine.calibration import calibrate
from evotune.engine.folder import RunFolder
from evotune.engine.repetition import timed_again
from evotune.engine.setup import load_setup
from evotune.engine.work import open_kernel_executor
from evotune.errors import EnvironmentProblem, EvotuneError, RunLocked
from evotune.execute.background import BackgroundExecutor
from evotune.execute.protocol import HELD_OUT, TIMED
from evotune.regular_file import read_regular
from evotune.scratch import scratch_folder
from evotune.trial import Configuration, Json, Outcome
from evotune.user_code import trust
from evotune.version import __version__

CORES_VARIABLE = "EVOTUNE_WORKER_CORES"
"""The CPU cores of a worker of `--cluster local:N`, which shares its machine with the others."""


def pack(run: RunFolder) -> dict[str, bytes]:
    """A run's own copies, by path; compressed, as they travel with each trial."""
    files = (path for path in sorted(run.sources.rglob("*")) if path.is_file())
    return {str(path.relative_to(run.sources)): zlib.compress(read_regular(path)) for path in files}


def describe(payload: Mapping[str, Json]) -> dict[str, Json]:
    """The device that this worker would measure on, or its `problem`."""
    if payload["evotune"] != __version__:
        return {"problem": f"it has evotune {__version__}, not {payload['evotune']}"}
    try:
        if payload["backend"] == "cpu":
            cpu.find_compiler()
            return {"profile": _cpu_profile().to_json()}
        return {"profile": find_gpus("auto", 1)[0].to_json()}
    except EvotuneError as error:
        return {"problem": str(error)}


def time_baselines(payload: Mapping[str, Json]) -> dict[str, Json]:
    """All baselines on this worker's device."""

    def work(session: _Session) -> dict[str, Json]:
        cases = [*session.setup.cases[TIMED], *session.setup.cases[HELD_OUT]]
        found = session.local.time_baselines(cases)
        timings = [timing.to_json() for timing in found.timings]
        return {"timings": timings, "copy_gbps": found.copy_gbps}

    return _with_session(payload, work)


def calibrate_here(payload: Mapping[str, Json]) -> dict[str, Json]:
    """This worker's device against the chosen baselines and the space's default."""

    def work(session: _Session) -> dict[str, Json]:
        planner = session.setup.planner
        assert planner is not None
        session.local.baselines = payload["baselines"]
        reference = planner.proposal(0, session.setup.space.default())
        from distributed import get_worker

        found = calibrate(session.local, reference, session.setup.cases[TIMED])
        # A CPU has no id of its own.
        return {"devices": [{**d, "id": d["id"] or get_worker().address} for d in found]}

    return _with_session(payload, work)


def run_trial(payload: Mapping[str, Json]) -> dict[str, Json]:
    """One trial, to its outcome; Dask calls this from as many threads as it may have in flight."""
    return _with_session(payload, lambda session: {"outcome": session.trial(payload).to_json()})


def _with_session(
    payload: Mapping[str, Json], work: Callable[[_Session], dict[str, Json]]
) -> dict[str, Json]:
    try:
        return work(_open(payload))
    except EvotuneError as error:
        from distributed import get_worker

        return {"refused": str(error), "worker": get_worker().address}


_lock = threading.Lock()
_session: _Session | None = None


def _open(payload: Mapping[str, Json]) -> _Session:
    """The session that the payload belongs to; one of another run, or a broken one, is closed."""
    global _session  # noqa: PLW0603 (a Dask worker is a process, and tasks are functions)
    with _lock:
        if _session is not None and (_session.id != payload["session"] or _session.broken):
            _session.close()
            _session = None
        if _session is None:
            _session = _Session(payload)
        return _session


class _Session:
    """This worker's device, for one session of one run."""

    def __init__(self, payload: Mapping[str, Json]) -> None:
        self.id = payload["session"]
        self.broken = False
        self._exit = contextlib.ExitStack()
        self._folder = self._exit.enter_context(scratch_folder())
        self._waiting: dict[tuple[int, bool, bool], Future[Outcome]] = {}
        self._lock = threading.Lock()
        self._background: BackgroundExecutor | None = None
        try:
            run = RunFolder(self._folder)
            _unpack(payload["files"], run.sources)
            device = self._choose_device(payload)
            self.setup = load_setup(
                run.sources / payload["space_file"], device, run, secret=payload["secret"]
            )
            self._check_model(payload)
            cores = [_own_cores()] if _own_cores() else []
            self.local = open_kernel_executor(self.setup, run.logs, cores=cores)
        except BaseException:
            self._exit.close()
            raise
        self.local.name_devices = True
        self.local.fixed_sampling = payload["fixed_sampling"]

    def _choose_device(self, payload: Mapping[str, Json]) -> str:
        """The first GPU that nobody else measures on, so that each worker of a host has one."""
        if payload["backend"] == "cpu":
            return "cpu"
        taken: RunLocked | None = None
        for index, profile in enumerate(find_gpus("auto", None)):
            try:
                self._exit.enter_context(GpuLock(profile.id))
            except RunLocked as error:
                taken = error
            else:
                return f"cuda:{index}"
        raise taken or EnvironmentProblem("this worker sees no GPU")

    def _check_model(self, payload: Mapping[str, Json]) -> None:
        mine, expected = self.setup.profile, payload["device"]
        if mine.arch != expected["arch"] or not (
            payload["allow_mixed"] or mine.name == expected["name"]
        ):
            raise EnvironmentProblem(
                f"its device ({mine.name}, {mine.arch}) is not the run's "
                f"({expected['name']}, {expected['arch']}); --allow-mixed ranks models apart "
                "where they run the same machine code"
            )

    def trial(self, payload: Mapping[str, Json]) -> Outcome:
        """A trial that is asked for again while it is under way is one trial."""
        planner = self.setup.planner
        assert planner is not None
        number, repeat = payload["number"], payload["repeat"]
        key = (number, payload["confirm"], repeat)
        with self._lock:
            if self._background is None:
                self.local.baselines = payload["baselines"]
                self._background = BackgroundExecutor(self.local)
                threading.Thread(target=self._dispatch, daemon=True).start()
            waiting = self._waiting.get(key)
            if waiting is None:
                waiting = self._waiting[key] = Future()
                configuration = Configuration(payload["configuration"])
                thorough = repeat or payload["confirm"]
                proposal = planner.proposal(number, configuration, confirm=thorough)
                proposal = timed_again(proposal) if repeat else proposal
                self._background.set_contender(payload["contender"])
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
        except Exception as error:  # noqa: BLE001 (every trial that waits is told)
            self.broken = True
            with self._lock:
                for waiting in self._waiting.values():
                    waiting.set_exception(error)
                self._waiting.clear()

    def close(self) -> None:
        self.broken = True
        (self._background or self.local).close()
        self._exit.close()


def _unpack(files: Mapping[str, bytes], folder: Path) -> None:
    """Whoever started the run agreed to the Python code among its `files`."""
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


def _cpu_profile() -> DeviceProfile:
    return cpu.profile()
