"""The fast CPU attention kernel against SDPA, tuned for each of several shapes.

    python benchmarks/attention_cpu.py [--seed 0] [-o FILE]

For each shape: `evotune run` on search_spaces/attention_cpu.yaml with that shape, then the
best confirmed configuration (fresh process, unseen inputs). Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SHAPES = {(1, 8, 512, 64): 24, (2, 8, 1024, 64): 12, (1, 8, 2048, 64): 8}
"""Shape -> trials: few, since a trial's time grows with the square of the length."""


def tune(shape: tuple[int, ...], trials: int, seed: int, folder: Path) -> dict[str, Any]:
    """The report of a run on one shape."""
    space = yaml.safe_load((ROOT / "search_spaces/attention_cpu.yaml").read_text())
    batch, heads, seq_len, head_dim = shape
    space["root"] = str(ROOT)
    space["problem"]["shapes"] = [
        {"batch": batch, "heads": heads, "seq_len": seq_len, "head_dim": head_dim}
    ]
    space["problem"]["held_out"] = [{**space["problem"]["shapes"][0], "seq_len": seq_len - 12}]
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    evotune = [sys.executable, "-m", "evotune"]
    runs = ["--runs-dir", str(folder)]
    budget = ["--trials", str(trials), "--seed", str(seed)]
    subprocess.run([*evotune, "run", str(path), *budget, *runs], check=True)
    report = [*evotune, "report", "latest", "--format", "json", *runs]
    data: dict[str, Any] = json.loads(
        subprocess.run(report, check=True, capture_output=True).stdout
    )
    return data


def champion(report: dict[str, Any]) -> dict[str, Any]:
    confirmed = [trial for trial in report["trials"] if trial["confirmed"] and trial["rank"]]
    return min(confirmed, key=lambda trial: int(str(trial["rank"]).rstrip("=")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    results = []
    rows = ["| shape, mask | SDPA | evotune's best | speedup [95%] |", "|---|---|---|---|"]
    environment: dict[str, Any] = {}
    for shape, trials in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            report = tune(shape, trials, options.seed, Path(folder))
        best = champion(report)
        environment = report["environment"]
        results.append(
            {
                "shape": shape,
                "trial": best["number"],
                "configuration": best["configuration"],
                "measurements": best["measurements"],
                "trials": len(report["trials"]),
            }
        )
        for case in best["measurements"]:
            rows.append(
                f"| {case['case']} | {case['baseline']} {case['baseline_us'] / 1000:.2f} ms "
                f"| {case['time_us'] / 1000:.2f} ms | {case['speedup']:.2f}× "
                f"[{case['speedup_low']:.2f}, {case['speedup_high']:.2f}] |"
            )
        if options.output:  # after each shape: a long benchmark may be stopped
            environment["command"] = ["python", "benchmarks/attention_cpu.py", *sys.argv[1:]]
            record = {"environment": environment, "results": results}
            options.output.write_text(json.dumps(record, indent=2) + "\n")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
