"""A store that was changed behind evotune's back gives the right answer, or none."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from evotune.errors import StoreError
from evotune.store import RunStore, run_store
from evotune.trial import Check, Configuration, Measurement, Outcome, OutcomeKind, Trial

from .forging import change, forge

TRIALS = 120
PAGE = 4096


def _outcome(number: int) -> Outcome:
    rng = random.Random(number)
    if number % 5 == 0:
        return Outcome(OutcomeKind.COMPILE_ERROR, reason=f"k.cpp:{number}: error", log="x" * 200)
    speedup = 0.5 + rng.random()
    timed = Measurement("c", 100 / speedup, 1.0, "sdpa:math", 100.0, speedup, 0.9, 1.1, 25)
    check = Check("c", "normal", "passed", rng.random(), 1.0, rng.random(), 0.6)
    return Outcome(
        OutcomeKind.OK,
        fitness=rng.random(),
        measurements=(timed,),
        checks=(check,) * 8,
        stage_s={"compile": rng.random()},
        resources={"time_ms": 100 / speedup},
        duplicate_of=number - 1 if number % 7 == 0 else None,
        binary=f"{number:064x}",
    )


@dataclass(frozen=True)
class Whole:
    """A finished store: its bytes, and its answers to every query."""

    content: bytes
    answers: tuple[object, ...]


def _answers(path: Path) -> tuple[object, ...]:
    with RunStore.open_for_reading(path) as store:
        return (
            *(tuple(store.rows()), tuple(store.fittest()), store.kinds(), store.duplicates()),
            *(store.confirmations(), store.snapshot(5000), store.elapsed_s(), store.stage_s()),
            *(store.meta("settings"), store.meta("state"), store.count(), store.first_missing()),
            *(store.history_digest(), tuple(run_store.standings(store)), run_store.records(store)),
            *(tuple(run_store.failures(store)), tuple(store.with_binary(f"{3:064x}"))),
        )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    path = tmp_path_factory.mktemp("whole") / "store.sqlite"
    with RunStore.create(path, {"state": "running", "settings": {"trials": TRIALS}}) as store:
        for number in range(TRIALS):
            configuration = Configuration({"BLOCK": number, "STAGES": number % 4})
            store.append(Trial(number, configuration, _outcome(number)), number / 4)
        store.save_snapshot(100, {"told": 100, "state": list(range(300))})
        store.confirm(3, _outcome(3), 31.0)
        store.set_meta("state", "finished:trials")
    return Whole(path.read_bytes(), _answers(path))


def _judge(path: Path, whole: Whole, content: bytes) -> str:
    """`refused` or `right`; an assertion fails for a wrong answer."""
    path.write_bytes(content)
    try:
        found = _answers(path)
    except StoreError as error:
        return "refused" if error.exit_code == 4 and "\n" not in str(error) else str(error)
    assert found == whole.answers
    return "right"


def _flipped(whole: Whole, places: Iterable[int]) -> Iterable[bytes]:
    for place in places:
        content = bytearray(whole.content)
        content[place] ^= 1  # turns a digit into another digit
        yield bytes(content)


def _swapped(whole: Whole, pairs: Iterable[tuple[int, int]]) -> Iterable[bytes]:
    pages = [whole.content[at : at + PAGE] for at in range(0, len(whole.content), PAGE)]
    for one, other in pairs:
        swapped = [*pages]
        swapped[one], swapped[other] = pages[other], pages[one]
        yield b"".join(swapped)


def _pairs(whole: Whole) -> list[tuple[int, int]]:
    count = len(whole.content) // PAGE
    return [(one, other) for one in range(count) for other in range(one + 1, count)]


def test_a_flipped_bit_is_found(whole: Whole, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    places = random.Random(0).sample(range(len(whole.content)), 400)
    found = Counter(_judge(path, whole, content) for content in _flipped(whole, places))
    assert set(found) == {"refused", "right"}, "right is where nothing is stored"
    assert found["refused"] > 100


def test_swapped_pages_are_found(whole: Whole, tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    pairs = random.Random(0).sample(_pairs(whole), 200)
    found = Counter(_judge(path, whole, content) for content in _swapped(whole, pairs))
    assert set(found) == {"refused"}


@pytest.mark.soak
def test_every_byte_and_every_pair_of_pages(
    whole: Whole, tmp_path: Path, keep_result: Callable[..., None]
) -> None:
    path = tmp_path / "store.sqlite"
    bytes_found = Counter(
        _judge(path, whole, content) for content in _flipped(whole, range(len(whole.content)))
    )
    pages_found = Counter(
        _judge(path, whole, content) for content in _swapped(whole, _pairs(whole))
    )
    assert set(bytes_found) == {"refused", "right"}
    assert set(pages_found) == {"refused"}
    keep_result(
        trials=TRIALS,
        bytes_flipped=bytes_found.total(),
        bytes_refused=bytes_found["refused"],
        pages_swapped=pages_found.total(),
        pages_refused=pages_found["refused"],
        wrong_answers=0,
    )


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE outcomes SET outcome = replace(outcome, '100.0', '101.0')", "outcome 1 was chan"),
        ("UPDATE outcomes SET configuration = '{\"BLOCK\":1}' WHERE number = 7", "outcome 7 was"),
        ("UPDATE outcomes SET finished_s = 3.0 WHERE number = 7", "outcome 7 was changed"),
        ("UPDATE outcomes SET fitness = 9.0 WHERE number = 8", "columns of outcome 8 contradict"),
        ("UPDATE outcomes SET binary = 'ab' WHERE number = 8", "columns of outcome 8 contradict"),
        ("UPDATE outcomes SET place = 3 WHERE number = 7", "not in its place"),
        ("UPDATE outcomes SET number = 500 WHERE number = 7", "outcome 500 was changed"),
        ("DELETE FROM outcomes WHERE number = 119", "holds 119 outcomes of 120"),
        ("DELETE FROM outcomes WHERE number = 0", "holds 119 outcomes of 120"),
        (
            "INSERT INTO outcomes SELECT 500, configuration, outcome, finished_s, kind, fitness,"
            " duplicate_of, binary, stage_s, 120, sum FROM outcomes WHERE number = 7",
            "holds 121 outcomes of 120",
        ),
        ("DELETE FROM confirmations", "confirmations was changed"),
        ("UPDATE confirmations SET number = 4", "confirmations was changed"),
        ("DELETE FROM snapshots", "snapshots was changed"),
        ("DELETE FROM meta WHERE name = 'state'", "meta was changed"),
        ("UPDATE meta SET value = '\"running\"' WHERE name = 'state'", "meta was changed"),
        ("DELETE FROM tails WHERE name = 'meta'", "the checksum of meta is missing"),
        ("UPDATE outcomes SET configuration = CAST(x'ff41' AS TEXT)", "UTF-8"),
    ],
)
@pytest.mark.parametrize("opened", [RunStore.open_for_reading, RunStore.open_for_writing])
def test_changed_lost_doubled_and_moved_rows_are_told(
    whole: Whole,
    tmp_path: Path,
    statement: str,
    reason: str,
    opened: Callable[[Path], RunStore],
) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(whole.content)
    change(path, statement)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=reason):
        opened(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE VIEW more AS SELECT * FROM outcomes"],
        ["ALTER TABLE outcomes RENAME TO hidden", "CREATE VIEW outcomes AS SELECT * FROM hidden"],
        ["CREATE TRIGGER t AFTER INSERT ON meta BEGIN DELETE FROM outcomes; END"],
        ["CREATE TABLE more (a TEXT)"],
        ["DROP INDEX by_fitness"],
        ["ALTER TABLE snapshots ADD COLUMN more TEXT"],
        ["CREATE VIRTUAL TABLE more USING fts5(a)"],
    ],
)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_store_with_somebody_elses_tables_is_refused(
    tmp_path: Path, version: int, statements: list[str]
) -> None:
    if version == 1 and "by_fitness" in statements[0]:
        pytest.skip("it had no index yet")
    path = tmp_path / "store.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        script = Path(__file__).parent / f"released/version_{version}.sql"
        connection.executescript(script.read_text())
    change(path, *statements)
    for opened in (RunStore.open_for_reading, RunStore.open_for_writing):
        with pytest.raises(StoreError, match="its tables are not a run's"):
            opened(path)


# --- the seal ----------------------------------------------------------------------------------


def test_a_writer_that_closes_seals_the_store(path: Path, sealed: Path) -> None:
    assert not sealed.exists(), "while it writes, there is none"
    with RunStore.open_for_writing(path) as store:
        assert not sealed.exists()
        store.set_meta("state", "running")
    assert sealed.read_text().endswith("  store.sqlite\n")


@pytest.fixture
def path(whole: Whole, tmp_path: Path) -> Path:
    path = tmp_path / "store.sqlite"
    path.write_bytes(whole.content)
    return path


@pytest.fixture
def sealed(path: Path) -> Path:
    return path.with_suffix(".sha256")


def test_a_sealed_store_is_not_checked_again_and_a_changed_one_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    RunStore.open_for_writing(path).close()
    monkeypatch.setattr("evotune.store.run_store.verify", lambda *words: checked.append(1))
    RunStore.open_for_reading(path).close()
    assert not checked
    change(path, "VACUUM")
    RunStore.open_for_reading(path).close()
    assert checked


def test_a_seal_does_not_help_a_store_that_was_changed(path: Path, sealed: Path) -> None:
    RunStore.open_for_writing(path).close()
    change(path, "UPDATE outcomes SET finished_s = 3.0 WHERE number = 7")
    with pytest.raises(StoreError, match="outcome 7 was changed"):
        RunStore.open_for_reading(path)
    for text in ("", "0" * 64 + "  store.sqlite\n", "\xff"):
        sealed.write_text(text)
        with pytest.raises(StoreError, match="outcome 7 was changed"):
            RunStore.open_for_reading(path)


def test_damage_during_a_session_is_not_sealed(path: Path, sealed: Path) -> None:
    with RunStore.open_for_writing(path) as store:
        store._connection.execute("UPDATE outcomes SET finished_s = 3.0 WHERE number = 7")
    assert not sealed.exists()
    with pytest.raises(StoreError, match="outcome 7 was changed"):
        RunStore.open_for_reading(path)


def test_a_forged_store_of_the_right_tables_opens(path: Path) -> None:
    """A checksum is no signature: it finds faults, not forgers."""
    forge(path, "UPDATE outcomes SET finished_s = 3.0 WHERE number = 7")
    with RunStore.open_for_reading(path) as store:
        assert store.finish_times_s([7]) == {7: 3.0}


def test_a_store_that_is_deleted_or_replaced_takes_nothing_more(path: Path) -> None:
    with RunStore.open_for_writing(path) as store:
        path.unlink()
        with pytest.raises(StoreError, match="was deleted or replaced while it was in use"):
            store.set_meta("state", "running")
        path.write_bytes(b"")
        with pytest.raises(StoreError, match="was deleted or replaced"):
            store.append(Trial(500, Configuration({"A": 1}), _outcome(1)), 1.0)
