"""Softmax, RMSNorm and matmul on the CPU against PyTorch: each shipped space, tuned briefly.

    python benchmarks/examples_cpu.py [--trials 12] [--seed 0] [-o FILE]

Prints a Markdown table of each champion (fresh process, unseen inputs) on its timed and held-out
shapes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tuning import ROOT, champion, environment, tune

SPACES = ("rms_norm_cpu", "softmax_cpu", "matmul_cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    rows = ["| space | shape | PyTorch | evotune's best | speedup [95%] |", "|---|---|---|---|---|"]
    for space in SPACES:
        with tempfile.TemporaryDirectory() as folder:
            budget = ["--trials", str(options.trials), "--seed", str(options.seed)]
            report = tune(ROOT / "search_spaces" / f"{space}.yaml", Path(folder), *budget)
        best = champion(report)
        results.append(
            {
                "space": space,
                "trials": len(report["trials"]),
                "configuration": best["configuration"],
                "measurements": best["measurements"],
            }
        )
        for case in best["measurements"]:
            held_out = " (held out)" if case["held_out"] else ""
            rows.append(
                f"| {space} | {case['case']}{held_out} "
                f"| {case['baseline']} {case['baseline_us'] / 1000:.2f} ms "
                f"| {case['time_us'] / 1000:.2f} ms | {case['speedup']:.2f}× "
                f"[{case['speedup_low']:.2f}, {case['speedup_high']:.2f}] |"
            )
        if options.output:  # after each space: a long benchmark may be stopped
            record = {"environment": environment(report), "results": results}
            record["environment"]["command"] = ["python", *sys.argv]
            options.output.write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
