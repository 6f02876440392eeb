"""Kernels at one shape, and interventions that tell what holds them: for `explain_trials.py`.

An intervention is another shape on which the same configuration runs. If the named limiter is
right, the time changes by a known factor: a batch twice as large takes twice as long if a unit
holds the kernel, and hardly longer if latency, an empty grid or a launch does. Half the head size
at as many scores takes half as long if products hold it, and hardly less if exponentials do.
Twice the query heads on the same keys cost nothing if memory holds it.

Where a multiprocessor has room for one block only, twice the batch means two waves, one after the
other. Then the doubled batch is timed with the fastest configurations of the search that have at
least twice the warps on a multiprocessor: if latency holds the champion, they hide some of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuning import derive, shape_of, told

from evotune.engine.observer import SilentObserver
from evotune.engine.starting import RunRequest, start_run
from evotune.errors import EvotuneError
from evotune.user_code import trust

Sizes = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """A space at one shape. `doubled`: what an intervention doubles -> the other shape's sizes."""

    name: str
    space: str
    sizes: Sizes
    doubled: Mapping[str, Sizes] = field(default_factory=dict)
    causal: bool | None = False

    def problem(self, sizes: Sizes | None = None) -> dict[str, Any]:
        """Changes of the space's problem; none for an item without sizes."""
        if not self.sizes:
            return {}
        found: dict[str, Any] = {"shapes": [sizes or self.sizes], "held_out": []}
        if self.causal is not None:
            found["variants"] = [{"causal": self.causal}]
        return found


def attention(name: str, space: str, *, batch: int, length: int, head_dim: int) -> Item:
    sizes = shape_of(batch, 16 if batch > 1 else 8, length, head_dim)
    # Half the head size and not twice of it: the same configuration has room there.
    doubled = {
        "batch": {**sizes, "batch": 2 * batch},
        "head_dim": {**sizes, "head_dim": head_dim // 2},
    }
    return Item(name, space, sizes, doubled)


_DECODE = {
    "batch": 8,
    "heads": 32,
    "kv_heads": 8,
    "seq_len_q": 1,
    "seq_len_k": 4096,
    "head_dim": 128,
}
CHAMPIONS = (
    attention("scalar", "attention_scalar", batch=1, length=512, head_dim=64),
    attention("wmma", "attention_wmma", batch=1, length=512, head_dim=64),
    attention("mma", "attention_mma", batch=1, length=512, head_dim=64),
    attention("wgmma 1024x64", "attention_wgmma", batch=1, length=1024, head_dim=64),
    attention("wgmma 2048x64", "attention_wgmma", batch=16, length=2048, head_dim=64),
    attention("wgmma 8192x128", "attention_wgmma", batch=2, length=8192, head_dim=128),
    Item(
        "decode",
        "attention_mma_decode",
        _DECODE,
        {"batch": {**_DECODE, "batch": 16}, "query heads": {**_DECODE, "heads": 64}},
    ),
    Item(
        "rms_norm",
        "rms_norm",
        {"rows": 4096, "columns": 8192},
        {"batch": {"rows": 8192, "columns": 8192}},
        causal=None,
    ),
)
SMOKE = (
    Item(
        "rms_norm",
        "rms_norm_cpu",
        {"rows": 256, "columns": 512},
        {"batch": {"rows": 512, "columns": 512}},
        causal=None,
    ),
)
# By limiter: the least and the greatest time with the doubled size / time with the single one.
_EXPECTED: Sequence[tuple[str, str, float, float]] = (
    ("launch", "batch", 0.8, 1.6),
    ("grid", "batch", 0.8, 1.6),
    ("latency", "batch", 0.8, 1.75),
    ("MUFU", "head_dim", 0.9, 1.35),
    ("tensor cores", "head_dim", 1.5, 2.3),
    ("shared memory", "head_dim", 1.4, 2.4),
    ("bank conflicts", "head_dim", 1.4, 2.4),
    ("FMA", "head_dim", 1.4, 2.4),
    ("load/store", "head_dim", 1.4, 2.4),
    ("issue slots", "head_dim", 1.3, 2.4),
    ("DRAM", "query heads", 0.9, 1.3),
    ("L2", "query heads", 0.9, 1.3),
)
_TOGETHER = ("head_dim", 1.15, 2.1)
"""Several units at once: half the head size takes less from some of them."""
_ANY_UNIT = ("batch", 1.6, 2.4)
_NO_UNITS = ("launch", "grid", "latency")
_ROOMIER = 4  # configurations with more warps that are timed


def alone(
    item: Item, configuration: Mapping[str, Any], sizes: Sizes | None, free: Sequence[str] = ()
) -> dict[str, Any]:
    """Changes of a space that leave only this configuration at these sizes; the parameters `free`
    keep all their values. The space's own constraints go: a shape may break one that is no more
    than a heuristic."""
    pinned = [pin(name, value) for name, value in configuration.items() if name not in free]
    return {
        "problem": item.problem(sizes),
        "constraints": pinned,
        "default": {},
        "search": {"strategy": "exhaustive"},
        "budget": {"trials": 1},
    }


def pin(name: str, value: object) -> str:
    """The constraint that a parameter has this value."""
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} == {value}"


