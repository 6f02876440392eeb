"""The store keeps every outcome that it acknowledged, or says in one sentence why it cannot."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from evotune.errors import StoreError
from evotune.store import RunStore, opening
from evotune.trial import Check, Configuration, Measurement, Outcome, OutcomeKind, Trial
from tests.patience import PATIENCE_S

from .forging import change, forge

ROOT = Path(__file__).parents[2]


def trial(number: int, fitness: float = 0.5) -> Trial:
    return Trial(number, Configuration({"A": number, "B": "x"}), Outcome(OutcomeKind.OK, fitness))


RICH = Outcome(
    OutcomeKind.OK,
    fitness=0.1,
    fitness_low=0.05,
    fitness_high=0.15,
    flags=("throttled",),
    duplicate_of=3,
    measurements=(Measurement("c", 1.5, 1.25, "sdpa:math", 2.5, 1.6, 1.5, 1.7, 25),),
    checks=(Check("c", "normal", "passed", 1e-7, 2e-7, 1e-8, 2e-8),),
    stage_s={"compile": 0.25},
    resources={"registers": 32, "device": {"clock_mhz": 2000.5}},
    binary="ab" * 32,
)
FAILED = Outcome(OutcomeKind.COMPILE_ERROR, reason="k.cpp:1: error: “x”", log="line\nline")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


# --- kept rows ---------------------------------------------------------------------------


def test_outcomes_come_back_as_they_were_in_order_of_proposals(path: Path) -> None:
    with RunStore.create(path) as store:
        for number, outcome in ((2, FAILED), (0, RICH), (1, FAILED)):
            store.append(Trial(number, Configuration({"A": number, "B": True}), outcome), 1.5)
    for opened in (RunStore.open_for_writing, RunStore.open_for_reading):
        with opened(path) as store:
            trials = list(store.trials())
            assert [t.number for t in trials] == [0, 1, 2]
            assert [t.outcome for t in trials] == [RICH, FAILED, FAILED]
            assert trials[0].configuration == Configuration({"A": 0, "B": True})
            assert [t.number for t in store.trials(first=1)] == [1, 2]
            assert (store.count(), store.searched_s()) == (3, 1.5)


def test_the_times_of_finishing_are_kept(path: Path) -> None:
    with RunStore.create(path) as store:
        assert (store.count(), store.searched_s(), store.finish_times_s([0])) == (0, 0.0, {})
        store.append(trial(1), 7.5)
        store.append(trial(0), 9.25)
        assert store.finish_times_s([0, 1, 2]) == {0: 9.25, 1: 7.5}
        assert store.searched_s() == 9.25


def test_an_outcome_is_never_replaced(path: Path) -> None:
    with RunStore.create(path) as store:
        store.append(trial(0, 0.5), 1.0)
        with pytest.raises(StoreError):
            store.append(trial(0, 0.9), 2.0)
        assert [t.outcome.fitness for t in store.trials()] == [0.5]


def test_facts_and_confirmations_can_be_set_again(path: Path) -> None:
    with RunStore.create(path) as store:
        assert store.meta("state") is None
        assert store.meta("state", "none") == "none"
        for value in ("running", {"a": [1, None, "é"]}, False):
            store.set_meta("state", value)
            assert store.meta("state") == value
        store.confirm(4, FAILED, 1.0)
        store.confirm(4, RICH, 2.0)
        assert store.confirmations() == {4: RICH}


def test_the_two_newest_snapshots_are_kept(path: Path) -> None:
    with RunStore.create(path) as store:
        assert store.snapshot(at_most=10_000) is None
        for told in (1000, 2000, 3000):
            store.save_snapshot(told, {"told": told})
        assert store.snapshot(at_most=10_000) == (3000, {"told": 3000})
        assert store.snapshot(at_most=2999) == (2000, {"told": 2000})
        assert store.snapshot(at_most=1999) is None


def test_the_history_digest_is_of_what_was_tried_and_in_which_order(path: Path) -> None:
    digests = []
    histories = [(0, 1), (1, 0), (0, 2), (0,)]
    for index, values in enumerate(histories):
        with RunStore.create(path.with_name(f"{index}.sqlite")) as store:
            for number, value in enumerate(values):
                configuration = Configuration({"A": value})
                store.append(Trial(number, configuration, FAILED), float(index))
            digests.append(store.history_digest())
    assert len(set(digests)) == len(histories)
    with RunStore.create(path) as store:  # the same trials in another order, with other outcomes
        store.append(Trial(1, Configuration({"A": 1}), RICH), 9.0)
        store.append(Trial(0, Configuration({"A": 0}), RICH), 8.0)
        assert store.history_digest() == digests[0]


# --- several processes -------------------------------------------------------------------


def test_a_reader_beside_a_writer_sees_every_acknowledged_outcome(path: Path) -> None:
    seen: list[int] = []
    written = 0
    with RunStore.create(path) as store:
        reader = RunStore.open_for_reading(path)
        try:
            for number in range(50):
                store.append(trial(number), float(number))
                written = number + 1
                seen.append(reader.count())
        finally:
            reader.close()
    assert seen == list(range(1, written + 1))


def test_a_reader_cannot_write(path: Path) -> None:
    RunStore.create(path).close()
    with RunStore.open_for_reading(path) as reader, pytest.raises(StoreError, match="readonly"):
        reader.append(trial(0), 0.0)


_WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from evotune.store import RunStore
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial
store = RunStore.create(Path(sys.argv[1]))
for number in range(10**9):
    outcome = Outcome(OutcomeKind.COMPILE_ERROR, log="x" * (number % 7 * 1000))
    store.append(Trial(number, Configuration({"A": number}), outcome), float(number))
    print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 40, 700])
def test_kill_9_loses_nothing_that_was_acknowledged(path: Path, lines: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), str(ROOT)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    for _ in range(lines):
        process.stdout.readline()
    process.kill()
    acknowledged = lines + len(process.stdout.read().split(b"\n")) - 1
    process.wait()
    process.stdout.close()
    with RunStore.open_for_reading(path) as store:
        read_only = store.count()
    with RunStore.open_for_writing(path) as store:
        assert store.count() == read_only
        numbers = [t.number for t in store.trials()]
        assert numbers == list(range(len(numbers)))
        assert acknowledged <= len(numbers) <= acknowledged + 1
        store.append(trial(len(numbers)), 0.0)


# --- files that are not stores -----------------------------------------------------------


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE diary (entry TEXT)")
    connection.close()


def _newer(path: Path) -> None:
    RunStore.create(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def _truncated(path: Path) -> None:
    with RunStore.create(path) as store:
        for number in range(300):
            store.append(trial(number), 0.0)
    path.write_bytes(path.read_bytes()[: 3 * 4096 + 100])


def _beheaded(path: Path) -> None:
    RunStore.create(path).close()
    path.write_bytes(path.read_bytes()[:50])


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "is missing"),
    "folder": (lambda path: path.mkdir(), "is missing"),
    "empty": (lambda path: path.touch(), "is not an evotune store"),
    "text": (lambda path: path.write_text("hello " * 100), "is damaged"),
    "foreign": (_foreign, "is not an evotune store"),
    "newer": (
        _newer,
        "newer evotune .store version 99, this one reads up to "
        f"{opening.newest_version()}.; update",
    ),
    "truncated": (_truncated, "is damaged"),
    "beheaded": (_beheaded, "is not an evotune store"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("opened", [RunStore.open_for_writing, RunStore.open_for_reading])
def test_what_is_no_store_of_ours_is_refused_in_one_sentence(
    path: Path, name: str, opened: Callable[[Path], RunStore]
) -> None:
    make, words = BAD[name]
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError, match=words) as caught, opened(path) as store:
        list(store.trials())
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 4
    assert (path.read_bytes() if path.is_file() else b"") == before, "it must not be touched"


@pytest.mark.parametrize(
    ("statement", "read"),
    [
        ("UPDATE outcomes SET outcome = '{'", lambda store: list(store.trials())),
        ("UPDATE outcomes SET outcome = '[]'", lambda store: list(store.trials())),
        ('UPDATE outcomes SET outcome = \'{"kind": "odd"}\'', lambda store: list(store.trials())),
        ('UPDATE outcomes SET outcome = \'{"kind": "ok"}\'', lambda store: list(store.trials())),
        ("UPDATE outcomes SET configuration = '7'", lambda store: list(store.trials())),
        ("UPDATE meta SET value = '{'", lambda store: store.meta("state")),
        ("UPDATE confirmations SET outcome = 'x'", lambda store: store.confirmations()),
        ("UPDATE snapshots SET state = ''", lambda store: store.snapshot(5000)),
    ],
)
@pytest.mark.parametrize("damage", [change, forge])
def test_damaged_content_is_a_store_error_where_it_is_read(
    path: Path, statement: str, read: Callable[[RunStore], object], damage: Callable[..., None]
) -> None:
    with RunStore.create(path) as store:
        store.append(trial(0), 0.0)
        store.set_meta("state", "running")
        store.confirm(0, RICH, 0.0)
        store.save_snapshot(1000, {})
    damage(path, statement)
    with (
        pytest.raises(StoreError, match="is damaged"),
        RunStore.open_for_reading(path) as store,
    ):
        read(store)


def test_a_store_is_not_made_where_there_is_something(path: Path, tmp_path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(StoreError, match="exists already"):
        RunStore.create(path)
    assert path.read_text() == "precious"
    with pytest.raises(StoreError, match="cannot be used now"):
        RunStore.create(tmp_path / "no" / "such" / "folder.sqlite")


@pytest.mark.parametrize("name", [".store.sqlite.unfinished", "store.sha256"])
def test_a_file_beside_the_store_that_cannot_be_removed_is_told(path: Path, name: str) -> None:
    if name == "store.sha256":
        RunStore.create(path).close()
        path.with_name(name).unlink()
    path.with_name(name).mkdir()
    opened = RunStore.open_for_writing if path.exists() else RunStore.create
    with pytest.raises(StoreError, match=f"cannot be used now .*{name}"):
        opened(path)


def test_a_store_in_a_folder_with_an_odd_name_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "50% of #1?mode=memory"
    folder.mkdir()
    with RunStore.create(folder / "store.sqlite") as store:
        store.append(trial(0), 0.0)
    with RunStore.open_for_reading(folder / "store.sqlite") as store:
        assert store.count() == 1


def test_another_writer_that_holds_on_is_told_apart_from_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunStore.create(path) as store:
        store._connection.execute("PRAGMA busy_timeout = 50")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"cannot be used now .*locked"):
            store.append(trial(0), 0.0)
        other.execute("ROLLBACK")
        other.close()
        store.append(trial(0), 0.0)
        assert store.count() == 1


# --- versions ----------------------------------------------------------------------------


def _next_step(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE outcomes ADD COLUMN note TEXT NOT NULL DEFAULT ''")


def _failing_step(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TABLE snapshots")
    connection.execute("no SQL at all")


def _version(path: Path) -> int:
    connection = sqlite3.connect(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(version)


def test_a_new_store_has_the_newest_version(path: Path) -> None:
    RunStore.create(path).close()
    assert _version(path) == len(opening.MIGRATIONS)


def test_an_older_store_is_migrated_when_opened_for_writing_and_not_for_reading(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunStore.create(path) as store:
        store.append(trial(0), 0.0)
    before = opening.newest_version()
    monkeypatch.setattr(opening, "MIGRATIONS", (*opening.MIGRATIONS, _next_step))
    with RunStore.open_for_reading(path) as store:
        assert store._read("SELECT note FROM outcomes") == [("",)]
    assert _version(path) == before
    with RunStore.open_for_writing(path) as store:
        assert store._read("SELECT note FROM outcomes") == [("",)]
        assert store.count() == 1
    assert _version(path) == before + 1


@pytest.mark.parametrize("opened", [RunStore.open_for_writing, RunStore.open_for_reading])
@pytest.mark.parametrize("text", ['{"fitness": "x"}', "[]", "{"])
def test_a_damaged_text_of_the_first_version_is_told_when_it_is_read(
    path: Path, opened: Callable[[Path], RunStore], text: str
) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        opening.MIGRATIONS[0](connection)
        connection.execute("INSERT INTO outcomes VALUES (0, '{}', ?, 1.0)", (text,))
        connection.execute(f"PRAGMA application_id = {opening.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    with opened(path) as store, pytest.raises(StoreError, match="is damaged"):
        list(store.trials())


def test_a_migration_that_fails_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunStore.create(path) as store:
        store.save_snapshot(1000, {})
    old = opening.MIGRATIONS
    monkeypatch.setattr(opening, "MIGRATIONS", (*old, _next_step, _failing_step))
    with pytest.raises(StoreError):
        RunStore.open_for_writing(path)
    monkeypatch.setattr(opening, "MIGRATIONS", old)
    with RunStore.open_for_writing(path) as store:
        assert store.snapshot(1000) == (1000, {})


def test_two_readers_in_threads_of_their_own_do_not_disturb_each_other(path: Path) -> None:
    with RunStore.create(path) as store:
        for number in range(100):
            store.append(trial(number), 0.0)
    counts: list[int] = []

    def read() -> None:
        with RunStore.open_for_reading(path) as reader:
            counts.append(sum(1 for _ in reader.trials()))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [100, 100]


def test_in_a_quiet_moment_everything_moves_into_the_main_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.sqlite"
    with RunStore.create(path) as store:
        monkeypatch.setattr("evotune.store.run_store._SYNC_EVERY_S", 1e9)
        store.append(trial(0), 0.0)
        store.sync()  # not due yet
        assert _count_in_copy_without_wal(path, tmp_path / "early.sqlite") == 0
        monkeypatch.setattr("evotune.store.run_store._SYNC_EVERY_S", 0.0)
        store.sync()
        assert _count_in_copy_without_wal(path, tmp_path / "late.sqlite") == 1


_NAMES_SYNCED_FILES = """
#include <stdio.h>
#include <unistd.h>
static int named(int fd) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0) dprintf(1, "%s\\n", path);
    return 0;
}
extern "C" int fsync(int fd) { return named(fd); }
extern "C" int fdatasync(int fd) { return named(fd); }
"""
_SYNCS_BESIDE_A_READER = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from evotune.store import RunStore, run_store
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

def append_and_sync(number):
    run_store._SYNC_EVERY_S = 1e9
    store.append(Trial(number, Configuration({"A": number}), Outcome(OutcomeKind.NAN)), 0.0)
    run_store._SYNC_EVERY_S = 0.0
    os.write(1, b"append\\n")
    store.sync()

path = Path(sys.argv[1])
with RunStore.create(path) as store, RunStore.open_for_reading(path) as reader:
    append_and_sync(0)
    for number in (1, 3):
        with reader.at_one_moment():
            reader.count()
            append_and_sync(number)
            append_and_sync(number + 1)
    os.write(1, b"append\\n")
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_quiet_moment_syncs_the_log_though_a_reader_holds_on_to_older_pages(path: Path) -> None:
    library = path.with_name("names_synced_files.so")
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=_NAMES_SYNCED_FILES, text=True, check=True, timeout=PATIENCE_S)
    found = subprocess.run(
        [sys.executable, "-c", _SYNCS_BESIDE_A_READER, str(path), str(ROOT)],
        env={**os.environ, "LD_PRELOAD": str(library)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    _, *synced, _ = found.stdout.split("append\n")
    assert [f"{path}-wal" in files.splitlines() for files in synced] == [True] * 5


def _count_in_copy_without_wal(path: Path, copy: Path) -> int:
    copy.write_bytes(path.read_bytes())
    with RunStore.open_for_writing(copy) as store:
        return store.count()


def test_counts_gaps_and_the_best_are_known_without_reading_every_outcome(path: Path) -> None:
    with RunStore.create(path) as store:
        assert (store.count_ok(), store.first_missing(), store.best(before=9)) == (0, 0, None)
        for number, fitness in ((0, 0.25), (3, 0.5), (1, 0.5), (6, 0.75)):
            store.append(trial(number, fitness), 0.0)
        store.append(Trial(2, Configuration({"A": 2}), FAILED), 0.0)
        assert (store.count_ok(), store.first_missing()) == (4, 4)
        assert store.best(before=6) == trial(1, 0.5), "of equals the first"
        assert store.best(before=7) == trial(6, 0.75)
        assert store.best(before=1) == trial(0, 0.25)


def test_trials_are_found_by_what_became_of_them(path: Path) -> None:
    twin = Outcome(OutcomeKind.OK, 0.1, duplicate_of=0, binary=RICH.binary)
    outcomes = (msgspec.structs.replace(RICH, duplicate_of=None), FAILED, twin, FAILED)
    with RunStore.create(path) as store:
        for number, outcome in enumerate(outcomes):
            store.append(Trial(number, Configuration({"A": number}), outcome), number / 2)
        assert store.kinds() == {OutcomeKind.OK: 2, OutcomeKind.COMPILE_ERROR: 2}
        assert list(store.fittest()) == [0, 2]
        assert store.duplicates() == {2: 0}
        assert [t.number for t in store.with_binary(RICH.binary)] == [0]
        assert list(store.with_binary("")) == []
        assert store.stage_s() == {"compile": [0.25]}
        assert [t.outcome for t in store.trials_of([3, 0, 9])] == [outcomes[0], FAILED]


def test_figures_that_are_no_numbers_hide_nothing(path: Path) -> None:
    """JSON has no NaN, and SQLite's functions for JSON refuse the NaN that Python writes."""
    check = Check("c", "normal", "failed", float("nan"), float("inf"))
    with RunStore.create(path) as store:
        store.append(trial(0), 0.0)
        outcome = msgspec.structs.replace(RICH, checks=(check,), duplicate_of=None)
        store.append(Trial(1, Configuration({"A": 1}), outcome), 0.0)
        assert (store.count_ok(), list(store.fittest())) == (2, [0, 1])
        assert store.best(before=9) == trial(0)


def test_what_is_read_at_one_moment_does_not_change(path: Path) -> None:
    with RunStore.create(path) as store, RunStore.open_for_reading(path) as reader:
        store.append(trial(0), 0.0)
        with reader.at_one_moment():
            assert reader.count() == 1
            store.append(trial(1), 0.0)
            assert (reader.count(), len(list(reader.trials()))) == (1, 1)
        assert reader.count() == 2
