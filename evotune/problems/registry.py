"""Problems by name, or by the class in a file that a space refers to."""

from __future__ import annotations

from pathlib import Path

from evotune.problems.attention import Attention
from evotune.problems.base import Problem, WrongKey
from evotune.problems.loading import is_file_reference, load_problem

_PROBLEMS: dict[str, type[Attention]] = {Attention.name: Attention}


def problem_names() -> tuple[str, ...]:
    return tuple(sorted(_PROBLEMS))


def create_problem(name: str, dtype: str, root: Path = Path()) -> Problem:
    """The problem `name` in `dtype`; files lie under `root`. WrongKey when either is unknown."""
    if is_file_reference(name):
        return load_problem(name, dtype, root)
    if name not in _PROBLEMS:
        raise WrongKey(
            f"unknown problem {name!r}; known: {', '.join(problem_names())}, "
            "or path/to/problem.py:ClassName",
            "name",
        )
    problem = _PROBLEMS[name]
    if dtype not in problem.dtypes:
        known = ", ".join(problem.dtypes)
        raise WrongKey(f"problem {name} has no dtype {dtype!r}; it has {known}", "dtype")
    return problem(dtype)
