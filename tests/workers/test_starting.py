"""A process that is killed while it starts, or waits, is replaced: no candidate is to blame."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from evotune.backends import registry
from evotune.backends.base.launch import Binary, CompileFailure, CompileJob, DeviceProfile
from evotune.errors import EnvironmentProblem
from evotune.runs.confirming import timed_again
from evotune.trial import Configuration, OutcomeKind
from evotune.workers import device_slot
from evotune.workers.child import Child
from evotune.workers.compile_pool import CompilePool
from evotune.workers.device_slot import SpareWorkers, Worker
from evotune.workers.entry import CANNOT_READ
from evotune.workers.executor import RANDOM, TIMED, TIMING
from evotune.workers.local import LocalExecutor
from evotune.workers.messages import (
    COMPILE_WORKER,
    DEVICE_WORKER,
    Compile,
    FromDeviceWorker,
    GateSettings,
    Hello,
    Mistaken,
    Opened,
    Preload,
    Preloaded,
    ProblemToLoad,
    ToDeviceWorker,
    TrialRequest,
    Tried,
)
from tests.patience import PATIENCE_S

from .faulty import SPACE, FaultyKernels, compile_job, naming, planner

Deadly = Callable[..., Callable[[], int]]


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deadly:
    """`deadly(role, "1 2")`: the first two processes of that role end as they start. It returns a
    function that counts the processes of that role that were started."""

    def make(role: str, which: str, how: str = "kill -9 $$") -> Callable[[], int]:
        starts = tmp_path / "starts"
        interpreter = tmp_path / "interpreter"
        interpreter.write_text(
            f'#!/bin/bash\ncase "$*" in *{role}*)\n'
            f"echo >> {starts}; n=$(wc -l < {starts})\n"
            f'case " {which} " in *" $n "*|*" all "*) echo "last words" >&2; {how};; esac;; esac\n'
            f'exec {sys.executable} "$@"\n'
        )
        interpreter.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(interpreter))
        return lambda: len(starts.read_text())

    return make


@pytest.mark.soak
def test_a_device_worker_that_is_killed_while_it_starts_is_started_again(
    tmp_path: Path, deadly: Deadly
) -> None:
    """The first worker is killed twice, that of the confirmation once."""
    starts = deadly("device_worker", "1 2 4")
    kernels = FaultyKernels(tmp_path)
    try:
        assert kernels.run("none").ok
        assert starts() == 3
        made = planner().proposal(9, Configuration({"FAULT": "none"}), confirm=True)
        cases = tuple(job for job in made.cases if job.role != RANDOM)
        assert kernels.run_proposal(dataclasses.replace(made, cases=cases)).ok
        (slot,) = kernels.executor._devices
        assert starts() == 4 + max(1, slot._loaded_beside), "one that loaded beside it takes over"
    finally:
        kernels.executor.close()


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("how", "reason"),
    [("kill -9 $$", "died of SIGKILL"), ("exit 7", "ended with status 7")],
)
def test_a_device_worker_that_dies_at_every_start_ends_the_run(
    tmp_path: Path, deadly: Deadly, how: str, reason: str
) -> None:
    starts = deadly("device_worker", "all", how)
    kernels = FaultyKernels(tmp_path)
    try:
        with pytest.raises(EnvironmentProblem, match=rf"does not start: it {reason}.* last words"):
            kernels.run("none")
        assert starts() == 3
    finally:
        kernels.executor.close()


def test_a_device_worker_that_raises_while_it_starts_is_not_tried_again(
    tmp_path: Path, deadly: Deadly
) -> None:
    raising = "echo 'Traceback (most recent call last):' >&2; echo 'E: broken' >&2; exit 1"
    starts = deadly("device_worker", "all", raising)
    kernels = FaultyKernels(tmp_path)
    try:
        with pytest.raises(EnvironmentProblem, match="does not start: E: broken"):
            kernels.run("none")
        assert starts() == 1
    finally:
        kernels.executor.close()


@pytest.mark.soak
@pytest.mark.parametrize("after_s", [0.15, 1.0])
def test_a_real_device_worker_killed_at_any_time_costs_no_outcome(
    tmp_path: Path, after_s: float
) -> None:
    kernels = FaultyKernels(tmp_path)
    try:
        proposal = kernels.proposal("none")
        kernels.executor.submit(proposal)
        victim = _device_worker(kernels.executor)
        time.sleep(after_s)
        os.kill(victim, signal.SIGKILL)
        outcome = kernels.outcome_of(proposal, 120.0)
        assert outcome.ok, outcome
        assert not outcome.flags
    finally:
        kernels.executor.close()


def _device_worker(executor: LocalExecutor) -> int:
    while executor._devices[0].child is None:
        assert executor.poll(0.02) == []
    return executor._devices[0].child.pid


# --- compile processes -------------------------------------------------------------------------


@pytest.fixture
def pool(tmp_path: Path) -> CompilePool:
    return CompilePool(tmp_path / "logs", tmp_path / "cache", processes=2, timeout_s=PATIENCE_S)


def _compile(pool: CompilePool, *jobs: CompileJob) -> list[Binary | CompileFailure]:
    for job in jobs:
        pool.submit(job)
    results: list[Binary | CompileFailure] = []
    while pool.queued or pool.running:
        results += [result for _, result in pool.wait(0.5)]
    return results


@pytest.mark.soak
def test_a_compile_process_that_is_killed_while_it_starts_is_started_again(
    pool: CompilePool, deadly: Deadly
) -> None:
    starts = deadly("compile_worker", "1 2")  # a third kill could be one process's third
    try:
        found = _compile(pool, compile_job("none"), compile_job("nan"))
        assert [type(result) for result in found] == [Binary, Binary]
        assert starts() in (3, 4)  # the first process that lives may do both jobs
    finally:
        pool.close()


def test_compile_processes_that_die_at_every_start_end_the_run(
    pool: CompilePool, deadly: Deadly
) -> None:
    starts = deadly("compile_worker", "all")
    try:
        with pytest.raises(EnvironmentProblem, match=r"not start: one died of SIGKILL: last words"):
            _compile(pool, compile_job("none"))
        assert starts() == 3
    finally:
        pool.close()


def test_a_process_that_cannot_be_started_ends_the_run_in_words(
    pool: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's limit of processes or files is reached, or Python was removed meanwhile."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EnvironmentProblem, match="the compile process cannot be started: No such"):
        _compile(pool, compile_job("none"))
    pool.close()


def test_a_process_that_dies_after_its_log_was_removed_is_replaced_as_any_other(
    tmp_path: Path, pool: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/bash\ncase "$*" in *-DFAULT=*) rm -f {tmp_path}/logs/*.log; kill -9 $PPID;; esac\n'
        'exec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    try:
        (found,) = _compile(pool, compile_job("none"))
        assert isinstance(found, CompileFailure)
        assert (found.kind, found.log) == (OutcomeKind.COMPILE_CRASH, "")
    finally:
        pool.close()


def test_a_worker_can_speak_although_an_earlier_candidate_filled_its_log(tmp_path: Path) -> None:
    log = tmp_path / "device.log"
    with log.open("wb") as file:
        file.truncate(1 << 30)  # a worker's files may not be larger
    child = Child(COMPILE_WORKER, log, {})
    try:
        child.send(cast(Compile, Tried("")))
        while child.receive() is not None:
            time.sleep(0.01)
        assert child.reap() == CANNOT_READ
        assert "the compile process cannot read a message" in child.log_tail()
    finally:
        child.kill()


def test_compile_processes_that_are_killed_while_idle_are_replaced(pool: CompilePool) -> None:
    try:
        assert len(_compile(pool, compile_job("none"), compile_job("nan"))) == 2
        for child in pool._idle:
            os.kill(child.pid, signal.SIGKILL)
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it still counts as a child
        (found,) = _compile(pool, compile_job("segfault"))
        assert isinstance(found, Binary)
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("kills", "kind"),
    [pytest.param(1, Binary, marks=pytest.mark.soak), (2, CompileFailure)],
)
def test_a_job_whose_compile_process_was_killed_is_compiled_once_more(
    tmp_path: Path,
    pool: CompilePool,
    monkeypatch: pytest.MonkeyPatch,
    kills: int,
    kind: type[Binary] | type[CompileFailure],
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(
        f'#!/bin/bash\ncase "$*" in *-DFAULT=*) echo >> {tmp_path}/tries\n'
        f"[ $(wc -l < {tmp_path}/tries) -le {kills} ] && kill -9 $PPID;; esac\n"
        'exec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    try:
        (found,) = _compile(pool, compile_job("none"))
        assert isinstance(found, kind)
        if isinstance(found, CompileFailure):
            assert found.kind is OutcomeKind.COMPILE_CRASH
            assert found.reason == "the compile process died of SIGKILL"
            # The next job gets its own tries.
            assert isinstance(_compile(pool, compile_job("nan"))[0], Binary)
        assert len((tmp_path / "tries").read_text()) == 2 + (kills == 2)
    finally:
        pool.close()
    assert not list(naming(str(tmp_path / "logs")))
    assert SPACE.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_device_worker_that_waits_to_be_told_has_its_libraries_loaded(tmp_path: Path) -> None:
    """Otherwise a spare worker would save no time."""
    worker = Child(DEVICE_WORKER, tmp_path / "log", {})
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "libtorch" not in Path(f"/proc/{worker.pid}/maps").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        worker.kill()


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_device_worker_that_waits_loads_its_backends_libraries_too(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    worker = Child(DEVICE_WORKER, tmp_path / "log", {})
    try:
        worker.send(Preload(backend="cuda"))
        deadline = time.monotonic() + PATIENCE_S
        while "cupy" not in Path(f"/proc/{worker.pid}/maps").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        worker.kill()


class Waiting:
    """A spare worker that has its libraries when the test says so."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.messages: list[FromDeviceWorker] | None = []
        self.killed = False

    def receive(self) -> list[FromDeviceWorker] | None:
        return self.messages

    def send(self, message: object) -> None:
        self.told.append(message)

    def kill(self) -> None:
        self.killed = True


