"""Tunes each shipped example on a GPU and holds it to its bar.

    python benchmarks/lab/showcases.py [--device cuda:0] [--minutes 8] [--only NAME ...] [--seed 0]
        [-o benchmarks/results/showcases_h200.json]

Each example is an `evotune run` with its confirmation in a fresh process. The times are the
champion's, device time, warm and cold, against the fastest PyTorch baseline of the same minutes.
`--minutes` is the time for all examples together. Each example gets its share of the remaining
time. An example that is reached too late is recorded as not run. Prints a Markdown table, and ends
with exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuning import champion, derive, environment, tune

from evotune.runs.setup import load_kernel_setup
from evotune.workers.executor import TIMED

SKINNY = (  # m, n, k: layers of transformers of 7 and 70 billion weights, for 1 to 128 tokens
    (1, 12288, 4096),  # 7B: q, k and v
    (1, 4096, 11008),  # 7B: down
    (8, 4096, 4096),  # 7B: out
    (16, 22016, 4096),  # 7B: gate and up
    (32, 4096, 11008),  # 7B: down
    (64, 12288, 4096),  # 7B: q, k and v
    (128, 4096, 4096),  # 7B: out
    (16, 10240, 8192),  # 70B: q, k and v
    (64, 8192, 8192),  # 70B: out
    (128, 8192, 28672),  # 70B: down
)
SKINNY_WANTED = 8
_LEAST_SEARCH_MINUTES = 0.15
_START_AND_CONFIRMATION_MINUTES = 0.25


@dataclass(frozen=True)
class Showcase:
    """An example and its bars; 0 where it has none.

    - `warm`, `cold`: the least speedup over the fastest PyTorch baseline, on every shape.
    - `copy_share`: the least share of the bandwidth of a large copy, on timed shapes, from cold
      caches.
    - `tflops`: the least rate on timed shapes, warm.
    """

    name: str
    space: str
    warm: float = 0.0
    cold: float = 0.0
    copy_share: float = 0.0
    tflops: float = 0.0
    weight: float = 1.0
    changes: Mapping[str, Any] = field(default_factory=dict)


def _skinny(m: int, n: int, k: int) -> Showcase:
    columns = next(each for each in (16, 32, 64, 128) if each >= m)
    parts = max(1, min(8, 264 // (n // 64)))
    start = {"BLOCK_N": columns, "SPLIT_K": parts, "MIN_CTAS": 1, "STAGES": 4}
    changes = {"problem": {"shapes": [{"m": m, "n": n, "k": k}], "held_out": []}, "default": start}
    return Showcase(f"linear {m}x{n}x{k}", "linear_skinny", 1.15, weight=0.8, changes=changes)


SHOWCASES = (
    Showcase("softmax", "softmax", warm=1.3, cold=1.0),
    Showcase("rms_norm", "rms_norm", warm=1.3, cold=1.0),
    Showcase("add_rms_norm", "add_rms_norm", warm=1.15, copy_share=0.9),
    Showcase("add_rms_norm_fp8", "add_rms_norm_fp8", warm=1.15, copy_share=0.9),
    Showcase("cross_entropy", "cross_entropy", warm=2.0),
    Showcase("linear", "linear", warm=0.97, weight=1.5),
    Showcase("linear_gelu", "linear_gelu", warm=0.9),
    Showcase(
        "attention_tma full",
        "attention_tma",
        tflops=400.0,
        changes={"problem": {"variants": [{"causal": False}], "held_out": []}},
    ),
    *(_skinny(*sizes) for sizes in SKINNY),
)


def measured(showcase: Showcase, options: argparse.Namespace, minutes: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = derive(showcase.space, showcase.changes, Path(folder) / "space.yaml")
        words = ["--minutes", f"{minutes:.2f}", "--seed", str(options.seed), "--champions", "1"]
        report = tune(path, Path(folder), *words, "--device", options.device)
        setup = load_kernel_setup(path, options.device)
        problem = setup.planner.problem
        cases = {
            case.label: (problem.flops(case), problem.bytes_moved(case))
            for case in setup.cases[TIMED]
        }
    best = champion(report)
    copy_gbps = report["baseline"]["copy_gbps"]
    rows = []
    for each in best["measurements"]:
        row = {**each, "baselines_us": _baselines_us(report, each["case"])}
        if each["case"] in cases:
            flops, nbytes = cases[each["case"]]
            row["tflops"] = flops / each["time_us"] / 1e6
            if copy_gbps:
                row["copy_share"] = nbytes / each["time_us"] / 1e3 / copy_gbps
        rows.append(row)
    return {
        "name": showcase.name,
        "space": showcase.space,
        "trials": len(report["trials"]),
        "ok_trials": sum(trial["outcome"] == "ok" for trial in report["trials"]),
        "configuration": best["configuration"],
        "resources": best["resources"],
        "copy_gbps": copy_gbps,
        "measurements": rows,
        "missed": list(missed(showcase, rows)),
        "environment": environment(report),
    }


def _baselines_us(report: Mapping[str, Any], case: str) -> dict[str, float]:
    timings = report["baseline"]["timings"]
    return {each["name"]: each["time_us"] for each in timings if each["case"] == case}


def missed(showcase: Showcase, rows: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each measurement below a bar."""
    for row in rows:
        place = f"{row['case']} {row['cache']}"
        warm = row["cache"] == "warm"
        least = showcase.warm if warm else showcase.cold
        if row["speedup"] < least:
            yield f"{place}: {row['speedup']:.3f}x, wanted {least}x"
        if warm and row.get("tflops", math.inf) < showcase.tflops:
            yield f"{place}: {row['tflops']:.0f} TFLOP/s, wanted {showcase.tflops:.0f}"
        if not warm and row.get("copy_share", math.inf) < showcase.copy_share:
            yield f"{place}: {row['copy_share']:.2f} of a copy, wanted {showcase.copy_share}"


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    yield "| example | shape | PyTorch | evotune | speedup [95%] | of a copy | TFLOP/s |"
    yield "|---|---|---|---|---|---|---|"
    for result in results:
        for row in result["measurements"]:
            held_out = " (held out)" if row["held_out"] else ""
            share = f"{row['copy_share']:.0%}" if "copy_share" in row else ""
            rate = f"{row['tflops']:.0f}" if "tflops" in row else ""
            yield (
                f"| {result['name']} | {row['case']}{held_out}, {row['cache']} "
                f"| {row['baseline']} {row['baseline_us']:.1f} µs | {row['time_us']:.1f} µs "
                f"| {row['speedup']:.2f}× [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}] "
                f"| {share} | {rate} |"
            )


