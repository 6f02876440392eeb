"""Compares the fast CPU attention kernel, tuned for each of several shapes, with SDPA.

    python benchmarks/lab/attention_cpu.py [--seed 0] [-o FILE]

For each shape it calls `evotune run` on search_spaces/attention_cpu.yaml with that shape and takes
the best confirmed configuration (fresh process, unseen inputs). Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tuning import champion, derive, shape_of, tune

SHAPES = {(1, 8, 512, 64): 24, (2, 8, 1024, 64): 12, (1, 8, 2048, 64): 8}
"""Shape -> trials: few, since a trial's time grows with the square of the length."""


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
            sizes = shape_of(*shape)
            problem = {"shapes": [sizes], "held_out": [{**sizes, "seq_len": shape[2] - 12}]}
            path = derive("attention_cpu", {"problem": problem}, Path(folder) / "space.yaml")
            budget = ["--trials", str(trials), "--seed", str(options.seed)]
            report = tune(path, Path(folder), *budget)
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
            environment["command"] = ["python", "benchmarks/lab/attention_cpu.py", *sys.argv[1:]]
            record = {"environment": environment, "results": results}
            options.output.write_text(json.dumps(record, indent=2) + "\n")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
