"""A run's settings as its store holds them, checked: a run must not go on with damaged ones."""

from __future__ import annotations

from typing import Final

from evotune.store import RunStore
from evotune.trial import Configuration, Json

_NEEDED: Final = {
    "strategy": str,
    **dict.fromkeys(("seed", "population", "elites", "lookahead", "trials", "champions"), int),
}
_OPTIONAL: Final = {"minutes": float, "compiles": int, "speedup": float, "no_improvement": int}


def stored_settings(store: RunStore) -> dict[str, Json]:
    """StoreError when one is missing or not what it was stored as."""
    with store.trusting_facts():
        settings = dict(store.meta("settings"))
        for name, kind in _NEEDED.items():
            _require(name, settings[name], kind)
        for name, kind in _OPTIONAL.items():
            # Runs from before these had a name have none of them.
            if settings.setdefault(name, None) is not None:
                _require(name, settings[name], kind)
        starts = settings.setdefault("starts", [])
        settings["starts"] = [Configuration(dict(values)).to_json() for values in starts]
        settings.setdefault("racing", True)
    return settings


def _require(name: str, value: Json, kind: type) -> None:
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits:
        raise TypeError(f"the setting {name} is {value!r:.40}")
