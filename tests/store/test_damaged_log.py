"""The log of a killed writer: a changed byte leaves the history as it was, or is told."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from evotune.errors import StoreError
from evotune.store import RunStore
from evotune.store.opening import parsed_log
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


OPENERS = (RunStore.open_for_reading, RunStore.open_for_writing)


def _opened(
    path: Path,
    trials: tuple[Trial, ...],
    openers: Iterable[Callable[[Path], RunStore]] = OPENERS,
) -> tuple[str, int]:
    """How the store opens (`equal` or `told`), and the number of outcomes that are said to be gone.
    An assertion fails for a shorter history."""
    before = [(each.name, each.read_bytes()) for each in _stored(path)]
    found = set()
    for opened in openers:
        try:
            with opened(path) as store:
                assert tuple(store.trials()) == trials
                found.add(("equal", 0))
        except StoreError as error:
            words = str(error)
            assert "-wal is damaged" in words
            assert "\n" not in words
            assert [(each.name, each.read_bytes()) for each in _stored(path)] == before
            gone = re.search(r"(\d+) of (\d+) outcomes are surely lost", words)
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
        how, gone = _opened(path, files.trials, OPENERS if place % 10 == 0 else OPENERS[:1])
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


@pytest.mark.sweep(1)
@pytest.mark.parametrize("by", [1, 0x10, 0xFF])
def test_a_changed_byte_of_the_main_files_header_is_told_beside_a_log(
    files: Files, tmp_path: Path, by: int
) -> None:
    """The size of a page, by which the log is read, is one of them."""
    for place in range(100):
        path = files.put(tmp_path / "flipped")
        path.write_bytes(_flipped(files.main, place, by))
        with contextlib.suppress(StoreError), RunStore.open_for_reading(path) as store:
            assert tuple(store.trials()) == files.trials


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


# --- campaigns ----------------------------------------------------------------------------------


@pytest.mark.soak
def test_every_byte_of_a_log(tmp_path: Path, keep_result: Callable[..., None]) -> None:
    """Of a run that was killed after 12 outcomes, eight of which were in the main file."""
    files = _killed(tmp_path / "made" / "store.sqlite", 12, [7])
    found = _campaign(files, tmp_path / "flipped", range(len(files.log)))
    assert found["equal"] == 0
    keep_result(
        outcomes=12,
        bytes_changed=len(files.log),
        shorter_without_a_word=0,
        told=found["told"],
        told_with_a_number=found["told with a number"],
    )


@pytest.mark.soak
def test_a_thousand_whole_logs(tmp_path: Path, keep_result: Callable[..., None]) -> None:
    """Logs of writers that were killed at random moments, each store several times. Half of the
    logs are used again as older versions of evotune did it: remains of earlier uses follow."""
    rng = random.Random(0)
    logs = with_remains = with_half_a_transaction = 0
    while logs < 1000:
        path = tmp_path / str(logs) / "store.sqlite"
        path.parent.mkdir()
        RunStore.create(path, {"state": "running"}).close()
        truncating, known = rng.random() < 0.5, 0
        for _ in range(5):
            acknowledged = _write_until_killed(path, rng, truncating=truncating)
            content = Path(f"{path}-wal").read_bytes()
            logs += len(content) > _HEADER_BYTES
            log = parsed_log(content, 4096)
            frames = log.frames if log else ()
            with_remains += any(not frame.is_of(log.salts) for frame in frames if log)
            with_half_a_transaction += bool(frames) and not frames[-1].commit
            with RunStore.open_for_reading(path) as store:
                numbers = [trial.number for trial in store.trials()]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= max(known, acknowledged)
            known = len(numbers)
    assert with_remains > 100
    keep_result(
        logs=logs,
        with_frames_of_an_earlier_use=with_remains,
        ending_within_a_transaction=with_half_a_transaction,
        warnings=0,
    )


def _write_until_killed(path: Path, rng: random.Random, *, truncating: bool) -> int:
    """Has a child process append outcomes until it is killed. Returns how many the store holds at
    least."""
    moment_s, syncs = rng.uniform(0.002, 0.05), rng.random() * 0.3
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:  # never returns
        with contextlib.suppress(BaseException):
            _append_for_ever(path, random.Random(rng.random()), writing, syncs, truncating)
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        began = pipe.readline()
        time.sleep(moment_s)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return int((began + pipe.read()).split()[-1])


def _append_for_ever(
    path: Path, rng: random.Random, writing: int, syncs: float, truncating: bool
) -> None:
    store = RunStore.open_for_writing(path)
    if not truncating:
        store._connection.execute("PRAGMA journal_size_limit = -1")
    first = store.count()
    os.write(writing, f"{first}\n".encode())
    for number in range(first, 1_000_000):
        store.append(_trial(number), float(number))
        os.write(writing, f"{number + 1}\n".encode())
        if rng.random() < syncs:
            store._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


@pytest.mark.soak
def test_foreign_logs(tmp_path: Path, keep_result: Callable[..., None]) -> None:
    """Each sealed store with the logs of its own past and of other stores."""
    kept = [
        _killed(tmp_path / f"{outcomes}-{at}" / "store.sqlite", outcomes, [at])
        for outcomes in (5, 20, 40)
        for at in (1, outcomes // 2, outcomes - 2)
    ]
    refused = 0
    for files in kept:
        path = files.put(tmp_path / "sealed")
        RunStore.open_for_writing(path).close()
        content = path.read_bytes()
        for foreign in kept:
            Path(f"{path}-wal").write_bytes(foreign.log)
            for opened in (RunStore.open_for_reading, RunStore.open_for_writing):
                with pytest.raises(StoreError, match="belongs to another store"):
                    opened(path)
                assert path.read_bytes() == content
                refused += 1
    keep_result(stores=len(kept), logs=len(kept), openings=refused, refused=refused)
