"""Confirms a run's best candidates: checks them, in parallel if the device allows it, and times
each in as many fresh processes as the spread requires and the time allows."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import msgspec

from evotune.runs.observer import CHECKING, CONFIRMING_CHAMPIONS, PLANNING, TIMING_CHAMPIONS
from evotune.store import RunStore
from evotune.timing.processes import LEAST, MOST, SETTLED, combined, fitness_by_process, widened
from evotune.trial import CUT_SHORT, Outcome, OutcomeKind, Trial
from evotune.verify.kept_checks import worth_keeping
from evotune.workers.executor import CHECKS, HELD_OUT, TIMED, TIMING, Executor, Proposal


# --- Confirming the best trials: a fresh process, unseen inputs, held-out shapes, more samples ----
@dataclass(frozen=True)
class Earlier:
    """The confirmations of earlier parts of the run, when the run had `trials` trials. In the first
    part there are none, and `trials` is 0."""

    trials: int = 0
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)

    def leader(self) -> Outcome | None:
        """The outcome that passed and whose 95% interval has the highest lower end."""
        passed = [outcome for outcome in self.outcomes.values() if outcome.ok]
        return max(passed, key=_bound, default=None)


def finalists(store: RunStore, earlier: Earlier, count: int) -> Iterator[Trial]:
    """Successful trials, best first, one for each machine code. Trials that passed an `earlier`
    confirmation rank by their confirmed figure, because the search's figures of the best trials are
    too high.

    If at least `count` trials passed earlier, the others of that part come last, because they were
    not among the best then.
    """

    def slowness(trial: Trial) -> float:
        fitness = earlier.outcomes.get(trial.number, trial.outcome).fitness
        assert fitness is not None
        return -fitness

    def others(since: int) -> Iterator[Trial]:
        for trial in store.best_first():
            known = trial.outcome.duplicate_of is not None or trial.number in earlier.outcomes
            if trial.number >= since and not known:
                yield trial

    passed = [t for t in store.trials_of(earlier.outcomes) if earlier.outcomes[t.number].ok]
    passed.sort(key=slowness)
    if len(passed) < count:
        return heapq.merge(others(0), passed, key=slowness)
    old = (trial for trial in others(0) if trial.number < earlier.trials)
    return chain(heapq.merge(others(earlier.trials), passed, key=slowness), old)


def confirm(
    executor: Executor,
    candidates: Iterable[Trial],
    *,
    known: Mapping[int, Outcome],
    count: int,
    propose: Callable[[Trial], Proposal],
    stop: Callable[[], bool],
    leader: Outcome | None = None,
    least_width: float = 0.0,
    no_time: Callable[[], bool] = lambda: False,
    time: ConfirmingTime | None = None,
    contender: float = -math.inf,
    checks_at_once: int = 0,
    tell: Callable[[str], None] = lambda text: None,
    give_up: Callable[[str], None] = lambda text: None,
    enter: Callable[[str], None] = lambda phase: None,
) -> Iterator[tuple[Trial, Outcome]]:
    """Confirms one candidate after the other until `count` of them have passed; `known` outcomes
    count.

    Each candidate is timed in more processes until it is clear whether it beats the leader so far,
    at first the given one; `least_width` is as for `repeated`. Samples that tell which of two
    candidates is the better one are taken of those that may reach the fitness `contender`. Gives up
    after three times `count` candidates. Ends early if `stop` returns True, or if there is a leader
    and `no_time` for another. `tell` is called with the current step twice a second, and `enter`
    with each phase of `runs.phases`.

    Ends when `time` is over, whatever runs then, and `give_up` is called with the reason in words.
    The first champion may take all of it; later ones share the rest. A champion that was timed in
    two processes by then is confirmed. So is one that was timed in a single process if the leader's
    spread between processes is known; then the interval is wide. A champion that surely loses by
    the search's figures gets brief checks, and at most three processes time it.

    With `checks_at_once` that many candidates are checked in parallel, and then timed one after the
    other in separate processes.
    """
    time = time or ConfirmingTime()
    passed = 0
    trials = list(islice(candidates, 3 * count))
    propose = _remembered(propose)

    def is_over() -> bool:
        return stop() or time.is_over

    checks = ChecksAhead(
        executor,
        checks_at_once,
        stop=is_over,
        tell=lambda step: tell(f"checking the best side by side{step and f': {step}'}"),
    )
    for place, trial in enumerate(trials):
        if passed == count or (leader is not None and no_time()):
            return
        outcome = known.get(trial.number)
        if outcome is None:
            if time.is_over:
                give_up(_in_words(time, passed, count))
                return
            executor.set_contender(max(contender, _bound(leader)))
            sharing = 1 if leader is None else count - passed
            until_s = time.checks_until_s(champions=sharing)
            loses = leader is not None and _is_below(trial.outcome, leader)
            if loses and not time.is_endless:
                until_s = min(until_s, time.brief_checks_until_s())
            enter(PLANNING)
            proposal = dataclasses.replace(propose(trial), until_s=until_s)
            which = f"confirming {passed + 1} of {count} (trial {trial.number})"
            run = functools.partial(
                outcome_unless,
                executor,
                stop=is_over,
                tell=functools.partial(_tell, tell, which),
            )
            if checks_at_once:
                following = [propose(t) for t in _unknown(trials[place:], known)[: count - passed]]
                enter(CHECKING)
                checked = checks.of(trial.number, following, time.checks_until_s(champions=1))
                enter(TIMING_CHAMPIONS)
                first = checked and _timed(run, proposal, checked)
            else:
                enter(CONFIRMING_CHAMPIONS)
                first = run(proposal)
            outcome = first and repeated(
                run,
                proposal,
                first,
                leader=leader,
                least_width=least_width,
                most=min(LEAST, MOST) if loses else MOST,
                no_time=no_time,
            )
            if stop():
                return
            if time.is_over:
                executor.drop()  # what is at work
                outcome = outcome and _cut_short(outcome, leader, least_width)
            if outcome is None:
                give_up(_in_words(time, passed, count))
                return
            yield trial, outcome
        passed += outcome.ok
        if outcome.ok and (leader is None or _bound(outcome) > _bound(leader)):
            leader = outcome


def _remembered(propose: Callable[[Trial], Proposal]) -> Callable[[Trial], Proposal]:
    """A champion's proposal has thousands of cases."""
    made: dict[int, Proposal] = {}

    def remembered(trial: Trial) -> Proposal:
        if trial.number not in made:
            made[trial.number] = propose(trial)
        return made[trial.number]

    return remembered


