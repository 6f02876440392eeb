"""Compares the errors of right and wrong ways to compute with their limits.

    python benchmarks/lab/limits.py [--seeds 100] [-o benchmarks/results/limits.json]
    python benchmarks/lab/limits.py --table benchmarks/results/limits.json

Each way of tests/verify/emulations.py and tests/problems/user_emulations.py, written with PyTorch,
runs on every kind of inputs, shape and dtype. PyTorch's own ways count as right ones. An error is
given as a share of its limit; a share above 1 is refused.

- right ways: the largest share over all kinds and seeds
- wrong ways: for each seed the largest share over the kinds, and of these the least over the seeds.
  Above 1 the way is refused whatever the seed

Figures are for each shape. A shape with one row, or one that is too short for a fault, may not show
it; a candidate must pass on all of its shapes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from evotune.backends.cpu import cpu_profile  # noqa: E402
from evotune.problems import create_problem  # noqa: E402
from evotune.problems.problem import Case, Problem  # noqa: E402
from evotune.verify.accuracy import LIMITS, errors_against  # noqa: E402
from evotune.verify.pool import InputPool, InputSet  # noqa: E402
from tests.problems import user_emulations  # noqa: E402
from tests.verify import emulations  # noqa: E402

DTYPES = ("float32", "float16", "bfloat16")
ATTENTION: list[tuple[dict[str, int], bool]] = [
    ({"batch": 1, "heads": 2, "seq_len": 130, "head_dim": 64}, True),
    (
        {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len_q": 33, "seq_len_k": 257, "head_dim": 32},
        False,
    ),
    ({"batch": 1, "heads": 1, "seq_len_q": 1, "seq_len_k": 257, "head_dim": 128}, False),
    ({"batch": 1, "heads": 1, "seq_len_q": 24, "seq_len_k": 1021, "head_dim": 64}, False),
]
USER: dict[str, list[dict[str, int]]] = {
    "softmax": [{"rows": 17, "columns": 300}, {"rows": 5, "columns": 4001}],
    "rms_norm": [{"rows": 17, "columns": 300}, {"rows": 5, "columns": 4001}],
    "matmul": [{"m": 10, "n": 10, "k": 261}, {"m": 33, "n": 65, "k": 700}],
}
Ways = Mapping[str, Callable[[], torch.Tensor]]


def subjects() -> Iterator[tuple[str, str, Problem, list[Case]]]:
    for dtype in DTYPES:
        problem = create_problem("attention", dtype)
        cases = [problem.case(shape, {"causal": bool(causal)}) for shape, causal in ATTENTION]
        yield "attention", dtype, problem, cases
    for name, shapes in USER.items():
        for dtype in DTYPES:
            problem = create_problem(user_emulations.reference_name(name), dtype, ROOT)
            yield name, dtype, problem, [problem.case(shape, {}) for shape in shapes]


def ways(name: str, dtype: str, problem: Problem, case: Case, made: InputSet) -> tuple[Ways, Ways]:
    """The right and the wrong ways to compute on these inputs."""
    own = {
        call_name: (lambda call=call: call()["out"])
        for call_name, call in problem.baselines(case, dict(made.inputs)).items()
        if call_name != "unfused" or dtype == "float32"  # it rounds scores to 16 bits
    }
    if name == "attention":
        given = emulations.problem_of(case, made.inputs)
        right = {key: (lambda way=way: way(given)) for key, way in emulations.HONEST.items()}
        kinds = {**emulations.WRONG, **emulations.WRONG_IN[dtype]}
        # Faults that change nothing here: the scale is 1 / sqrt(head_dim), and without a causal
        # mask no score is masked.
        skipped = {"scale_ignored"} | (set() if case.symbols["causal"] else _MASKS)
        wrong = {
            key: (lambda way=way: way(given)) for key, way in kinds.items() if key not in skipped
        }
        return {**right, **own}, wrong
    values = {key: value.float() for key, value in made.inputs.items()}
    right = {
        key: (lambda way=way: way(**values)) for key, way in user_emulations.HONEST[name].items()
    }
    kinds = user_emulations.WRONG[name]
    if dtype == "float32":
        kinds = {**kinds, **user_emulations.WRONG_IN_FLOAT32[name]}
    if name == "matmul" and dtype == "bfloat16":
        kinds = {key: way for key, way in kinds.items() if key != "sums_in_bfloat16"}
    return {**right, **own}, {key: (lambda way=way: way(**values)) for key, way in kinds.items()}


_MASKS = {"mask_of_minus_100", "mask_added_of_minus_100"}


def share_of(output: torch.Tensor, dtype: str, made: InputSet) -> float:
    errors = errors_against(output.to(getattr(torch, dtype)), made.expected["out"])
    share = max(errors.max / LIMITS.max, errors.rms / LIMITS.rms)
    return math.inf if math.isnan(share) else share


def examine(name: str, dtype: str, problem: Problem, case: Case, seeds: int) -> dict[str, Any]:
    right: dict[str, tuple[float, str, int]] = {}
    wrong: dict[str, list[tuple[float, str]]] = {}
    for seed in range(seeds):
        pool = InputPool(problem)
        shown: dict[str, tuple[float, str]] = {}
        for kind in problem.input_kinds:
            made = pool.get(case, kind, seed)
            honest, faulty = ways(name, dtype, problem, case, made)
            for key, call in honest.items():
                share = share_of(call(), dtype, made)
                right[key] = max(right.get(key, (0.0, "", 0)), (share, kind, seed))
            for key, call in faulty.items():
                share = share_of(call(), dtype, made)
                shown[key] = max(shown.get(key, (0.0, "")), (share, kind))
        for key, found in shown.items():
            wrong.setdefault(key, []).append(found)
    return {
        "right": {key: _figures(found) for key, found in right.items()},
        "wrong": {
            key: {
                **_figures(min(found)),
                "seeds_refused": sum(share > 1 for share, _ in found),
            }
            for key, found in wrong.items()
        },
    }


def _figures(found: tuple[Any, ...]) -> dict[str, Any]:
    share = found[0]
    figures = {"share": round(share, 3) if math.isfinite(share) else "infinite", "kind": found[1]}
    return {**figures, "seed": found[2]} if len(found) > 2 else figures


def table(record: Mapping[str, Any]) -> Iterator[str]:
    yield f"{record['seeds']} seeds; shares of the limit"
    for name, dtypes in record["problems"].items():
        for dtype, cases in dtypes.items():
            yield f"\n{name}, {dtype}: {', '.join(cases)}"
            for what in ("right", "wrong"):
                keys = {key: None for case in cases.values() for key in case[what]}
                for key in keys:
                    cells = (case[what].get(key, {}).get("share", "-") for case in cases.values())
                    yield f"  {what:5} {key:30} " + " ".join(f"{cell!s:>10}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "benchmarks/results/limits.json"
    )
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        print("\n".join(table(json.loads(arguments.table.read_text()))))
        return
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "command": f"python benchmarks/lab/limits.py --seeds {arguments.seeds}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": cpu_profile.profile().name,
        "torch": torch.__version__,
        "seeds": arguments.seeds,
        "problems": {},
    }
    for name, dtype, problem, cases in subjects():
        of_dtype = record["problems"].setdefault(name, {}).setdefault(dtype, {})
        for case in cases:
            started = time.monotonic()
            of_dtype[case.label] = examine(name, dtype, problem, case, arguments.seeds)
            print(name, dtype, case.label, f"{time.monotonic() - started:.0f} s", flush=True)
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    print("\n".join(table(record)))


if __name__ == "__main__":
    main()
