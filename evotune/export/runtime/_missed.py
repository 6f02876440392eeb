"""Counts the calls that the package's kernels did not serve, by kind and by case."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


# Text of a package's files as a terminal may show it.
def shown(text: str) -> str:
    """The text without characters that control a terminal: control sequences, text direction. Line
    breaks stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


_MOST_CASES = 10_000


class Missed:
    """The counter of one kind of miss on one case.

    `count` is called at every such call. `count(0)` counts no call, but warns the user if this kind
    of miss is new.
    """

    __slots__ = ("before", "case", "kind", "misses", "number", "words")

    def __init__(
        self,
        misses: Misses,
        kind: str,
        case: Mapping[str, Any] | None,
        words: str,
        before: str,
    ) -> None:
        self.misses = misses
        self.before = before
        self.kind = kind
        self.case = case
        self.words = words
        self.number = 0

    def count(self, times: int = 1) -> None:
        misses = self.misses
        with misses.lock:
            self.number += times
            told = self.kind in misses.told
            if not told:
                misses.told.add(self.kind)
        if not told:
            misses.say(f"a call is not served ({self.kind}): {self.words}", self.before)


class Misses:
    """All misses of a package. The first of each kind is reported once, as a warning."""

    def __init__(self, package: str, before: str) -> None:
        """`before` names what serves the calls instead; "" if nothing does."""
        self._package = package
        self._before = before
        self._all: dict[Any, Missed] = {}
        self.told: set[str] = set()
        self.collect: Callable[[], None] = lambda: None
        """Adds the misses that native code has counted."""
        self.lock = threading.Lock()
        # A thread of the parent may hold the lock at the moment of a fork.
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self.lock = threading.Lock()

    def missed(
        self, kind: str, case: Mapping[str, Any] | None, words: str, before: str | None = None
    ) -> Missed:
        """The counter of this kind of miss on this case; the caller must call its `count`. `before`
        names what serves such calls instead of a kernel; None means the package's usual fallback.
        """
        key = (kind, json.dumps(case, sort_keys=True) if case else words)
        with self.lock:
            found = self._all.get(key)
            if found is None:
                found = Missed(self, kind, case, words, self._before if before is None else before)
                if len(self._all) < _MOST_CASES:
                    self._all[key] = found
        return found

    def say(self, words: str, before: str) -> None:
        """Warns the user, naming the package and what serves the calls instead."""
        serves = f"; {before} serves it" if before else ""
        warnings.warn(shown(f"{self._package}: {words}{serves}"), stacklevel=_level_of_the_user())

    def _counted(self) -> list[Missed]:
        self.collect()
        with self.lock:
            return [missed for missed in self._all.values() if missed.number]

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """The misses by kind: {count, first: the first example in words}."""
        found: dict[str, dict[str, Any]] = {}
        for missed in self._counted():
            kind = found.setdefault(missed.kind, {"count": 0, "first": missed.words})
            kind["count"] += missed.number
        return found

    def cases(self) -> list[dict[str, Any]]:
        """The missed cases, most frequent first: {kind, count, shape, variant, dtype}."""
        counted = [missed for missed in self._counted() if missed.case]
        counted.sort(key=lambda missed: -missed.number)
        return [
            {"kind": missed.kind, "count": missed.number, **(missed.case or {})}
            for missed in counted
        ]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes `cases`: as YAML if the path ends in .yaml or .yml, else as a JSON list. The file
        lists each case once, whatever the kinds of its misses."""
        merged: dict[str, dict[str, Any]] = {}
        for case in self.cases():
            key = json.dumps([case[name] for name in ("shape", "variant", "dtype")])
            first = merged.setdefault(key, {**case, "count": 0})
            first["count"] += case["count"]
        if merged and Path(path).suffix in (".yaml", ".yml"):
            text = "".join(map(_in_yaml, merged.values()))
        else:
            text = "[" + ",\n".join(map(json.dumps, merged.values())) + "]\n"
        Path(path).write_text(text, encoding="utf-8")


def _in_yaml(case: Mapping[str, Any]) -> str:
    """The case as an item of a list. JSON's values are YAML's too, so no text needs a library."""
    lines = [f"{name}: {json.dumps(value)}" for name, value in case.items()]
    return "- " + "\n  ".join(lines) + "\n"


def _level_of_the_user() -> int:
    """The level, for warnings.warn, of the innermost call from outside of this package and of
    PyTorch."""
    own = (f"{__package__}.", "torch.")
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(own):
        level, frame = level + 1, frame.f_back
    return level + 1 if level else 2
