"""`evotune.tune`, `open_run` and `Run`, on a recorded space: no device, no compiler."""

from __future__ import annotations

import errno
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from report.runs import failed, make_run, ok

import evotune
from evotune.api.given_space import trusting
from evotune.api.observing import Calls
from evotune.api.run import Run
from evotune.errors import UsageError
from evotune.report.formats import REPORTS
from evotune.trial import Configuration, OutcomeKind, Trial
from evotune.user_code import trust
from tests.runs.runs import recorded_space

QUICK = "import evotune, sys; print(sorted({'torch', 'pandas', 'deap'} & set(sys.modules)))"


@pytest.fixture
def space(tmp_path: Path) -> Path:
    return recorded_space(tmp_path / "space")


def tuned(space: Path, **options: Any) -> Run:
    return evotune.tune(space, runs_dir=space.parents[1] / "runs", **{"trials": 12, **options})


def test_a_run_has_its_trials_best_first_on_the_leaderboard(space: Path) -> None:
    seen: list[Trial] = []
    run = tuned(space, on_trial=seen.append)
    assert [trial.number for trial in seen] == list(range(12))
    assert list(run.trials) == seen
    assert run.state == "finished:trials"
    times = [row.time_us for row in run.leaderboard(5)]
    assert times == sorted(times, key=float)
    best = run.best
    assert best.configuration == run.trials[best.number].configuration
    assert best.time_us == min(t for t in times)
    assert (best.speedup, best.speedup_low) == (None, None), "a recording has no baseline"
    assert run.path.name == run.id


def test_candidates_and_trials_are_printed_in_a_line(tmp_path: Path) -> None:
    noisy = ok(1.4, 0.9, 2.2, flags=["too_noisy"])
    run = Run(
        make_run(
            tmp_path, [ok(1.5), ok(1.1), failed(OutcomeKind.TIMEOUT)], confirmations={0: noisy}
        )
    )
    assert str(run.best).startswith(
        "<trial 0: 1.400x [0.900, 2.200], 714.3 µs, confirmed, too_noisy, "
    )
    assert "not confirmed" in str(run.leaderboard(2)[1])
    assert str(run.trials[1]).startswith("trial 1: 1.100x [1.089, 1.111], ")
    assert str(run.trials[2]).startswith(f"trial 2: {run.trials[2].outcome.kind}: ")
    assert "\n" not in "".join(map(str, run.trials))


def test_a_trial_prints_its_values_as_python_writes_them() -> None:
    values = {"MODE": "row 1", "TILE": 16, "PACK": True}
    made = Trial(0, Configuration(values), failed(OutcomeKind.TIMEOUT))
    assert str(made).endswith("MODE='row 1' TILE=16 PACK=True")
    assert repr(made.configuration) == "Configuration(MODE='row 1', TILE=16, PACK=True)"


def test_a_space_of_objects_is_tuned(space: Path) -> None:
    recorded = evotune.Space(name="mine", root=space.parent, recorded={"file": "recording.json.gz"})
    run = evotune.tune(recorded, trials=3, runs_dir=space.parents[1] / "runs")
    assert run.id.endswith("-mine")
    assert len(run.trials) == 3


def test_a_run_is_opened_again_and_goes_on(space: Path) -> None:
    tuned(space, seed=3)
    seen: list[int] = []
    run = evotune.open_run("latest", space.parents[1] / "runs")
    assert run.resume(trials=20, on_trial=lambda trial: seen.append(trial.number)) is run
    assert seen == list(range(12, 20)), "what was stored is told to nobody again"
    assert run.trials == tuned(space, seed=3, trials=20).trials


def test_pandas_has_a_row_for_each_trial(space: Path) -> None:
    run = tuned(space)
    table = run.to_pandas()
    assert sorted(table["trial"]) == list(range(12))
    assert table["trial"].iloc[0] == run.best.number


def test_a_report_is_written_in_the_form_of_its_suffix(space: Path, tmp_path: Path) -> None:
    run = tuned(space)
    found = json.loads(run.report(tmp_path / "run.json").read_text())
    assert len(found["trials"]) == 12
    assert "<html" in run.report(tmp_path / "run.html").read_text()
    assert run.report(tmp_path / "lines", "jsonl").read_text().count("\n") == 12
    with pytest.raises(UsageError, match="suffix, one of html, md"):
        run.report(tmp_path / "run.doc")
    assert not (tmp_path / "run.doc").exists()


