"""Puts `evotune explain` to the test on a device: are its statements confirmed by measurements?

    python benchmarks/lab/explain_trials.py story -o FILE         the WMMA kernel's choices retold
    python benchmarks/lab/explain_trials.py champions -o FILE     eight limiters, suggestions tried
    python benchmarks/lab/explain_trials.py predictions -o FILE   20 changes a space, predicted too
    python benchmarks/lab/explain_trials.py planted -o FILE       three planted causes

Each part writes JSON after each item and prints a line for it. The same command again skips the
items that FILE has, so a part can be cut off at any time. With `--minutes M` no item is begun that
would probably end later. An item that fails is named, the others go on, and the exit code is 1.
`--only NAME ...` picks items of a part. `--trials N` sets the trials of a search, `--other-trials`
those of the search at an intervention's other shape (0: none). `--no-confirm` takes the best trial
of a search for the champion, `--no-effects` leaves out its single changes, which most suggestions
come from: each saves about 20 s an item. `--smoke` takes small spaces of the CPU, to see that the
parts work. Interventions are in `explain_items.py`.

On several GPUs a process for each may measure other items into the same FILE:

    CUDA_VISIBLE_DEVICES=1 python benchmarks/lab/explain_trials.py champions --only NAME … -o FILE
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from explain_items import (
    CHAMPIONS,
    SMOKE,
    Item,
    OtherShape,
    Sizes,
    ablate,
    alone,
    best_of,
    explained,
    intervention,
    time_other_shape,
    time_us,
    unconfirmed,
)
from explain_planted import PLANTED, PLANTED_SMOKE, planted
from explain_records import Record, Records, Summary
from tuning import ROOT, derive, environment, shipped, tune

from evotune.errors import EvotuneError
from evotune.explain.explaining import predict_changes
from evotune.report.data import RunData
from evotune.runs.ablation import AblationRow, changes_of, measured_rows
from evotune.runs.folder import find_run
from evotune.runs.reopening import ReopenedRun
from evotune.trial import Configuration

CHAMPION, LISTED = "champion", "docs/results.md"
PREDICTED = ("attention_wmma", "attention_mma", "attention_wgmma", "rms_norm")
PREDICTED_SMOKE = ("rms_norm_cpu", "softmax_cpu")
CHANGES = 20
"""Of each space, where its champion has so many that can run: those of rms_norm have had 9."""


def searched(
    item: Item,
    options: argparse.Namespace,
    folder: Path,
    *,
    confirm: bool = True,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report of a search of the item's space, with one confirmed champion or none. On the CPU,
    whose confirmations take minutes, the first configurations are tried."""
    path = derive(item.space, dict(changes or {"problem": item.problem()}), folder / "space.yaml")
    if options.smoke:
        return unconfirmed(path, folder / "runs", options.trials)
    if not confirm:
        return unconfirmed(path, folder / "runs", options.trials, "evolution")
    words = ("--trials", str(options.trials), "--champions", "1", "--trust")
    return tune(path, folder / "runs", *words)


# --- The parts ------------------------------------------------------------------------------------


def story(options: argparse.Namespace, name: str) -> Iterator[Record]:
    """The worth of SWIZZLE, STAGES and PRODUCER_WARPS by `explain`, and the comparison with SDPA.

    - "champion": of a search's best configuration. A grid of SWIZZLE and STAGES, measured at once
      by a space of these values alone, stands beside it.
    - "docs/results.md": of the configuration whose neighbours that page measured one by one.

    The record `name` comes last: without it, all are measured again."""
    item = SMOKE[0] if options.smoke else CHAMPIONS[1]
    names = ("SCHEDULE", "CHUNK") if options.smoke else ("SWIZZLE", "STAGES", "PRODUCER_WARPS")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        changes: dict[str, Any] = {"problem": item.problem()}
        if name != CHAMPION:
            changes["default"] = {} if options.smoke else described()
        report = searched(item, options, folder, confirm=name == CHAMPION, changes=changes)
        best = best_of(report) if name == CHAMPION else report["trials"][0]
        of_trial = ("--trial", str(best["number"]))
        found = explained(folder / "runs", *of_trial, "--against", "baseline")
        against_default = {}
        if name == CHAMPION:
            words = (*of_trial, "--no-effects", "--against", "default")
            against_default = {"against_default": explained(folder / "runs", *words)["against"]}
            yield from swizzles_and_stages(item, best["configuration"], names[:2], folder)
    yield {
        "name": name,
        "environment": environment(report),
        "configuration": best["configuration"],
        "headline": found["headline"],
        "limiter": found["limiter"],
        "effects": [e for e in found["effects"] if e["parameter"] in names],
        "pairs": found["over_space"]["pairs"],
        "against": found["against"],
        **against_default,
    }