def _unknown(trials: Sequence[Trial], known: Mapping[int, Outcome]) -> list[Trial]:
    return [trial for trial in trials if trial.number not in known]


def _timed(
    run: Callable[[Proposal], Outcome | None], proposal: Proposal, checked: Outcome
) -> Outcome | None:
    """The outcome of a whole confirmation, after its checks."""
    if needs_the_device_alone(checked):
        return run(proposal)
    if not checked.ok:
        return checked
    timing = run(timing_of(proposal))
    return timing and joined(checked, timing)


def _cut_short(outcome: Outcome, leader: Outcome | None, least_width: float) -> Outcome | None:
    """The outcome as far as its processes support it; None if they do not."""
    processes = len(fitness_by_process(outcome)) if outcome.ok else LEAST
    if processes >= LEAST:
        return outcome
    if processes < 2:
        spread = fitness_by_process(leader) if leader is not None else []
        if len(spread) < 2:
            return None
        outcome = widened(outcome, spread, least_width)
    flags = dict.fromkeys((*outcome.flags, CUT_SHORT))
    return msgspec.structs.replace(outcome, flags=tuple(flags))


def _in_words(time: ConfirmingTime, passed: int, count: int) -> str:
    found = f"{passed} of {count} confirmed"
    if not passed:
        found = "none confirmed, since the machine is too noisy or too slow"
    return (
        f"confirming ended after {time.limit_s:.0f} s, which is as long as it may take: {found}; "
        "`resume --champions` continues, however long it takes"
    )


def _tell(tell: Callable[[str], None], which: str, proposal: Proposal, step: str) -> None:
    process = f"process {proposal.repeat or 1} of at most {MOST}"
    tell(f"{which}, {process}{step and f': {step}'}")


def _bound(outcome: Outcome | None) -> float:
    """The lower end of a champion's 95% interval; minus infinity for none."""
    known = outcome is not None and outcome.fitness_low is not None
    return outcome.fitness_low if known else -math.inf  # type: ignore[return-value, union-attr]


_ROUNDING = 1e-9  # so that an interval of exactly the allowed width counts as narrow


