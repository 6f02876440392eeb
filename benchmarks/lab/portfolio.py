"""A portfolio of attention over 60 cases, and its package on 200 random cases against SDPA.

    python benchmarks/lab/portfolio.py --runs FOLDER -o FILE.json

builds the portfolio in FOLDER (`evotune portfolio`), exports and installs it, and times the package
and SDPA in turn on the random cases, in a process that cannot import evotune. The same command
again goes on where the last one was stopped, so a build may take several parts (`timeout 480 …`).

The 60 cases: 15 pairs of batch (1 to 16) and length (128 to 8192), head_dim 64 and 128, with and
without the causal mask, 16 heads. The random ones: batch, length (any integer, its logarithm drawn
evenly), head_dim and mask.

The defaults are for 8 minutes on an H200: `--minutes 5.5` for searches and matrix. So few minutes
cut the search, not the matrix: about five searches instead of twelve, of a few seconds each.
Batch x length is at most 32,768 in all cases, because references in float64 take longest. `--tiny`
takes a few small cases on the CPU, to see that the benchmark works.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuning import EVOTUNE

_NAME = "portfolio_package"
_PROGRAM = Path(__file__).parents[1] / "programs" / "portfolio_calls.py"
_MOST_TOKENS = 32_768
_PAIRS = (
    *((1, 128), (16, 128), (4, 200), (8, 256), (1, 384), (2, 512), (16, 512), (4, 777), (1, 1024)),
    *((8, 1100), (2, 2048), (16, 2048), (1, 4000), (4, 8192), (1, 8192)),
)
_TINY_PAIRS = ((1, 32), (2, 48), (1, 96), (2, 96))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--space", default="attention-wgmma")
    parser.add_argument("--kernels", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=5.5)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--random", type=int, default=200, help="the number of random cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, help="a temporary folder if not given")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        record = measured(options, options.runs or Path(made) / "runs", Path(made))
    text = json.dumps(record, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 0 if all(record["checks"].values()) else 1


def measured(options: argparse.Namespace, runs: Path, folder: Path) -> dict[str, Any]:
    """The whole way; packages and lists of cases lie in `folder`."""
    cases = listed(options.tiny)
    (folder / "cases.json").write_text(json.dumps(cases))
    steps: dict[str, float] = {}
    words = ["--cases", str(folder / "cases.json"), "-k", str(options.kernels), "-o", str(runs)]
    words += ["--minutes", str(options.minutes), "--seed", str(options.seed)]
    words += ["--device", options.device, "--format", "json"]
    words += ["--trials", str(options.trials)] if options.trials else []
    built = timed(steps, "build_s", [*EVOTUNE, "portfolio", options.space, *words])
    portfolio = json.loads(built)
    calls = used(options, runs, folder, steps) if portfolio["rule"] else []
    figures = portfolio["figures"]
    by_kernels = [call for call in calls if call["served"]]
    summary = {
        "cases": len(portfolio["cases"]),
        "searches": sum(bool(case["searched"]) for case in portfolio["cases"]),
        "kernels": len(portfolio["kernels"]),
        "regions": len(portfolio["rule"]),
        "cuts": len(portfolio["cuts"]),
        "unmeasured_cells": portfolio["unmeasured"],
        "single_cases": portfolio["alone"],
        "listed_mean": figures["listed"]["mean"],
        "listed_of_best_champion": figures["listed"]["of_best"],
        "seen_mean": figures["seen"]["mean"],
        "seen_of_best_champion": figures["seen"]["of_best"],
        "searched_of_own_champion": portfolio["of_own"],
        "random": len(calls),
        "random_served": len(by_kernels),
        "random_mean": geometric(call["speedup"] for call in calls),
        "random_mean_of_served": geometric(call["speedup"] for call in by_kernels),
        "random_worst": min((call["speedup"] for call in calls), default=1.0),
    }
    checks = {
        "a kernel wins somewhere": bool(portfolio["rule"]),
        "every result is close to SDPA's": all(call["close"] for call in calls),
    }
    if not options.tiny:
        checks |= {
            "at most 8 kernels": summary["kernels"] <= 8,
            "0.97 of the best champion": summary["listed_of_best_champion"] >= 0.97,
            "0.97 of own champions": (summary["searched_of_own_champion"] or 0.0) >= 0.97,
            "1.2x SDPA over the cases": summary["listed_mean"] >= 1.2,
            "all cases are judged": figures["listed"]["cases"] == summary["cases"],
            "1.1x SDPA over the random cases": summary["random_mean"] >= 1.1,
            "no random case below 0.98x": summary["random_worst"] >= 0.98,
        }
    return {
        "command": ["python", "benchmarks/lab/portfolio.py", *sys.argv[1:]],
        "date": time.strftime("%Y-%m-%d"),
        "device": portfolio["device"],
        "space": options.space,
        "summary": summary,
        "checks": checks,
        "steps_s": {name: round(seconds, 1) for name, seconds in steps.items()},
        "rule": portfolio["rule"],
        "kernels": portfolio["kernels"],
        "cuts": portfolio["cuts"],
        "figures": figures,
        "cells": portfolio["cells"],
        "calls": calls,
    }


def used(
    options: argparse.Namespace, runs: Path, folder: Path, steps: dict[str, float]
) -> list[dict[str, Any]]:
    """The random cases, timed in a process that uses the package."""
    export = ["export", str(runs), "-o", str(folder / "package"), "--name", _NAME]
    timed(steps, "export_s", [*EVOTUNE, *export])
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    site = folder / "site"
    timed(steps, "install_s", [*pip, "--target", str(site), str(folder / "package")])
    unseen = drawn(options.random, options.seed, options.tiny)
    (folder / "random.json").write_text(json.dumps(unseen))
    use = [sys.executable, "-P", str(_PROGRAM), _NAME, str(folder / "random.json")]
    clean = {**os.environ, "PYTHONPATH": str(site)}
    calls: list[dict[str, Any]] = json.loads(timed(steps, "use_s", use, clean))
    return calls


def listed(tiny: bool) -> list[dict[str, Any]]:
    """The cases that the portfolio is made for."""
    heads, dims, pairs = (2, (32,), _TINY_PAIRS) if tiny else (16, (64, 128), _PAIRS)
    return [
        {"batch": batch, "heads": heads, "seq_len": length, "head_dim": dim, "causal": causal}
        for (batch, length), dim, causal in itertools.product(pairs, dims, (False, True))
    ]


def drawn(count: int, seed: int, tiny: bool) -> list[dict[str, Any]]:
    """Random cases, none of which the portfolio knew."""
    rng = random.Random(f"random cases {seed}")
    batches, ends, dims, heads = (
        (2, (32, 96), (32,), 2) if tiny else (16, (128, 8192), (64, 128), 16)
    )
    found: list[dict[str, Any]] = []
    while len(found) < count:
        length = round(math.exp(rng.uniform(math.log(ends[0]), math.log(ends[1]))))
        batch = rng.randint(1, batches)
        if batch * length <= _MOST_TOKENS:
            case = {"batch": batch, "heads": heads, "length": length, "head_dim": rng.choice(dims)}
            found.append({**case, "causal": rng.random() < 0.5})
    return found


def geometric(speedups: Any) -> float:
    logs = [math.log(speedup) for speedup in speedups]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def timed(
    steps: dict[str, float],
    name: str,
    command: Sequence[str],
    environment: dict[str, str] | None = None,
) -> str:
    """Runs a command, notes its seconds, and returns its stdout. Ctrl-C reaches the command too,
    which keeps its work."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            stdout, _ = process.communicate()
        except KeyboardInterrupt:
            process.communicate()
            raise
    steps[name] = time.perf_counter() - started
    if process.returncode and not (process.returncode == 1 and name == "build_s" and stdout):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}\n{stdout}")
    return stdout


if __name__ == "__main__":
    sys.exit(main())
