"""Measures the worth of STAGES, PRODUCER_WARPS and SWIZZLE in the WMMA kernel, each by itself.

    python benchmarks/lab/attention_story.py [--trials 150]
        [--seed 0] -o benchmarks/results/FILE.json
    python benchmarks/lab/attention_story.py --table benchmarks/results/FILE.json

For each length, `evotune run` finds the best configuration. Then a space that holds only it and its
neighbours along one of the three parameters is measured exhaustively. A ratio is the neighbour's
speed over that of the best, both measured against SDPA in the same minutes. Its bounds come from
both 95% intervals.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tuning import champion, derive, environment, shape_of, shipped, tune

VARIED = ("STAGES", "PRODUCER_WARPS", "SWIZZLE")
LENGTHS = (512, 4096)


def study(length: int, trials: int, seed: int) -> dict[str, Any]:
    """The best configuration at one length, and every valid change of one parameter of it."""
    sizes = shape_of(1, 8, length, 64)
    held_out = {**sizes, "seq_len": length - 12}
    problem = {"shapes": [sizes], "variants": [{"causal": False}], "held_out": [held_out]}
    with tempfile.TemporaryDirectory() as folder:
        path = derive("attention_wmma", {"problem": problem}, Path(folder) / "best.yaml")
        device = ["--device", "cuda:0"]
        found = tune(path, Path(folder), "--trials", str(trials), "--seed", str(seed), *device)
        best = champion(found)["configuration"]
        changes = {"problem": problem, **around(best)}
        path = derive("attention_wmma", changes, Path(folder) / "around.yaml")
        measured = tune(path, Path(folder), "--strategy", "exhaustive", *device)
    kept = ("configuration", "outcome", "reason", "time_us", "resources")
    kept += ("speedup", "speedup_low", "speedup_high")
    trials_measured = [{name: trial[name] for name in kept} for trial in measured["trials"]]
    return {
        "length": length,
        "best": best,
        "trials": trials_measured,
        "environment": environment(found),
    }


def around(best: dict[str, Any]) -> dict[str, Any]:
    """Changes that restrict the space to `best` and the configurations that differ from it in one
    parameter of VARIED."""
    document = shipped("attention_wmma")
    parameters = {
        name: document["parameters"][name]
        if name in VARIED
        else {"choices" if isinstance(value, str) else "values": [value]}
        for name, value in best.items()
    }
    same = {name: f"{name} == {best[name]}" for name in VARIED}
    pairs = ((VARIED[0], VARIED[1]), (VARIED[0], VARIED[2]), (VARIED[1], VARIED[2]))
    one_change = [f"{same[first]} or {same[second]}" for first, second in pairs]
    return {
        "parameters": parameters,
        "constraints": [*document["constraints"], *one_change],
        "default": best,
        "budget": {"trials": 100},
    }


def table(studies: list[dict[str, Any]]) -> list[str]:
    """Markdown: a row for each value of each parameter, a column for each length."""
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for found in studies:
        best, length = found["best"], found["length"]
        own = next(t for t in found["trials"] if t["configuration"] == best)
        for trial in found["trials"]:
            changed = [name for name in VARIED if trial["configuration"][name] != best[name]]
            for name in changed or VARIED:
                row = cells.setdefault((name, str(trial["configuration"][name])), {})
                row[length] = cell(trial, own) if changed else f"best, {own['time_us']:.1f} µs"
    lengths = [found["length"] for found in studies]
    lines = [
        "| parameter | value |" + "".join(f" L = {length} |" for length in lengths),
        "|---|---|" + "---|" * len(lengths),
    ]
    for name, value in sorted(cells, key=lambda key: (VARIED.index(key[0]), key[1])):
        shown = [cells[name, value].get(length, "not valid") for length in lengths]
        lines.append(f"| {name} | {value} | " + " | ".join(shown) + " |")
    for found in studies:
        lines += ["", f"Best at L = {found['length']}: `{json.dumps(found['best'])}`"]
    return lines


def cell(trial: dict[str, Any], best: dict[str, Any]) -> str:
    if trial["outcome"] != "ok":
        return str(trial["outcome"])
    ratio = trial["speedup"] / best["speedup"]
    low = trial["speedup_low"] / best["speedup_high"]
    high = trial["speedup_high"] / best["speedup_low"]
    return f"{ratio:.2f}× [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        studies = json.loads(options.table.read_text())["studies"]
    else:
        studies = []
        for length in LENGTHS:
            studies.append(study(length, options.trials, options.seed))
            if options.output:
                seeded = f"--trials {options.trials} --seed {options.seed}"
                command = f"python benchmarks/lab/attention_story.py {seeded}"
                data = {"command": command, "studies": studies}
                options.output.write_text(json.dumps(data, indent=1) + "\n")
    print("\n".join(table(studies)))


if __name__ == "__main__":
    main()
