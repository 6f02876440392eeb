"""The race of a family's spaces: its budget, its decisions, and that a kill changes neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evotune.api.family_run import open_family
from evotune.errors import RunLocked, StoreError, UsageError
from evotune.portfolios.family_file import (
    Family,
    exportable_runs,
    family_runs,
    is_confirmed,
    read_family,
    winning_runs,
)
from evotune.portfolios.family_race import resume_family
from evotune.runs.folder import FAMILY_FILE, find_family, find_run, list_families
from evotune.store import RunStore
from evotune.trial import Value

from .racing import PretendedRuns, resumed, silent, started

ONE: dict[str, Value] = {"batch": 1, "heads": 2, "seq_len": 64, "head_dim": 64, "count": 3}
OTHER: dict[str, Value] = {"batch": 1, "heads": 2, "seq_len": 64, "head_dim": 48}
FAST, SLOW = "attention-cpu", "attention-scalar-cpu"


def by_space(space: str, number: int) -> float:
    return {FAST: 1.5, SLOW: 1.4}.get(space, 2.0) + number / 100


def far_apart(space: str, number: int) -> float:
    return 0.3 if space == SLOW else 1.5


def trials(folder: Path) -> dict[str, int]:
    """The trials of each space, over all groups."""
    found: dict[str, int] = {}
    (family,) = list_families(folder)
    for (_, space), run in family_runs(family).items():
        with RunStore.open_for_reading(run.store) as store:
            found[space] = found.get(space, 0) + store.count()
    return found


def test_the_better_ones_go_on_and_the_winner_gets_the_rest(tmp_path: Path) -> None:
    family = started(tmp_path, PretendedRuns(by_space), [ONE], trials=100)
    (race,) = family.races.values()
    assert [(step.space, step.trials) for step in race.first or ()] == [(FAST, 7), (SLOW, 7)]
    assert [(step.space, step.trials) for step in race.second or ()] == [(FAST, 19), (SLOW, 19)]
    assert [(step.space, step.trials, step.champions) for step in race.last] == [(FAST, 81, 3)]
    assert trials(tmp_path) == {FAST: 81, SLOW: 19}
    assert family.state == "finished"
    (folder,) = list_families(tmp_path)
    (winner,) = winning_runs(folder, family).values()
    assert is_confirmed(winner)
    assert exportable_runs(folder) == [winner] or exportable_runs(folder)[0].id == winner.id


def test_one_that_is_far_behind_does_not_go_on(tmp_path: Path) -> None:
    family = started(tmp_path, PretendedRuns(far_apart), [ONE], trials=40)
    (race,) = family.races.values()
    assert race.finalists == (FAST,)
    assert trials(tmp_path) == {FAST: 36, SLOW: 4}


def test_a_lucky_sample_wins_no_race(tmp_path: Path) -> None:
    runs = PretendedRuns(lambda space, number: 4.0 if space == SLOW else 1.5, spread={SLOW: 2.0})
    family = started(tmp_path, runs, [ONE], trials=40)
    assert [race.winner for race in family.races.values()] == [FAST]


def test_a_small_budget_goes_to_fewer_spaces(tmp_path: Path) -> None:
    family = started(tmp_path, PretendedRuns(by_space), [ONE], trials=5)
    (race,) = family.races.values()
    assert race.first == ()
    assert trials(tmp_path) == {FAST: 5}
    with pytest.raises(UsageError, match="1 trial for 2 groups of cases: each needs at least one"):
        started(tmp_path / "other", PretendedRuns(by_space), [ONE, OTHER], trials=1)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("total", [2, 9, 16, 33, 50])
def test_trials_are_a_total_over_the_groups(tmp_path: Path, total: int) -> None:
    family = started(tmp_path, PretendedRuns(by_space), [ONE, OTHER], trials=total)
    assert sum(trials(tmp_path).values()) == total
    assert all(race.winner for race in family.races.values())


def test_minutes_are_a_total_over_the_groups(tmp_path: Path) -> None:
    started(tmp_path, PretendedRuns(by_space), [ONE, OTHER], minutes=5)
    worked_s = sum(trials(tmp_path).values())
    assert 150 < worked_s <= 300  # confirming, which takes no time here, has 30% of a winner's


def test_racing_that_takes_long_is_cut(tmp_path: Path) -> None:
    """Each trial takes a tenth of the time."""
    family = started(tmp_path, PretendedRuns(by_space, trial_s=6.0), [ONE], minutes=1)
    (race,) = family.races.values()
    assert len(race.finalists) == 1
    assert race.winner == FAST


def test_few_minutes_are_for_fewer_spaces(tmp_path: Path) -> None:
    """Starting a run takes seconds, too."""
    family = started(tmp_path, PretendedRuns(by_space), [ONE], minutes=0.5)
    (race,) = family.races.values()
    assert (race.first, race.winner) == ((), FAST)


def test_each_run_begins_with_a_champion_near_the_case(tmp_path: Path) -> None:
    runs = PretendedRuns(by_space)
    started(tmp_path, runs, [{**ONE, "dtype": "bfloat16"}, OTHER], trials=20)
    spaces = {request.space: request for request in runs.requests}
    assert [near["BLOCK_M"] for near in spaces["attention-features-simd-cpu"].near] == [64, 192]
    assert spaces["attention-cpu-bf16"].dtype == ""


def test_a_space_without_a_configuration_falls_out(tmp_path: Path) -> None:
    said: list[str] = []
    runs = PretendedRuns(by_space, refused=[FAST])
    family = started(tmp_path, runs, [ONE], trials=40, say=said.append)
    (race,) = family.races.values()
    assert (race.winner, race.failed) == (SLOW, {FAST: "no valid configuration"})
    assert any(line.endswith(f"{FAST} is left out: no valid configuration") for line in said)
    few = started(tmp_path / "few", PretendedRuns(by_space, refused=[FAST]), [ONE], trials=3)
    assert [race.winner for race in few.races.values()] == [SLOW]


def test_no_valid_candidate_is_no_winner(tmp_path: Path) -> None:
    said: list[str] = []
    runs = PretendedRuns(lambda space, number: 0.0)
    family = started(tmp_path, runs, [ONE], trials=40, say=said.append)
    assert [race.winner for race in family.races.values()] == [""]
    assert said[-1].endswith("no space has a valid candidate")
    with pytest.raises(UsageError, match="has no confirmed champion yet"):
        exportable_runs(list_families(tmp_path)[0])


def test_the_next_best_is_confirmed_where_the_winner_fails(tmp_path: Path) -> None:
    runs = PretendedRuns(by_space, unconfirmed=[FAST])
    family = started(tmp_path, runs, [ONE], trials=40)
    (race,) = family.races.values()
    assert [step.space for step in race.last] == [FAST, SLOW]
    (folder,) = list_families(tmp_path)
    assert is_confirmed(winning_runs(folder, family)[family.groups[0].name])


def end_of(folder: Path, family: Family) -> dict[str, Any]:
    """What a kill must not change."""
    races: dict[str, Any] = msgspec.to_builtins(family.races)
    return {"races": races, "state": family.state, "trials": trials(folder)}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("budget", [{"trials": 22}, {"minutes": 0.7}])
def test_a_kill_changes_no_decision(tmp_path: Path, budget: dict[str, Any]) -> None:
    whole = started(tmp_path / "whole", PretendedRuns(by_space), [ONE, OTHER], **budget)
    expected = end_of(tmp_path / "whole", whole)
    for after in (1, 2, 3, 7):
        folder = tmp_path / str(after)
        killed = PretendedRuns(by_space, killed_after=after)
        found = started(folder, killed, [ONE, OTHER], **budget)
        assert end_of(folder, found) == expected, after


def test_new_totals_go_to_the_winners(tmp_path: Path) -> None:
    started(tmp_path, PretendedRuns(by_space), [ONE], trials=40)
    before = trials(tmp_path)
    family = resumed(tmp_path, PretendedRuns(by_space), trials=60)
    assert trials(tmp_path) == {**before, FAST: before[FAST] + 20}
    again = resumed(tmp_path, PretendedRuns(by_space))
    assert again.races == family.races
    fewer = resumed(tmp_path, PretendedRuns(by_space), trials=10)
    assert sum(trials(tmp_path).values()) == 60
    assert fewer.state == "finished"


def test_a_family_is_found_like_a_run(tmp_path: Path) -> None:
    started(tmp_path, PretendedRuns(by_space), [ONE], trials=8)
    (folder,) = list_families(tmp_path)
    for text in ("latest", folder.id, folder.id[:10], str(folder.path)):
        found = find_family(text, tmp_path)
        assert found is not None
        assert found.id == folder.id
    assert find_family("20", tmp_path / "nowhere") is None
    (member, *_) = family_runs(folder).values()
    assert find_run(str(member.path), tmp_path).id == member.id
    assert find_family(str(member.path), tmp_path) is None
    with pytest.raises(UsageError, match=f"{folder.id} is a family of runs; name one of them"):
        find_run("latest", tmp_path)


def test_only_one_process_works_on_a_family(tmp_path: Path) -> None:
    started(tmp_path, PretendedRuns(by_space), [ONE], trials=8)
    (folder,) = list_families(tmp_path)
    with folder.locked(), pytest.raises(RunLocked):
        resume_family(folder, silent, lambda text: None)


def test_a_family_that_was_killed_says_so(tmp_path: Path) -> None:
    started(tmp_path, PretendedRuns(by_space), [ONE], trials=8)
    family = open_family("latest", tmp_path)
    assert family is not None
    assert family.state == "finished"
    path = family.path / FAMILY_FILE
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "state": "running"}))
    assert family.state == "killed"
    with family.folder.locked():
        assert family.state == "running"
    path.write_text("{")
    with pytest.raises(StoreError, match=r"family\.json is damaged"):
        read_family(family.folder)
