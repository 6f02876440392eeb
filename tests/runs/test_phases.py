"""How long each phase of a run took, over all its sessions."""

from __future__ import annotations

from pathlib import Path

from report.runs import make_run, ok

from evotune.report.data import RunData
from evotune.report.summary import summarize
from evotune.runs.folder import RunFolder
from evotune.runs.observer import BASELINES, OPENING, SEARCHING, PhaseTimes, SilentObserver
from evotune.runs.starting import resume_run
from evotune.store import PHASES, RunStore

from .runs import recorded_space, run_here


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_phases_follow_each_other_and_one_may_come_again() -> None:
    clock = Clock()
    times = PhaseTimes(clock)
    for phase, at_s in ((BASELINES, 3.0), (OPENING, 7.0), (SEARCHING, 8.0)):
        clock.now_s = at_s
        times.enter(phase)
    clock.now_s = 20.0
    assert times.added_to({SEARCHING: 100.0}) == {OPENING: 4.0, BASELINES: 4.0, SEARCHING: 112.0}
    clock.now_s = 21.0
    assert times.added_to({})[SEARCHING] == 13.0


def test_a_report_has_the_phases_of_the_store(tmp_path: Path) -> None:
    run = make_run(tmp_path, [ok(1.0)], meta={PHASES: {SEARCHING: 12.5}})
    summary = summarize(RunData.load(RunFolder(run.path)))
    assert summary.phases == {SEARCHING: 12.5}
    assert summary.to_json()["phases"] == {SEARCHING: 12.5}


def test_a_resumed_run_adds_to_the_phases(tmp_path: Path) -> None:
    run = run_here(recorded_space(tmp_path, delay_ms=1.0), tmp_path / "runs", trials=20)
    with RunStore.open_for_reading(run.store) as store:
        first = store.meta(PHASES)
    resume_run(run, SilentObserver(), trials=40)
    with RunStore.open_for_reading(run.store) as store:
        both = store.meta(PHASES)
    assert first[SEARCHING] > 0.0
    assert both[SEARCHING] > first[SEARCHING]
    assert both[OPENING] > first[OPENING]
