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
    if isinstance(problem, Attention):
        return (*_SDPA, "unfused", *LIBRARIES)
    if isinstance(problem, RaggedAttention):
        return ("sdpa:looped", "sdpa:padded", *LIBRARIES)
    if isinstance(problem, UserProblem):
        own, base = type(problem), UserProblem
        if own.baselines_of is base.baselines_of and own.baselines is base.baselines:
            return ("torch:eager",)
    return ()
