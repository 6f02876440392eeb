"""Checks the times of a candidate that runs in another process by a second clock.

Calls are timed one by one, from release to answer. Work that a candidate leaves for later would not
count, and neither would work in the time that a forged answer hides. So rows of calls are released
together, each call on a place of its own, with poisoned outputs and other inputs. A row ends when
this process knows that it has ended, and then all of its outputs must be right. The number of calls
is random, and the slope of the time over it has none of the cost of a release. A candidate whose
slope lies above the time of its single calls, on the same places, is refused.

Other work on the machine makes rows longer. Rows in which a process waited for a core do not count,
and the comparison is repeated at other moments before a candidate is refused.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from evotune.backends.base.session import Row, Session
from evotune.trial import TOO_NOISY, Check, OutcomeKind
from evotune.verify.accuracy import gather
from evotune.verify.buffers import BufferSets
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool, InputSet, elements_of
from evotune.verify.watch import Watched

_NAME = "own clock"
_MOST_PLACES, _FEW_PLACES = 15, 3
_BYTES = 16 << 20
"""With buffers that take more than this together, the row has few places."""
_LONG_US = 2000.0
"""Calls that take longer have few places too: a release costs little of their time."""
_ROUNDS, _LEAST_ROUNDS, _MOST_TRIES = 5, 3, 15
_RATIO, _ERROR_US = 1.15, 1.0
"""A slope is above the time of single calls if it is so by this factor and by this much: a call is
known to a microsecond."""
_PAUSES_S = (0.0, 0.5, 2.0)
"""The waits before comparisons, all of which must agree before a candidate is refused."""


class Compared(NamedTuple):
    """The time of a call by the slope of rows, and of single calls, in µs."""

    slope_us: float
    single_us: float

    @property
    def is_above(self) -> bool:
        return self.slope_us > max(_RATIO * self.single_us, self.single_us + _ERROR_US)


class Round(NamedTuple):
    """The number of calls and the time, in µs, of a row of few calls and of one of many; None if it
    was disturbed. And the time of a single call."""

    few: tuple[int, float] | None
    many: tuple[int, float] | None
    single_us: float


class Ring:
    """A candidate at several places, whose inputs change from row to row."""

    def __init__(
        self,
        session: Session,
        buffers: BufferSets,
        sets: Sequence[InputSet],
        row: Row,
        rng: random.Random,
    ) -> None:
        """`sets`: the inputs that are at all places now, and variants of them."""
        self._session = session
        self._buffers = buffers
        self._sets = sets
        self._row = row
        self._rng = rng
        self._now = [0] * len(buffers)
        self._targets = [
            [
                (each, buffers.elements(each.name, each.place, len(each.values)))
                for each in one.alterations
            ]
            for one in sets
        ]

    def __len__(self) -> int:
        return len(self._buffers)

    def round(self, judge: Callable[[Watched], None]) -> Round:
        """Times a short row, a long one, and single calls. `judge` is called with the evidence of
        both rows."""
        count, rng = len(self), self._rng
        room = count // 4 if count > _FEW_PLACES else 0
        few, many = rng.randint(min(1, room), room), rng.randint(count - room, count)
        taken: dict[int, tuple[int, float]] = {}
        for wanted in rng.sample((few, many), 2):
            self._change()
            made = self._row.at_once(wanted, complement=rng.random() < 0.5)
            if made.places:
                judge(self._evidence(made.places))
            # If a later call replaced the results of an earlier one, the row tells nothing: the
            # earlier call may have been left out.
            if not made.is_disturbed and len(made.places) == wanted:
                taken[wanted] = wanted, made.time_us
        self._change()
        single_us = self._row.one_by_one_us(range(count))
        self._session.settle()
        return Round(taken.get(few), taken.get(many), single_us)

    def _change(self) -> None:
        """Writes a random one of the sets to each place, and poisons the outputs."""
        for place, now in enumerate(self._now):
            wanted = self._rng.randrange(len(self._sets))
            for each, target in (*self._targets[now], *self._targets[wanted]):
                values = elements_of(self._sets[wanted], each)
                target[place].copy_(values.view(target.shape[1:]))
            self._now[place] = wanted
        self._buffers.prepare()

    def _evidence(self, places: Sequence[int]) -> Watched:
        self._session.settle()
        inputs = [self._sets[self._now[place]] for place in places]
        chosen = list(places)
        outputs = {name: value[chosen] for name, value in self._buffers.outputs().items()}
        wanted = {
            name: torch.stack([each.expected[name] for each in inputs])
            for name in inputs[0].expected
        }
        return Watched(gather(None, outputs, wanted), inputs, [0.0] * len(chosen))


def check_times(
    gate: Gate,
    session: Session,
    pool: InputPool,
    subject: Subject,
    *,
    seed: int,
    verdict: Verdict,
    call_us: float,
    limit_s: float,
    draw: int = 0,
) -> None:
    """Compares a candidate's times with the slope of rows. `call_us`: the time of a call, about.
    `limit_s`: after so many seconds no more rounds follow than the least number that can tell."""
    if not verdict.passed:
        return
    case = subject.case
    nbytes = max(1, pool.set_bytes(case))
    few = call_us > _LONG_US or _MOST_PLACES * nbytes > _BYTES
    count = min(_FEW_PLACES if few else _MOST_PLACES, session.pool_bytes // (4 * nbytes))
    if count < 2:
        return
    sets = [pool.get(case, "normal", seed), *pool.changed(case, seed)]
    buffers = gate.buffers(subject, [sets[0]] * count)
    launches = [
        session.bind(subject.kernel, subject.plan, buffers.pointers(number))
        for number in range(count)
    ]
    row = session.row(launches)
    ring = Ring(session, buffers, sets, row, random.Random(pool.stream(case, _NAME, draw)))
    until_s = time.monotonic() + limit_s

    def judge(watched: Watched) -> None:
        gate.judge_watched(case, [watched], verdict)

    for launch in launches:
        launch()  # the first call on a place pays for page faults
    words, is_sure = compare(
        lambda: ring.round(judge), lambda: verdict.passed, lambda: time.monotonic() < until_s
    )
    if not verdict.passed:
        return
    if words is None:
        detail = (
            "most rows of calls tell nothing: processes waited for a core, or a later call "
            "replaced the results of an earlier one"
        )
        verdict.checks.append(Check(case.label, _NAME, "skipped", detail=detail))
    elif not words:
        verdict.checks.append(Check(case.label, _NAME, "passed"))
    elif is_sure:
        failed = Check(case.label, _NAME, "failed", detail=words)
        verdict.fail(OutcomeKind.TOO_FAST, failed)
    else:
        detail = f"{TOO_NOISY}: {words}, but not each time it was asked"
        verdict.fail(OutcomeKind.UNDECIDED, Check(case.label, _NAME, "skipped", detail=detail))


def compare(
    make_round: Callable[[], Round],
    goes_on: Callable[[], bool],
    has_time: Callable[[], bool],
    rest: Callable[[float], None] = time.sleep,
) -> tuple[str | None, bool]:
    """Why the slope of rows contradicts the time of single calls, and whether that is sure; "" if
    it does not, None if too few rows could tell, or the candidate fails otherwise."""
    words = ""
    for pause_s in _PAUSES_S:
        if pause_s:
            rest(pause_s)
        found = _bout(make_round, goes_on, has_time)
        if found is None:
            return (words, False) if words and goes_on() else (None, False)
        if not found.is_above:
            return "", True
        words = (
            f"a call takes {found.slope_us:.1f} us in rows that are released together but "
            f"{found.single_us:.1f} us by itself"
        )
    return words, True


def _bout(
    make_round: Callable[[], Round],
    goes_on: Callable[[], bool],
    has_time: Callable[[], bool],
) -> Compared | None:
    rounds: list[Round] = []
    few: list[tuple[int, float]] = []
    many: list[tuple[int, float]] = []
    for number in range(1, _MOST_TRIES + 1):
        rounds.append(made := make_round())
        if not goes_on():
            return None
        few += [made.few] if made.few is not None else []
        many += [made.many] if made.many is not None else []
        least = min(len(few), len(many))
        if least == _ROUNDS or (number >= _LEAST_ROUNDS and not has_time()):
            break
    if least < _LEAST_ROUNDS:
        return None
    slopes = [(b_us - a_us) / (b - a) for a, a_us in few for b, b_us in many]
    return Compared(statistics.median(slopes), statistics.median(r.single_us for r in rounds))
