"""Verifies that a store is as it was written: its schema, its pages and its rows.

Damage that SQLite does not see (a changed digit in a text, swapped pages, an older page in place of
a newer one) breaks a checksum, the order of the rows or their number.
"""

from __future__ import annotations

import array
import functools
import sqlite3

import msgspec

from evotune.store._checksums import FIRST, ROW, SMALL_TABLES, row_sum, table_sum, tail
from evotune.store.opening import MIGRATIONS, columns_of_text, schema_of
from evotune.trial import Json


def verify(connection: sqlite3.Connection, version: int) -> None:
    """Raises sqlite3.Error or one of `WRONG_SHAPE` when anything is not as it was written.

    Reads the whole store, as of one moment. A store before version 3 has no checksums: its schema
    and pages are checked, and since version 2 that each outcome's columns repeat its text.
    """
    check_schema(connection, version)
    connection.execute("BEGIN")
    try:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        _require(found == "ok", found.partition("\n")[0])
        if version >= 2:
            _check_repeated(connection)
        if version >= 3:
            _check_outcomes(connection)
            for table, query in SMALL_TABLES.items():
                expected = tail(connection, table)
                _require(table_sum(connection.execute(query)) == expected, f"{table} was changed")
    finally:
        connection.execute("ROLLBACK")


def check_schema(connection: sqlite3.Connection, version: int) -> None:
    """sqlite3.DatabaseError when the tables, indexes, views and triggers are not those of a store
    of that version: foreign SQL would run while the store is read."""
    _require(schema_of(connection) == _expected_schema(version), "its tables are not a run's")


@functools.cache
def _expected_schema(version: int) -> frozenset[tuple[Json, ...]]:
    connection = sqlite3.connect(":memory:")
    try:
        for step in MIGRATIONS[:version]:
            step(connection)
        return schema_of(connection)
    finally:
        connection.close()


class _Repeated(msgspec.Struct):
    """The parts of an outcome's text that its columns repeat."""

    kind: str = ""
    fitness: float | None = None
    duplicate_of: int | None = None
    binary: str | None = None
    stage_s: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Repeated).decode


def _check_repeated(connection: sqlite3.Connection) -> None:
    query = "SELECT number, outcome, kind, fitness, duplicate_of, binary, stage_s FROM outcomes"
    for number, text, *columns in connection.execute(query):
        try:
            part = _decode(text)
            stage_s = bytes(part.stage_s).decode() or None
            found = [part.kind, part.fitness, part.duplicate_of, part.binary, stage_s]
        except ValueError:  # msgspec is strict and refuses NaN too
            found = list(columns_of_text(text))
        if found != columns and list(columns_of_text(text)) != columns:
            raise sqlite3.DatabaseError(f"the columns of outcome {number} contradict its text")


def _check_outcomes(connection: sqlite3.Connection) -> None:
    count, last = tail(connection, "outcomes")
    (stored,) = connection.execute("SELECT count(*) FROM outcomes NOT INDEXED").fetchone()
    _require(stored == count, f"it holds {stored} outcomes of {count}")
    sums = array.array("q", bytes(8 * count))
    known = bytearray(count)
    for place, found in connection.execute("SELECT place, sum FROM outcomes"):
        if not 0 <= place < count or known[place]:
            raise sqlite3.DatabaseError("an outcome is not in its place")
        known[place] = 1
        sums[place] = found
    _require(last == (sums[-1] if count else FIRST), "the last outcome is not in its place")
    for *row, place in connection.execute(f"SELECT {ROW}, place FROM outcomes"):
        before = sums[place - 1] if place else FIRST
        if row_sum((*row, place), before) != sums[place]:
            raise sqlite3.DatabaseError(f"outcome {row[0]} was changed")


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise sqlite3.DatabaseError(reason)
