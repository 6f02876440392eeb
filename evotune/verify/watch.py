"""Checks of the very launches that are timed.

A kernel that recognises a check may skip work in all other launches. So watched runs come at random
among the timed ones. In a watched run inputs change and outputs are poisoned while the calls follow
each other as closely as in a timed run; then the outputs must be right. A call can recognise a
watched run only by reading the changed memory. Some watched runs stop after a random call, so that
no call can know that it is the last one.

On a GPU the writes may come while a call works. Steady inputs, such as lengths, change before a run
instead: the blocks of one launch must agree on them.

A call that updates a tensor in place would find its own result the next time. So each place has one
call in a run, on values that were restored before it. There is no next call to write for: instead,
some of the places have other inputs before the run begins.

A kernel that reads all its inputs at each call, and reuses its results while the inputs stay the
same, is right each time. Only its time gives it away (`Watch.reuse`). But other work on the machine
changes times too. So each comparison is between two rows of calls that differ only in their values:
for a kernel that caches nothing, either row may be the slower one. The comparison is repeated at
other moments before a candidate is refused, and may end undecided.
"""

from __future__ import annotations

import enum
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from evotune.backends.base.session import Intervention, Renewal, Sampler, Session, WatchableSampler
from evotune.problems.problem import Case, Tensors
from evotune.verify.accuracy import Evidence, gather
from evotune.verify.buffers import SPOT_BYTES, BufferSets, bits
from evotune.verify.pool import Alteration, InputPool, InputSet, elements_of

_LATE_CALLS = 6  # half of the writes come at most this many calls before the last one
_PENDING_BYTES = 256 << 20
_MOST_TURNS = 1 << 20
_LONG_CALLS, _LONG_US, _LONG_RUNS = 300, 30_000, 4
"""How many calls a long row has, how many microseconds they may take at most, and how often it is
run."""
_LEAST_REPLACED = 1 << 16  # elements; calls on fewer are too short to be timed one by one
_REPLACED_S, _LONG_REPLACED_S = 0.005, 0.03
_CHANGING = 8  # elements of each input that change while calls are timed
_ASKED_AT_FIRST, _ASKED_LATER = 60, 0.5  # rounds of timed rows, then the share of them
_FIRST_SAMPLES = 3
"""On a device that writes while a call works: other work on it must not have slowed all of them."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The evidence of watched runs, and the input set with which each row of it is compared. A row
    counts only if a call takes at least its `needed_us`; with shorter calls the writes may have
    come too late.
    """

    evidence: Evidence
    inputs: Sequence[InputSet]
    needed_us: Sequence[float]
    shortest_us: float = math.inf

    @property
    def counts(self) -> list[bool]:
        return [needed_us <= self.shortest_us for needed_us in self.needed_us]


