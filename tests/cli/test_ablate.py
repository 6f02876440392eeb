"""`evotune ablate` on a run of the faulty test kernel: compiled, checked and timed for real."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from report.runs import make_run, recorded
from workers.faulty import run_of, space_text

from evotune.backends import registry
from evotune.cli.main import application
from evotune.report.data import RunData
from evotune.report.html import ablation
from evotune.runs import ablation as ablation_module
from evotune.runs.ablation import AblationRow, Change
from evotune.runs.evidence_gathering import Access
from evotune.runs.folder import RunFolder, find_run
from evotune.runs.reopening import ReopenedRun
from evotune.store import RunStore
from evotune.trial import Configuration, Outcome, OutcomeKind
from tests.runs.runs import brief_confirmations

from .conftest import Invoke, _python_path

Ablate = Callable[..., Result]
SPACE = space_text(
    "few-faults",
    """
parameters:
  FAULT: {choices: [none, compile_error, wrong_scale]}
  UNUSED: [1, 2, 4, 8]
constraints:
  - UNUSED != 2
default: {FAULT: none, UNUSED: 8}
""",
)
CHAMPION = {"FAULT": "none", "UNUSED": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run folder as it is after the search, with trial 0 as champion."""
    folder = tmp_path_factory.mktemp("ablate")
    space = folder / "space.yaml"
    space.write_text(SPACE)
    return run_of(space, folder / "runs", CHAMPION)


@pytest.fixture
def ablate(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Ablate:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(run.path / "cache"))
    monkeypatch.setenv("PYTHONPATH", _python_path())

    def invoke(*arguments: object) -> Result:
        words = ["ablate", "latest", "--runs-dir", run.path.parent, *arguments]
        return CliRunner().invoke(application, [str(word) for word in words])

    return invoke


