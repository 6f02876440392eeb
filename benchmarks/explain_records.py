"""The records of a part of `explain_trials.py`: kept in a file from call to call, and in time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Record = dict[str, Any]


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
        self._longest_s = 0.0
        if self.path is not None and self.path.exists():
            self.items = json.loads(self.path.read_text())["items"]
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

    def add(self, record: Record, *, timed: bool = True) -> None:
        """Keeps the record; one of the same name goes. `timed`: with the seconds since its item
        began."""
        if timed:
            item_s = round(self.clock() - self._item_start, 1)
            self._longest_s = max(self._longest_s, item_s)
            record = {**record, "item_s": item_s}
        self.items = [each for each in self.items if each["name"] != record["name"]]
        self.items.append(record)
        if self.path is not None:
            command = " ".join(["python", "benchmarks/explain_trials.py", *sys.argv[1:]])
            date = datetime.now(UTC).isoformat(timespec="seconds")
            data = {"command": command, "date": date, "items": self.items}
            # Replaced as a whole: a call that is cut off leaves the records of before.
            written = self.path.with_name(f"{self.path.name}.part")
            written.write_text(json.dumps(data, indent=1) + "\n")
            written.replace(self.path)
