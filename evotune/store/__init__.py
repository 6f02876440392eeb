"""What a run leaves on disk: one SQLite file, append-only outcomes."""

from evotune.store.sqlite import RunStore

__all__ = ["RunStore"]
