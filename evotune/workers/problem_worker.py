"""Child process that tries a user's problem once on the CPU: see `problem_check`."""

from __future__ import annotations

import warnings
from pathlib import Path

from evotune.errors import ProblemMistake
from evotune.problems import UserProblem, create_problem
from evotune.problems.examination import baselines_of, examine, mistake_of
from evotune.user_code import trust
from evotune.workers.entry import open_channel
from evotune.workers.messages import PROBLEM_WORKER, Tried, TryProblem


def main() -> None:
    with open_channel(PROBLEM_WORKER, owns_processes=False) as channel:
        request = channel.receive()
        if request is not None:
            channel.send(_tried(request))
            channel.receive()  # the parent kills this process, as the problem's threads may go on


def _tried(request: TryProblem) -> Tried:
    warnings.simplefilter("ignore")
    told = request.problem
    trust.agree(told.sha256)  # the parent has the user's agreement
    try:
        problem = create_problem(told.name, told.dtype, Path(told.root))
    except ProblemMistake as mistake:
        return Tried(str(mistake))
    assert isinstance(problem, UserProblem)
    try:
        warned = examine(problem, request.case, timed=request.timed, ordinary=request.ordinary)
        named = request.named
        return Tried("", () if named is None else baselines_of(problem, named), warned)
    except (Exception, SystemExit) as error:
        found = mistake_of(problem, error)
        if found is None:
            raise
        return Tried(str(found))


if __name__ == "__main__":
    main()
