"""The store of a run on disk: one SQLite file, append-only outcomes."""

from evotune.store.run_store import AROUND_SEARCH, PHASES, UNCONFIRMED, RunStore

__all__ = ["AROUND_SEARCH", "PHASES", "UNCONFIRMED", "RunStore"]
