"""--minutes limits the whole run: the search leaves the last 30% for confirming champions."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from evotune.engine import _work, search_loop
from evotune.engine._kernel_run import KernelRun
from evotune.engine._recorded_run import InlineExecutor, RecordedRun
from evotune.engine.observer import SilentObserver
from evotune.engine.starting import resume_run
from evotune.run_options import RunOptions
from evotune.store import RunStore
from evotune.trial import Outcome

from .runs import history, recorded_space, run_here


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A clock that only polls of the executor move, by a second each."""
    clock = types.SimpleNamespace(now_s=1000.0)
    clock.monotonic = lambda: clock.now_s
    really_poll = InlineExecutor.poll

    def poll(self: InlineExecutor, timeout_s: float) -> list[tuple[int, Outcome]]:
        clock.now_s += 1.0
        return really_poll(self, timeout_s)

    for module in (search_loop, _work):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(InlineExecutor, "poll", poll)
    return clock


@pytest.mark.parametrize(("confirms", "share"), [(True, 0.7), (False, 1.0)])
@pytest.mark.usefixtures("clock")
def test_the_search_stops_where_confirming_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, confirms: bool, share: float
) -> None:
    # A recorded space has nothing to confirm, so the test sets whether a run confirms.
    monkeypatch.setattr(RecordedRun, "confirms", confirms)
    space = recorded_space(tmp_path / "space")
    run = run_here(space, tmp_path / "runs", minutes=5.0, trials=100_000, strategy="random")
    # One poll is under way when the time is over; another one collects the finished trials.
    assert share * 300 <= len(history(run)) <= share * 300 + 2
    with RunStore.open_for_reading(run.store) as store:
        assert store.meta("state") == "finished:minutes"
        assert share * 300 <= store.searched_s() <= share * 300 + 2
    resume_run(run, SilentObserver(), minutes=10.0)
    assert share * 600 <= len(history(run)) <= share * 600 + 2, "minutes are a total"


def test_only_a_run_of_kernels_that_confirms_champions_needs_time_for_it() -> None:
    assert not RecordedRun(None).confirms  # type: ignore[arg-type]
    for champions, expected in ((3, True), (0, False)):
        options = RunOptions(champions=champions)
        parts = {"options": options, "observer": SilentObserver(), "cluster": None}
        assert KernelRun(None, None, None, **parts).confirms == expected  # type: ignore[arg-type]
