"""Puts `evotune explain` to the test on a device: are its statements confirmed by measurements?

    python benchmarks/explain_trials.py story -o FILE         the WMMA run retold
    python benchmarks/explain_trials.py champions -o FILE     eight limiters, an intervention each
    python benchmarks/explain_trials.py predictions -o FILE   60 changes, predicted and measured
    python benchmarks/explain_trials.py planted -o FILE       three planted causes
    python benchmarks/explain_trials.py tries -o FILE         suggestions, estimated and measured

Each part writes JSON and prints a line for each item. `--trials N` sets the trials of a search,
`--smoke` does the same with small spaces of the CPU, to see that the parts work. `--only NAME ...`
picks items of a part. With `--minutes M` no item is begun that would probably end later; the same
command again goes on where the file ends. Interventions are in `explain_items.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from explain_items import (
    CHAMPIONS,
    SMOKE,
    Item,
    alone,
    intervention,
    roomier_than,
    time_us,
    unconfirmed,
)
from explain_records import Record, Records
from tuning import EVOTUNE, ROOT, champion, derive, environment, shape_of, shipped, tune

from evotune.engine.ablation import AblationRow, changes_of, measured_rows
from evotune.engine.folder import find_run
from evotune.engine.reopening import ReopenedRun
from evotune.engine.setup import load_kernel_setup
from evotune.errors import EvotuneError
from evotune.explain.explaining import predict_changes
from evotune.report.data import RunData
from evotune.trial import Configuration

PREDICTED = ("attention_wmma", "attention_mma", "attention_wgmma", "rms_norm")
PREDICTED_SMOKE = ("rms_norm_cpu", "softmax_cpu")
CHANGES = 60


def explained(runs: Path, *options: str) -> dict[str, Any]:
    """`evotune explain latest` as JSON, measured where something is missing."""
    words = [*EVOTUNE, "explain", "latest", "--format", "json", "--trust", "--runs-dir", str(runs)]
    done = subprocess.run([*words, *options], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def searched(
    item: Item, options: argparse.Namespace, folder: Path, *, confirm: bool = True
) -> dict[str, Any]:
    """The report of a search of the item's space, with one confirmed champion or none. On the CPU,
    whose confirmations take minutes, the first configurations are tried."""
    path = derive(item.space, {"problem": item.problem()}, folder / "space.yaml")
    if options.smoke:
        return unconfirmed(path, folder / "runs", options.trials)
    if not confirm:
        return unconfirmed(path, folder / "runs", options.trials, "evolution")
    words = ("--trials", str(options.trials), "--champions", "1", "--trust")
    return tune(path, folder / "runs", *words)


def best_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The best confirmed trial; the fastest one where none was confirmed."""
    if any(trial["confirmed"] for trial in report["trials"]):
        return champion(report)
    return max(report["trials"], key=lambda trial: trial["speedup"] or 0.0)


# --- The parts ------------------------------------------------------------------------------------


def story(options: argparse.Namespace, kept: Records) -> Iterator[Record]:
    """The worth of SWIZZLE, STAGES and PRODUCER_WARPS by `explain`, and of STAGES with and without
    bank conflicts, each measured at once by a space of these values alone."""
    item = SMOKE[0] if options.smoke else CHAMPIONS[1]
    names = ("SCHEDULE", "CHUNK") if options.smoke else ("SWIZZLE", "STAGES", "PRODUCER_WARPS")
    if not kept.wants("explanation"):
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = searched(item, options, folder)
        found = explained(folder / "runs", "--against", "default")
        yield {
            "name": "explanation",
            "environment": environment(report),
            "headline": found["headline"],
            "limiter": found["limiter"],
            "effects": [e for e in found["effects"] if e["parameter"] in names],
            "pairs": found["over_space"]["pairs"],
            "against": found["against"],
        }
        best = best_of(report)["configuration"]
        first, second = names[:2]
        changes = alone(item, best, None, free=(first, second))
        changes["constraints"] += shipped(item.space).get("constraints", [])
        changes["budget"] = {"trials": 40}
        path = derive(item.space, changes, folder / "grid.yaml")
        grid = unconfirmed(path, folder / "grid", 40)
        for trial in grid["trials"]:
            values = trial["configuration"]
            yield {
                "name": f"{first}={values[first]} {second}={values[second]}",
                "time_us": trial["time_us"],
                "outcome": trial["outcome"],
            }


