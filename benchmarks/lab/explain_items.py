"""Kernels at one shape, and interventions that tell what holds them: for `explain_trials.py`.

An intervention is another shape. If the named limiter is right, the time changes by a known
factor: a batch twice as large takes twice as long if a unit holds the kernel, and hardly longer if
latency, an empty grid or a launch does. Half the head size at as many scores takes half as long if
products hold it, and hardly less if exponentials do. Twice the query heads on the same keys cost
nothing if memory holds it.

The other shape is timed twice: with the champion's own configuration, and with the best one of a
short search there. The faster time counts. This is fair because a limiter belongs to the best
kernel at a shape, and the champion is the best kernel of a search at its own shape. Its
configuration may suit the other shape badly, for a reason of its own: where half the head size
leaves tiles too little work between two barriers, or where a multiprocessor has room for one block
only, so that twice the batch means two waves. Such a time says nothing about the limiter.

Three rules keep the search from choosing the answer. Every item gets it, whether or not the first
time agrees with the limiter. It is shorter than the champion's own search and begins with the
champion's configuration, and the configuration that it finds is timed again alone, as the
champion's is, so that it gains nothing by noise. And the bounds hold on both sides: a shorter time
helps `latency` at twice the batch and a unit at half the head size, but it speaks against a unit at
twice the batch. Both times are kept in the data.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuning import EVOTUNE, champion, derive, shape_of, told

from evotune.errors import EvotuneError
from evotune.runs.observer import SilentObserver
from evotune.runs.starting import RunRequest, start_run
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


def explained(runs: Path, *options: str) -> dict[str, Any]:
    """`evotune explain latest` as JSON, measured where something is missing."""
    words = [*EVOTUNE, "explain", "latest", "--format", "json", "--trust", "--runs-dir", str(runs)]
    done = subprocess.run([*words, *options], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ablate(runs: Path, number: int) -> None:
    """Measures the single changes of a trial in turn with it. `explain` with its effects would also
    profile five of the changes and measure pairs."""
    words = [*EVOTUNE, "ablate", "latest", "--trial", str(number), "--trust"]
    words += ["--runs-dir", str(runs)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


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


@dataclass(frozen=True)
class OtherShape:
    """Times of one call at another shape, in µs; None where the configuration cannot run.

    - `same_us`: with the champion's configuration.
    - `found_us`: with `found`, the best configuration of a search of `trials` trials there.
    """

    same_us: float | None
    found_us: float | None = None
    found: Mapping[str, Any] | None = None
    trials: int = 0

    @property
    def fastest_us(self) -> float | None:
        return min((time for time in (self.same_us, self.found_us) if time), default=None)


def time_other_shape(
    item: Item,
    configuration: Mapping[str, Any],
    sizes: Sizes,
    folder: Path,
    *,
    trials: int,
    strategy: str = "evolution",
) -> OtherShape:
    """Times the configuration at other sizes, and the best one of a search there, which begins with
    it where it can run."""
    same_us = time_us(item, configuration, sizes, folder)
    if not trials:
        return OtherShape(same_us)
    start = {} if same_us is None else {"default": dict(configuration)}
    path = derive(item.space, {"problem": item.problem(sizes), **start}, folder / "other.yaml")
    try:
        report = unconfirmed(path, folder / "other", trials, strategy)
    except EvotuneError:
        return OtherShape(same_us, trials=trials)
    best = best_of(report)
    if not best["time_us"]:
        return OtherShape(same_us, trials=trials)
    found = best["configuration"]
    return OtherShape(same_us, time_us(item, found, sizes, folder), found, trials)


def best_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The best confirmed trial; the fastest one where none was confirmed."""
    if any(trial["confirmed"] for trial in report["trials"]):
        return champion(report)
    return max(report["trials"], key=lambda trial: trial["speedup"] or 0.0)


def intervention(
    item: Item,
    limiter: str,
    own_us: float | None,
    other_shape: Callable[[Sizes], OtherShape],
) -> dict[str, Any]:
    """Holds the first expectation of the limiter whose other shape some configuration runs on
    against the times there. `own_us`: of the champion at its own shape."""
    for doubled, least, most in expectations(limiter):
        if doubled not in item.doubled or own_us is None:
            continue
        other = other_shape(item.doubled[doubled])
        if other.fastest_us is None:
            continue
        halved = doubled == "head_dim"
        ratio = ratio_of(own_us, other.fastest_us, halved=halved)
        return {
            "intervention": f"{doubled} {'halved' if halved else 'doubled'}",
            "expected": [least, most],
            "ratio": ratio,
            "same_configuration": {
                "time_us": other.same_us,
                "ratio": ratio_of(own_us, other.same_us, halved=halved),
            },
            "search_there": {
                "trials": other.trials,
                "configuration": other.found,
                "time_us": other.found_us,
                "ratio": ratio_of(own_us, other.found_us, halved=halved),
            },
            "confirmed": ratio is not None and least <= ratio <= most,
        }
    return {"intervention": "none fits", "confirmed": False}


def ratio_of(own_us: float, other_us: float | None, *, halved: bool) -> float | None:
    """The time at the larger shape / the time at the smaller one; None without the other time."""
    if other_us is None:
        return None
    return own_us / other_us if halved else other_us / own_us


def expectations(limiter: str) -> list[tuple[str, float, float]]:
    """The sizes to double (head_dim: to halve), and the bounds of the ratio of times."""
    if not limiter:
        return []
    found = [rest for name, *rest in _EXPECTED if limiter.startswith(name)]
    own = [(str(doubled), float(least), float(most)) for doubled, least, most in found]
    if " + " in limiter:
        own = [_TOGETHER]
    return own if limiter.startswith(_NO_UNITS) else [*own, _ANY_UNIT]
