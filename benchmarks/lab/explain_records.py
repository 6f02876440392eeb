"""The records of a part of `explain_trials.py`: kept in a file from call to call, and in time.
Several processes may measure different items of one file."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Summary = Callable[[Sequence[Record]], Record | None]
"""Makes a record of all that are kept; None where there is nothing to say."""


@dataclass
class Records:
    """`path`: the file with the records; without one they are only printed. `minutes`: an item is
    not begun if it would end later. As long as no item is measured, in this call or an earlier one,
    it is taken to need `item_s`, afterwards as long as the longest one."""

    path: Path | None
    minutes: float | None
    item_s: float
    clock: Callable[[], float] = time.monotonic
    items: list[Record] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start = self._item_start = self.clock()
        self._read()
        self._longest_s = max((record.get("item_s", 0.0) for record in self.items), default=0.0)

    def wants(self, name: str) -> bool:
        """Whether an item is to be done: it has no record yet, and time is left for it."""
        if any(record["name"] == name for record in self.items):
            return False
        now = self.clock()
        item_s = self._longest_s or self.item_s
        if self.minutes is not None and now - self._start + item_s > 60 * self.minutes:
            self.left.append(name)
            return False
        self._item_start = now
        return True

    def add(self, record: Record) -> None:
        """Keeps the record, with the seconds since its item began; one of the same name goes."""
        item_s = round(self.clock() - self._item_start, 1)
        self._longest_s = max(self._longest_s, item_s)
        self._update(lambda kept: {**record, "item_s": item_s})

    def add_summary(self, summary: Summary) -> Record | None:
        """Keeps the record about all items, if there is one, and returns it."""
        return self._update(summary)

    def _update(self, make: Summary) -> Record | None:
        """Adds `make(kept records)` to the file."""
        if self.path is None:
            return self._take(make)
        with _locked(self.path.parent):
            self._read()  # another process may have measured other items
            record = self._take(make)
            command = " ".join(["python", "benchmarks/lab/explain_trials.py", *sys.argv[1:]])
            date = datetime.now(UTC).isoformat(timespec="seconds")
            data = {"command": command, "date": date, "items": self.items}
            # Replaced as a whole: a call that is cut off leaves the records of before.
            written = self.path.with_name(f"{self.path.name}.part")
            written.write_text(json.dumps(data, indent=1) + "\n")
            written.replace(self.path)
        return record

    def _take(self, make: Summary) -> Record | None:
        record = make(self.items)
        if record is not None:
            others = [each for each in self.items if each["name"] != record["name"]]
            self.items = [*others, record]
        return record

    def _read(self) -> None:
        if self.path is not None and self.path.exists():
            self.items = json.loads(self.path.read_text())["items"]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time holds the lock of a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
