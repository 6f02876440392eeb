"""The tables of a run's store, and how older stores become newer ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

APPLICATION_ID = 0x45564F54  # "EVOT"


def _version_1(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT")
    connection.execute(
        "CREATE TABLE outcomes (number INTEGER PRIMARY KEY, configuration TEXT NOT NULL,"
        " outcome TEXT NOT NULL, finished_s REAL NOT NULL) STRICT"
    )
    connection.execute(
        "CREATE TABLE confirmations (number INTEGER PRIMARY KEY, outcome TEXT NOT NULL,"
        " finished_s REAL NOT NULL) STRICT"
    )
    connection.execute(
        "CREATE TABLE snapshots (told INTEGER PRIMARY KEY, state TEXT NOT NULL) STRICT"
    )


MIGRATIONS: Sequence[Callable[[sqlite3.Connection], None]] = (_version_1,)
"""Step n takes a store from version n to n + 1; all steps and the number are one transaction."""


def newest_version() -> int:
    return len(MIGRATIONS)


def migrate(connection: sqlite3.Connection) -> None:
    """Brings an empty or older store to the newest version, or changes nothing."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == newest_version():
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in MIGRATIONS[version:]:
            step(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {newest_version()}")
    except sqlite3.Error:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
