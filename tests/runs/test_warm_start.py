"""`--warm-start`: the best configurations of one run are the first trials of another."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest

from evotune.backends.base.recorded import read_recorded_space
from evotune.errors import UsageError
from evotune.report.data import RunData
from evotune.runs.observer import SilentObserver
from evotune.runs.starting import RunRequest, resume_run, start_run, warm_starts

from .runs import RECORDING, run_request


def request(tmp_path: Path, **changes: object) -> RunRequest:
    given = {"space": RECORDING, "runs_dir": tmp_path / "runs", "trials": 40, "seed": 1}
    return run_request(**(given | changes))  # type: ignore[arg-type]


def test_the_best_of_the_earlier_run_come_right_after_the_default(tmp_path: Path) -> None:
    first = start_run(request(tmp_path), SilentObserver()).run
    again = request(tmp_path, warm_start=first, seed=2, strategy="random")
    second = start_run(again, SilentObserver()).run
    trials, warmed = RunData.load(first).trials, RunData.load(second).trials
    best = sorted(
        (t for t in trials if t.outcome.fitness is not None), key=lambda t: -t.outcome.fitness
    )
    expected = dict.fromkeys([trials[0].configuration, *(t.configuration for t in best)])
    assert [t.configuration for t in warmed[:9]] == list(expected)[:9]
    assert len({t.configuration for t in warmed}) == 40


def test_what_the_space_wants_tried_first_goes_before_an_earlier_run(tmp_path: Path) -> None:
    first = start_run(request(tmp_path), SilentObserver()).run
    space = read_recorded_space(RECORDING).space
    best = warm_starts(space, [space.default()], first)[1:]
    wanted = [space.default(), best[1], *itertools.islice(space.enumerate(), 20)]
    assert len(best) == 8
    starts = warm_starts(space, wanted, first)
    assert starts[: len({*wanted})] == list(dict.fromkeys(wanted))
    assert {*best[:8]} <= {*starts}
    assert len({*starts}) == len(starts)


def test_a_resumed_run_needs_the_earlier_one_no_more(tmp_path: Path) -> None:
    first = start_run(request(tmp_path), SilentObserver()).run
    whole = start_run(request(tmp_path, warm_start=first), SilentObserver()).run
    part = start_run(request(tmp_path, warm_start=first, trials=4), SilentObserver()).run
    first.store.unlink()
    resume_run(part, SilentObserver(), trials=40)
    assert [t.configuration for t in RunData.load(part).trials] == [
        t.configuration for t in RunData.load(whole).trials
    ]


def test_configurations_of_another_space_are_repaired(tmp_path: Path) -> None:
    """The earlier run's space lacks the smallest tiles and one parameter; the rest of its best
    configuration is taken over."""
    document = json.loads(gzip.decompress(RECORDING.read_bytes()))
    names = [name for name in document["tune_params_keys"] if name != "vector"]
    kept = {}
    for entry in document["cache"].values():
        if entry["tile_x"] >= 2:
            kept[",".join(str(entry[name]) for name in names)] = entry
    other = {**document, "tune_params_keys": names, "cache": kept}
    (tmp_path / "other.json").write_text(json.dumps(other))
    first = start_run(request(tmp_path, space=str(tmp_path / "other.json")), SilentObserver()).run
    second = start_run(request(tmp_path, warm_start=first, trials=9), SilentObserver()).run
    start = RunData.load(second).trials[1].configuration
    best = max(
        (t for t in RunData.load(first).trials if t.outcome.fitness is not None),
        key=lambda t: t.outcome.fitness,
    ).configuration
    assert sum(start[name] != best[name] for name in names) <= 1


def test_a_run_without_a_success_is_refused(tmp_path: Path) -> None:
    document = json.loads(gzip.decompress(RECORDING.read_bytes()))
    key, entry = next(iter(document["cache"].items()))
    failed = {**document, "cache": {key: {**entry, "time": "InvalidConfig"}}}
    (tmp_path / "failed.json").write_text(json.dumps(failed))
    first = start_run(request(tmp_path, space=str(tmp_path / "failed.json")), SilentObserver()).run
    with pytest.raises(UsageError, match="no valid configuration to start from"):
        start_run(request(tmp_path, warm_start=first), SilentObserver())


def test_configurations_near_the_case_are_tried_before_the_default(tmp_path: Path) -> None:
    """A parameter or value that the space has not counts as its default."""
    space = read_recorded_space(RECORDING).space
    default, other = space.default(), next(itertools.islice(space.enumerate(), 5, None))
    name = next(n for n in other if other[n] != default[n])
    near = [{**other, "NOBODYS": 3}, {**default, name: "nothing"}]
    run = start_run(request(tmp_path, near=near, trials=6), SilentObserver()).run
    assert [t.configuration for t in RunData.load(run).trials[:2]] == [other, default]