def test_each_gene_is_changed_alone_and_the_rows_are_kept_for_the_report(
    ablate: Ablate, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = _watched(monkeypatch)
    with brief_confirmations():
        result = ablate("--format", "json")
    assert result.exit_code == 0, result.stderr
    itself, *rows = json.loads(result.stdout)
    assert (itself["parameter"], itself["outcome"], itself["same_code"]) == ("", "ok", True)
    assert itself["ratio_low"] <= itself["ratio"] <= itself["ratio_high"]
    changes = [(row["parameter"], row["after"], row["why"], row["outcome"]) for row in rows]
    assert changes == [
        ("FAULT", "compile_error", "neighbour", "compile_error"),
        ("FAULT", "wrong_scale", "neighbour", "wrong_result"),
        ("UNUSED", 8, "default", "ok"),
        ("UNUSED", 1, "neighbour", "ok"),
    ]
    assert [row["ratio"] is None for row in rows] == [True, True, False, False]
    assert [row["same_code"] for row in rows] == [False, False, True, True]
    assert "error" in rows[0]["reason"]
    shown = ablation(RunData.load(run), leader=0)
    assert shown["trial"] == 0
    assert shown["rows"][0]["change"] == "nothing (the champion against itself)"
    assert {row["change"] for row in shown["rows"]} >= {
        "UNUSED 4 to 8",
        "FAULT none to wrong_scale",
    }
    compiled, *timed = events  # all changes are compiled before the first is timed
    assert len(timed) >= 5
    assert compiled == set().union(*timed)


def test_the_rows_are_shown_as_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    run = run_of(tmp_path / "space.yaml", tmp_path / "runs", CHAMPION)

    def rows(
        reopened: Any, number: int, own: Any, changes: Any, progress: Any, **given: Any
    ) -> Any:
        for change in changes:
            row = AblationRow(change, "ok", "", 1.5, 1.4, 1.6, same_code=False)
            progress.rows.append(row)
            yield row

    monkeypatch.setattr(ablation_module, "measured_rows", rows)
    result = CliRunner().invoke(application, ["ablate", str(run.path)])
    assert result.exit_code == 0, result.stderr
    assert "wrong_scale" in result.stdout


def test_a_number_is_also_set_to_its_smallest_valid_value(tmp_path: Path) -> None:
    """It says what a parameter such as the number of stages is worth at all. Other active ones stay
    as they are: with UNUSED=1, WIDE would have to change. WAIT has one value with UNUSED=2."""
    text = space_text(
        "smallest",
        """
parameters:
  FAULT: {choices: [none, compile_error, wrong_scale, misaligned]}
  UNUSED: [1, 2, 4, 8, 16]
  WIDE: [false, true]
  WAIT: {choices: [early, late], when: UNUSED > 2, otherwise: late}
constraints:
  - not WIDE or UNUSED > 1
default: {FAULT: none, UNUSED: 16, WIDE: true, WAIT: early}
""",
    )
    (tmp_path / "space.yaml").write_text(text)
    champion = {"FAULT": "none", "UNUSED": 16, "WIDE": True, "WAIT": "early"}
    run = run_of(tmp_path / "space.yaml", tmp_path / "runs", champion)
    with run.locked():
        reopened = ReopenedRun.load(run)
        changes = ablation_module.changes_of(reopened, reopened.configuration(champion))
    assert [(each.parameter, each.after, each.why, dict(each.also)) for each in changes] == [
        ("", None, "", {}),
        ("FAULT", "compile_error", "neighbour", {}),
        ("FAULT", "wrong_scale", "neighbour", {}),
        ("UNUSED", 8, "neighbour", {}),
        ("UNUSED", 2, "smallest", {"WAIT": "late"}),
        ("WIDE", False, "neighbour", {}),
        ("WAIT", "late", "neighbour", {}),
    ]


def ablation_rows(run: RunFolder) -> Any:
    found = RunData.load(run).facts.ablation
    assert found is not None
    return found.rows


def _part(run: RunFolder) -> Any:
    with RunStore.open_for_reading(run.store) as store:
        return store.meta("ablation_part")


def _watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What an ablation compiles, and then what it times, in this order."""
    events: list[Any] = []
    compile_all, measure = ablation_module.build_jobs, ablation_module.outcome_of

    def build_jobs(jobs: list[Any], timeout_s: float, stop: Callable[[], bool]) -> Any:
        found = compile_all(jobs, timeout_s, stop)
        events.append(set(found))
        return found

    def outcome_of(executor: Any, proposal: Any) -> Outcome:
        events.append(set(proposal.compile_jobs))
        return measure(executor, proposal)

    monkeypatch.setattr(ablation_module, "build_jobs", build_jobs)
    monkeypatch.setattr(ablation_module, "outcome_of", outcome_of)
    return events


@pytest.mark.soak
def test_an_interrupted_ablation_goes_on_where_it_ended(
    ablate: Ablate, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    measure = ablation_module.outcome_of

    def outcome_of(executor: Any, proposal: Any) -> Outcome:
        fault, unused = (proposal.configuration[name] for name in ("FAULT", "UNUSED"))
        asked.append(f"{fault} {unused}")
        if asked.count("wrong_scale 4") == 1 and asked[-1] == "wrong_scale 4":
            raise KeyboardInterrupt
        return measure(executor, proposal)

    monkeypatch.setattr(ablation_module, "outcome_of", outcome_of)
    with brief_confirmations(processes=2):
        interrupted = ablate("--format", "json")
        rows = _part(run)["rows"]
        so_far = len(asked)
        done = ablate("--format", "json")
    assert interrupted.exit_code != 0
    assert [(row["parameter"], row["after"]) for row in rows] == [
        ("", None),
        ("FAULT", "compile_error"),
    ]
    assert done.exit_code == 0, done.stderr
    assert asked[so_far:] == ["wrong_scale 4", "none 8", "none 1"]
    found = json.loads(done.stdout)
    assert found[:2] == rows
    assert len(found) == 5
    assert _part(run) is None


def test_an_explanation_rests_on_the_rows_that_are_kept(ablate: Ablate, run: RunFolder) -> None:
    """It compiles nothing either: the binary is in the cache."""
    if RunData.load(run).facts.ablation is None:
        assert ablate("--format", "json").exit_code == 0
    words = ["explain", "latest", "--runs-dir", str(run.path.parent), "--format", "json"]
    result = CliRunner().invoke(application, words)
    assert result.exit_code == 0, result.stderr
    assert "measuring" not in result.stderr
    found = json.loads(result.stdout)
    effects = {(e["parameter"], e["from"]): e for e in found["effects"]}
    assert effects["UNUSED", 1]["basis"] == "paired"
    assert effects["UNUSED", 1]["same_code"]
    assert effects["FAULT", "wrong_scale"]["outcome"] == "wrong_result"
    assert found["roofline"]["operations"] > 0
    hopeless = [value["text"] for value in found["over_space"]["hopeless"]]
    assert (
        "UNUSED=2: put into the one tried configuration it breaks a constraint, `UNUSED != 2`"
    ) in hopeless


def test_a_trial_that_is_not_there_is_a_usage_error(ablate: Ablate) -> None:
    result = ablate("--trial", 7)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no valid trial 7" in result.stderr


def test_a_recorded_run_has_nothing_to_ablate(invoke: Invoke, tmp_path: Path) -> None:
    made = make_run(tmp_path / "runs", [recorded(1.0)], meta={"kind": "recorded"})
    result = invoke("ablate", find_run(made.id, tmp_path / "runs").path)
    assert result.exit_code == 2
    assert "replays a recording" in result.stderr


@pytest.mark.soak
def test_compare_can_measure_both_again_in_turn(ablate: Ablate, run: RunFolder) -> None:
    other = ["--runs-dir", str(run.path.parent), "--format", "json", "--remeasure"]
    result = CliRunner().invoke(application, ["compare", "latest:0", "latest:0", *other])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["basis"], found["differences"]) == ("paired", [])
    assert found["ratio_low"] <= found["ratio"] <= found["ratio_high"]
    assert found["cases"][0]["first_us"] > 0


def test_on_another_processor_nothing_is_measured(
    ablate: Ablate, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are stored in the run are about the device that it was made on."""
    here = registry.named("cpu").profile("cpu")
    other = dataclasses.replace(here, name="Another CPU")
    monkeypatch.setattr(type(registry.named("cpu")), "profile", lambda *_, **__: other)
    result = ablate()
    assert result.exit_code == 3
    words = f"run {run.id} was made on {here.name}, and this is Another CPU"
    assert f"{words}: the times would not compare" in result.output
    access = Access.to(run)
    assert (access.away, access.reopened.setup.profile.name) == (words, here.name)


def test_each_configuration_keeps_its_ablation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest one is the run's `ablation`; those of others stay beside it."""
    (tmp_path / "space.yaml").write_text(SPACE)
    run = run_of(tmp_path / "space.yaml", tmp_path / "runs", CHAMPION)

    def rows(
        reopened: Any, number: int, own: Any, changes: Any, progress: Any, **given: Any
    ) -> Any:
        row = ablation_module.AblationRow(changes[0], "ok", "", 1.0, 0.9, 1.1, same_code=True)
        progress.rows.append(row)
        yield row

    monkeypatch.setattr(ablation_module, "measured_rows", rows)
    configurations = [Configuration({**CHAMPION, "UNUSED": value}) for value in (4, 8)]
    for number in (0, 1, 0):
        list(ablation_module.ablate_run(run, number, configurations[number]))
    found = RunData.load(run)
    assert [each.trial for each in found.facts.ablations] == [0, 1]
    assert [each.configuration for each in found.facts.ablations] == [
        each.to_json() for each in configurations
    ]
    assert found.facts.ablation is not None
    assert found.facts.ablation.trial == 0
    assert ablation(found, leader=1)["trial"] == 1
    assert ablation(found, leader=7)["trial"] == 0


def test_further_changes_follow_from_the_rows_and_outlive_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    run = run_of(tmp_path / "space.yaml", tmp_path / "runs", CHAMPION)
    own = Configuration(CHAMPION)
    further = [Change(Configuration({**own, "UNUSED": value}), "UNUSED", own["UNUSED"], value,
                      "pair", {}) for value in (1, 8)]  # fmt: skip
    timed: list[Configuration] = []
    lasts_for = 2

    def rows(
        reopened: Any, number: int, own: Any, changes: Any, progress: Any, **given: Any
    ) -> Any:
        yield from tuple(progress.rows)
        for change in changes[len(progress.rows) :]:
            if len(timed) == lasts_for:
                raise KeyboardInterrupt
            timed.append(change.configuration)
            row = ablation_module.AblationRow(change, "ok", "", 0.9, 0.8, 1.0, same_code=False)
            progress.rows.append(row)
            yield row

    def more(found: Sequence[AblationRow]) -> list[Change]:
        assert [row.change for row in found] == [ablation_module.unchanged(own)]
        return further

    monkeypatch.setattr(ablation_module, "measured_rows", rows)
    monkeypatch.setattr(
        ablation_module, "changes_of", lambda reopened, own: [ablation_module.unchanged(own)]
    )
    with pytest.raises(KeyboardInterrupt):
        list(ablation_module.ablate_run(run, 0, own, more))
    lasts_for = 3
    found = list(ablation_module.ablate_run(run, 0, own, more))
    assert [row.change for row in found] == [ablation_module.unchanged(own), *further]
    assert timed == [own, *(change.configuration for change in further)]
    assert len(ablation_rows(run)) == 3


def test_an_ablation_whose_time_is_over_goes_on_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call measures at least one change, however short its time is."""
    (tmp_path / "space.yaml").write_text(SPACE)
    run = run_of(tmp_path / "space.yaml", tmp_path / "runs", CHAMPION)
    own = Configuration(CHAMPION)
    changes = [ablation_module.unchanged(own)]
    changes += [Change(Configuration({**own, "UNUSED": value}), "UNUSED", own["UNUSED"], value,
                       "default", {}) for value in (1, 2, 8)]  # fmt: skip
    monkeypatch.setattr(ablation_module, "changes_of", lambda reopened, own: changes)
    monkeypatch.setattr(ablation_module, "build_jobs", lambda jobs, timeout_s, stop: {})
    ended = Outcome(OutcomeKind.OK, fitness=0.0, fitness_low=-0.1, fitness_high=0.1)
    monkeypatch.setattr(ablation_module, "outcome_of", lambda executor, proposal: ended)
    monkeypatch.setattr(ablation_module, "repeated", lambda run, proposal, first, processes: first)
    monkeypatch.setattr(ReopenedRun, "executor", lambda self: contextlib.nullcontext())
    for left in (2, 1):
        list(ablation_module.ablate_run(run, 0, own, stop=lambda: True))
        facts = RunData.load(run).facts
        assert facts.ablation_part is not None
        assert facts.ablation_part.left == left
        assert facts.ablation is None
    list(ablation_module.ablate_run(run, 0, own, stop=lambda: True))
    assert len(ablation_rows(run)) == 4
    assert RunData.load(run).facts.ablation_part is None
