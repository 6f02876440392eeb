"""Tries a user's problem once in a separate process, which imports PyTorch and may crash."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from evotune.errors import EnvironmentProblem, ProblemMistake
from evotune.problems.examination import ordinary_case, smallest_case, tiny_case
from evotune.problems.problem import Case
from evotune.problems.user import UserProblem
from evotune.util.files import scratch_folder
from evotune.util.processes import describe_status
from evotune.workers.child import Child, wait_readable
from evotune.workers.device_slot import ProblemSource
from evotune.workers.entry import cannot_read
from evotune.workers.messages import PROBLEM_WORKER, Tried, TryProblem

_LIMIT_S = 120.0
_RAISED = 1  # Python's status for an exception that was not caught


def check_problem(
    problem: UserProblem, source: ProblemSource, cases: Sequence[Case], *, timed: bool
) -> Tried:
    """Calls every method that the user wrote, on one tiny case on the CPU, and some on an ordinary
    case. Raises ProblemMistake for the first mistake. `timed`: candidates are measured on the CPU;
    then returns the names of the baselines of the smallest case, but none if it is large. The
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