class Watch:
    """Watches runs of one candidate on one case.

    `launches` has one call for each copy of the `buffers`; `samplers` make each call `in_a_row`
    times, one copy after the other. In each sample the inputs of all copies are one of a few known
    sets; `settle` restores them.
    """

    def __init__(
        self,
        session: Session,
        pool: InputPool,
        case: Case,
        seed: int,
        *,
        buffers: BufferSets,
        launches: Sequence[Callable[[], object]],
        samplers: Sequence[WatchableSampler],
        draw: int = 0,
    ) -> None:
        """`draw` numbers the random draws for one candidate."""
        self._session = session
        self._sets = [pool.get(case, "normal", seed), *pool.changed(case, seed)]
        self._other = pool.get(case, "normal", seed + 1)
        # On a GPU elements are renewed while calls run. A kernel that counts integers and then
        # places them, as a sort does, may write beyond its output.
        self._steady = pool.steady_inputs(case)
        plain = pool.plain_inputs(case, ranged=not session.in_order)
        self._renewed = [name for name in plain if name not in self._steady]
        self._reachable = [
            number
            for number, one in enumerate(self._sets)
            if not any(each.name in self._steady for each in one.alterations)
        ]
        """Sets with the steady inputs of the first one."""
        self._poison = [
            torch.full((SPOT_BYTES,), byte, dtype=torch.uint8, device=session.torch_device)
            for byte in buffers.poison_bytes()
        ]
        """Of each output."""
        self._rng = random.Random(pool.stream(case, "watch", draw))
        self._buffers = buffers
        self._in_a_row = samplers[0].count // len(launches)
        self._is_restored = buffers.has_updates or session.calls_once
        """Whether each place has one call in a run, on restored values."""
        assert not (self._is_restored and self._in_a_row > 1)
        self._launches = list(launches)
        self._samplers = list(samplers)
        self._long: WatchableSampler | None = None
        self._targets = [
            [
                (each, buffers.elements(each.name, each.place, len(each.values)))
                for each in one.alterations
            ]
            for one in self._sets
        ]
        """For each set its differences from the first set: a row for each place."""
        self._now = 0
        """The number of the set that is in the inputs of all places."""
        self._used: set[int] = set()
        """Sets whose differences from the first one cover those of the present inputs."""
        self._call_us = 0.0
        self._timed_us: list[float] = []
        self._asked: list[Asked] = []
        self._pending: list[Watched] = []
        self._pending_bytes = 0

    # --- before each sample ------------------------------------------------------------------

    def change(self) -> None:
        """Writes a random set, which may be the present one, to all copies of the buffers, and
        poisons a part of each output.
        """
        number = self._rng.randrange(len(self._sets))
        if number != self._now:
            self.settle()
            self._put(number, self._sets[number])
            self._used.add(number)
            self._now = number
        spots = self._buffers.spots(self._rng.random())
        for spot, byte in zip(spots, self._buffers.poison_bytes(), strict=True):
            spot.fill_(byte)

    def draw_turn(self, turns: int) -> int:
        return self._rng.randrange(turns)

    def took(self, call_us: float) -> None:
        """Notes the duration of a timed call. The shortest duration counts, because that call was
        interrupted least."""
        self._call_us = min(self._call_us or call_us, call_us)
        self._timed_us.append(call_us)

    def settle(self) -> None:
        """Restores the inputs to the values that they had when the buffers were made."""
        for number in self._used:
            self._put(number, self._sets[0])
        self._used.clear()
        self._now = 0

    def _put(self, number: int, source: InputSet) -> None:
        """Overwrite the elements that set `number` changes by those of `source`, in all copies of
        the buffers.
        """
        for each, target in self._targets[number]:
            target.copy_(elements_of(source, each).view(target.shape[1:]))

    # --- a watched run -----------------------------------------------------------------------

    def run(self) -> None:
        """Changes the inputs as before every sample, then makes a watched run."""
        self._watched(self._draw(), self._in_a_row)

    def run_long(self) -> None:
        """Makes some watched runs with more calls than a sample has. They catch a kernel that works
        only in a certain number of calls after a pause."""
        call_us = self._shortest_us()
        most = min(_LONG_CALLS, int(_LONG_US / call_us)) // len(self._launches)
        if most <= self._in_a_row or self._is_restored:
            return
        self._long = self._session.sampler(self._rows(most))
        for _ in range(_LONG_RUNS):
            self._watched(self._long, most)

    def _watched(self, sampler: WatchableSampler, in_a_row: int) -> None:
        """A watched run. The sampler has run once since it was made."""
        call_us = self._shortest_us()
        self.change()
        ends = _ends(sampler.count, in_a_row)
        states, needed_us = [self._now] * len(ends), [0.0] * len(ends)
        if self._is_restored:
            first = self._rng.randrange(len(ends))
            states[first:] = [self._replace_from(first)] * (len(ends) - first)
        interventions: list[Intervention] = []
        changed: list[int] = []
        reachable = self._reachable if self._now in self._reachable else [self._now]
        for place, (first, last) in enumerate(ends):
            if last - first < 2:
                continue
            made, states[place] = self._intervention(place, first, last, reachable)
            interventions.append(made)
            changed.append(place)
        for place, least_us in zip(changed, sampler.watch(interventions, call_us), strict=True):
            needed_us[place] = least_us
        self._session.settle()
        # Where the writes may have come too late, the right result is unknown.
        rows = zip(range(len(ends)), states, needed_us, strict=True)
        self._keep([row for row in rows if row[2] <= self._call_us])
        self.settle()

    def _draw(self) -> WatchableSampler:
        """One of the timed samplers, or one that stops early."""
        rows = self._rows(self._in_a_row)
        if len(rows) == 1 or self._session.calls_once or self._rng.random() < 0.5:
            return self._rng.choice(self._samplers)
        place = self._rng.randrange(len(self._buffers))
        calls = self._rng.choice((1, self._rng.randint(1, self._in_a_row)))
        return self._buffers.sampler(self._session, rows[: place * self._in_a_row + calls])

    def _rows(self, in_a_row: int) -> list[Callable[[], object]]:
        return [call for call in self._launches for _ in range(in_a_row)]

    def _shortest_us(self) -> float:
        while len(self._timed_us) < (_FIRST_SAMPLES if self._session.in_order else 1):
            self.took(self._samplers[0].time_us())
        return self._call_us

    def _intervention(
        self, place: int, first: int, last: int, reachable: Sequence[int]
    ) -> tuple[Intervention, int]:
        """Writes that turn the present set into another one of `reachable`, and sometimes poison a
        part of the outputs; and the number of that set."""
        calls = last - first
        begin = self._rng.random()
        if self._rng.random() < 0.5:
            begin = max(0.0, 1 - self._rng.randint(1, _LATE_CALLS) / calls - 0.5 / calls)
        room = max(1, int(begin * calls)) * self._session.step_bytes or math.inf
        others = [each for each in reachable if each != self._now]
        fitting = [each for each in others if self._room_for(each) <= room]
        number = self._rng.choice(fitting or reachable)
        self._used.add(number)
        # The values are those of the new set everywhere: copies of one intervention have no order.
        writes = [
            _as_rows(target[place], elements_of(self._sets[number], each))
            for each, target in self._differing(number)
        ]
        if self._rng.random() < 0.5:
            room -= self._room_for(number) + 2 * self._session.step_bytes * len(self._poison)
            most = int(max(1, min(room / len(self._poison), SPOT_BYTES)))
            spots = [spot[place] for spot in self._buffers.spots(self._rng.random())]
            spots = [spot[..., :most] for spot in spots]
            writes += [
                _as_rows(spot, poison[: spot.numel()])
                for spot, poison in zip(spots, self._poison, strict=True)
            ]
        return Intervention(first, last, min(begin, 1 - 1.5 / calls), writes), number

    def _replace_from(self, place: int) -> int:
        """Writes a random set to that place and all after it; returns its number."""
        number = self._rng.randrange(len(self._sets))
        self._used.add(number)
        for each, target in (*self._targets[self._now], *self._targets[number]):
            values = elements_of(self._sets[number], each)
            target[place:].copy_(values.view(target.shape[1:]))
        return number

    def _differing(self, number: int) -> list[tuple[Alteration, torch.Tensor]]:
        """The alterations, with their places, in which the present set and set `number` differ."""
        pairs = (*self._targets[self._now], *self._targets[number]) if number != self._now else ()
        return [pair for pair in pairs if pair[0].name not in self._steady]

    def _room_for(self, number: int) -> int:
        """The most bytes of all steps that write set `number`."""
        step = self._session.step_bytes
        return sum(target[0].nbytes + 2 * step for _, target in self._differing(number))

    def _keep(self, rows: Sequence[tuple[int, int, float]]) -> None:
        """Keep copies of the outputs of these places, each with the number of the set that it is
        compared with and with its `needed_us`."""
        if not rows:
            return
        places = [place for place, _, _ in rows]
        inputs = [self._sets[number] for _, number, _ in rows]
        outputs: Tensors = {name: value[places] for name, value in self._buffers.outputs().items()}
        wanted = {
            name: torch.stack([each.expected[name] for each in inputs])
            if len(inputs) > 1
            else inputs[0].expected[name][None]
            for name in inputs[0].expected
        }
        needed_us = [needed for _, _, needed in rows]
        self._pending.append(Watched(gather(None, outputs, wanted), inputs, needed_us))
        self._pending_bytes += sum(value.nbytes for value in outputs.values())

    @property
    def is_full(self) -> bool:
        """True if stored evidence should be read before more is stored."""
        return self._pending_bytes > _PENDING_BYTES

    def take(self) -> list[Watched]:
        """All evidence stored since the last call of this method, judged by the shortest time of a
        call that is known by now."""
        taken, self._pending, self._pending_bytes = self._pending, [], 0
        return [replace(each, shortest_us=self._call_us) for each in taken]

    # --- the time of calls whose inputs change -----------------------------------------------

    def ask(self) -> None:
        """Times, between timed rows, a row of calls whose inputs change before each call. `reuse`
        alone is not enough, because it follows the timing: a kernel could cache results until then.
        Does nothing on a GPU. After the first rows only some rounds do this, at random, because it
        costs the time of a row. Half of these rows follow one in which no input changes."""
        if not self._renewed or self._session.in_order:
            return
        if len(self._asked) < _ASKED_AT_FIRST or self._rng.random() < _ASKED_LATER:
            self.settle()
            fresh, equal, restore = self._renewing()
            equal_us = equal() if self._rng.random() < 0.5 else None
            self._asked.append(Asked(len(self._timed_us), fresh(), equal_us))
            restore()

    def reuse(self) -> Answer:
        """Whether calls take longer while their inputs change. After `run_long` it times the calls
        of a long row. A sure answer takes precedence over an unsure one."""
        unsure = Answer()
        checks = (self._slower_while_timed, self._slower_when_renewed, self._slower_when_replaced)
        for check in checks:
            found = check()
            if found.words and found.sure:
                return found
            unsure = unsure if unsure.words else found
        return unsure

    def _slower_while_timed(self) -> Answer:
        return slower_than_timed(self._asked, self._timed_us)

    def _slower_when_renewed(self) -> Answer:
        """Asks this of calls as close to each other as timed ones."""
        fresh, familiar, restore = self._renewing()
        found = slower_on_new_inputs(self._rng, fresh, familiar)
        restore()
        return found

    def _renewing(
        self,
    ) -> tuple[Callable[[], float], Callable[[], float], Callable[[], None]]:
        """Two functions that time a row: in the first an element of an input changes before each
        call in all places; in the second, memory that no call reads. The third restores the
        inputs, which must be the first set. If each place has one call in a run, elements change in
        all places before the row."""
        base = self._sets[0].inputs
        chosen = [
            (name, self._rng.randrange(value.numel()))
            for name, value in base.items()
            if name in self._renewed
            for _ in range(_CHANGING)
        ]
        other = {name: value.view(-1) for name, value in self._other.inputs.items()}
        targets = [self._buffers.elements(name, place) for name, place in chosen]
        sampler = self._long or self._samplers[0]

        def timed(written: Sequence[torch.Tensor]) -> Callable[[], float]:
            made = [
                Renewal(target, other[name])
                for (name, _), target in zip(chosen, written, strict=True)
            ]
            groups = [made[turn::_CHANGING] for turn in range(_CHANGING)]
            if self._is_restored:
                return lambda: self._time_renewed(sampler, made)
            return lambda: sampler.time_while_renewing(groups, self._rng.randrange(_MOST_TURNS))

        def restore() -> None:
            for (name, place), target in zip(chosen, targets, strict=True):
                target.copy_(base[name].view(-1)[place])

        return timed(targets), timed([torch.empty_like(target) for target in targets]), restore

    def _time_renewed(self, sampler: Sampler, renewals: Sequence[Renewal]) -> float:
        for each in renewals:
            places = len(each.target)
            turn = self._rng.randrange(max(1, len(each.values) - places))
            values = each.values[turn : turn + places].view(-1, 1)
            each.target[: len(values)].copy_(values)
        return sampler.time_us()

    def _slower_when_replaced(self) -> Answer:
        """Checks single calls before which all elements of the inputs are written: new values or,
        for comparison, the same ones. So it finds calls that cache partial results. Not on a GPU,
        where single calls cannot be timed.

        A processor learns the branches of calls on the same inputs, so right calls also take longer
        on new ones. Calls that seem slower are therefore timed again after the processor has
        forgotten them."""
        elements = sum(self._sets[0].inputs[name].numel() for name in self._renewed)
        if self._session.in_order or elements < _LEAST_REPLACED:
            return Answer()
        found = self._asked_replaced(forgetting=False)
        return self._asked_replaced(forgetting=True) if found.words else found

    def _asked_replaced(self, *, forgetting: bool) -> Answer:
        views = {name: bits(self._buffers.inputs()[name][:1]) for name in self._renewed}
        replaced = Replaced(
            self._buffers.sampler(self._session, self._launches[:1]),
            [(view, self._sets[0].inputs[n], self._other.inputs[n]) for n, view in views.items()],
            most=(self._long or self._samplers[0]).count,
            limit_s=_REPLACED_S if self._long is None else _LONG_REPLACED_S,
            rng=self._rng,
            forgetting=forgetting,
        )
        found = slower_on_new_inputs(self._rng, replaced.fresh_us, replaced.familiar_us)
        replaced.restore()
        return found


