"""Problems that kernels solve: inputs, reference, tolerances, baselines, FLOPs and bytes."""

from evotune.problems.loading import create_problem, problem_names
from evotune.problems.problem import Case, Problem, TensorSpec
from evotune.problems.user import UserProblem
from evotune.problems.written import InOut, Tensor, Tolerance

__all__ = [
    "Case",
    "InOut",
    "Problem",
    "Tensor",
    "TensorSpec",
    "Tolerance",
    "UserProblem",
    "create_problem",
    "problem_names",
]
