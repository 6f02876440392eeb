"""When and where jobs of one machine start, with made-up compilers and devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from evotune.backends.base.launch import (
    Binary,
    CompileFailure,
    CompileJob,
    DeviceProfile,
    LaunchPlan,
)
from evotune.problems.problem import Case
from evotune.trial import Configuration, Json, Outcome, OutcomeKind
from evotune.workers.compile_pool import CompilePool
from evotune.workers.device_slot import DeviceSlot
from evotune.workers.executor import CHECKS, TIMED, TIMING, CaseJob, Proposal
from evotune.workers.local import (
    LocalExecutor,
    checkers_on,
    compile_processes,
    open_local_executor,
)
from evotune.workers.messages import PrepareRequest, TrialDone, TrialRequest
from tests.patience import PATIENCE_S


class Pool:
    """Finishes a job when the test says so, with the code that the test gives."""

    def __init__(self) -> None:
        self.later: list[str] = []
        self.dropped = 0
        self._queue: list[CompileJob] = []
        self._busy: list[CompileJob] = []
        self._done: list[tuple[CompileJob, Binary | CompileFailure]] = []

    @property
    def running(self) -> int:
        return len(self._busy)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def submit(self, job: CompileJob) -> None:
        self._queue.append(job)

    def submit_later(self, job: CompileJob) -> None:
        self.later.append(job.source)

    def drop(self) -> None:
        self.dropped += 1

    def start_queued(self) -> None:
        self._busy += self._queue
        self._queue.clear()

    def finish(self, source: str, code: str, path: str = __file__) -> None:
        self._done.append((self._taken(source), Binary(code, path, {}, 1.0)))

    def fail(self, source: str) -> None:
        failure = CompileFailure(OutcomeKind.COMPILE_ERROR, "no", "", 1.0)
        self._done.append((self._taken(source), failure))

    def _taken(self, source: str) -> CompileJob:
        (job,) = [job for job in self._busy if job.source == source]
        self._busy.remove(job)
        return job

    def expire(self) -> list[tuple[CompileJob, Binary | CompileFailure]]:
        done, self._done = self._done, []
        return done

    def children(self) -> list[object]:
        return []


class Device:
    """Holds its request until the test answers it."""

    child = None

    def __init__(self, id: str) -> None:
        self.profile = DeviceProfile("GPU", "cuda", "sm_90a", {}, id=id)
        self.requests: list[TrialRequest] = []
        self.fresh = False
        self.ahead: PrepareRequest | None = None
        self.step = ""
        self.closed = 0
        self._answer: Outcome | None = None

    def close(self) -> None:
        self.closed += 1

    def start(self, request: TrialRequest) -> None:
        self.requests.append(request)
        self.fresh = False

    def refresh(self, ahead: PrepareRequest | None = None) -> None:
        self.fresh = True
        self.ahead = ahead

    def expect(self, processes: int, warm: Sequence[Case]) -> None:
        """A real device's spare workers open meanwhile."""

    def tend(self) -> None: ...

    def answer(self, fitness: float) -> None:
        self._answer = Outcome(OutcomeKind.OK, fitness=fitness)

    def expire(self) -> TrialDone | None:
        answer, self._answer = self._answer, None
        return None if answer is None else TrialDone(outcome=answer)

    @property
    def numbers(self) -> list[int]:
        return [request.number for request in self.requests]


class Machine:
    def __init__(self, devices: int, checkers: int = 0, *, exclusive: bool = False) -> None:
        self.pool = Pool()
        self.devices = [Device(f"GPU-{index}") for index in range(devices)]
        self.checkers = [Device("GPU-0") for _ in range(checkers)]
        self.executor = LocalExecutor(
            cast(CompilePool, self.pool),
            cast(Sequence[DeviceSlot], self.devices),
            exclusive=exclusive,
            checkers=cast(Sequence[DeviceSlot], self.checkers),
        )

    def turn(self) -> dict[int, Outcome]:
        return dict(self.executor.poll(0.0) + self.executor.poll(0.05))

    def submit(self, number: int, source: str, **more: Json) -> None:
        job = CompileJob("cuda", "/", source, (), (), "sm_90a", "")
        case = CaseJob(Case("case", {}), TIMED, job, LaunchPlan("entry", (), (), ()), 1)
        self.executor.submit(Proposal(number, Configuration({"N": number}), (case,), **more))