def _ends(count: int, in_a_row: int) -> list[tuple[int, int]]:
    """For each copy of the buffers that a run of `count` calls uses: the number of the first call
    on it, and the number after the last one. A copy serves `in_a_row` calls."""
    return [(start, min(count, start + in_a_row)) for start in range(0, count, in_a_row)]


def _as_rows(target: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The target, of one or several rows, and its flat values as rows of equal length."""
    rows = target if target.dim() > 1 else target[None]
    return rows, values.view(rows.shape)


_RUNS_OF_A_ROUND = 3  # of the candidate: the first is untimed, two are timed


class WatchedSampler:
    """A candidate's timed sampler, with one watched run in each round, before a random timed run.
    It calls `watched` with evidence that must be read before more is stored. With `asking`, the
    first rounds and half of the later ones also check whether calls cache results."""

    def __init__(
        self,
        timed: Sampler,
        watch: Watch,
        watched: Callable[[Sequence[Watched]], None],
        *,
        asking: bool = False,
    ) -> None:
        self._asking = asking
        self._timed = timed
        self._watch = watch
        self._watched = watched
        self._wait = 0

    def run(self) -> None:
        """Makes the untimed run at the beginning of a round."""
        self._wait = self._watch.draw_turn(_RUNS_OF_A_ROUND)
        if self._asking:
            self._watch.ask()
        self._look()
        self._timed.run()

    def time_us(self) -> float:
        self._look()
        time_us = self._timed.time_us()
        self._watch.took(time_us)
        return time_us

    def _look(self) -> None:
        if self._wait == 0:
            self._watch.run()
            if self._watch.is_full:
                self._watched(self._watch.take())
        self._wait -= 1


_RATIO = 1.15
"""Allowed ratio of the times of calls on changing inputs to calls on constant inputs."""
_LEAST_ROUNDS = 3
_LOOKS = ((10, 0.9), (30, 0.8), (100, 0.6))
"""After how many rounds of a bout which share of slow ones is more than chance: nearly all of a few
rounds, more than half of many. On a machine so busy that every run is interrupted, one of two equal
runs takes 1.3 times as long as the other in two rounds of five."""
_REST_S = 0.002
_PAUSES_S = (0.0, 0.1, 0.5, 1.0, 2.0)
"""The waits before the bouts of rounds: a burst of other work must not last through all of them."""
_SURE = 3
"""A candidate is refused after this many bouts in which new inputs were slower."""
_LONGEST_S = 60.0
"""No bout begins after this time."""
_ASKED_ROWS, _ASKED_RATIO = 13, 1.5
"""This many consecutive rows that are all slower than most timed ones by this factor are no
coincidence."""
_LEAST_EQUAL = 3
_BESIDE = 24
"""Timed rows before and after: the processor's clock and other programs change with time."""
_SHIFTS = 1024
_SORTED = 1 << 16  # numbers: sorting them makes a million branches
_WALL = 10  # a burst of calls takes at most so many times its limit by the wall clock


class Answer(NamedTuple):
    """The answer to whether calls cache results. `words` continue "a launch"; "" if the calls cache
    nothing. If the answer is not `sure`, the machine is too noisy to tell."""

    words: str = ""
    sure: bool = True


class Replaced:
    """Times single calls of a sampler, each after all elements of some inputs were written.

    An input is a view, its present values, and other values. New values are the concatenation of
    both, read from another offset each time, so a kernel cannot know them beforehand. `fresh_us`
    and `familiar_us` time the same values, because a right call may take longer on some values than
    on others. And both follow equally many calls, because on a busy machine other programs empty
    the caches in each pause.
    """

    def __init__(
        self,
        sampler: Sampler,
        inputs: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
        *,
        most: int,
        limit_s: float,
        rng: random.Random,
        forgetting: bool,
    ) -> None:
        """Values become familiar by `most` calls, or as many as there are within `limit_s` of this
        thread's work. With `forgetting` the processor forgets before each timed call what it has
        learnt of branches."""
        self._sampler = sampler
        self._most = most
        self._limit_s = limit_s
        self._rng = rng
        self._forgetting = forgetting
        self._inputs = [
            (view, torch.cat([bits(now).flatten(), bits(others).flatten()[:_SHIFTS]]))
            for view, now, others in inputs
        ]
        self._places = [0] * len(self._inputs)

    def fresh_us(self) -> float:
        """The time of a call on new values, after many calls on the last ones."""
        self._call_often()
        self._places = [
            1 + self._rng.randrange(len(values) - view.numel()) for view, values in self._inputs
        ]
        return self._time_us()

    def familiar_us(self) -> float:
        """The time of a call on the last values, after many calls on the same values."""
        self._call_often()
        return self._time_us()

    def restore(self) -> None:
        """Writes the present values back."""
        self._places = [0] * len(self._inputs)
        self._write()

    def _call_often(self) -> None:
        worked_s, began_s = time.thread_time(), time.monotonic()
        for _ in range(self._most):
            self._write()
            self._sampler.run()
            is_over = time.thread_time() - worked_s > self._limit_s
            if is_over or time.monotonic() - began_s > _WALL * self._limit_s:
                break

    def _time_us(self) -> float:
        self._write()
        if self._forgetting:
            _forget_branches()
        return self._sampler.time_us()

    def _write(self) -> None:
        for (view, values), first in zip(self._inputs, self._places, strict=True):
            view.copy_(values[first : first + view.numel()].view(view.shape))


def _forget_branches() -> None:
    """Make branches that nobody can foresee on each core. A processor remembers some ten thousand:
    right calls with branches on the data are up to four times as fast on data of the call before.
    """
    torch.randn(torch.get_num_threads(), _SORTED).sort(stable=True)  # others sort without branches


class _Found(enum.Enum):
    """What one bout of rounds shows."""

    EQUAL = enum.auto()
    SLOWER = enum.auto()
    UNCLEAR = enum.auto()


def slower_on_new_inputs(
    rng: random.Random,
    fresh: Callable[[], float],
    familiar: Callable[[], float],
    *,
    rest: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Answer:
    """Whether `fresh()` returns longer times than `familiar()`, both in µs. Honest kernels nearly
    always pass after three rounds.

    A bout of rounds that shows no difference clears a candidate. Bouts at other moments, after
    growing pauses, must agree that it is slower before it is refused.
    """
    began_s, words = now(), ""
    slower = 0
    for pause_s in _PAUSES_S:
        if words and now() - began_s > _LONGEST_S:
            break
        if pause_s:
            rest(pause_s)
        found, fastest_us, usual_us = _bout(rng, fresh, familiar, rest)
        if found is _Found.EQUAL:
            return Answer()
        slower += found is _Found.SLOWER
        words = (
            f"takes {fastest_us:.1f} us on new inputs but "
            f"{usual_us:.1f} us on those of the launch before"
        )
        if slower == _SURE:
            return Answer(words)
    return Answer(words, sure=False)


def _bout(
    rng: random.Random,
    fresh: Callable[[], float],
    familiar: Callable[[], float],
    rest: Callable[[float], None],
) -> tuple[_Found, float, float]:
    """Measures rounds at one moment; returns what they show and the shortest time of either
    side."""
    fresh_us: list[float] = []
    familiar_us: list[float] = []
    rounds = [(fresh, fresh_us), (familiar, familiar_us)]
    found = _Found.UNCLEAR
    while found is _Found.UNCLEAR and len(familiar_us) < _LOOKS[-1][0]:
        rng.shuffle(rounds)
        for take, times_us in rounds:
            if len(times_us) >= _LEAST_ROUNDS:
                # Two runs in a fixed order can fall into step with the time slices of a busy
                # machine, so that one is always interrupted. A run after a sleep is not.
                rest(_REST_S)
            times_us.append(take())
        found = _shown(fresh_us, familiar_us)
    return found, min(fresh_us), min(familiar_us)


def _shown(fresh_us: Sequence[float], familiar_us: Sequence[float]) -> _Found:
    share = _slower_share(fresh_us, familiar_us)
    # The shortest times alone may come from one lucky run.
    longer = min(fresh_us) > _RATIO * min(familiar_us)
    if not longer and share <= 0.5 and len(fresh_us) >= _LEAST_ROUNDS:
        return _Found.EQUAL
    enough = [least for rounds, least in _LOOKS if len(fresh_us) == rounds]
    return _Found.SLOWER if longer and enough and share >= enough[0] else _Found.UNCLEAR


class Asked(NamedTuple):
    """The time of a row of calls on changing inputs, and how many timed rows came before it.
    `equal_us` is the time of a row just before it that differs only in that no input changes; None
    if there was no such row before it.
    """

    place: int
    time_us: float
    equal_us: float | None = None


def slower_than_timed(asked: Sequence[Asked], timed_us: Sequence[float]) -> Answer:
    """Whether rows of launches on changing inputs are slower than the timed rows, `timed_us`.

    A window of `asked` rows that are all slow accuses a candidate, unless rows on constant inputs
    were slow there too, which shows other work on the machine. Of these only rows that came before
    a row on changing inputs count, because a candidate may compute for a while after it saw a
    change.
    """
    if not timed_us:
        return Answer()
    beside = [timed_us[max(0, each.place - _BESIDE) : each.place + _BESIDE] for each in asked]
    usual_us = [statistics.median(times or timed_us) for times in beside]
    slow = [each.time_us > _ASKED_RATIO * us for each, us in zip(asked, usual_us, strict=True)]
    words = ""
    for first in range(len(asked) - _ASKED_ROWS + 1):
        row = slice(first, first + _ASKED_ROWS)
        if not all(slow[row]):
            continue
        new_us, old_us = min(each.time_us for each in asked[row]), min(usual_us[row])
        words = f"takes {new_us:.1f} us on new inputs but {old_us:.1f} us while it is timed"
        equal = [
            each.equal_us > _ASKED_RATIO * us
            for each, us in zip(asked[row], usual_us[row], strict=True)
            if each.equal_us is not None
        ]
        if len(equal) >= _LEAST_EQUAL and sum(equal) <= len(equal) / 2:
            return Answer(words)
    return Answer(words, sure=not words)


def _slower_share(fresh_us: Sequence[float], familiar_us: Sequence[float]) -> float:
    """The share of rounds in which the calls on fresh inputs were slower."""
    slower = [a > _RATIO * b for a, b in zip(fresh_us, familiar_us, strict=True)]
    return sum(slower) / len(slower)
