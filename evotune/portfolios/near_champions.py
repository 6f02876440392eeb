"""Recorded champions of the shipped spaces of attention: a search near one of their cases begins
with them.

The table ships next to the space files. `benchmarks/lab/champion_table.py` writes it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from evotune.portfolios.matrix_store import Point, distance, point_of
from evotune.problems.problem import Problem
from evotune.runs.given_cases import ATTENTION, shipped_documents
from evotune.runs.spaces import shipped_spaces, source_path
from evotune.trial import Value

TABLE = "attention_champions.json"
_MOST_STARTS = 2


class RecordedChampion(msgspec.Struct, frozen=True):
    """A configuration, and the symbols of the cases that it was the best for."""

    configuration: Mapping[str, Value]
    cases: tuple[Mapping[str, Value], ...]


@functools.cache
def recorded_champions() -> Mapping[str, tuple[RecordedChampion, ...]]:
    """By the name of the space."""
    folder = next(iter(shipped_spaces().values())).parent
    content = (folder / TABLE).read_bytes()
    return msgspec.json.decode(content, type=dict[str, tuple[RecordedChampion, ...]])


def nearest_starts(space: str, problem: Problem, point: Point) -> list[Mapping[str, Value]]:
    """The configurations of the recorded champions of the space's rung whose cases are nearest to
    the point, at most two; none for a rung without a recorded champion. A rung is the spaces of one
    kernel file, so a configuration may have values that this space has not."""
    ranked = sorted(
        (each for name in _rung(space) for each in recorded_champions().get(name, ())),
        key=lambda each: min(distance(point, near) for near in _points(problem, each.cases)),
    )
    return [each.configuration for each in ranked[:_MOST_STARTS]]


def distance_from(space: str, problem: Problem, point: Point) -> float:
    """How far the point is from the nearest case that the space was written for, or that a recorded
    champion of it has."""
    document = dict(shipped_documents(ATTENTION))[space]
    spec = document.problem
    assert spec is not None, "spaces of attention have a problem"
    own = ({**s, **v} for s, v in itertools.product(spec.shapes, spec.variants))
    of_champions = (case for each in recorded_champions().get(space, ()) for case in each.cases)
    points = _points(problem, itertools.chain(own, of_champions))
    return min(distance(point, near) for near in points)


def _rung(space: str) -> list[str]:
    """The spaces of the same kernel file, this one first."""
    sources = {
        name: source_path(document, document.kernels[0])
        for name, document in shipped_documents(ATTENTION)
    }
    return [space, *(n for n in sources if n != space and sources[n] == sources[space])]


def _points(problem: Problem, cases: Iterable[Mapping[str, Value]]) -> Iterator[Point]:
    for symbols in cases:
        variant = {n: v for n, v in symbols.items() if n in problem.variant_symbols}
        shape = {n: v for n, v in symbols.items() if n not in variant}
        yield point_of(problem, problem.case(shape, variant))
