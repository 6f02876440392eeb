"""The cases that shipped spaces of attention are checked on, and their inputs and limits, in short.

    python -m tests.problems.kept_cases        # writes tests/data/attention_cases.json anew

A feature that a space does not use must change none of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import torch
import yaml

from evotune.problems import Case
from evotune.problems.attention import Attention
from evotune.runs.spaces import find_space
from evotune.trial import Json

PATH = Path(__file__).parents[1] / "data" / "attention_cases.json"
SYMBOLS = (
    *("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim", "seq_len", "causal"),
    *("dtype", "softmax_scale", "layout"),
    *(f"{t}_stride_{d}" for t in ("q", "k", "v", "out") for d in ("batch", "head", "row")),
)
DRAWN = 160
MEASURED = ("float16", "bfloat16", "float32")


def timed(space: str) -> tuple[Attention, list[Case]]:
    told = yaml.safe_load((find_space("attention-cpu").parent / f"{space}.yaml").read_text())
    problem = Attention(told["problem"]["dtype"])
    shapes = (*told["problem"]["shapes"], *told["problem"].get("held_out", []))
    variants = told["problem"]["variants"]
    return problem, [problem.case(shape, variant) for shape in shapes for variant in variants]


def cases(space: str) -> dict[str, str]:
    """A hash for each list of cases."""
    problem, own = timed(space)
    found = {"timed": _hash(problem, own)}
    for name, kept in (("free", ()), ("contiguous", ("layout", "head_dim", "causal"))):
        edges = [edge for case in own for edge in problem.edge_cases(case, kept)]
        drawn = islice(problem.random_cases(own, 7, kept), DRAWN)
        found |= {f"edges {name}": _hash(problem, edges), f"random {name}": _hash(problem, drawn)}
    siblings = [each for case in own for each in problem.siblings(case)]
    return {**found, "siblings": _hash(problem, siblings)}


def _hash(problem: Attention, given: Iterable[Case]) -> str:
    told = [
        [
            case.label,
            [case.symbols[name] for name in SYMBOLS],
            [
                [s.name, s.shape, s.dtype, s.is_output, s.strides, s.stride_symbols]
                for s in problem.tensors(case)
            ],
            problem.flops(case),
            problem.bytes_moved(case),
            [problem.place(case).fixed, problem.place(case).ranged, problem.place(case).layout],
            [problem.random_kinds(case, number) for number in range(4)],
        ]
        for case in given
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def measures(dtype: str) -> dict[str, list[float]]:
    """For each kind of inputs sums over inputs, reference and limits on a few edge shapes."""
    problem = Attention(dtype)
    shape = {"batch": 1, "heads": 2, "seq_len": 64, "head_dim": 32}
    found: dict[str, list[float]] = {}
    for causal in (False, True):
        for case in problem.edge_cases(problem.case(shape, {"causal": causal}))[1:4]:
            for kind in problem.input_kinds:
                inputs = problem.make_inputs(case, kind, 11)
                reference = problem.reference(case, inputs)
                limits = problem.tolerances(case, inputs, reference)
                tensors = [*inputs.values(), *reference.values(), *limits.values()]
                key = f"{case.label} {kind}"
                found[key] = [float(each.double().abs().sum()) for each in tensors]
    return found


def main() -> None:
    torch.set_num_threads(1)
    spaces = json.loads(PATH.read_text())["cases"]
    whole: Json = {"cases": {space: cases(space) for space in spaces}}
    whole["measures"] = {dtype: measures(dtype) for dtype in MEASURED}
    PATH.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
