"""Puts `evotune explain` to the test on a device: are its statements confirmed by measurements?

    python benchmarks/explain_trials.py story -o FILE         the WMMA run retold
    python benchmarks/explain_trials.py champions -o FILE     eight limiters, an intervention each
    python benchmarks/explain_trials.py predictions -o FILE   60 changes, predicted and measured
    python benchmarks/explain_trials.py planted -o FILE       three planted causes
    python benchmarks/explain_trials.py tries -o FILE         suggestions, estimated and measured

Each part writes JSON and prints a line for each item. `--trials N` sets the trials of a search,
`--smoke` does the same with small spaces of the CPU, to see that the parts work. `--only NAME ...`
picks items of a part. Interventions are in `explain_items.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from explain_items import CHAMPIONS, SMOKE, Item, alone, intervention, time_us, unconfirmed
from tuning import EVOTUNE, ROOT, champion, derive, environment, shape_of, shipped, tune

from evotune.engine.folder import find_run
from evotune.engine.setup import load_kernel_setup
from evotune.explain.explaining import predict_changes
from evotune.report.data import RunData

PREDICTED = ("attention_wmma", "attention_mma", "attention_wgmma", "rms_norm")
PREDICTED_SMOKE = ("rms_norm_cpu", "softmax_cpu")
CHANGES = 60


def explained(runs: Path, *options: str) -> dict[str, Any]:
    """`evotune explain latest` as JSON, measured where something is missing."""
    words = [*EVOTUNE, "explain", "latest", "--format", "json", "--trust", "--runs-dir", str(runs)]
    done = subprocess.run([*words, *options], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def searched(item: Item, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The report of a search of the item's space. On the CPU, whose confirmations take minutes, the
    first configurations are tried and none is confirmed."""
    path = derive(item.space, {"problem": item.problem()}, folder / "space.yaml")
    if options.smoke:
        return unconfirmed(path, folder / "runs", options.trials)
    words = ("--trials", str(options.trials), "--champions", "1", "--trust")
    return tune(path, folder / "runs", *words)


def best_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The best confirmed trial; the fastest one where none was confirmed."""
    if any(trial["confirmed"] for trial in report["trials"]):
        return champion(report)
    return max(report["trials"], key=lambda trial: trial["speedup"] or 0.0)


# --- The parts ------------------------------------------------------------------------------------


def story(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The worth of SWIZZLE, STAGES and PRODUCER_WARPS by `explain`, and of STAGES with and without
    bank conflicts, each measured at once by a space of these values alone."""
    item = SMOKE[0] if options.smoke else CHAMPIONS[1]
    names = ("SCHEDULE", "CHUNK") if options.smoke else ("SWIZZLE", "STAGES", "PRODUCER_WARPS")
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


