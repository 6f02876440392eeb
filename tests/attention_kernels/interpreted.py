"""Runs the Triton kernel on the CPU, in Triton's interpreter, through the correctness gate.

python -m tests.attention_kernels.interpreted SPACE.yaml TRIALS ROLE,…   # a JSON line a check

This is a program of its own, since Triton decides at import whether it interprets. The plans are
the plans for a GPU, so arguments, grid and configurations are tested as well.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

from evotune.backends.base.launch import CompileJob, LaunchPlan
from evotune.problems import create_problem
from evotune.runs.setup import load_setup
from evotune.user_code import run_content
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool

_SCALARS = {"int32": int, "int64": int, "float32": float, "float64": float}


class InterpretedSession:
    """The part of a session that the gate needs. Buffers are CPU memory, used in place."""

    torch_device = "cpu"
    in_order = True

    def memory(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def bind(
        self, kernel: tuple[Any, CompileJob], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        function, job = kernel
        names = set(function.arg_names)
        own = zip(plan.arguments, job.signature, strict=False)  # without Triton's scratch memory
        taken = [
            _memory(pointers[argument.name], kind)
            if kind.startswith("*")
            else _SCALARS[kind](argument.value)
            for argument, kind in own
        ]
        constants = {name: value for name, value in job.defines if name in names}
        (launch,) = plan.launches
        return lambda: function[launch.grid](*taken, **constants)

    def synchronize(self) -> None:
        pass

    def settle(self) -> None:
        pass


def _memory(pointer: int, kind: str) -> torch.Tensor:
    """A tensor of one element at `pointer`: the kernel needs only its address and its type."""
    dtype: torch.dtype = getattr(torch, kind.removeprefix("*"))
    raw = (ctypes.c_char * dtype.itemsize).from_address(pointer)
    return torch.frombuffer(raw, dtype=dtype)


def main() -> None:
    setup = load_setup(Path(sys.argv[1]), "h200", compile_only=True)
    planner, document = setup.planner, setup.document
    assert planner is not None
    assert document is not None
    assert document.problem is not None
    problem = create_problem(document.problem.name, document.problem.dtype, document.root)
    gate = Gate(InterpretedSession(), problem, InputPool(problem), deterministic=True)  # type: ignore[arg-type]
    kernel = document.kernels[0]
    module = run_content("interpreted", str(kernel.source), kernel.source.read_bytes())
    rng = random.Random(0)
    for number in range(int(sys.argv[2])):
        configuration = planner.bound.default() if number == 0 else planner.bound.sample(rng)
        for job in planner.proposal(number, configuration).cases:
            if job.role not in sys.argv[3].split(","):
                continue
            function = getattr(module, kernel.entry)
            subject = Subject(job.case, job.plan, (function, job.compile))  # type: ignore[arg-type]
            for kind in problem.input_kinds:
                verdict = Verdict()
                gate.examine(subject, [kind], number, verdict)
                checked = f"{job.case.label} {kind}"
                answer = {"checked": checked, "passed": verdict.passed, "reason": verdict.reason}
                print(json.dumps({**answer, "configuration": configuration.to_json()}), flush=True)


if __name__ == "__main__":
    main()
