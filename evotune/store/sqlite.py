"""The store of one run: a SQLite file in WAL mode with one writer and any number of readers.

Guarantees: an outcome that `append` returned from survives the death of this process; a power
cut loses at most the last second (`synchronous=NORMAL`, with a full fsync at least that often, by
`append` or in quiet moments by `sync`) and never consistency. Outcomes are never changed or
deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from evotune.errors import StoreError
from evotune.store.schema import APPLICATION_ID, migrate, newest_version
from evotune.trial import Configuration, Json, Outcome, Trial

_SYNC_EVERY_S = 1.0
_FITNESS = "json_extract(outcome, '$.fitness')"
_LEAST_BYTES = 512  # SQLite's smallest page
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


class RunStore:
    """Create with `create`, open with `open_for_writing` or `open_for_reading`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._synced_s = time.monotonic()
        self._unsynced = False

    @classmethod
    def create(cls, path: Path, facts: Mapping[str, Json] | None = None) -> RunStore:
        """A new store that knows `facts` (see `meta`): it appears with all of them, or not at all.

        StoreError if the file exists or cannot be made.
        """
        if path.exists():
            raise StoreError(f"{path} exists already")
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.unlink(missing_ok=True)
        with cls._open_writable(unfinished) as store:
            for name, value in (facts or {}).items():
                store.set_meta(name, value)
        os.rename(unfinished, path)
        return cls._open_writable(path)

    @classmethod
    def open_for_writing(cls, path: Path) -> RunStore:
        """An existing store, brought to the newest version first; a damaged one stays as it is."""
        _require(path)
        # A writer that closes moves the log into the main file, whatever state that is in.
        with cls._open_read_only(path) as connection:
            _check_version(path, connection)
            _check_pages(path, connection)
            connection.close()
        return cls._open_writable(path)

    @classmethod
    def open_for_reading(cls, path: Path) -> RunStore:
        """Reads a store that may be in use; writes nothing into it, whatever its version."""
        _require(path)
        with cls._open_read_only(path) as connection:
            if _check_version(path, connection) == newest_version():
                return cls(path, connection)
            newest = sqlite3.connect(":memory:", isolation_level=None)
            connection.backup(newest)
            connection.close()
            migrate(newest)
            return cls(path, newest)

    @staticmethod
    def _open_read_only(path: Path) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
            uri += "&immutable=1"  # no place for the index that WAL readers share
        return _opening(path, uri)

    @classmethod
    def _open_writable(cls, path: Path) -> RunStore:
        new = not path.exists()
        with _opening(path, path.resolve().as_uri()) as connection:
            if not new:
                _check_version(path, connection)
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode == "wal":  # without it (some network folders), every commit must be synced
                connection.execute("PRAGMA synchronous = NORMAL")
            migrate(connection)
            return cls(path, connection)

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    # --- facts about the run -------------------------------------------------------------

    def set_meta(self, name: str, value: Json) -> None:
        self._write(
            "INSERT INTO meta VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, json.dumps(value)),
        )

    def meta(self, name: str, default: Json = None) -> Json:
        rows = self._read("SELECT value FROM meta WHERE name = ?", (name,))
        return self._parse(rows[0][0]) if rows else default

    # --- outcomes ------------------------------------------------------------------------

    def append(self, trial: Trial, finished_s: float) -> None:
        """Commits one outcome; `finished_s` counts from the run's start, pauses left out."""
        self._write(
            "INSERT INTO outcomes VALUES (?, ?, ?, ?)",
            (
                trial.number,
                trial.configuration.key,
                json.dumps(trial.outcome.to_json(), separators=(",", ":")),
                finished_s,
            ),
        )

    def trials(self, first: int = 0) -> Iterator[Trial]:
        """Stored trials in proposal order, from number `first` on."""
        for number, configuration, outcome in self._read(
            "SELECT number, configuration, outcome FROM outcomes WHERE number >= ? ORDER BY number",
            (first,),
        ):
            yield self._trial(number, configuration, outcome)

    def _trial(self, number: int, configuration: str, outcome: str) -> Trial:
        try:
            found = Configuration.from_key(configuration)
        except ValueError as error:
            raise _damaged(self.path, error) from error
        return Trial(number, found, self._outcome(outcome))

    def finish_times_s(self) -> dict[int, float]:
        """When each trial finished, in seconds of the run's own time."""
        return dict(self._read("SELECT number, finished_s FROM outcomes ORDER BY number"))

    def elapsed_s(self) -> float:
        """When the last trial finished."""
        return float(self._read("SELECT coalesce(max(finished_s), 0) FROM outcomes")[0][0])

    def count(self) -> int:
        return int(self._read("SELECT count(*) FROM outcomes")[0][0])

    def count_ok(self) -> int:
        """Outcomes with a fitness."""
        return int(self._read(f"SELECT count({_FITNESS}) FROM outcomes")[0][0])

    def first_missing(self) -> int:
        """The lowest number without an outcome."""
        numbers = self._read("SELECT number FROM outcomes ORDER BY number")
        return next((n for n, (number,) in enumerate(numbers) if n != number), len(numbers))

    def best(self, before: int) -> Trial | None:
        """The fittest trial below that number; of equals, the first."""
        rows = self._read(
            f"SELECT number, configuration, outcome FROM outcomes WHERE number < ?"
            f" AND {_FITNESS} IS NOT NULL ORDER BY {_FITNESS} DESC, number LIMIT 1",
            (before,),
        )
        return self._trial(*rows[0]) if rows else None

    def history_digest(self) -> str:
        """SHA-256 over (number, configuration) of every stored trial: what was tried, in order."""
        digest = hashlib.sha256()
        for number, key in self._read("SELECT number, configuration FROM outcomes ORDER BY number"):
            digest.update(f"{number} {key}\n".encode())
        return digest.hexdigest()

    # --- champions and the search's state --------------------------------------------------

    def confirm(self, number: int, outcome: Outcome, finished_s: float) -> None:
        """The outcome of measuring trial `number` again in a fresh process."""
        self._write(
            "INSERT INTO confirmations VALUES (?, ?, ?) ON CONFLICT (number) DO UPDATE"
            " SET outcome = excluded.outcome, finished_s = excluded.finished_s",
            (number, json.dumps(outcome.to_json(), separators=(",", ":")), finished_s),
        )

    def confirmations(self) -> dict[int, Outcome]:
        return {
            number: self._outcome(outcome)
            for number, outcome in self._read("SELECT number, outcome FROM confirmations")
        }

    def save_snapshot(self, told: int, state: Json) -> None:
        """The search's state after `told` tells; older snapshots leave, but one."""
        self._write("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (told, json.dumps(state)))
        self._write(
            "DELETE FROM snapshots WHERE told NOT IN"
            " (SELECT told FROM snapshots ORDER BY told DESC LIMIT 2)",
            (),
        )

    def snapshot(self, at_most: int) -> tuple[int, Json] | None:
        """The newest snapshot with no more than `at_most` tells."""
        rows = self._read(
            "SELECT told, state FROM snapshots WHERE told <= ? ORDER BY told DESC LIMIT 1",
            (at_most,),
        )
        return (rows[0][0], self._parse(rows[0][1])) if rows else None

    # --- JSON and SQL -----------------------------------------------------------------------------

    def _parse(self, text: str) -> Json:
        try:
            return json.loads(text)
        except ValueError as error:
            raise _damaged(self.path, error) from error

    def _outcome(self, text: str) -> Outcome:
        try:
            return Outcome.from_json(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged(self.path, error) from error

    def sync(self) -> None:
        """For quiet moments: what was appended survives a power cut from now on, if that is due."""
        if not (self._unsynced and self._sync_is_due()):
            return
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            raise _damaged(self.path, error) from error
        self._unsynced = False
        self._synced_s = time.monotonic()

    def _sync_is_due(self) -> bool:
        return time.monotonic() - self._synced_s >= _SYNC_EVERY_S

    def _write(self, statement: str, values: tuple[Json, ...]) -> None:
        due = self._sync_is_due()
        try:
            if due:
                self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(statement, values)
            if due:
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._synced_s = time.monotonic()
            self._unsynced = not due
        except sqlite3.Error as error:
            raise _damaged(self.path, error) from error

    def _read(self, query: str, values: tuple[Json, ...] = ()) -> list[tuple[Json, ...]]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise _damaged(self.path, error) from error


def _require(path: Path) -> None:
    if not path.is_file():
        raise StoreError(f"{path} is missing: this folder holds no run, or its store was deleted")
    # SQLite throws away the log of a file that is shorter than a page: all that there is.
    if path.stat().st_size < _LEAST_BYTES:
        raise _foreign(path)


@contextlib.contextmanager
def _opening(path: Path, uri: str) -> Iterator[sqlite3.Connection]:
    """A connection that is closed again when the block fails, with a StoreError."""
    try:
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)
    except sqlite3.Error as error:
        raise _damaged(path, error) from error
    try:
        yield connection
    except sqlite3.Error as error:
        connection.close()
        raise _damaged(path, error) from error
    except StoreError:
        connection.close()
        raise


def _check_version(path: Path, connection: sqlite3.Connection) -> int:
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


def _check_pages(path: Path, connection: sqlite3.Connection) -> None:
    """StoreError when a page of the file is missing or makes no sense; reads all of it."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise _damaged(path, sqlite3.DatabaseError(found.partition("\n")[0]))


def _damaged(path: Path, error: Exception) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None)
    # Extended codes hold the plain one in their lowest byte.
    if isinstance(code, int) and code & 0xFF in _NOT_DAMAGE:
        return StoreError(f"the store {path} cannot be used now ({error}); mend that, then resume")
    return StoreError(
        f"the store {path} is damaged ({error}); nothing was changed: "
        "copy the run's folder, then try `sqlite3 store.sqlite .recover` on the copy"
    )