HELLO = Hello(
    profile=DeviceProfile("cpu", "cpu", "", {}),
    problem=ProblemToLoad("attention", "float32", ""),
    deterministic=True,
    cores=(),
    gate=GateSettings(),
)


@pytest.fixture
def waiting() -> list[Waiting]:
    return []


@pytest.fixture
def spares(waiting: list[Waiting]) -> SpareWorkers:
    def spawn() -> Worker:
        waiting.append(Waiting())
        return cast(Worker, waiting[-1])

    return SpareWorkers(spawn)


def _taken(spares: SpareWorkers) -> object:
    spare = spares.take()
    return spare and spare.worker


def test_the_spare_worker_that_waited_longest_is_taken_first(
    waiting: list[Waiting], spares: SpareWorkers
) -> None:
    assert spares.take() is None
    spares.keep(2)
    spares.keep(1)
    spares.keep(5, loading=2)
    assert len(waiting) == 2, "no more load their libraries at once"
    assert _taken(spares) is waiting[0]
    spares.keep(2)
    assert len(waiting) == 3


def test_one_spare_worker_that_has_its_libraries_opens_the_device_and_is_taken_first(
    waiting: list[Waiting], spares: SpareWorkers
) -> None:
    spares.keep(3)
    spares.open_one(HELLO)
    assert not any(each.told for each in waiting), "it would open at any time"
    for each in waiting[1:]:
        each.messages = [Preloaded()]
    spares.open_one(HELLO)
    spares.open_one(HELLO)
    assert [len(each.told) for each in waiting] == [0, 1, 0]
    spare = spares.take()
    assert spare is not None
    assert spare.worker is cast(Worker, waiting[1])
    assert msgspec.structs.replace(HELLO, token=spare.token) == waiting[1].told[0]
    spares.open_one(HELLO)
    assert [len(each.told) for each in waiting] == [0, 1, 1]


