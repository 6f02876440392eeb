"""Cases that a user's own problem is checked on beside the cases of a space."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evotune.problems._lengths import significant
from evotune.problems._pair_cover import Sizes
from evotune.problems._user_sizes import edge_sizes, random_sizes
from evotune.problems.problem import Case, grouped
from evotune.trial import Value

if TYPE_CHECKING:
    from evotune.problems.user import UserProblem

_EDGE_COST = (1 << 28, 1 << 24)  # operations and bytes
_ORDINARY_COST = (1 << 27, 1 << 24)
_LARGE_COST = (1 << 31, 5 << 26)
_MOST_REFUSED = 100


class Refused(ValueError):
    """Sizes that make no sense together."""


def edge_cases(problem: UserProblem, case: Case, kept: Collection[str]) -> list[Case]:
    """Small and odd sizes, the `fixed` ones as in the case. In the last two, constants with a range
    are at its ends."""
    like, found = _Like(problem, case, kept), []
    for number, candidates in enumerate(edge_sizes(problem.free_sizes(kept))):
        constants = {
            name: ends[number % 2] if number >= 2 else float(case.symbols[name])
            for name, ends in problem.ranges.items()
        }
        made = like.first(candidates, constants, _EDGE_COST)
        found += [] if made is None else [made]
    return found


def random_cases(
    problem: UserProblem, cases: Sequence[Case], seed: int, kept: Collection[str]
) -> Iterator[Case]:
    """Cases of `random_sizes` for each group of cases with the same `fixed` and kept sizes, in
    turn. They end when a hundred draws in a row give no case, or when cases cannot differ."""
    rng = random.Random(seed)
    free = problem.free_sizes(kept)
    longest = {name: max(int(case.symbols[name]) for case in cases) for name in free}
    same = [name for name in (*problem.sizes, *problem.flags) if name not in free]
    streams = [
        (like, random_sizes(rng, free, longest, like.accept))
        for like in (_Like(problem, alike[-1], kept) for alike in grouped(cases, same))
    ]
    refused = 0
    while True:
        for like, drawn in rng.sample(streams, len(streams)):
            sizes = next(drawn)
            refused = refused + 1 if sizes is None else 0
            if sizes is not None:
                yield like.case(sizes, like.drawn_constants(rng))
            if refused == _MOST_REFUSED:
                return
        if not free and set(problem.ranges) <= set(kept):
            return


@dataclass(frozen=True, slots=True)
class _Like:
    """Makes cases with the fixed and kept sizes of `base`, and with its flags."""

    problem: UserProblem
    base: Case
    kept: Collection[str]

    def case(self, sizes: Sizes, constants: Mapping[str, float]) -> Case:
        own = {name: int(self.base.symbols[name]) for name in self.problem.sizes}
        shape: dict[str, Value] = {**own, **sizes, **constants}
        shape |= {name: self.base.symbols[name] for name in self.kept if name in shape}
        return self.problem.case(shape, {n: self.base.symbols[n] for n in self.problem.flags})

    def accept(
        self, candidates: Iterable[Sizes], *, large: bool, elements: int = 0
    ) -> Sizes | None:
        """See `_user_sizes.Accept`."""
        cost = _LARGE_COST if large else _ORDINARY_COST
        found = self.first(candidates, self.problem.constants_of(self.base), cost, elements)
        if found is None:
            return None
        return {name: int(found.symbols[name]) for name in self.problem.free_sizes(self.kept)}

    def first(
        self,
        candidates: Iterable[Sizes],
        constants: Mapping[str, float],
        cost: tuple[int, int],
        elements: int = 0,
    ) -> Case | None:
        """A case of the first candidate that makes sense and costs no more operations and bytes
        than `cost`, and that has a tensor of more than so many elements; None when there is none.
        Where sizes are fixed or kept, a case may always cost as much as the base."""
        operations, nbytes = cost
        if self.problem.fixed or self.kept:
            operations = max(operations, self._own_cost[0])
            nbytes = max(nbytes, self._own_cost[1])
        for sizes in candidates:
            try:
                case = self.case(sizes, constants)
            except Refused:
                continue
            most = max(math.prod(spec.shape) for spec in self.problem.tensors(case))
            cheap = self.problem.flops(case) <= operations
            if cheap and self.problem.bytes_moved(case) <= nbytes and most > elements:
                return case
        return None

    def drawn_constants(self, rng: random.Random) -> dict[str, float]:
        """Constants with a range; every second one is the case's own."""
        return {
            name: _draw(rng, *ends) if rng.random() < 0.5 else float(self.base.symbols[name])
            for name, ends in self.problem.ranges.items()
        }

    @property
    def _own_cost(self) -> tuple[int, int]:
        return self.problem.flops(self.base), self.problem.bytes_moved(self.base)


def _draw(rng: random.Random, least: float, most: float) -> float:
    """A number of three digits, drawn evenly; in the logarithm where both ends are positive."""
    if least > 0.0:
        return significant(math.exp(rng.uniform(math.log(least), math.log(most))))
    return significant(rng.uniform(least, most))
