"""Tries a user's problem once on the CPU, in a separate process, because it may crash.

The process is `python -m evotune.workers.problem_check`. It imports PyTorch.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from evotune.errors import EnvironmentProblem, ProblemMistake
from evotune.problems import UserProblem, create_problem
from evotune.problems.examination import (
    baselines_of,
    examine,
    mistake_of,
    ordinary_case,
    smallest_case,
    tiny_case,
)
from evotune.problems.problem import Case
from evotune.user_code import trust
from evotune.util.files import scratch_folder
from evotune.util.processes import describe_status
from evotune.workers.child import Child, wait_readable
from evotune.workers.device_slot import ProblemSource
from evotune.workers.entry import cannot_read, open_channel
from evotune.workers.messages import PROBLEM_WORKER, Tried, TryProblem

_LIMIT_S = 120.0
_RAISED = 1  # Python's status for an exception that was not caught


def check_problem(
    problem: UserProblem, source: ProblemSource, cases: Sequence[Case], *, timed: bool
) -> Tried:
    """Calls every method that the user wrote on one tiny case on the CPU, and some on an ordinary
    case. Raises ProblemMistake for the first mistake. `timed`: candidates are measured on the CPU;
    then the result has the names of the smallest case's baselines, unless that case is large. The
    problem's output goes to stderr."""
    case, ordinary = tiny_case(problem, cases), ordinary_case(problem, cases)
    # A baseline may be there for some sizes alone, and a run times it on its own cases.
    named = smallest_case(problem, cases) if timed else None
    with scratch_folder() as folder:
        child = Child(PROBLEM_WORKER, folder / "problem.log", {})
        try:
            child.send(TryProblem(source.told(), case, ordinary, timed, named))
            tried = _answer(child, source)
            sys.stderr.write(child.log_tail(1 << 16))
        finally:
            child.kill()
    if tried.mistake:
        raise ProblemMistake(tried.mistake)
    return tried


def _answer(child: Child[TryProblem, Tried], source: ProblemSource) -> Tried:
    if not wait_readable([child], _LIMIT_S):
        return Tried(f"{source.name} gave no answer within {_LIMIT_S:g} s on a tiny shape")
    messages = child.receive()
    if messages:
        return messages[0]
    status = child.reap()
    log = child.log_tail()
    if (status == _RAISED and "Traceback" in log) or cannot_read(status, log):
        raise EnvironmentProblem(f"the problem cannot be tried: {log.splitlines()[-1]}")
    if child.unreadable:
        return Tried(f"{source.name}: {child.end_in_words(status)}")
    return Tried(f"the process that tried {source.name} {describe_status(status)}")


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
