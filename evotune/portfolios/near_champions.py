"""Recorded champions of the shipped spaces of attention: a search near one of their cases begins
with them.

The table ships next to the space files. `benchmarks/lab/champion_table.py` writes it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

import msgspec

from evotune.portfolios.matrix_store import Point, distance, point_of
from evotune.problems.problem import Problem
from evotune.runs.given_cases import ATTENTION, shipped_documents
from evotune.runs.spaces import shipped_spaces, source_path
from evotune.trial import Value

TABLE = "attention_champions.json"
_MOST_STARTS = 2
_NEAR = 2.0
"""As a distance of cases: a factor of 4 in one size."""


class RecordedCase(msgspec.Struct, frozen=True):
    """The symbols of a case, and the lower bound of the speedup that was measured there."""

    case: Mapping[str, Value]
    speedup_low: float


class RecordedChampion(msgspec.Struct, frozen=True):
    """A configuration, and the cases for which it was the best."""

    configuration: Mapping[str, Value]
    cases: tuple[RecordedCase, ...]


@functools.cache
def recorded_champions() -> Mapping[str, tuple[RecordedChampion, ...]]:
    """The recorded champions, by the name of the space."""
    folder = next(iter(shipped_spaces().values())).parent
    content = (folder / TABLE).read_bytes()
    return msgspec.json.decode(content, type=dict[str, tuple[RecordedChampion, ...]])


def nearest_starts(space: str, problem: Problem, point: Point) -> list[Mapping[str, Value]]:
    """The configurations of the recorded champions of the space's rung whose cases are nearest to
    the point, at most two; none for a rung without a recorded champion. A rung consists of the
    spaces of one kernel file, so a configuration may have values that this space lacks."""
    ranked = sorted(
        (each for name in _rung(space) for each in recorded_champions().get(name, ())),
        key=lambda each: min(_away(problem, point, near) for near in each.cases),
    )
    return [each.configuration for each in ranked[:_MOST_STARTS]]


def distance_from(space: str, problem: Problem, point: Point) -> float:
    """The distance of the point to the nearest case in the space's file, or to the nearest case of
    a recorded champion of the space."""
    document = dict(shipped_documents(ATTENTION))[space]
    spec = document.problem
    assert spec is not None, "spaces of attention have a problem"
    own = ({**s, **v} for s, v in itertools.product(spec.shapes, spec.variants))
    found = [distance(point, _point(problem, symbols)) for symbols in own]
    for each in recorded_champions().get(space, ()):
        found += [_away(problem, point, near) for near in each.cases]
    return min(found)


def expected_speedup(space: str, problem: Problem, point: Point) -> float:
    """The speedup of the recorded champions of the space's rung in the nearest case. It only orders
    the spaces, for budgets that are too small for all of them. It is 1 if no case is near, and for
    a case that is lost by less than a factor of 2, because another device may win it."""
    known = [
        near
        for name in _rung(space)
        for each in recorded_champions().get(name, ())
        for near in each.cases
    ]
    nearest = min(known, key=lambda near: _away(problem, point, near), default=None)
    if nearest is None or _away(problem, point, nearest) > _NEAR:
        return 1.0
    return 1.0 if 0.5 <= nearest.speedup_low < 1.0 else nearest.speedup_low


def _rung(space: str) -> list[str]:
    """The spaces of the same kernel file, this one first."""
    sources = {
        name: source_path(document, document.kernels[0])
        for name, document in shipped_documents(ATTENTION)
    }
    return [space, *(n for n in sources if n != space and sources[n] == sources[space])]


def _away(problem: Problem, point: Point, near: RecordedCase) -> float:
    return distance(point, _point(problem, near.case))


def _point(problem: Problem, symbols: Mapping[str, Value]) -> Point:
    variant = {n: v for n, v in symbols.items() if n in problem.variant_symbols}
    shape = {n: v for n, v in symbols.items() if n not in variant}
    return point_of(problem, problem.case(shape, variant))