def champions(options: argparse.Namespace, kept: Records) -> Iterator[Record]:
    """Each champion's limiter, and whether the intervention's time agrees with it."""
    for item in chosen(SMOKE if options.smoke else CHAMPIONS, options.only):
        if not kept.wants(item.name):
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            report = searched(item, options, folder)
            found = explained(
                folder / "runs", "--no-effects", "--trial", str(best_of(report)["number"])
            )
            roomier = roomier_than(best_of(report), report["trials"])
            best = best_of(report)["configuration"]
            own = time_us(item, best, item.sizes, folder)
            yield {
                "name": item.name,
                "environment": environment(report),
                "limiter": found["limiter"],
                "roofline": found["roofline"],
                "configuration": best,
                "time_us": own,
                **intervention(item, found["limiter"]["name"], best, own, folder, roomier=roomier),
            }


def predictions(options: argparse.Namespace, kept: Records) -> Iterator[Record]:
    """For each space some of the changes of the champion that `ablate` measures: predicted by the
    model of the run's trials, then measured in turn. The last record has the rank correlation of
    all."""
    spaces = PREDICTED_SMOKE if options.smoke else PREDICTED
    for space in chosen_names(spaces, options.only):
        if not kept.wants(space):
            continue
        with tempfile.TemporaryDirectory() as name:
            runs = Path(name) / "runs"
            report = searched(Item(space, space, {}), options, Path(name), confirm=False)
            best = best_of(report)
            pairs = predicted_and_measured(
                runs, best["number"], Configuration(best["configuration"]), CHANGES // len(spaces)
            )
        yield {
            "name": space,
            "environment": environment(report),
            "changes": pairs,
            "rank_correlation": rank_correlation(values_of(pairs)),
        }
    pooled = [
        pair for record in kept.items if record["name"] in spaces for pair in record["changes"]
    ]
    correlation = rank_correlation(values_of(pooled))
    yield {"name": "all", "changes": len(pooled), "rank_correlation": correlation}