def test_spare_workers_open_their_devices_together_where_nothing_is_timed(
    waiting: list[Waiting], spares: SpareWorkers
) -> None:
    spares.keep(3)
    assert spares.are_open(), "none was asked to open"
    for each in waiting[:2]:
        each.messages = [Preloaded()]
    spares.open_loaded(HELLO)
    spares.open_loaded(HELLO)
    assert [len(each.told) for each in waiting] == [1, 1, 0]
    assert not spares.are_open()
    tokens = [cast(Hello, each.told[0]).token for each in waiting[:2]]
    waiting[0].messages = [Opened(token=tokens[0])]
    waiting[1].messages = [Opened(token="another")]
    assert not spares.are_open()
    waiting[1].messages = [Mistaken(token=tokens[1], mistake="the problem's file is gone")]
    assert spares.are_open()
    assert waiting[1].killed
    spare = spares.take()
    assert spare is not None
    assert spare.is_open
    assert spare.worker is cast(Worker, waiting[0])


def test_spare_workers_are_loaded_when_all_that_live_have_their_libraries(
    waiting: list[Waiting], spares: SpareWorkers
) -> None:
    assert spares.are_loaded()
    spares.keep(2)
    assert not spares.are_loaded()
    waiting[0].messages = [Preloaded()]
    assert not spares.are_loaded()
    waiting[1].messages = None
    assert spares.are_loaded()
    assert waiting[1].killed
    assert _taken(spares) is waiting[0]
    assert spares.take() is None