def test_a_report_leaves_neither_half_a_file_nor_a_file_of_others_deleted(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, path = tuned(space), tmp_path / "run.csv"

    def full(data: object) -> Iterator[str]:
        yield "half"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setitem(REPORTS, "csv", full)
    with pytest.raises(UsageError, match="No space left"):
        run.report(path)
    assert not path.exists()

    path.write_text("mine")

    def refusing(self: Path, mode: str = "r", **options: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refusing)
        with pytest.raises(UsageError, match="cannot write"):
            run.report(path)
    assert path.read_text() == "mine"


class Backwards:
    """Proposes every configuration, the last one first."""

    def __init__(self, space: Any, settings: Any) -> None:
        self._left = list(space.enumerate())

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        return self._left[-1 - number] if number < len(self._left) else None

    def tell(self, trial: Trial) -> None:
        """It learns nothing."""


def test_a_strategy_of_ones_own_searches_and_is_needed_to_go_on(space: Path) -> None:
    run = tuned(space, strategy=Backwards, trials=5)
    resumed = tuned(space, strategy=Backwards, trials=3)
    with pytest.raises(UsageError, match=r"test_runs:Backwards, which is your own: resume"):
        resumed.resume(trials=5)
    with pytest.raises(UsageError, match=r"strategy is .*Backwards, not .*Guessing"):
        resumed.resume(trials=5, strategy=Guessing)
    assert resumed.resume(trials=5, strategy=Backwards).trials == run.trials
    assert len({trial.configuration for trial in run.trials}) == 5


class Guessing(Backwards):
    """Proposes the same configuration every time."""

    def ask(self, number: int, pending: Sequence[Configuration]) -> Configuration | None:
        return self._left[0]


class Elsewhere(Backwards):
    def ask(self, number: int, pending: Sequence[Configuration]) -> Any:
        return dict.fromkeys(self._left[0], -7)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (Guessing, "Guessing returned .* which it has returned before"),
        (Elsewhere, "Elsewhere returned .* which is not a valid configuration"),
        (lambda space, settings: random.Random(0), "lacks ask and tell"),
        (3, "expected a name, a class with ask and tell"),
        ("telepathy", "unknown search strategy 'telepathy'"),
    ],
)
def test_a_strategy_that_is_wrong_is_named(space: Path, strategy: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tuned(space, strategy=strategy)


def test_on_note_gets_the_stages(space: Path) -> None:
    notes: list[str] = []
    run = tuned(space, on_note=notes.append)
    assert "searching" in notes
    notes.clear()
    run.resume(trials=20, on_note=notes.append)
    assert "searching" in notes


def test_on_note_gets_a_step_of_a_confirmation_every_ten_seconds() -> None:
    notes: list[str] = []
    now_s = 0.0
    observer = Calls(None, notes.append, lambda: now_s)
    observer.phase("confirming the best in fresh processes")
    for second in range(25):
        now_s = float(second)
        observer.step(f"step {second}")
    assert notes[1:] == ["step 10", "step 20"]


def test_what_on_trial_raises_ends_the_run_which_can_be_resumed(space: Path) -> None:
    def stop(trial: Trial) -> None:
        if trial.number == 4:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tuned(space, on_trial=stop)
    run = evotune.open_run(runs_dir=space.parents[1] / "runs")
    assert run.state == "interrupted"
    assert len(run.resume().trials) == 12


def test_a_thread_can_tune(space: Path) -> None:
    runs: list[Run] = []
    thread = threading.Thread(target=lambda: runs.append(tuned(space)))
    thread.start()
    thread.join()
    assert [run.state for run in runs] == ["finished:trials"]


@pytest.mark.usefixtures("nobody_agreed")
def test_trust_ends_with_the_last_of_two_calls_that_overlap(tmp_path: Path) -> None:
    elsewhere = {tmp_path / f"{number}.py": b"# %d" % number for number in range(4)}
    one, other = trusting(True), trusting(True)
    for step, path in zip(
        (one.__enter__, other.__enter__, lambda: one.__exit__(None, None, None)),
        elsewhere,
        strict=False,
    ):
        step()
        trust.require({path: elsewhere[path]})
    other.__exit__(None, None, None)
    with trusting(False), pytest.raises(UsageError, match="add --trust"):
        trust.require(elsewhere)


def test_what_is_no_space_and_no_run_is_refused(space: Path) -> None:
    with pytest.raises(UsageError, match="expected a path, a shipped name, a Space or a kernel"):
        evotune.tune(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="parameters: only with a kernel object"):
        tuned(space, parameters={"A": [1]})
    with pytest.raises(UsageError, match="no run 'latest'"):
        evotune.open_run("latest", space.parent)


def test_a_candidate_that_is_not_there_is_told(tmp_path: Path) -> None:
    outcomes = [ok(1.5), failed(OutcomeKind.NAN), ok(1.5, duplicate_of=0)]
    run = Run(make_run(tmp_path, outcomes, name="some"))
    assert run.candidate(0).number == run.candidate().number == 0
    for number in (1, 2, 9, -1, 10**30):
        with pytest.raises(UsageError, match=f"run some has no valid trial {number} with code of"):
            run.candidate(number)
    empty = Run(make_run(tmp_path, [], name="empty"))
    assert empty.leaderboard(3) == []
    for count in ("a", 1.5, -1):
        with pytest.raises(UsageError, match="leaderboard: expected an integer of at least 0"):
            empty.leaderboard(count)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="run empty has no valid candidate"):
        _ = empty.best


def test_importing_evotune_imports_no_library() -> None:
    found = subprocess.run(
        [sys.executable, "-c", QUICK], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    assert found.stdout == "[]\n"


def test_every_public_name_is_there_and_described() -> None:
    for name in evotune.__all__:
        assert name == "__version__" or getattr(evotune, name).__doc__, name
    assert sorted(evotune.__all__) == evotune.__all__
    assert set(evotune.__all__) <= set(dir(evotune))
    with pytest.raises(AttributeError, match="no attribute 'tuna'"):
        evotune.tuna  # noqa: B018
