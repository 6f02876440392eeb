"""Compares ways of rounding right results of attention in float16 with the error limits.

    python benchmarks/lab/limits_of_rounding.py [--seeds 200]
        [-o benchmarks/results/limits_of_rounding.json]

The case is that of the first CUDA red team, (1,2,96,64) causal, with the inputs of every kind. Each
way of tests/verify/roundings.py computes in float32; each of its results is rounded to nearest,
towards zero, and to nearest with its last bit flipped. For each pair:

- share: the largest error as a share of its limit. Above 1 the gate refuses the kernel
- seeds_refused: the number of seeds that refuse it, by kind of inputs
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from evotune.backends.cpu import cpu_profile  # noqa: E402
from evotune.problems import create_problem  # noqa: E402
from evotune.verify.accuracy import LIMITS, errors_against  # noqa: E402
from evotune.verify.pool import InputPool  # noqa: E402
from tests.verify.emulations import problem_of  # noqa: E402
from tests.verify.roundings import ROUNDINGS, WAYS  # noqa: E402

SHAPE = {"batch": 1, "heads": 2, "seq_len": 96, "head_dim": 64}


def examine(seeds: int) -> dict[str, dict[str, Any]]:
    """The figures of each rounding and way."""
    problem = create_problem("attention", "float16")
    case = problem.case(SHAPE, {"causal": True})
    pairs = [(rounding, way) for rounding in ROUNDINGS for way in WAYS]
    worst: dict[tuple[str, str], tuple[float, str, int]] = dict.fromkeys(pairs, (0.0, "", 0))
    refused: dict[tuple[str, str], Counter[str]] = {pair: Counter() for pair in pairs}
    for seed in range(seeds):
        pool = InputPool(problem)
        for kind in problem.input_kinds:
            made = pool.get(case, kind, seed)
            given = problem_of(case, made.inputs)
            results = {name: way(given) for name, way in WAYS.items()}
            for rounding, way in pairs:
                output = ROUNDINGS[rounding](results[way])
                errors = errors_against(output, made.expected["out"])
                share = max(errors.max / LIMITS.max, errors.rms / LIMITS.rms)
                worst[rounding, way] = max(worst[rounding, way], (share, kind, seed))
                refused[rounding, way][kind] += share > 1
    found: dict[str, dict[str, Any]] = {rounding: {} for rounding in ROUNDINGS}
    for pair in pairs:
        share, kind, seed = worst[pair]
        found[pair[0]][pair[1]] = {
            "share": round(share, 3),
            "kind": kind,
            "seed": seed,
            "seeds_refused": {kind: count for kind, count in refused[pair].items() if count},
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "benchmarks/results/limits_of_rounding.json"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = examine(arguments.seeds)
    record = {
        "command": f"python benchmarks/lab/limits_of_rounding.py --seeds {arguments.seeds}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": cpu_profile.profile().name,
        "torch": torch.__version__,
        "seeds": arguments.seeds,
        "roundings": found,
    }
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    for rounding, ways in found.items():
        print(f"{rounding}:")
        for way, figures in ways.items():
            refused = ", ".join(f"{n} by {kind}" for kind, n in figures["seeds_refused"].items())
            print(f"  {way:30} {figures['share']:.3f}  seeds refused: {refused or 'none'}")


if __name__ == "__main__":
    main()