@pytest.mark.soak
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_on_a_cpu_a_champion_s_next_worker_loads_beside_its_own_and_never_while_it_is_timed(
    tmp_path: Path,
) -> None:
    """The second process of a champion starts none, the third two again."""
    kernels = FaultyKernels(tmp_path)
    try:
        (slot,) = kernels.executor._devices
        made = planner().proposal(9, Configuration({"FAULT": "none"}), confirm=True)
        cases = tuple(job for job in made.cases if job.role == TIMED)
        made = dataclasses.replace(made, cases=cases)
        loaded = []
        hand_over = slot._tell

        def tell(message: ToDeviceWorker) -> None:
            if isinstance(message, TrialRequest):
                loaded.append([spare.is_loaded for spare in slot._spares._waiting])
            hand_over(message)

        slot._tell = tell  # type: ignore[method-assign]
        beside = slot._loaded_beside
        assert kernels.run_proposal(made).ok
        for process in range(2, 2 + beside):
            assert kernels.run_proposal(timed_again(made, process)).ok
        assert loaded == [[True] * left for left in range(beside, -1, -1)]
        assert kernels.run_proposal(timed_again(made, 2 + beside)).ok
        assert loaded[-1] == [True] * beside
    finally:
        kernels.executor.close()
    assert not list(naming(str(tmp_path)))


@pytest.mark.soak
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_champion_s_next_worker_that_dies_while_it_loads_costs_nothing(tmp_path: Path) -> None:
    kernels = FaultyKernels(tmp_path)
    try:
        (slot,) = kernels.executor._devices
        made = planner().proposal(9, Configuration({"FAULT": "none"}), confirm=True)
        cases = tuple(job for job in made.cases if job.role == TIMED)
        made = dataclasses.replace(made, cases=cases)
        kernels.executor.submit(made)
        for worker in slot._spares.workers():
            os.kill(worker.pid, signal.SIGKILL)
        assert kernels.outcome_of(made).ok
        assert not slot._spares.workers()
        assert kernels.run_proposal(timed_again(made)).ok
    finally:
        kernels.executor.close()


@pytest.mark.soak
def test_processes_that_will_time_champions_are_open_and_warm_when_the_first_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the backend has spare workers. No two processes of a candidate are the same."""
    monkeypatch.setattr(registry.named("cpu"), "spare_worker", True)
    monkeypatch.setattr(device_slot, "spares_with_room", lambda: 8)
    kernels = FaultyKernels(tmp_path)
    try:
        (slot,) = kernels.executor._devices
        made = planner().proposal(9, Configuration({"FAULT": "none"}), confirm=True)
        cases = tuple(job for job in made.cases if job.role == TIMED)
        made = dataclasses.replace(made, cases=cases, part=TIMING)
        slot.expect(3, [job.case for job in cases])
        slot.refresh()
        waiting = slot._spares._waiting
        until_s = time.monotonic() + PATIENCE_S
        while sum(bool(spare.token) for spare in waiting) < 2:
            assert time.monotonic() < until_s
            kernels.executor.poll(0.1)
        warm = {spare.worker.pid for spare in waiting if spare.token}
        processes = []
        for proposal in (made, timed_again(made, 2), timed_again(made, 3)):
            kernels.executor.submit(proposal)
            assert kernels.outcome_of(proposal).ok
            assert slot._child is not None
            processes.append(slot._child.pid)
        assert len(set(processes)) == 3
        assert set(processes[1:]) <= warm
    finally:
        kernels.executor.close()
    assert not list(naming(str(tmp_path)))


@pytest.mark.soak
def test_while_a_champion_s_process_works_the_next_one_opens_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the backend has spare workers. The outcome is that of a worker of its own."""
    monkeypatch.setattr(registry.named("cpu"), "spare_worker", True)
    kernels = FaultyKernels(tmp_path)
    try:
        (slot,) = kernels.executor._devices
        made = planner().proposal(9, Configuration({"FAULT": "none"}), confirm=True)
        cases = tuple(job for job in made.cases if job.role == TIMED)
        made = dataclasses.replace(made, cases=cases)
        assert kernels.run_proposal(made).ok
        while not slot._spares.are_loaded():
            time.sleep(0.1)
        processes = []
        for process in (2, 3):
            kernels.executor.submit(timed_again(made, process))
            assert kernels.outcome_of(made).ok
            assert slot._child is not None
            processes.append(slot._child.pid)
            (opened,) = [spare.worker.pid for spare in slot._spares._waiting if spare.token]
            assert opened not in processes
        assert len(set(processes)) == 2
    finally:
        kernels.executor.close()
    assert not list(naming(str(tmp_path)))
