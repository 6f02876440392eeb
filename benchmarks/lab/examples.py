"""Tunes the shipped spaces of softmax and RMSNorm, of matmul (on a CPU) and of Triton's attention
(on a GPU) against PyTorch.

    python benchmarks/lab/examples.py [--device cpu|cuda:0] [--trials 12] [--seed 0]
        [-o benchmarks/results/examples_DEVICE.json]

Prints a Markdown table with the times of each champion (fresh process, unseen inputs) on its timed
and held-out shapes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tuning import ROOT, champion, environment, tune

SPACES = {
    "cpu": ("rms_norm_cpu", "softmax_cpu", "matmul_cpu"),
    "cuda": ("rms_norm", "softmax", "attention_triton"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    rows = ["| space | shape | PyTorch | evotune's best | speedup [95%] |", "|---|---|---|---|---|"]
    for space in SPACES[options.device.partition(":")[0]]:
        with tempfile.TemporaryDirectory() as folder:
            words = ["--trials", str(options.trials), "--seed", str(options.seed)]
            words += ["--device", options.device]
            report = tune(ROOT / "search_spaces" / f"{space}.yaml", Path(folder), *words)
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
            held_out += ", cold" if case["cache"] == "cold" else ""
            rows.append(
                f"| {space} | {case['case']}{held_out} "
                f"| {case['baseline']} {in_words(case['baseline_us'])} "
                f"| {in_words(case['time_us'])} | {case['speedup']:.2f}× "
                f"[{case['speedup_low']:.2f}, {case['speedup_high']:.2f}] |"
            )
        if options.output:  # after each space: a long benchmark may be stopped
            record = {"environment": environment(report), "results": results}
            record["environment"]["command"] = ["python", *sys.argv]
            options.output.write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(rows))


def in_words(time_us: float) -> str:
    return f"{time_us:.1f} µs" if time_us < 1000 else f"{time_us / 1000:.2f} ms"


if __name__ == "__main__":
    main()