@pytest.fixture
def two() -> Machine:
    return Machine(2)


def compiled(machine: Machine, *jobs: tuple[int, str, str], **more: Json) -> None:
    for number, source, _ in jobs:
        machine.submit(number, source, **more)
    machine.turn()
    for _, source, code in jobs:
        machine.pool.finish(source, code)
    machine.turn()


def test_each_device_takes_the_oldest_that_waits(two: Machine) -> None:
    compiled(two, (0, "a", "A"), (1, "b", "B"), (2, "c", "C"))
    assert [device.numbers for device in two.devices] == [[0], [1]]
    two.devices[1].answer(0.5)
    assert list(two.turn()) == [1]
    assert [device.numbers for device in two.devices] == [[0], [1, 2]]


def test_compilers_work_while_devices_measure(two: Machine) -> None:
    compiled(two, (0, "a", "A"))
    two.submit(1, "b")
    two.turn()
    assert two.pool.running == 1


def test_code_that_another_device_measures_is_waited_for_and_not_measured_again(
    two: Machine,
) -> None:
    compiled(two, (0, "a", "SAME"), (1, "b", "SAME"), (2, "c", "C"))
    assert [device.numbers for device in two.devices] == [[0], [2]]
    two.devices[0].answer(0.25)
    outcomes = two.turn()
    assert outcomes[0].fitness == outcomes[1].fitness == 0.25
    assert (outcomes[0].duplicate_of, outcomes[1].duplicate_of) == (None, 0)
    assert outcomes[1].resources["device"] == {"model": "GPU", "id": "GPU-0"}


@pytest.mark.parametrize("more", [{}, {"confirm": True}], ids=["search", "champion"])
def test_code_that_was_removed_from_the_cache_while_it_waited_is_compiled_again(
    tmp_path: Path, more: dict[str, Json]
) -> None:
    """`evotune cache --clear` may be used while a run goes on."""
    machine, waiting = Machine(1), tmp_path / "b.bin"
    compiled(machine, (0, "a", "A"))
    waiting.touch()
    machine.submit(1, "b", **more)
    machine.turn()
    machine.pool.finish("b", "B", str(waiting))
    machine.turn()
    waiting.unlink()
    machine.devices[0].answer(0.5)
    machine.turn()
    machine.turn()
    assert machine.devices[0].numbers == [0]
    assert machine.pool.running == 1
    waiting.touch()
    machine.pool.finish("b", "B", str(waiting))
    machine.turn()
    assert machine.devices[0].numbers == [0, 1]


def test_a_trial_whose_code_was_measured_before_has_its_own_compile_time_and_no_other(
    two: Machine,
) -> None:
    """Also, `--compiles` counts each trial with such a time."""
    compiled(two, (0, "a", "SAME"), (1, "b", "SAME"))
    two.devices[0].answer(0.25)
    assert two.turn()[1].stage_s == {"compile": 1.0}


def test_a_champion_is_measured_alone_in_a_fresh_worker_with_no_compiler_at_work(
    two: Machine,
) -> None:
    two.submit(5, "champion", confirm=True)
    assert two.devices[0].fresh, "its worker opens while the compilers work"
    assert two.devices[0].ahead == PrepareRequest(number=5, cases=((Case("case", {}), TIMED),))
    two.submit(6, "other")
    two.turn()
    two.pool.finish("champion", "A")
    two.turn()
    assert two.devices[0].requests == [], "a compiler still runs"
    two.submit(7, "later")
    two.turn()
    assert (two.pool.running, two.pool.queued) == (1, 1), "none is started meanwhile"
    two.pool.finish("other", "B")
    two.turn()
    assert two.devices[0].numbers == [5]
    two.turn()
    assert (two.pool.running, two.pool.queued) == (0, 1)
    two.devices[0].answer(0.5)
    assert 5 in two.turn()
    two.turn()
    assert two.pool.running == 1