def unconfirmed(
    path: Path, runs_dir: Path, trials: int, strategy: str = "exhaustive"
) -> dict[str, Any]:
    """Tries `trials` configurations of a space file, in order unless a strategy is given, and
    confirms none; the run's report as JSON."""
    trust.ask = lambda paths: True
    options = {"trials": trials, "champions": 0}
    request = RunRequest(str(path), runs_dir=runs_dir, options=options, strategy=strategy)
    start_run(request, SilentObserver())
    data: dict[str, Any] = told("report", runs_dir)
    return data


def time_us(
    item: Item, configuration: Mapping[str, Any], sizes: Sizes, folder: Path
) -> float | None:
    """The time of one configuration at other sizes; None when it cannot run there."""
    path = derive(item.space, alone(item, configuration, sizes), folder / "alone.yaml")
    try:
        report = unconfirmed(path, folder / "alone", 1)
    except EvotuneError:
        return None
    times = [trial["time_us"] for trial in report["trials"] if trial["time_us"]]
    return float(times[0]) if times else None


def intervention(
    item: Item,
    limiter: str,
    best: Mapping[str, Any],
    own: float | None,
    folder: Path,
    *,
    roomier: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The first expectation of the limiter whose other shape the configuration runs on. `roomier`:
    see `roomier_than`."""
    for doubled, least, most in expectations(limiter):
        if doubled not in item.doubled or own is None:
            continue
        other = time_us(item, best, item.doubled[doubled], folder)
        if other is None:
            continue
        halved = doubled == "head_dim"
        ratio = own / other if halved else other / own
        found = {
            "intervention": f"{doubled} {'halved' if halved else 'doubled'}",
            "expected": [least, most],
            "ratio": ratio,
            "confirmed": least <= ratio <= most,
        }
        if found["confirmed"] or not limiter.startswith("latency"):
            return found
        return {**found, **_with_more_warps(item, own, most, roomier, folder)}
    return {"intervention": "none fits", "confirmed": False}


def roomier_than(best: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The configurations of the fastest trials that have at least twice the warps of the trial
    `best` on a multiprocessor."""
    needed = 2 * best["resources"].get("occupancy", math.inf)
    fitting = [
        trial
        for trial in trials
        if trial["time_us"] and trial["resources"].get("occupancy", 0) >= needed
    ]
    fitting.sort(key=lambda trial: trial["time_us"])
    return [trial["configuration"] for trial in fitting[:_ROOMIER]]


def _with_more_warps(
    item: Item, own: float, most: float, roomier: Sequence[Mapping[str, Any]], folder: Path
) -> dict[str, Any]:
    """The doubled batch, with the configuration of `roomier` that is the fastest there."""
    timed = [(time_us(item, each, item.doubled["batch"], folder), each) for each in roomier]
    known = [(time, each) for time, each in timed if time is not None]
    if not known:
        return {}
    fastest, configuration = min(known, key=lambda pair: pair[0])
    return {
        "intervention": "batch doubled, more warps",
        "other_configuration": configuration,
        "ratio_with_more_warps": fastest / own,
        "confirmed": fastest / own <= most,
    }


def expectations(limiter: str) -> list[tuple[str, float, float]]:
    """The sizes to double (head_dim: to halve), and the bounds of the ratio of times."""
    if not limiter:
        return []
    found = [rest for name, *rest in _EXPECTED if limiter.startswith(name)]
    own = [(str(doubled), float(least), float(most)) for doubled, least, most in found]
    if " + " in limiter:
        own = [_TOGETHER]
    return own if limiter.startswith(_NO_UNITS) else [*own, _ANY_UNIT]
