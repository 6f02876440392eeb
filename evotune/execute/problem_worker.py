"""Child process that tries a user's problem once on the CPU: see `problem_check`."""

from __future__ import annotations

import warnings
from pathlib import Path

from evotune.errors import ProblemMistake
from evotune.execute.channel import BlockingChannel
from evotune.execute.entry import open_channel
from evotune.problems import Case, UserProblem, create_problem
from evotune.problems.examination import examine, mistake_of
from evotune.trial import Json
from evotune.user_code import trust


def main() -> None:
    channel = open_channel(owns_processes=False)
    request = channel.receive()
    if request is not None:
        channel.send({"mistake": _mistake(request)})
        _wait_for_the_end(channel)


def _mistake(request: Json) -> str:
    """What is wrong in the problem's file; "" when nothing is."""
    warnings.simplefilter("ignore")
    trust.agree(request["problem_sha256"])  # somebody agreed to it in the parent
    try:
        problem = create_problem(request["problem"], request["dtype"], Path(request["root"]))
    except ProblemMistake as mistake:
        return str(mistake)
    assert isinstance(problem, UserProblem)
    case = Case(request["case"]["label"], request["case"]["symbols"])
    try:
        examine(problem, case, timed=request["timed"])
    except (Exception, SystemExit) as error:
        found = mistake_of(problem, error)
        if found is None:
            raise
        return str(found)
    return ""


def _wait_for_the_end(channel: BlockingChannel) -> None:
    """The parent kills this process: threads that the problem left need not end first."""
    while channel.receive() is not None:
        pass


if __name__ == "__main__":
    main()
