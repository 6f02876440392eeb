"""Checksums of a store's rows. Each covers its row and the checksum of the row stored before it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from evotune.trial import Json

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
