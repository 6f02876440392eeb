"""Champions' checks side by side, each in a process of its own; then their timing, one by one.

Checks keep a CPU core busy and hardly the GPU, so several take about as long as one. Timing needs
the GPU for itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from evotune.trial import Outcome, OutcomeKind
from evotune.verify.kept_checks import worth_keeping
from evotune.workers.executor import CHECKS, HELD_OUT, TIMED, TIMING, Executor, Proposal


class ChecksAhead:
    """Outcomes of checks, of the next champions together."""

    def __init__(
        self,
        executor: Executor,
        at_once: int,
        *,
        stop: Callable[[], bool],
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`at_once`: how many champions are checked together. Ends early when `stop` says so."""
        self._executor = executor
        self._at_once = at_once
        self._stop = stop
        self._tell = tell
        self._found: dict[int, Outcome] = {}

    def of(self, number: int, following: Sequence[Proposal], until_s: float) -> Outcome | None:
        """The outcome of trial `number`, the first of those `following`; None when it was stopped
        before. `until_s`: see `Proposal`."""
        if number not in self._found:
            self._check([_checks_of(each, until_s) for each in following[: self._at_once]])
        return self._found.get(number)

    def _check(self, proposals: Sequence[Proposal]) -> None:
        open_numbers = {each.number for each in proposals}
        for each in proposals:
            self._executor.submit(each)
        while open_numbers and not self._stop():
            self._tell(self._executor.step)
            for number, outcome in self._executor.poll(0.5):
                self._found[number] = outcome
                open_numbers.discard(number)


def _checks_of(proposal: Proposal, until_s: float) -> Proposal:
    return dataclasses.replace(proposal, part=CHECKS, until_s=until_s)


def timing_of(proposal: Proposal) -> Proposal:
    """The part of a confirmation that follows the checks."""
    cases = tuple(job for job in proposal.cases if job.role in (TIMED, HELD_OUT))
    return dataclasses.replace(proposal, part=TIMING, cases=cases, skipped=(), until_s=math.inf)


def needs_the_device_alone(checks: Outcome) -> bool:
    """Whether checks failed since several together found no memory."""
    return checks.kind is OutcomeKind.DEVICE_OOM


def joined(checks: Outcome, timing: Outcome) -> Outcome:
    """The outcome of a confirmation from those of its parts. The checks must have passed."""
    if not timing.ok:
        return timing
    measured = {each.case for each in timing.measurements}
    return msgspec.structs.replace(
        timing,
        checks=worth_keeping((*checks.checks, *timing.checks), measured),
        domain=checks.domain,
        flags=tuple(dict.fromkeys((*checks.flags, *timing.flags))),
        stage_s=dict(Counter(checks.stage_s) + Counter(timing.stage_s)),
        resources={**checks.resources, **timing.resources},
        binary=checks.binary,
    )