def verdicts(results: list[dict[str, Any]]) -> list[str]:
    """A line for each bar that is missed; of the skinny layers some may miss theirs."""
    skinny = [each for each in results if each["space"] == "linear_skinny"]
    others = [each for each in results if each["space"] != "linear_skinny"]
    lines = [f"{each['name']}: {line}" for each in others for line in each["missed"]]
    won = sum(not each["missed"] for each in skinny)
    if skinny and won < min(SKINNY_WANTED, len(skinny)):
        lines.append(f"linear_skinny: {won} of {len(skinny)} layers reach their bar")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    wanted = [each for each in SHOWCASES if not options.only or each.name in options.only]
    ends_s = time.monotonic() + 60 * options.minutes
    results: list[dict[str, Any]] = []
    not_run = [each.name for each in wanted]
    for number, showcase in enumerate(wanted):
        left_minutes = (ends_s - time.monotonic()) / 60
        share = left_minutes * showcase.weight / sum(each.weight for each in wanted[number:])
        if left_minutes < _LEAST_SEARCH_MINUTES:
            break
        minutes = max(_LEAST_SEARCH_MINUTES, share - _START_AND_CONFIRMATION_MINUTES)
        try:
            found = measured(showcase, options, minutes)
        except (subprocess.CalledProcessError, ValueError) as error:  # no champion
            words = f"no champion: {error}"
            found = {"name": showcase.name, "space": showcase.space, "measurements": []}
            found["missed"] = [words]
        results.append(found)
        not_run.remove(showcase.name)
        if options.output:  # after each example: a long benchmark may be stopped
            record = {"command": ["python", *sys.argv], "not_run": not_run, "examples": results}
            options.output.write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(table(results)))
    lines = [*verdicts(results), *(f"{name}: not run, the time was over" for name in not_run)]
    print("\n".join(lines), file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
