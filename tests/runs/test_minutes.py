"""--minutes limits the whole run: the search leaves the last 30% for confirming champions."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import evotune
from evotune.cli.run_commands import resume, run
from evotune.report import wording
from evotune.run_options import RunOptions
from evotune.runs import search_loop, starting
from evotune.runs.kernel_run import InlineExecutor, KernelRun, RecordedRun
from evotune.runs.observer import SilentObserver
from evotune.runs.starting import resume_run, stored_options
from evotune.space.reading.schema import schema_text
from evotune.store import AROUND_SEARCH, RunStore
from evotune.trial import Outcome, Trial

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

    for module in (search_loop, starting):
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


@pytest.mark.usefixtures("clock")
def test_a_run_whose_minutes_are_over_asks_for_no_further_trial(tmp_path: Path) -> None:
    space = recorded_space(tmp_path / "space")
    run = run_here(space, tmp_path / "runs", minutes=5.0, trials=100_000, strategy="random")
    before = history(run)
    assert resume_run(run, SilentObserver()).reason == "minutes"
    assert history(run) == before


@pytest.mark.usefixtures("clock")
def test_champions_that_are_asked_for_are_confirmed_though_the_minutes_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def confirmed(
        self: RecordedRun, executor: object, *, no_time: Callable[[], bool], **_: object
    ) -> Iterator[tuple[Trial, Outcome]]:
        found.append(no_time())
        return iter(())

    monkeypatch.setattr(RecordedRun, "confirms", True)
    monkeypatch.setattr(RecordedRun, "confirmed", confirmed)
    space = recorded_space(tmp_path / "space")
    run = run_here(space, tmp_path / "runs", minutes=1.0, trials=100_000, strategy="random")
    with RunStore.open_for_writing(run.store) as store:
        store.set_meta(AROUND_SEARCH, 60.0)
    found.clear()
    resume_run(run, SilentObserver())
    resume_run(run, SilentObserver(), champions=5)
    resume_run(run, SilentObserver(), champions=7, minutes=1.0)
    assert found == [True, False, True]
    with RunStore.open_for_reading(run.store) as store:
        assert stored_options(store).champions == 7


def test_only_a_run_of_kernels_that_confirms_champions_needs_time_for_it() -> None:
    assert not RecordedRun(None).confirms  # type: ignore[arg-type]
    for champions, expected in ((3, True), (0, False)):
        options = RunOptions(champions=champions)
        parts = {"options": options, "observer": SilentObserver(), "cluster": None}
        assert KernelRun(None, None, None, **parts).confirms == expected  # type: ignore[arg-type]


def test_every_place_that_takes_minutes_says_what_they_are_for() -> None:
    def told(command: click.Command) -> str:
        return next(str(each.help) for each in command.params if each.name == "minutes")  # type: ignore[attr-defined]

    texts = [told(run), told(resume), str(evotune.tune.__doc__), schema_text()]
    for text in texts:
        assert f"{starting._SEARCH_SHARE:.0%}" in text
        assert "over all sessions" in text
    assert wording.ended_text("minutes") == "search time spent"
