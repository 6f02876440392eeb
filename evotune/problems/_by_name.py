"""Finds a problem by its name, in evotune or an installed package, or by its class in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evotune.plugins import PROBLEMS
from evotune.problems.attention import Attention
from evotune.problems.loading import is_file_reference, load_problem
from evotune.problems.problem import Problem, WrongKey

_PROBLEMS: dict[str, type[Attention]] = {Attention.name: Attention}


def problem_names() -> tuple[str, ...]:
    """The names of all problems that are not in files."""
    return tuple(sorted({*_PROBLEMS, *PROBLEMS.names()}))


def create_problem(name: str, dtype: str, root: Path = Path()) -> Problem:
    """The problem `name` in `dtype`; files lie under `root`. WrongKey when either is unknown.
    EnvironmentProblem when an installed package has the name and cannot be loaded."""
    if is_file_reference(name):
        return load_problem(name, dtype, root)
    problem: Any = _PROBLEMS.get(name) or PROBLEMS.load(name)
    if problem is None:
        raise WrongKey(
            f"unknown problem {name!r}; known: {', '.join(problem_names())}, "
            "or path/to/problem.py:ClassName",
            "name",
        )
    if dtype not in problem.dtypes:
        known = ", ".join(problem.dtypes)
        raise WrongKey(f"problem {name} has no dtype {dtype!r}; it has {known}", "dtype")
    made: Problem = problem(dtype)
    return made
