"""A store of every released version can be read, and a run can go on with it."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from evotune.errors import StoreError
from evotune.store import RunStore, opening
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

RELEASED = Path(__file__).parent / "released"
VERSIONS = range(1, opening.newest_version() + 1)


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
            assert (list(store.fittest()), store.duplicates()) == ([0, 2], {2: 0})
            assert store.kinds() == {OutcomeKind.OK: 2, OutcomeKind.NAN: 1}


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_gone_on_with(path: Path) -> None:
    with RunStore.open_for_writing(path) as store:
        store.append(Trial(3, Configuration({"A": 4, "B": "y"}), Outcome(OutcomeKind.OK, 1.0)), 2.0)
        assert (store.count(), store.best(before=9).number) == (4, 3)  # type: ignore[union-attr]


def _large_version_1(path: Path, trials: int) -> None:
    connection = sqlite3.connect(path)
    connection.executescript((RELEASED / "version_1.sql").read_text())
    with connection:
        connection.executemany(
            """INSERT INTO outcomes VALUES (?, '{"A":1}', '{"kind":"ok","fitness":0.5}', 0.0)""",
            ((number,) for number in range(3, trials)),
        )
    connection.close()


@pytest.mark.parametrize("instructions", [2_000, 20_000, 100_000])
def test_a_migration_that_is_killed_has_done_nothing(tmp_path: Path, instructions: int) -> None:
    path = tmp_path / "store.sqlite"
    _large_version_1(path, 6000)
    connect = sqlite3.connect

    def connect_and_die(*arguments: object, **options: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)  # type: ignore[call-overload]
        if "mode=ro" not in str(arguments[0]):
            kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
            connection.set_progress_handler(kill, instructions)
        return connection

    child = os.fork()
    if child == 0:
        sqlite3.connect = connect_and_die  # type: ignore[assignment]
        RunStore.open_for_writing(path)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it was to be killed while it migrated"
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()
    for opened in (RunStore.open_for_reading, RunStore.open_for_writing):
        with opened(path) as store:
            assert (store.count(), store.count_ok()) == (6000, 5999)


def test_a_record_that_is_damaged_is_named_by_who_reads_it_and_stops_no_migration(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.sqlite"
    _large_version_1(path, 5)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE outcomes SET outcome = '{\"kind\":' WHERE number = 3")
    connection.close()
    with RunStore.open_for_writing(path) as store:
        assert list(store.fittest()) == [0, 4, 2]
        for read in (store.kinds, lambda: list(store.trials())):
            with pytest.raises(StoreError, match="is damaged"):
                read()