def repeated(
    run: Callable[[Proposal], Outcome | None],
    proposal: Proposal,
    first: Outcome,
    *,
    leader: Outcome | None = None,
    processes: int = LEAST,
    most: int | None = None,
    least_width: float = 0.0,
    no_time: Callable[[], bool] = lambda: False,
) -> Outcome:
    """The `first` outcome of `proposal`, combined with the figures of more processes.

    Starts more processes until
    - the interval is narrow, or
    - the interval lies below the `leader`'s. The leader's spread between processes is assumed for
      the first process too, so one process may be enough; or
    - `most` processes have run (defaults to `MOST`); or
    - `processes` have run and there is `no_time` for more; or
    - `run` returns None, because it was stopped.

    The interval is never narrower to either side than `least_width`. If a process fails, its
    outcome is returned, because the kernel is not right each time.
    """
    spread = fitness_by_process(leader) if leader is not None else []
    if first.ok and leader is not None and len(spread) > 1:
        supposed = widened(first, spread, least_width)
        if _is_below(supposed, leader):
            return supposed
    outcomes = [first]
    while first.ok and len(outcomes) < (MOST if most is None else most):
        enough = len(outcomes) >= processes
        if enough and (
            no_time() or _is_known(combined(outcomes, least_width), leader, least_width)
        ):
            break
        outcome = run(timed_again(proposal, len(outcomes) + 1))
        if outcome is None:
            break
        if not outcome.ok:
            return outcome
        outcomes.append(outcome)
    return combined(outcomes, least_width) if first.ok else first


def timed_again(proposal: Proposal, process: int = 2) -> Proposal:
    """A proposal that times the same candidate in another fresh process, number `process` from 2
    on, which checks the timed cases only."""
    cases = tuple(job for job in proposal.cases if job.role == TIMED)
    return dataclasses.replace(
        proposal, cases=cases, confirm=False, part="", repeat=process, skipped=(), until_s=math.inf
    )


def _is_known(found: Outcome, leader: Outcome | None, least_width: float) -> bool:
    assert found.fitness_low is not None
    assert found.fitness_high is not None
    narrow = (found.fitness_high - found.fitness_low) / 2 <= max(SETTLED, least_width) + _ROUNDING
    return narrow or (leader is not None and _is_below(found, leader))


def _is_below(outcome: Outcome, leader: Outcome) -> bool:
    assert outcome.fitness_high is not None
    assert leader.fitness_low is not None
    return outcome.fitness_high < leader.fitness_low


def outcome_of(executor: Executor, proposal: Proposal) -> Outcome:
    """Runs one proposal and returns its outcome."""
    outcome = outcome_unless(executor, proposal, lambda: False)
    assert outcome is not None
    return outcome


def outcome_unless(
    executor: Executor,
    proposal: Proposal,
    stop: Callable[[], bool],
    tell: Callable[[Proposal, str], None] = lambda proposal, step: None,
) -> Outcome | None:
    """Runs one proposal and returns its outcome; None if `stop` returned True before. `tell` is
    called with each step."""
    executor.submit(proposal)
    while not stop():
        tell(proposal, executor.step)
        for _, outcome in executor.poll(0.5):
            return outcome
    return None


LEAST_EACH_S = 30.0
BRIEF_S = 8.0
"""The time in s for the checks of a later champion that surely loses by the search's figures."""
_CHECKS_SHARE = 0.6
"""The share of a champion's time for its first process up to the timing. The rest is for the timing
there and in later processes."""


class ConfirmingTime:
    """The time for confirming champions, counted from when this object is made. Its times are those
    of the system's monotonic clock, so workers of this machine can use them."""

    def __init__(
        self, limit_s: float = math.inf, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._end_s = clock() + limit_s

    @classmethod
    def after(cls, searched_s: float, champions: int) -> ConfirmingTime:
        """The time for confirming `champions` champions of a search that took `searched_s` over all
        parts of the run.
        """
        return cls(max(searched_s, LEAST_EACH_S * champions))

    @property
    def is_endless(self) -> bool:
        return math.isinf(self._end_s)

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._end_s

    def checks_until_s(self, champions: int) -> float:
        """The time at which the checks of the next champion are cut short, if `champions` champions
        share the time left.
        """
        now_s = self._clock()
        return now_s + _CHECKS_SHARE * (self._end_s - now_s) / champions

    def brief_checks_until_s(self) -> float:
        """The time at which the checks of the next champion are cut short, if it surely loses."""
        return min(self._end_s, self._clock() + BRIEF_S)


# Champions' checks in parallel, each in a separate process; then their timing, one by one.
#
# Checks keep a CPU core busy and hardly the GPU, so several take about as long as one. Timing needs
# the GPU for itself.
class ChecksAhead:
    """Checks the next champions in parallel, ahead of their timing."""

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
        """The outcome of the checks of trial `number`, the first of the `following` proposals; None
        if the run was stopped before. `until_s`: see `Proposal`."""
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
    """Whether checks failed because several in parallel did not fit into the device's memory."""
    return checks.kind is OutcomeKind.DEVICE_OOM


def joined(checks: Outcome, timing: Outcome) -> Outcome:
    """The outcome of a confirmation, made of the outcomes of its two parts. The checks must have
    passed."""
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
