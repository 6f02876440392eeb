"""The store of a run on disk: one SQLite file, append-only outcomes."""

from evotune.store.queries import AROUND_SEARCH
from evotune.store.sqlite import RunStore

__all__ = ["AROUND_SEARCH", "RunStore"]
