"""Checksums of a store: of each row with the one before it, and of the whole closed file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from evotune.trial import Json
from evotune.util.files import read_regular

FIRST = 0
"""Takes the place of the checksum of a row before the first one."""
ROW = "number, configuration, outcome, finished_s, kind, fitness, duplicate_of, binary, stage_s"
"""The columns of an outcome that its checksum covers, beside its place in the order of storing."""
SMALL_TABLES = {
    "meta": "SELECT name, value FROM meta ORDER BY name",
    "confirmations": "SELECT number, outcome, finished_s FROM confirmations ORDER BY number",
    "snapshots": "SELECT told, state FROM snapshots ORDER BY told",
}
"""Tables of a few rows that change. One checksum covers all rows of a table."""

_encode = msgspec.msgpack.Encoder().encode  # equal values give equal bytes, in every version


def row_sum(values: Sequence[Json], before: int) -> int:
    """64 bits of BLAKE2b over the row's values and the checksum of the row before it."""
    digest = hashlib.blake2b(_encode((before, *values)), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def table_sum(rows: Iterable[Sequence[Json]]) -> tuple[int, int]:
    """The number of rows, and one checksum over all of them."""
    count, found = 0, FIRST
    for row in rows:
        found = row_sum(row, found)
        count += 1
    return count, found


def keep_table_sum(connection: sqlite3.Connection, table: str) -> None:
    """Updates the checksum of a small table after a change, in the same transaction."""
    keep_tail(connection, table, *table_sum(connection.execute(SMALL_TABLES[table])))


def keep_tail(connection: sqlite3.Connection, table: str, rows: int, found: int) -> None:
    connection.execute("INSERT OR REPLACE INTO tails VALUES (?, ?, ?)", (table, rows, found))


def tail(connection: sqlite3.Connection, table: str) -> tuple[int, int]:
    """The table's number of rows and the checksum of the last one."""
    found = connection.execute("SELECT rows, sum FROM tails WHERE name = ?", (table,)).fetchone()
    if found is None:
        raise sqlite3.DatabaseError(f"the checksum of {table} is missing")
    return found[0], found[1]


# --- The seal of a closed store: the SHA-256 of its file, in a file that `sha256sum -c` reads -----
# A reader that finds the seal unbroken knows that no byte has changed since, and need not check row
# by row. A store without a seal (its writer was killed, or is still at work) or with a broken one
# is
# checked in full: see `evotune.store._sqlite`.

_MOST_BYTES = 1000


def is_sealed(store: Path) -> bool:
    """Whether the store still has the bytes that its last writer left."""
    return not has_log(store) and seal_fits(store)


def seal_fits(store: Path) -> bool:
    """Whether the main file still has the bytes that its last writer left."""
    try:
        return read_regular(_seal_of(store), _MOST_BYTES).decode() == _line(store)
    except (OSError, ValueError):
        return False


def make_seal(store: Path) -> None:
    """Writes the seal after the store was closed. If that fails, readers only take longer."""
    if has_log(store):  # a reader holds the store open, so part of it is still in the log
        return
    with contextlib.suppress(OSError):
        unfinished = store.with_suffix(".sha256.new")
        unfinished.write_text(_line(store))
        os.replace(unfinished, _seal_of(store))


def break_seal(store: Path) -> None:
    """Removes the seal, as a writer does before it changes anything. After a power cut it must not
    be back beside the writer's log."""
    seal = _seal_of(store)
    if seal.exists():
        seal.unlink()
        _sync_folder(store.parent)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems cannot
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _seal_of(store: Path) -> Path:
    return store.with_suffix(".sha256")


def has_log(store: Path) -> bool:
    """Whether a log (WAL) with content lies beside the main file."""
    try:
        return os.path.getsize(f"{store}-wal") > 0
    except FileNotFoundError:
        return False


def _line(store: Path) -> str:
    with store.open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {store.name}\n"
