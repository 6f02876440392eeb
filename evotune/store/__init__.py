"""The store of a run on disk: one SQLite file, append-only outcomes."""

from evotune.store._sqlite import RunStore
from evotune.store.queries import AROUND_SEARCH, PHASES, UNCONFIRMED

__all__ = ["AROUND_SEARCH", "PHASES", "UNCONFIRMED", "RunStore"]
