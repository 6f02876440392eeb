"""Inputs that are lengths, or places in other inputs: a kernel's work depends on their values."""

from __future__ import annotations

from evotune.problems.problem import Case, Problem


def index_bytes(problem: Problem, case: Case) -> dict[str, bytes]:
    """The bytes of these inputs of a case, by name, as its normal inputs with seed 0 have them."""
    names = [spec.name for spec in problem.tensors(case) if spec.is_index]
    if not names:
        return {}
    inputs = problem.make_inputs(case, "normal", 0)
    return {name: inputs[name].numpy().tobytes() for name in names}
