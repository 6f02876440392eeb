"""Problems by name."""

from __future__ import annotations

from evotune.errors import UsageError
from evotune.problems.attention import Attention
from evotune.problems.base import Problem

_PROBLEMS: dict[str, type[Attention]] = {Attention.name: Attention}


def problem_names() -> tuple[str, ...]:
    return tuple(sorted(_PROBLEMS))


def create_problem(name: str, dtype: str) -> Problem:
    """The problem `name` in `dtype`; UsageError when either is unknown."""
    if name not in _PROBLEMS:
        raise UsageError(f"unknown problem {name!r}; known: {', '.join(problem_names())}")
    problem = _PROBLEMS[name]
    if dtype not in problem.dtypes:
        known = ", ".join(problem.dtypes)
        raise UsageError(f"problem {name} has no dtype {dtype!r}; it has {known}")
    return problem(dtype)
