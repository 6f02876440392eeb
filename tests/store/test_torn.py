"""A store cut anywhere: it opens with an exact prefix, or is refused and left as it is."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from evotune.errors import StoreError
from evotune.store import RunStore
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

OUTCOMES = 40
TAIL_BYTES = 2500


@dataclass(frozen=True)
class Files:
    """The main file and the log (WAL) of a store whose process was killed."""

    main: bytes
    log: bytes
    trials: tuple[Trial, ...]


def _trial(number: int) -> Trial:
    outcome = Outcome(OutcomeKind.NAN, reason="x" * (number % 7 * 40))
    return Trial(number, Configuration({"A": number, "B": "x"}), outcome)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The second half of the outcomes is only in the log, some of the first half in both files."""
    path = tmp_path_factory.mktemp("torn") / "store.sqlite"
    with RunStore.create(path, {"state": "running"}) as store:
        for number in range(OUTCOMES):
            store.append(_trial(number), float(number))
            if number == OUTCOMES // 2:
                store._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        return Files(path.read_bytes(), _log(path), tuple(store.trials()))


def _log(path: Path) -> bytes:
    log = Path(f"{path}-wal")
    return log.read_bytes() if log.exists() else b""


def _opened(folder: Path, main: bytes, log: bytes, whole: tuple[Trial, ...]) -> str:
    """Opens the store for reading and then twice for writing; the writers must agree. A reader may
    find a prefix where a writer refuses, since it looks only at the pages that it needs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / "store.sqlite"
    path.write_bytes(main)
    if log:
        Path(f"{path}-wal").write_bytes(log)
    found = []
    for opened in (RunStore.open_for_reading, RunStore.open_for_writing, RunStore.open_for_writing):
        try:
            with opened(path) as store:
                assert store.meta("state") in ("running", None)
                trials = tuple(store.trials())
                assert trials == whole[: len(trials)]
                found.append(f"{len(trials)} outcomes")
        except StoreError as error:
            words = str(error)
            assert "copy" in words, "it says what to do"
            assert "\n" not in words
            assert (path.read_bytes(), _log(path)) == (main, log), "never made worse"
            found.append("refused")
    read, *written = found
    assert len(set(written)) == 1
    assert read == written[0] or written[0] == "refused"
    return written[0]


def _campaign(
    folder: Path, files: Files, log_cuts: Iterable[int], main_cuts: Iterable[int]
) -> Counter[str]:
    found: Counter[str] = Counter()
    for cut in log_cuts:
        result = _opened(folder, files.main, files.log[:cut], files.trials)
        assert result != "refused", cut
        found["log cut: a prefix"] += 1
    for cut in main_cuts:
        for log, name in ((files.log, "main file cut, log whole"), (b"", "main file cut, no log")):
            result = _opened(folder, files.main[:cut], log, files.trials)
            found[f"{name}: {'refused' if result == 'refused' else 'a prefix'}"] += 1
    return found


@pytest.mark.soak
def test_a_cut_store_opens_with_a_prefix_or_is_refused_as_it_is(
    files: Files, tmp_path: Path
) -> None:
    size, log_size = len(files.main), len(files.log)
    log_cuts = [0, 1, 31, 32, 33, *range(log_size - 60, log_size), *range(64, log_size, 1601)]
    found = _campaign(
        tmp_path / "cut", files, log_cuts, [0, 1, 99, 100, *range(511, size, 1009), size - 1]
    )
    assert found["main file cut, log whole: refused"]
    assert found["main file cut, log whole: a prefix"], "the log holds what the main file lost"
    assert found["main file cut, no log: refused"]


@pytest.mark.soak
def test_every_byte_of_the_tail(
    files: Files, tmp_path: Path, keep_result: Callable[..., None]
) -> None:
    size, log_size = len(files.main), len(files.log)
    found = _campaign(
        tmp_path / "cut",
        files,
        range(log_size - TAIL_BYTES, log_size),
        [*range(512, size - TAIL_BYTES, 11), *range(size - TAIL_BYTES, size)],
    )
    keep_result(openings=3 * found.total(), unreadable_without_a_reason=0, made_worse=0, **found)


def test_a_log_whose_main_file_is_empty_is_not_thrown_away(files: Files, tmp_path: Path) -> None:
    assert _opened(tmp_path / "cut", b"", files.log, files.trials) == "refused"
