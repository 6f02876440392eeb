"""The names of a problem's baselines, where they are known without a device."""

from __future__ import annotations

from evotune.problems.attention import Attention
from evotune.problems.libraries.library_catalog import LIBRARIES
from evotune.problems.problem import Problem
from evotune.problems.ragged_attention import RaggedAttention
from evotune.problems.user import UserProblem

_SDPA = ("sdpa:flash", "sdpa:cudnn", "sdpa:efficient", "sdpa:math")


def baseline_names(problem: Problem) -> tuple[str, ...]:
    """The names on all devices, optional libraries included; empty where they are not known."""
    if isinstance(problem, Attention) and not _replaces(problem, Attention, "baselines"):
        return (*_SDPA, "unfused", *LIBRARIES)
    if isinstance(problem, RaggedAttention) and not _replaces(
        problem, RaggedAttention, "baselines"
    ):
        return ("sdpa:looped", "sdpa:padded", *LIBRARIES)
    if isinstance(problem, UserProblem) and not _replaces(
        problem, UserProblem, "baselines", "baselines_of"
    ):
        return ("torch:eager",)
    return ()


def _replaces(problem: Problem, base: type, *names: str) -> bool:
    """Whether the problem's class has a method of its own in place of one of the base's."""
    return any(getattr(type(problem), name) is not getattr(base, name) for name in names)