def champions(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each champion's limiter, and whether the intervention's time agrees with it."""
    for item in chosen(SMOKE if options.smoke else CHAMPIONS, options.only):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            report = searched(item, options, folder)
            found = explained(
                folder / "runs", "--no-effects", "--trial", str(best_of(report)["number"])
            )
            best = best_of(report)["configuration"]
            own = time_us(item, best, item.sizes, folder)
            yield {
                "name": item.name,
                "environment": environment(report),
                "limiter": found["limiter"],
                "roofline": found["roofline"],
                "configuration": best,
                "time_us": own,
                **intervention(item, found["limiter"]["name"], best, own, folder),
            }


def predictions(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """For each space the changes of the champion that `ablate` measures: predicted by the model of
    the run's trials, then measured in turn. The last record has the rank correlation of all."""
    spaces = chosen_names(PREDICTED_SMOKE if options.smoke else PREDICTED, options.only)
    pooled: list[tuple[float, float]] = []
    for space in spaces:
        with tempfile.TemporaryDirectory() as name:
            runs = Path(name) / "runs"
            item = Item(space, space, {})
            report = searched(item, options, Path(name))
            pairs = predicted_and_measured(runs, CHANGES // len(spaces))
            pooled += [(pair["predicted"], pair["measured"]) for pair in pairs]
            yield {
                "name": space,
                "environment": environment(report),
                "changes": pairs,
                "rank_correlation": rank_correlation(
                    [(pair["predicted"], pair["measured"]) for pair in pairs]
                ),
            }
    yield {"name": "all", "changes": len(pooled), "rank_correlation": rank_correlation(pooled)}


def predicted_and_measured(runs: Path, count: int) -> list[dict[str, Any]]:
    """ln of the worth of the champion's value, by the model and by the paired ablation."""
    explained(runs)  # measures the ablation
    folder = find_run("latest", runs)
    data = RunData.load(folder)
    ablation = data.meta["ablation"]
    rows = [row for row in ablation["rows"] if row["parameter"] and row["ratio"]]
    order = np.random.default_rng(0).permutation(len(rows))[:count]
    picked = [rows[int(at)] for at in order]
    own = ablation["configuration"]
    changed = [{**own, row["parameter"]: row["after"], **row["also"]} for row in picked]
    tried = [trial.configuration.to_json() for trial in data.trials]
    return [
        {
            "change": f"{row['parameter']} {row['before']} to {row['after']}",
            "predicted": -difference.mean,
            "deviation": difference.deviation,
            "measured": -math.log(row["ratio"]),
            "tried": values in tried,
        }
        for row, values, difference in zip(
            picked, changed, predict_changes(folder, own, changed), strict=True
        )
        if difference is not None
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


# The mma rung with four blocks wanted on each multiprocessor: 128 registers where it needs 224.
_SPILLING = {"BLOCK_M": 64, "BLOCK_N": 256, "WARPS_Q": 2, "WARPS_KV": 2, "STAGES": 1}
_SPILLING |= {"Q_IN_REGS": True, "MIN_CTAS": 4, "SPLIT_KV": 1, "PERSISTENT": 0}
PLANTED: Sequence[tuple[str, str, Mapping[str, Any], tuple[str, ...]]] = (
    ("no pad", "attention_wmma", {"SWIZZLE": "none"}, ("bank conflicts",)),
    ("one stage", "attention_wmma", {"STAGES": 1}, ("latency",)),
    ("spilling launch bounds", "attention_mma", _SPILLING, ("spills",)),
)


def planted(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A space's default with one cause planted; its limiter must be that cause."""
    items: Sequence[tuple[str, str, Mapping[str, Any], tuple[str, ...]]] = PLANTED
    if options.smoke:
        items = (("one lane", "rms_norm_cpu", {"LANES": 16}, ("",)),)
    for name, space, values, expected in items:
        if options.only and name not in options.only:
            continue
        smoke = SMOKE[0]
        sizes = smoke.sizes if options.smoke else shape_of(1, 8, 512, 64)
        item = Item(name, space, sizes, causal=None if options.smoke else False)
        with tempfile.TemporaryDirectory() as folder:
            configuration = changed_default(space, values, Path(folder))
            changes = {**alone(item, configuration, None), "after_compile": []}
            path = derive(space, changes, Path(folder) / "planted.yaml")
            report = unconfirmed(path, Path(folder) / "runs", 1)
            found = explained(Path(folder) / "runs", "--no-effects")
        named = found["limiter"]["name"]
        yield {
            "name": name,
            "environment": environment(report),
            "limiter": found["limiter"],
            "counters": found["counters"],
            "expected": list(expected),
            "confirmed": any(named.startswith(one) for one in expected),
        }


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


def tries(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Runs `explain --try` on each champion. Yields every suggestion, with the measured time of
    each one that is a configuration."""
    for item in chosen(SMOKE if options.smoke else CHAMPIONS, options.only):
        with tempfile.TemporaryDirectory() as name:
            report = searched(item, options, Path(name))
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


PARTS: Mapping[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "story": story,
    "champions": champions,
    "predictions": predictions,
    "planted": planted,
    "tries": tries,
}


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
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    records = []
    for record in PARTS[options.part](options):
        records.append(record)
        print(line(record), flush=True)
        if options.output:
            command = " ".join(["python", "benchmarks/explain_trials.py", *sys.argv[1:]])
            date = datetime.now(UTC).isoformat(timespec="seconds")
            data = {"command": command, "date": date, "items": records}
            options.output.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
