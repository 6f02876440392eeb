"""The log of a killed writer: a changed byte leaves the history as it was, or is told."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from evotune.errors import StoreError
from evotune.store import RunStore
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

OUTCOMES = 90
_HEADER_BYTES, _FRAME_BYTES = 32, 24 + 4096


@dataclass(frozen=True)
class Files:
    """The main file and the log of a store whose process was killed."""

    main: bytes
    log: bytes
    trials: tuple[Trial, ...]

    def put(self, folder: Path, log: bytes | None = None) -> Path:
        """Makes a folder that holds the two, with another log if one is given."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = folder / "store.sqlite"
        path.write_bytes(self.main)
        Path(f"{path}-wal").write_bytes(self.log if log is None else log)
        return path


def _trial(number: int) -> Trial:
    outcome = Outcome(OutcomeKind.NAN, reason="x" * (number % 7 * 40))
    return Trial(number, Configuration({"A": number, "B": "x"}), outcome)


def _killed(
    path: Path, outcomes: int, checkpoints: Iterable[int], *, truncating: bool = True
) -> Files:
    """A store whose log went into the main file after some of its outcomes, and was then used
    again. Not `truncating`: remains of the earlier use follow, as older versions of evotune left
    them."""
    path.parent.mkdir(exist_ok=True)
    wanted = set(checkpoints)
    with RunStore.create(path, {"state": "running"}) as store:
        if not truncating:
            store._connection.execute("PRAGMA journal_size_limit = -1")
        for number in range(outcomes):
            store.append(_trial(number), float(number))
            if number in wanted:
                store._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        log = Path(f"{path}-wal")
        return Files(
            path.read_bytes(), log.read_bytes() if log.exists() else b"", tuple(store.trials())
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The second half of the outcomes is only in the log."""
    return _killed(tmp_path_factory.mktemp("log") / "store.sqlite", OUTCOMES, [OUTCOMES // 2])


def _opened(path: Path, trials: tuple[Trial, ...]) -> tuple[str, int]:
    """How the store opens (`equal` or `told`), and the number of outcomes that are said to be gone.
    An assertion fails for a shorter history."""
    before = [(each.name, each.read_bytes()) for each in _stored(path)]
    found = set()
    for opened in (RunStore.open_for_reading, RunStore.open_for_writing):
        try:
            with opened(path) as store:
                assert tuple(store.trials()) == trials
                found.add(("equal", 0))
        except StoreError as error:
            words = str(error)
            assert "-wal is damaged" in words
            assert "\n" not in words
            assert [(each.name, each.read_bytes()) for each in _stored(path)] == before
            gone = re.search(r"(\d+) of (\d+) outcomes are surely gone", words)
            if gone:
                assert int(gone[2]) <= len(trials), "no more than there were"
            found.add(("told", int(gone[1]) if gone else 0))
    assert len(found) == 1, "readers and writers agree"
    return found.pop()


def _stored(path: Path) -> list[Path]:
    return [path, Path(f"{path}-wal")]


def _flipped(log: bytes, place: int, by: int) -> bytes:
    changed = bytearray(log)
    changed[place] ^= by
    return bytes(changed)


def _places(log: bytes, rng: random.Random, each: int) -> list[int]:
    """All bytes of the log's header and the frames' headers, and `each` of every page."""
    starts = range(_HEADER_BYTES, len(log), _FRAME_BYTES)
    found = [*range(_HEADER_BYTES)]
    for start in starts:
        found += range(start, start + 24)
        found += rng.sample(range(start + 24, start + _FRAME_BYTES), each)
    return found


def _campaign(files: Files, folder: Path, places: Iterable[int]) -> Counter[str]:
    rng = random.Random(0)
    found: Counter[str] = Counter()
    for place in places:
        path = files.put(folder, _flipped(files.log, place, rng.randint(1, 255)))
        how, gone = _opened(path, files.trials)
        found[how] += 1
        found["told with a number"] += gone > 0
    return found


def test_a_changed_byte_of_the_log_is_told_with_the_outcomes_that_are_gone(
    files: Files, tmp_path: Path
) -> None:
    assert _opened(files.put(tmp_path / "whole"), files.trials) == ("equal", 0)
    rng = random.Random(1)
    places = rng.sample(_places(files.log, rng, 1), 12)
    last = len(files.log) - _FRAME_BYTES
    places += (0, 9, 17, 31, last, last + 7, last + 8, last + 12, last + 23, last + 24, last + 999)
    found = _campaign(files, tmp_path / "flipped", places)
    assert found["equal"] == 0
    first_frame = _flipped(files.log, _HEADER_BYTES + 100, 1)
    gone = OUTCOMES - OUTCOMES // 2 - 1
    assert _opened(files.put(tmp_path / "first", first_frame), files.trials) == ("told", gone)


def test_what_lies_before_the_damage_can_be_kept(files: Files, tmp_path: Path) -> None:
    """As the message says."""
    half = len(files.log) // 2
    path = files.put(tmp_path / "flipped", _flipped(files.log, half, 1))
    how, gone = _opened(path, files.trials)
    assert how == "told"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with RunStore.open_for_writing(path) as store:
        assert tuple(store.trials()) == files.trials[: OUTCOMES - gone]


@pytest.mark.parametrize("truncating", [True, False])
def test_the_log_of_a_killed_writer_is_whole_wherever_it_ends(
    tmp_path: Path, truncating: bool
) -> None:
    """Also where frames of an earlier use of the log follow, and where the last one lies half over
    one of them."""
    files = _killed(tmp_path / "s" / "store.sqlite", 40, [5, 30], truncating=truncating)
    earlier = _killed(tmp_path / "e" / "store.sqlite", 31, [5], truncating=truncating).log
    ends = [*range(len(files.log) - _FRAME_BYTES, len(files.log), 397), len(files.log)]
    for end in ends:
        log = files.log[:end] + (b"" if truncating else earlier[end:])
        path = files.put(tmp_path / "cut", log)
        for opened in (RunStore.open_for_reading, RunStore.open_for_writing):
            with opened(path) as store:
                trials = tuple(store.trials())
                assert trials == files.trials[: len(trials)]
                assert len(trials) >= 31


def test_a_log_that_a_writer_is_at_work_on_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with RunStore.create(path) as store:
        for number in range(60):
            store.append(_trial(number), 0.0)
            if number % 20 == 7:
                store._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            with RunStore.open_for_reading(path) as reader:
                assert reader.count() == number + 1


def test_a_second_session_begins_an_empty_log(files: Files, tmp_path: Path) -> None:
    path = files.put(tmp_path / "again")
    with RunStore.open_for_writing(path) as store:
        store.set_meta("state", "running")
        assert Path(f"{path}-wal").stat().st_size < len(files.log)


# --- a log that is not the store's --------------------------------------------------------------


def test_a_log_beside_a_sealed_store_is_refused(files: Files, tmp_path: Path) -> None:
    """Its frames would take the place of newer pages."""
    path = files.put(tmp_path / "sealed")
    RunStore.open_for_writing(path).close()
    assert path.with_suffix(".sha256").exists()
    log = Path(f"{path}-wal")
    assert not log.exists()
    content = path.read_bytes()
    for foreign in (files.log, _killed(tmp_path / "o" / "store.sqlite", 5, []).log, b"x" * 100):
        log.write_bytes(foreign)
        for opened in (RunStore.open_for_reading, RunStore.open_for_writing):
            with pytest.raises(StoreError, match="-wal belongs to another store") as caught:
                opened(path)
            assert caught.value.exit_code == 4
            assert (path.read_bytes(), log.read_bytes()) == (content, foreign)
        log.unlink()
        Path(f"{path}-shm").unlink(missing_ok=True)
        shutil.rmtree(tmp_path / "o", ignore_errors=True)
    with RunStore.open_for_reading(path) as store:
        assert tuple(store.trials()) == files.trials


@pytest.mark.soak
def test_every_frame_of_a_log_with_a_changed_byte(
    files: Files, tmp_path: Path, keep_result: Callable[..., None]
) -> None:
    places = _places(files.log, random.Random(0), 40)
    found = _campaign(files, tmp_path / "flipped", places)
    keep_result(bytes_changed=len(places), shorter_without_a_word=0, **found)
