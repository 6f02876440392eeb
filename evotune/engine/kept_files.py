"""The files that a run keeps beside its store, held to what they were when the run began."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from evotune.engine.folder import RunFolder
from evotune.errors import StoreError
from evotune.store import RunStore


def fingerprints(run: RunFolder) -> dict[str, str]:
    """SHA-256 of every file under `sources/`, by its path there."""
    return {
        path.relative_to(run.sources).as_posix(): _sha256(path)
        for path in sorted(run.sources.rglob("*"))
        if path.is_file()
    }


def space_path(run: RunFolder, store: RunStore) -> Path:
    """The run's own copy of its space.

    StoreError when a file under `sources/` is missing, was changed or came later: outcomes of two
    kernels would stand in one leaderboard. Runs of evotune before store version 3 do not say what
    their files were: there the space need only lie among them.
    """
    with store.trusting_facts():
        name = str(store.meta("space_file"))
        known = store.meta("sources")
        if known is not None:
            _require_unchanged(run, known)
            known[name]
        path = run.sources / name
        own = path.resolve().is_relative_to(run.sources.resolve())
        if not (own and path.is_file()):
            raise ValueError(f"its space is to be {name!r:.80}")
    return path


def _require_unchanged(run: RunFolder, known: Mapping[str, str]) -> None:
    found = fingerprints(run)
    for name in sorted({*known, *found}):
        if found.get(name) != known.get(name):
            happened = {name not in found: "is missing", name not in known: "was added"}
            raise StoreError(
                f"{run.sources / name} {happened.get(True, 'was changed')} since the run began; "
                "put it back as it was, or start a new run"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
