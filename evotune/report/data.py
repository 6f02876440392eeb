"""Everything a report needs from a run's folder, read once."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evotune.errors import StoreError
from evotune.store import RunStore
from evotune.trial import Json, Outcome, Trial, Value

if TYPE_CHECKING:
    # The engine brings a device's libraries along; a report starts without them.
    from evotune.engine.folder import RunFolder

_META = (
    *("space", "kind", "state", "created", "command"),
    *("device", "problem", "settings", "baselines", "default", "ablation"),
)


@dataclass(frozen=True, slots=True)
class RunData:
    """A run as its folder describes it, finished or not.

    `meta` holds the facts the engine stored, absent ones left out; `confirmations` only those
    of stored trials. `finish_times_s` counts from the run's start, pauses left out. `holder`
    is the process that works on the run, if any.
    """

    id: str
    path: str
    meta: Mapping[str, Json]
    environment: Mapping[str, Json]
    trials: tuple[Trial, ...]
    finish_times_s: Mapping[int, float]
    confirmations: Mapping[int, Outcome]
    holder: int | None = None

    @classmethod
    def load(cls, run: RunFolder) -> RunData:
        """StoreError when the store is missing, damaged or from a newer evotune."""
        with RunStore.open_for_reading(run.store) as store, _without_collecting():
            try:
                meta = {name: store.meta(name) for name in _META}
                trials = tuple(store.trials())
                known = {trial.number for trial in trials}
                times = {n: s for n, s in store.finish_times_s().items() if n in known}
                confirmations = {n: o for n, o in store.confirmations().items() if n in known}
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise StoreError(f"{run.store} holds a damaged record: {error}") from error
        return cls(
            id=run.id,
            path=str(run.path),
            meta={name: value for name, value in meta.items() if value is not None},
            environment=_environment(run),
            trials=trials,
            finish_times_s=times,
            confirmations=confirmations,
            holder=run.holder(),
        )

    @property
    def space(self) -> str:
        return str(self.meta.get("space", ""))

    @property
    def recorded(self) -> bool:
        """A run on a recorded space: times but no baseline, so no speedups."""
        return bool(self.meta.get("kind") == "recorded")

    @property
    def state(self) -> str:
        """As stored, but `running` only while a process works on it, else `killed`."""
        stored = str(self.meta.get("state", "unknown"))
        if self.holder is not None:
            return "running"
        return "killed" if stored == "running" else stored

    @property
    def device(self) -> Mapping[str, Json]:
        """The device profile, as JSON."""
        found = self.meta.get("device")
        return found if isinstance(found, dict) else {}

    @property
    def settings(self) -> Mapping[str, Json]:
        found = self.meta.get("settings")
        return found if isinstance(found, dict) else {}

    @property
    def baseline_timings(self) -> tuple[Mapping[str, Json], ...]:
        """{case, name, time_us, passed} of every baseline that was timed at the start."""
        return tuple((self.meta.get("baselines") or {}).get("timings", ()))

    @property
    def chosen_baselines(self) -> Mapping[str, str]:
        """Case -> name of the baseline that its candidates are measured against."""
        return dict((self.meta.get("baselines") or {}).get("chosen", {}))

    @property
    def copy_gbps(self) -> float | None:
        """Bandwidth of a large copy on the device, bytes read plus written; None: unknown."""
        found = (self.meta.get("baselines") or {}).get("copy_gbps")
        return float(found) if found else None

    @property
    def default(self) -> Mapping[str, Value] | None:
        """The space's starting point; None in a run of an evotune that did not store it."""
        found = self.meta.get("default")
        return found if isinstance(found, dict) else None

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, in the space's order."""
        return tuple(self.trials[0].configuration) if self.trials else ()

    @property
    def cases(self) -> tuple[str, ...]:
        """Labels of the cases that make the fitness, in order of measurement."""
        return self._measured(held_out=False)

    @property
    def held_out_cases(self) -> tuple[str, ...]:
        """Labels of the cases that only champions are measured on."""
        return self._measured(held_out=True)

    def _measured(self, *, held_out: bool) -> tuple[str, ...]:
        outcomes = [*(trial.outcome for trial in self.trials), *self.confirmations.values()]
        labels = (
            measurement.case
            for outcome in outcomes
            for measurement in outcome.measurements
            if measurement.held_out == held_out
        )
        return tuple(dict.fromkeys(labels))


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """While a million objects are made, all of which stay, the collector would only look on."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _environment(run: RunFolder) -> Mapping[str, Json]:
    """environment.json; a report is worth having without it, so its loss is stated, not raised."""
    try:
        found = json.loads(run.environment.read_bytes())
    except (OSError, ValueError) as error:
        return {"unreadable": f"{run.environment.name}: {error}"}
    return found if isinstance(found, dict) else {"unreadable": "environment.json: not a map"}