def values_of(pairs: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    return [(pair["predicted"], pair["measured"]) for pair in pairs]


def predicted_and_measured(
    runs: Path, number: int, own: Configuration, count: int
) -> list[dict[str, Any]]:
    """ln of the worth of the champion's value, by the model and measured in turn, for `count`
    changes that can run, picked at random."""
    folder = find_run("latest", runs)
    with folder.locked():
        reopened = ReopenedRun.load(folder)
        own = reopened.configuration(own)
        unchanged, *changes = changes_of(reopened, own)
        order = [int(at) for at in np.random.default_rng(0).permutation(len(changes))]
        rows = measured_rows(reopened, number, own, [unchanged, *(changes[at] for at in order)])
        valid = (row for row in rows if row.change.parameter and row.ratio)
        picked: list[AblationRow] = list(itertools.islice(valid, count))
        rows.close()
    changed = [row.change.configuration.to_json() for row in picked]
    tried = [trial.configuration for trial in RunData.load(folder).trials]
    return [
        {
            "change": f"{row.change.parameter} {row.change.before} to {row.change.after}",
            "predicted": -difference.mean,
            "deviation": difference.deviation,
            "measured": -math.log(row.ratio),
            "tried": row.change.configuration in tried,
        }
        for row, difference in zip(
            picked, predict_changes(folder, own.to_json(), changed), strict=True
        )
        if difference is not None and row.ratio
    ]


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's, equal values sharing their rank; None for fewer than three pairs."""
    if len(pairs) < 3:
        return None
    ranks = [
        np.array([(np.sum(column < v) + np.sum(column <= v)) / 2 for v in column])
        for column in (np.array(values) for values in zip(*pairs, strict=True))
    ]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


# The mma rung with four blocks wanted on each multiprocessor: 128 registers, where it needs more.
# The first of them that is valid is taken, the one that spills most.
_BOUNDS = {"WARPS_Q": 2, "WARPS_KV": 2, "STAGES": 1, "Q_IN_REGS": True}
_BOUNDS |= {"MIN_CTAS": 4, "SPLIT_KV": 1, "PERSISTENT": 0}
_SPILLING: Sequence[Mapping[str, Any]] = (
    {**_BOUNDS, "BLOCK_M": 64, "BLOCK_N": 256},
    {**_BOUNDS, "BLOCK_M": 64, "BLOCK_N": 128},
    {**_BOUNDS, "BLOCK_M": 128, "BLOCK_N": 64, "WARPS_Q": 4, "WARPS_KV": 1},
    {**_BOUNDS, "BLOCK_M": 128, "BLOCK_N": 32, "STAGES": 2},
)
PLANTED: Sequence[tuple[str, str, Sequence[Mapping[str, Any]], str]] = (
    ("no pad", "attention_wmma", ({"SWIZZLE": "none"},), "bank conflicts"),
    ("one stage", "attention_wmma", ({"STAGES": 1},), "latency"),
    ("spilling launch bounds", "attention_mma", _SPILLING, "spills"),
)
PLANTED_SMOKE = (("one lane", "rms_norm_cpu", ({"LANES": 16},), ""),)


def planted(options: argparse.Namespace, kept: Records) -> Iterator[Record]:
    """A space's default with one cause planted; its limiter must be that cause."""
    for name, space, causes, expected in PLANTED_SMOKE if options.smoke else PLANTED:
        if (options.only and name not in options.only) or not kept.wants(name):
            continue
        sizes = SMOKE[0].sizes if options.smoke else shape_of(1, 8, 512, 64)
        item = Item(name, space, sizes, causal=None if options.smoke else False)
        refused = []
        for values in causes:
            with tempfile.TemporaryDirectory() as folder:
                report = tried_alone(item, values, Path(folder))
                (trial,) = report["trials"]
                if not trial["time_us"]:
                    refused.append({**values, "outcome": trial["outcome"], "why": trial["reason"]})
                    print(f"{name}: {trial['outcome']}: {trial['reason']}", file=sys.stderr)
                    continue
                found = explained(Path(folder) / "runs", "--no-effects")
            yield {
                "name": name,
                "environment": environment(report),
                "configuration": trial["configuration"],
                "refused": refused,
                "limiter": found["limiter"],
                "counters": found["counters"],
                "expected": expected,
                "confirmed": found["limiter"]["name"].startswith(expected),
            }
            break
        else:
            # Not kept: a later call tries again.
            print(f"{name}: no candidate is valid", flush=True)


def tried_alone(item: Item, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The report of a run of the default with these values alone."""
    configuration = changed_default(item.space, values, folder)
    changes = {**alone(item, configuration, None), "after_compile": []}
    path = derive(item.space, changes, folder / "planted.yaml")
    return unconfirmed(path, folder / "runs", 1)


def changed_default(space: str, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The configuration that a search of the space starts from, with other values; parameters that
    no longer apply get the value that they then have. No constraint need hold."""
    setup = load_kernel_setup(ROOT / f"search_spaces/{space}.yaml", "auto")
    wanted = {**setup.space.default(), **values}
    path = derive(space, {"constraints": [], "default": {}}, folder / "free.yaml")
    free = load_kernel_setup(path, "auto").space
    found = free.repair(wanted, random.Random(0))
    assert found is not None
    return found.to_json()


def tries(options: argparse.Namespace, kept: Records) -> Iterator[Record]:
    """Runs `explain --try` on each champion. Yields every suggestion, with the measured time of
    each one that is a configuration."""
    for item in chosen(SMOKE if options.smoke else CHAMPIONS, options.only):
        if not kept.wants(item.name):
            continue
        with tempfile.TemporaryDirectory() as name:
            report = searched(item, options, Path(name), confirm=False)
            found = explained(Path(name) / "runs", "--no-effects", "--try")
            tried = [s for s in found["next"] if s["configuration"] is not None]
            right = [s for s in tried if (s["measured"] or 0) > 1]
            yield {
                "name": item.name,
                "environment": environment(report),
                "limiter": found["limiter"]["name"],
                "suggestions": found["next"],
                "tried": len(tried),
                "right": len(right),
            }


PARTS: Mapping[str, Callable[[argparse.Namespace, Records], Iterator[Record]]] = {
    "story": story,
    "champions": champions,
    "predictions": predictions,
    "planted": planted,
    "tries": tries,
}


ITEM_S = {"story": 300.0, "champions": 75.0, "predictions": 100.0, "planted": 30.0, "tries": 75.0}
"""Estimates of the seconds of a part's first item; its later ones are told by those before."""


def chosen(items: Sequence[Item], only: Sequence[str] | None) -> list[Item]:
    return [item for item in items if not only or item.name in only]


def chosen_names(names: Sequence[str], only: Sequence[str] | None) -> list[str]:
    return [name for name in names if not only or name in only]


def line(record: Mapping[str, Any]) -> str:
    shown = ("name", "headline", "intervention", "ratio", "confirmed", "rank_correlation", "tried")
    shown += ("right", "time_us")
    parts = [f"{name}: {record[name]}" for name in shown if name in record]
    if isinstance(record.get("limiter"), dict):
        parts.append(f"limiter: {record['limiter']['name'] or 'not known'}")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--trials", type=int, default=120)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    kept = Records(options.output, options.minutes, ITEM_S[options.part])
    try:
        for record in PARTS[options.part](options, kept):
            kept.add(record)
            print(line(record), flush=True)
    except (subprocess.CalledProcessError, EvotuneError) as error:
        sys.exit(f"{options.part} ended early, its records are kept: {error}")
    if kept.left:
        print(f"left for another call: {', '.join(kept.left)}")


if __name__ == "__main__":
    main()
