"""A run on many devices keeps them all busy, and has the same history whatever their number."""

from __future__ import annotations

import dataclasses
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from evotune.backends.base.recorded import read_recorded_space
from evotune.run_options import RunOptions
from evotune.runs.kernel_executor import calibrate
from evotune.runs.kernel_run import InlineExecutor
from evotune.runs.observer import SilentObserver
from evotune.runs.search_loop import SearchLoop
from evotune.runs.setup import load_setup
from evotune.search.catalog import create_strategy
from evotune.space.search_space import SearchSpace
from evotune.store import RunStore
from evotune.timing.processes import agreement
from evotune.trial import Configuration, Trial
from evotune.workers.executor import TIMED, Executor, Proposal
from evotune.workers.local import BackgroundExecutor, LocalExecutor, open_local_executor
from tests.patience import PATIENCE_S

from .runs import RECORDING
from .test_cpu_run import SPACE


def uneven_s(proposal: Proposal) -> float:
    """Between 1 and 5 seconds, always the same for a configuration."""
    return 1 + zlib.crc32(proposal.configuration.key.encode()) % 5


def search(
    path: Path,
    executor: Executor,
    space: SearchSpace,
    *,
    trials: int,
    lookahead: int,
    propose: Callable[[int, Configuration], Proposal] = Proposal,
) -> list[Trial]:
    options = RunOptions(seed=3, population=16, elites=4, lookahead=lookahead, trials=trials)
    opened = RunStore.open_for_writing(path) if path.exists() else RunStore.create(path)
    with opened as store:
        SearchLoop(
            store,
            create_strategy("local", space, options),
            executor,
            propose,
            options=options,
            searched_s=0.0,
            stop=lambda: False,
            observer=SilentObserver(),
        ).run()
        return list(store.trials())


def test_a_run_goes_on_with_any_number_of_devices_and_ends_up_the_same(tmp_path: Path) -> None:
    recording = read_recorded_space(RECORDING)

    def history(name: str, *steps: tuple[int, int]) -> tuple[list[Trial], float]:
        took_s = 0.0
        trials: list[Trial] = []
        for devices, until in steps:
            executor = InlineExecutor(recording.outcome, devices=devices, duration_s=uneven_s)
            path = tmp_path / name
            trials = search(path, executor, recording.space, trials=until, lookahead=32)
            took_s += executor.now_s
        return trials, took_s

    alone, alone_s = history("one", (1, 150))
    for name, steps in {
        "two": [(2, 150)],
        "four": [(4, 150)],
        "many, one, two": [(16, 40), (1, 80), (2, 150)],
    }.items():
        together, together_s = history(name, *steps)
        assert together == alone
        if len(steps) == 1:
            assert together_s < 1.1 * alone_s / steps[0][0], "the lookahead keeps all fed"


@pytest.fixture
def two_cpus(tmp_path: Path) -> tuple[LocalExecutor, list[set[int]]]:
    """The CPU as two devices of one thread each, on separate cores if there are two."""
    path = tmp_path / "tiny.yaml"
    path.write_text(SPACE)
    setup = load_setup(path, "cpu")
    cores = sorted(os.sched_getaffinity(0))[:2]
    own = [{cores[0]}, {cores[-1]}]
    one_thread = {**setup.profile.attributes, "threads": 1}
    assert setup.document is not None
    executor = open_local_executor(
        folder=tmp_path / "logs",
        cache=tmp_path / "cache",
        profiles=[
            dataclasses.replace(setup.profile, attributes=one_thread, id=f"cpu-{index}")
            for index in range(2)
        ],
        problem="attention",
        dtype="float32",
        deterministic=True,
        cores=[sorted(each) for each in own],
    )
    return executor, own


@pytest.mark.soak
def test_two_devices_share_a_search_without_doing_anything_twice(
    tmp_path: Path, two_cpus: tuple[LocalExecutor, list[set[int]]]
) -> None:
    local, own = two_cpus
    setup = load_setup(tmp_path / "tiny.yaml", "cpu")
    assert setup.planner is not None
    executor: Executor = local
    try:
        local.open_devices()
        local.baselines = {case.label: "sdpa:math" for case in setup.cases[TIMED]}
        reference = setup.planner.proposal(0, setup.space.default())
        devices = calibrate(local, reference, setup.cases[TIMED])
        workers = [device._child for device in local._devices]
        assert [os.sched_getaffinity(w.pid) for w in workers if w is not None] == own
        executor = BackgroundExecutor(local)
        trials = search(
            tmp_path / "store.sqlite",
            executor,
            setup.space,
            trials=8,
            lookahead=4,
            propose=setup.planner.proposal,
        )
    finally:
        executor.close()
    assert [device.id for device in devices] == ["cpu-0", "cpu-1"]
    assert all(device.speedup and device.baseline_us for device in devices)
    assert agreement(devices).startswith(f"2 x {setup.profile.name}: ")
    measured = [t.outcome for t in trials if t.outcome.ok and t.outcome.duplicate_of is None]
    assert {outcome.resources["device"]["id"] for outcome in measured} == {"cpu-0", "cpu-1"}
    assert len({outcome.binary for outcome in measured}) == len(measured)
    # One device that gives the same outcomes in another order gets the same proposals.
    outcomes = {trial.configuration: trial.outcome for trial in trials}
    inline = InlineExecutor(outcomes.__getitem__)
    again = search(tmp_path / "again.sqlite", inline, setup.space, trials=8, lookahead=4)
    assert again == trials


class Failing(LocalExecutor):
    """An executor whose `poll` raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(None, [], exclusive=False)  # type: ignore[arg-type]
        self._raised = error

    def poll(self, timeout_s: float) -> list[object]:  # type: ignore[override]
        raise self._raised

    def close(self) -> None:
        os.close(self._wake_fd)
        os.close(self._waker_fd)


def test_what_ends_the_executor_s_thread_is_raised_where_outcomes_are_awaited() -> None:
    executor = BackgroundExecutor(Failing(ValueError("broken")))
    try:
        with pytest.raises(ValueError, match="broken"):
            executor.poll(20.0)
        with pytest.raises(ValueError, match="broken"):
            executor.submit(Proposal(0, Configuration({})))
    finally:
        executor.close()


def test_a_second_ctrl_c_leaves_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread and its executor end although the wait for them was interrupted."""
    inner = Failing(ValueError("broken"))
    executor = BackgroundExecutor(inner)
    join, interruptions = executor._thread.join, [KeyboardInterrupt()]

    def interrupted(timeout: float | None = None) -> None:
        if interruptions:
            raise interruptions.pop()
        join(timeout)

    monkeypatch.setattr(executor._thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        executor.close()
    assert not executor._thread.is_alive()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(inner._wake_fd)


def test_work_that_is_known_goes_on_while_the_search_thinks(tmp_path: Path) -> None:
    """Rejected proposals need no device: the thread answers them all while nobody polls."""

    class Empty:
        running = queued = 0

        def start_queued(self) -> None: ...

        def expire(self) -> list[object]:
            return []

        def children(self) -> list[object]:
            return []

        def close(self) -> None: ...

    inner = LocalExecutor(Empty(), [], exclusive=False)  # type: ignore[arg-type]
    executor = BackgroundExecutor(inner)
    try:
        for number in range(3):
            executor.submit(Proposal(number, Configuration({}), rejection="no"))
        deadline = time.monotonic() + PATIENCE_S
        while executor._done.qsize() < 3:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert [number for number, _ in executor.poll(20.0)] == [0, 1, 2]
    finally:
        executor.close()