def described() -> dict[str, Any]:
    """The best WMMA configuration at (1,8,512,64) whose neighbours docs/results.md lists."""
    record = json.loads((ROOT / "benchmarks/results/attention_story_h200.json").read_text())
    found: dict[str, Any] = next(s["best"] for s in record["studies"] if s["length"] == 512)
    return found


def swizzles_and_stages(
    item: Item, best: Mapping[str, Any], free: Sequence[str], folder: Path
) -> Iterator[Record]:
    """The times of `best` with each pair of values of two parameters."""
    first, second = free
    changes = alone(item, best, None, free=free)
    changes["constraints"] += shipped(item.space).get("constraints", [])
    changes["budget"] = {"trials": 40}
    path = derive(item.space, changes, folder / "grid.yaml")
    for trial in unconfirmed(path, folder / "grid", 40)["trials"]:
        values = trial["configuration"]
        yield {
            "name": f"{first}={values[first]} {second}={values[second]}",
            "time_us": trial["time_us"],
            "outcome": trial["outcome"],
        }


def champions(options: argparse.Namespace, name: str) -> Iterator[Record]:
    """The champion's limiter, and whether the intervention's time agrees with it. Every suggestion,
    with the measured time of each one that is a configuration."""
    known = SMOKE if options.smoke else CHAMPIONS
    item = next(item for item in known if item.name == name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        report = searched(item, options, folder, confirm=options.confirm)
        best = best_of(report)
        if options.effects:
            ablate(folder / "runs", best["number"])
        words = ("--no-effects", "--try", "--trial", str(best["number"]))
        found = explained(folder / "runs", *words)
        configuration = best["configuration"]
        own_us = time_us(item, configuration, item.sizes, folder)

        def other_shape(sizes: Sizes) -> OtherShape:
            return time_other_shape(
                item,
                configuration,
                sizes,
                folder,
                trials=options.other_trials,
                strategy="exhaustive" if options.smoke else "evolution",
            )

        yield {
            "name": name,
            "environment": environment(report),
            "limiter": found["limiter"],
            "roofline": found["roofline"],
            "configuration": configuration,
            "time_us": own_us,
            **tries_of(found["next"]),
            **intervention(item, found["limiter"]["name"], own_us, other_shape),
        }


def tries_of(suggestions: Sequence[Record]) -> Record:
    """How many of the suggestions were measured, and how many of these are faster."""
    tried = [each for each in suggestions if each["configuration"] is not None]
    right = [each for each in tried if (each["measured"] or 0) > 1]
    return {"suggestions": suggestions, "tried": len(tried), "right": len(right)}


def confirmed_and_right(records: Sequence[Record]) -> Record | None:
    """Over all champions that are measured so far."""
    found = [record for record in records if "suggestions" in record]
    if not found:
        return None
    return {
        "name": "all",
        "champions": len(found),
        "confirmed": sum(record["confirmed"] for record in found),
        "tried": sum(record["tried"] for record in found),
        "right": sum(record["right"] for record in found),
    }


def predictions(options: argparse.Namespace, name: str) -> Iterator[Record]:
    """Of one space some of the changes of the champion that `ablate` measures: predicted by the
    model of the run's trials, then measured in turn."""
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(temporary) / "runs"
        report = searched(Item(name, name, {}), options, Path(temporary), confirm=False)
        best = best_of(report)
        own = Configuration(best["configuration"])
        pairs = predicted_and_measured(runs, best["number"], own, CHANGES)
    yield {
        "name": name,
        "environment": environment(report),
        "changes": pairs,
        "rank_correlation": rank_correlation(values_of(pairs)),
    }


def pooled(records: Sequence[Record]) -> Record | None:
    """The rank correlation of the changes of all spaces that are measured so far."""
    spaces = [record for record in records if isinstance(record.get("changes"), list)]
    pairs = [pair for record in spaces for pair in record["changes"]]
    if not pairs:
        return None
    correlation = rank_correlation(values_of(pairs))
    return {
        "name": "all",
        "spaces": [record["name"] for record in spaces],
        "changes": len(pairs),
        "rank_correlation": correlation,
    }


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
        order = order[: 2 * count]  # all of them are compiled, and some cannot run
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
    """Spearman's, equal values sharing their rank; None for fewer than three pairs, or where one
    side is the same in all of them."""
    if len(pairs) < 3:
        return None
    ranks = [
        np.array([(np.sum(column < v) + np.sum(column <= v)) / 2 for v in column])
        for column in (np.array(values) for values in zip(*pairs, strict=True))
    ]
    if any(np.ptp(column) == 0 for column in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


@dataclass(frozen=True)
class Part:
    """A part's items, by name, and how one of them is measured.

    - `measure`: yields the item's records; the last one has the item's name.
    - `item_s`: an estimate of the seconds of its first item.
    - `summary`: a record about all items so far.
    """

    measure: Callable[[argparse.Namespace, str], Iterator[Record]]
    names: Sequence[str]
    smoke: Sequence[str]
    item_s: float
    summary: Summary = lambda records: None

    def chosen(self, options: argparse.Namespace) -> list[str]:
        """The items of this call; ends the program where `--only` names an unknown one."""
        names = self.smoke if options.smoke else self.names
        unknown = sorted(set(options.only or ()) - set(names))
        if unknown:
            sys.exit(f"--only: no item {', '.join(unknown)}; there are: {', '.join(names)}")
        return [name for name in names if not options.only or name in options.only]


PARTS: Mapping[str, Part] = {
    "story": Part(story, [CHAMPION, LISTED], [CHAMPION, LISTED], 150.0),
    "champions": Part(
        champions,
        [item.name for item in CHAMPIONS],
        [item.name for item in SMOKE],
        140.0,
        confirmed_and_right,
    ),
    "predictions": Part(predictions, PREDICTED, PREDICTED_SMOKE, 100.0, pooled),
    "planted": Part(planted, [p[0] for p in PLANTED], [p[0] for p in PLANTED_SMOKE], 30.0),
}


def line(record: Mapping[str, Any]) -> str:
    shown = ("name", "headline", "intervention", "ratio", "rank_correlation", "champions")
    shown += ("confirmed", "tried", "right", "time_us")
    parts = [f"{name}: {record[name]}" for name in shown if name in record]
    if isinstance(record.get("limiter"), dict):
        parts.append(f"limiter: {record['limiter']['name'] or 'not known'}")
    return "; ".join(parts)


def measure_part(part: Part, options: argparse.Namespace, kept: Records) -> list[str]:
    """Measures the items that have no record yet. Returns the names of the failed items."""
    failed = []
    for name in part.chosen(options):
        if not kept.wants(name):
            continue
        try:
            for record in part.measure(options, name):
                kept.add(record)
                print(line(record), flush=True)
        except (subprocess.CalledProcessError, EvotuneError) as error:
            failed.append(name)
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
            continue
        summary = kept.add_summary(part.summary)
        if summary is not None:
            print(line(summary), flush=True)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--trials", type=int, default=120)
    parser.add_argument("--other-trials", type=int, default=60)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--no-confirm", dest="confirm", action="store_false")
    parser.add_argument("--no-effects", dest="effects", action="store_false")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    part = PARTS[options.part]
    kept = Records(options.output, options.minutes, part.item_s)
    failed = measure_part(part, options, kept)
    if kept.left:
        print(f"left for another call: {', '.join(kept.left)}")
    if failed:
        sys.exit(f"failed, and left for another call: {', '.join(failed)}")


if __name__ == "__main__":
    main()
