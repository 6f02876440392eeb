"""Opens a store's file: recognizes stores, connects to them, and explains SQLite's errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from evotune.errors import StoreError
from evotune.store.schema import APPLICATION_ID, newest_version

_LEAST_BYTES = 512  # SQLite's smallest page
WRONG_SHAPE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Errors from reading JSON that is cut, nested too deeply, or of another shape than was written."""

_NOT_DAMAGE = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_IOERR,
    }
)


def opened_read_only(path: Path) -> contextlib.AbstractContextManager[sqlite3.Connection]:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        uri += "&immutable=1"  # WAL readers share an index file, which cannot be made here
    return opening(path, uri)


def require(path: Path) -> None:
    """Raises StoreError for a file that cannot be a store, before SQLite touches it."""
    if not path.is_file():
        raise StoreError(f"{path} is missing: this folder holds no run, or its store was deleted")
    # SQLite discards the log of a file that is shorter than a page, and so all data.
    if path.stat().st_size < _LEAST_BYTES:
        raise _foreign(path)


@contextlib.contextmanager
def opening(path: Path, uri: str) -> Iterator[sqlite3.Connection]:
    """A connection to the store. When the block fails, it is closed and an error of SQLite becomes
    a StoreError."""
    try:
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    try:
        connection.execute("PRAGMA trusted_schema = OFF")  # SQL in the file may call no function
        yield connection
    except sqlite3.Error as error:
        connection.close()
        raise damaged(path, error) from error
    except StoreError:
        connection.close()
        raise


def check_version(path: Path, connection: sqlite3.Connection) -> int:
    """The store's version; StoreError when this evotune cannot read it."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID or version < 1:
        raise _foreign(path)
    if version > newest_version():
        raise StoreError(
            f"{path} was written by a newer evotune (store version {version}, "
            f"this one reads up to {newest_version()}); update evotune"
        )
    return int(version)


def _foreign(path: Path) -> StoreError:
    return StoreError(
        f"{path} is not an evotune store; if it was one, take the run's folder from a copy"
    )


def damaged(path: Path, error: Exception) -> StoreError:
    """The StoreError for an error; its message says how to go on."""
    code = getattr(error, "sqlite_errorcode", None)
    # Extended codes hold the plain one in their lowest byte.
    if isinstance(code, int) and code & 0xFF in _NOT_DAMAGE:
        return StoreError(f"the store {path} cannot be used now ({error}); mend that, then resume")
    return StoreError(
        f"the store {path} is damaged ({error}); nothing was changed: "
        "copy the run's folder, then try `sqlite3 store.sqlite .recover` on the copy"
    )
