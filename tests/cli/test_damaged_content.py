"""Stores with sound pages and damaged content: one line, exit code 4, no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from report.runs import failed, make_run, ok
from runs.runs import recorded_space, run_here
from store.forging import change, forge

import evotune.report.data
from evotune.store import RunStore
from evotune.trial import OutcomeKind

from .conftest import Invoke

READERS = (
    ("top",),
    ("status",),
    *(("report", "--format", style) for style in ("md", "csv", "json", "t4")),
)
DAMAGE = (
    'UPDATE outcomes SET outcome = \'{"kind":"ok","fitness":0.5,"resources":7}\'',
    'UPDATE outcomes SET outcome = \'{"kind":"ok","fitness":0.5,"stage_s":{"a":{}}}\'',
    'UPDATE outcomes SET outcome = \'{"kind":"nan","flags":5}\'',
    'UPDATE outcomes SET outcome = replace(outcome, \'"time_us":\', \'"time_us":null,"x":\')',
    "UPDATE outcomes SET configuration = '{\"BLOCK_M\":{}}'",
    "UPDATE outcomes SET configuration = ''",
    "UPDATE outcomes SET finished_s = 9e999",
    "UPDATE meta SET value = '5' WHERE name = 'settings'",
    "UPDATE meta SET value = '{\"timings\":[7]}' WHERE name = 'baselines'",
    f"UPDATE meta SET value = '{'[' * 3000}' WHERE name = 'space'",
    "INSERT OR REPLACE INTO meta VALUES ('ablation', '{\"trial\":0,\"rows\":[{}]}')",
    'INSERT OR REPLACE INTO meta VALUES (\'baselines\', \'{"timings":[{"case":"c"}]}\')',
    "INSERT OR REPLACE INTO meta VALUES ('baselines', '{\"copy_gbps\":\"x\"}')",
)


@pytest.mark.parametrize(
    ("statement", "damage"),
    [
        *((statement, change) for statement in (*DAMAGE, "UPDATE outcomes SET kind = 'odd'")),
        *((statement, forge) for statement in DAMAGE),
    ],
)
def test_readers_say_that_the_store_is_damaged(
    invoke: Invoke, tmp_path: Path, statement: str, damage: Callable[..., None]
) -> None:
    run = make_run(tmp_path / "runs", [ok(1.2), failed(OutcomeKind.NAN), ok(1.1, duplicate_of=0)])
    damage(run.store, statement)
    for words in READERS:
        result = invoke(words[0], run.path, *words[1:])
        assert result.exit_code == 4, (words, result.output, result.exception)
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"error: the store {run.store} is damaged (")


@pytest.mark.parametrize(
    "statement",
    [
        'UPDATE outcomes SET outcome = \'{"kind":"ok","fitness":0.1,"resources":7}\'',
        'UPDATE outcomes SET outcome = \'{"kind":"ok","fitness":0.1,"fitness_low":"x"}\'',
        "UPDATE outcomes SET configuration = '[1]'",
        "UPDATE outcomes SET outcome = '{'",
    ],
)
def test_damage_that_is_met_in_the_middle_of_a_report_leaves_none(
    invoke: Invoke, tmp_path: Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evotune.report.data, "_HEAD_ROWS", 1)
    run = make_run(tmp_path / "runs", [ok(2 - n / 9) for n in range(9)])
    forge(run.store, f"{statement} WHERE number = 6")
    for style in ("csv", "json", "jsonl", "t4", "parquet"):
        file = tmp_path / f"report.{style}"
        result = invoke("report", run.path, "--format", style, "-o", file)
        assert result.exit_code == 4, (style, result.output, result.exception)
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"error: the store {run.store} is damaged (")
        assert not file.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("settings", [1, 2]),
        ("settings", None),
        ("settings", {"strategy": "random"}),
        ("device", "x"),
        ("device", {"name": "x"}),
    ],
)
def test_a_run_does_not_go_on_with_damaged_facts(
    invoke: Invoke, tmp_path: Path, name: str, value: object
) -> None:
    run = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=20)
    forge(run.store, f"UPDATE meta SET value = '{json.dumps(value)}' WHERE name = '{name}'")
    result = invoke("resume", run.path, "--trials", 30)
    assert result.exit_code == 4, (result.output, result.exception)
    assert "is damaged (" in result.stderr
    assert "internal error" not in result.stderr


@pytest.mark.parametrize("changed", [{"chronicle": {}}])
def test_a_damaged_snapshot_costs_time_and_nothing_else(
    invoke: Invoke, tmp_path: Path, changed: dict[str, object]
) -> None:
    runs = []
    for folder in ("one", "other"):
        space = recorded_space(tmp_path / folder)
        run = run_here(space, tmp_path / folder / "runs", trials=1010, strategy="local")
        runs.append(run)
    with RunStore.open_for_writing(runs[1].store) as store:
        snapshot = store.snapshot(at_most=1000)
        assert snapshot is not None
        store.save_snapshot(1000, {**snapshot[1], **changed})
    digests = []
    for run in runs:
        assert invoke("resume", run.path, "--trials", 1040).exit_code == 0
        with RunStore.open_for_reading(run.store) as store:
            digests.append(store.history_digest())
    assert digests[0] == digests[1]
