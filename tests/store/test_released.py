"""The store of every version that was released can be read, and gone on with."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from evotune.store import RunStore, schema
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

RELEASED = Path(__file__).parent / "released"
VERSIONS = range(1, schema.newest_version() + 1)


@pytest.fixture
def path(tmp_path: Path, version: int) -> Path:
    path = tmp_path / "store.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript((RELEASED / f"version_{version}.sql").read_text())
    connection.close()
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_what_it_holds_is_found(path: Path) -> None:
    for opened in (RunStore.open_for_reading, RunStore.open_for_writing):
        with opened(path) as store:
            trials = list(store.trials())
            assert [trial.configuration["A"] for trial in trials] == [1, 2, 3]
            assert [trial.outcome.fitness for trial in trials] == [0.5, None, 0.25]
            assert trials[1].outcome.kind is OutcomeKind.NAN
            assert trials[2].outcome.measurements[0].baseline_us == 2.5
            assert store.confirmations()[0].fitness == 0.45
            assert store.meta("settings")["population"] == 4
            assert store.snapshot(at_most=2) == (2, {"strategy": "evolution"})


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_gone_on_with(path: Path) -> None:
    with RunStore.open_for_writing(path) as store:
        store.append(Trial(3, Configuration({"A": 4, "B": "y"}), Outcome(OutcomeKind.OK, 1.0)), 2.0)
        assert (store.count(), store.best(before=9).number) == (4, 3)  # type: ignore[union-attr]
