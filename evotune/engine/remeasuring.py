"""Two configurations timed in turn, now, on the device at hand: `evotune compare --remeasure`."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from evotune.engine.folder import RunFolder
from evotune.engine.reopening import ReopenedRun, against
from evotune.engine.repetition import outcome_of, repeated
from evotune.errors import UsageError
from evotune.trial import Outcome, Value


def remeasure(
    first: tuple[RunFolder, Mapping[str, Value]], second: tuple[RunFolder, Mapping[str, Value]]
) -> Outcome:
    """The second configuration through the search's checks, then timed against the first one.

    Each is made from its own run's sources. The outcome's measurements have the first one in the
    baseline's place: `speedup` above 1 says that the second one is faster. UsageError when the two
    runs do not solve the same problem, or have no timed case in common.
    """
    one, other = ReopenedRun.load(first[0]), ReopenedRun.load(second[0])
    problems = [
        reopened.setup.document.problem for reopened in (one, other) if reopened.setup.document
    ]
    named = [(problem.name, problem.dtype) for problem in problems if problem is not None]
    if named[0] != named[1]:
        words = " and ".join(" ".join(pair) for pair in named)
        raise UsageError(f"the runs solve different problems: {words}")
    before, after = one.configuration(first[1]), other.configuration(second[1])
    rival = one.rival_jobs(before)
    known = {job.case.label for job in rival}
    if known.isdisjoint(job.case.label for job in other.rival_jobs(after)):
        raise UsageError("the runs have no timed case in common")
    proposal = against(other.planner.proposal(other.seed_of(after), after), rival)
    with other.executor() as executor:
        run = functools.partial(outcome_of, executor)
        return repeated(run, proposal, run(proposal))