def test_a_proposal_for_one_device_is_measured_there_whatever_is_known(two: Machine) -> None:
    compiled(two, (0, "a", "A"))
    two.devices[0].answer(0.5)
    assert list(two.turn()) == [0]
    compiled(two, (-1, "b", "A"), device=1)
    assert [device.numbers for device in two.devices] == [[0], [-1]]


def test_compile_processes_start_ahead_and_stay(tmp_path: Path) -> None:
    pool = CompilePool(tmp_path, tmp_path / "cache", processes=1, timeout_s=PATIENCE_S)
    try:
        pool.warm("cpp")
        (warm,) = pool._idle
        pool.warm("cpp")
        assert pool._idle == [warm]
        (tmp_path / "k.cpp").write_text("this is no C++\n")
        for name in ("A", "B"):
            pool.submit(CompileJob("cpp", str(tmp_path), "k.cpp", ((name, 1),), (), "", ""))
            while not pool.wait(5.0):
                pass
            assert pool._idle == [warm]
    finally:
        pool.close()


def test_compile_processes_started_later_go_behind_the_workers_too(tmp_path: Path) -> None:
    """As after a compiler's time-out: device workers still go first."""
    pool = CompilePool(tmp_path, tmp_path / "cache", processes=1, timeout_s=PATIENCE_S)
    try:
        pool.warm("cpp")
        pool._idle.pop().kill()
        (tmp_path / "k.cpp").write_text("this is no C++\n")
        pool.submit(CompileJob("cpp", str(tmp_path), "k.cpp", (), (), "", ""))
        while not pool.wait(5.0):
            pass
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pool._idle[0].pid) == min(own + 5, 19)
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("cores", "workers", "compilers"),
    [(16, 0, 16), (16, 1, 14), (64, 4, 59), (8, 1, 7), (4, 1, 4), (16, 8, 14), (1, 1, 1)],
)
def test_compilers_leave_cores_to_the_workers_of_devices(
    cores: int, workers: int, compilers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    assert compile_processes(workers) == compilers
    assert compile_processes(workers, cores) == compilers


@pytest.mark.parametrize(
    ("backend", "cores", "compilers"),
    [("cpu", (), 16), ("cuda", (), 14), ("cpu", ((0, 1), (2, 3)), 4), ("cuda", ((0, 1), (2,)), 3)],
)
def test_a_machine_of_two_devices_has_the_compilers_that_fit(
    backend: str,
    cores: tuple[tuple[int, ...], ...],
    compilers: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    made: list[int] = []

    def pool(*_: object, processes: int, **__: object) -> CompilePool:
        made.append(processes)
        return CompilePool(tmp_path, tmp_path / "cache", processes=processes)

    monkeypatch.setattr("evotune.workers.local.CompilePool", pool)
    profile = DeviceProfile("made up", backend, "arch", {})
    open_local_executor(
        folder=tmp_path,
        cache=tmp_path / "cache",
        profiles=[profile, profile],
        problem="attention",
        dtype="float32",
        deterministic=True,
        cores=cores,
    ).close()
    assert made == [compilers]


def test_checks_of_champions_run_side_by_side_and_beside_compilers_and_timing_waits_for_them() -> (
    None
):
    machine = Machine(1, checkers=2)
    assert machine.executor.checks_at_once == 2
    machine.submit(5, "a", confirm=True, part=CHECKS)
    machine.submit(6, "b", confirm=True, part=CHECKS)
    assert [slot.ahead.number for slot in machine.checkers if slot.ahead] == [5, 6]
    assert machine.devices[0].fresh, "the worker for their timing opens meanwhile"
    machine.turn()
    machine.pool.finish("a", "A")
    machine.turn()
    assert [slot.numbers for slot in machine.checkers] == [[5], []], "a compiler still runs"
    machine.pool.finish("b", "B")
    machine.submit(7, "c", confirm=True, part=TIMING)
    machine.turn()
    machine.pool.finish("c", "C")
    machine.turn()
    assert [slot.numbers for slot in machine.checkers] == [[5], [6]]
    machine.checkers[1].answer(0.5)
    assert list(machine.turn()) == [6]
    assert machine.devices[0].numbers == [], "other checks are at work"
    machine.checkers[0].answer(0.5)
    assert list(machine.turn()) == [5]
    assert machine.devices[0].numbers == [7]
    assert [slot.closed for slot in machine.checkers] == [1, 1], "they hold memory of the device"


def test_no_checks_begin_while_a_candidate_is_timed() -> None:
    machine = Machine(1, checkers=2)
    compiled(machine, (0, "a", "A"))
    compiled(machine, (1, "b", "B"), confirm=True, part=CHECKS)
    assert machine.checkers[0].numbers == []
    machine.devices[0].answer(0.5)
    machine.turn()
    assert machine.checkers[0].numbers == [1]


def test_checks_that_do_not_compile_leave_their_place_to_others() -> None:
    machine = Machine(1, checkers=1)
    machine.submit(5, "a", confirm=True, part=CHECKS)
    machine.submit(6, "b", confirm=True, part=CHECKS)
    machine.turn()
    machine.pool.finish("b", "B")
    machine.turn()
    assert machine.checkers[0].numbers == [], "it is kept for the first"
    machine.pool.fail("a")
    assert machine.turn()[5].kind is OutcomeKind.COMPILE_ERROR
    machine.turn()
    assert machine.checkers[0].numbers == [6]


@pytest.mark.parametrize(("cores", "checkers"), [(1, 0), (5, 0), (6, 2), (11, 3), (64, 4)])
def test_few_cores_check_no_champions_side_by_side(cores: int, checkers: int) -> None:
    assert checkers_on(cores) == checkers


def test_what_is_compiled_ahead_goes_on_when_there_is_nothing_to_drop() -> None:
    machine = Machine(1)
    job = CompileJob("cuda", "/", "a", (), (), "sm_90a", "")
    machine.executor.compile_ahead([job])
    machine.executor.drop()
    assert machine.pool.later == ["a"]
    assert not machine.pool.dropped
    machine.submit(1, "b")
    machine.executor.drop()
    assert machine.pool.dropped == 1


def test_nothing_is_compiled_ahead_where_compilers_disturb_measurements() -> None:
    machine = Machine(1, exclusive=True)
    machine.executor.compile_ahead([CompileJob("cpp", "/", "a", (), (), "", "")])
    assert not machine.pool.later


def test_a_job_that_has_time_is_compiled_after_the_others_and_at_once_when_it_is_submitted(
    tmp_path: Path,
) -> None:
    pool = CompilePool(tmp_path, tmp_path / "cache", processes=1, timeout_s=PATIENCE_S)
    (tmp_path / "k.cpp").write_text("this is no C++\n")
    jobs = {
        name: CompileJob("cpp", str(tmp_path), "k.cpp", ((name, 1),), (), "", "")
        for name in ("LATER", "LAST", "FIRST", "SECOND")
    }
    done: list[str] = []
    try:
        pool.submit_later(jobs["LATER"])
        pool.submit_later(jobs["LAST"])
        pool.submit(jobs["FIRST"])
        pool.submit(jobs["SECOND"])
        pool.submit(jobs["LAST"])
        while len(done) < len(jobs):
            done += [job.defines[0][0] for job, _ in pool.wait(5.0)]
    finally:
        pool.close()
    assert done == ["FIRST", "SECOND", "LAST", "LATER"]
