"""Changes stores behind evotune's back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from evotune.store.opening import (
    FIRST,
    ROW,
    SMALL_TABLES,
    columns_of_text,
    keep_table_sum,
    keep_tail,
    row_sum,
)


def change(store: Path, *statements: str) -> None:
    """Changes a store as a disk fault would: the checksums stay as they were."""
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def forge(store: Path, *statements: str) -> None:
    """Changes a store as a forger would: columns and checksums are made to fit."""
    change(store, *statements)
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        found, place = FIRST, 0
        for number, text in connection.execute("SELECT number, outcome FROM outcomes").fetchall():
            connection.execute(
                "UPDATE outcomes SET kind = ?, fitness = ?, duplicate_of = ?, binary = ?,"
                " stage_s = ?, place = ? WHERE number = ?",
                (*columns_of_text(text), place, number),
            )
            query = f"SELECT {ROW} FROM outcomes WHERE number = ?"
            row = connection.execute(query, (number,)).fetchone()
            found = row_sum((*row, place), found)
            connection.execute("UPDATE outcomes SET sum = ? WHERE number = ?", (found, number))
            place += 1
        keep_tail(connection, "outcomes", place, found)
        for table in SMALL_TABLES:
            keep_table_sum(connection, table)
