"""The valid configurations next to one configuration."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

from evotune.space.case_scope import Gene
from evotune.space.counting.rules import Rules, initial
from evotune.trial import Value

DENSE_VALUES = 64  # of longer ordered domains, only distances 1, 2, 4, 8, … are tried
MAX_COMPLETIONS = 64
MAX_FIXES = 512


def neighbours(rules: Rules, values: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """Valid canonical values that differ in one active parameter. Others change only where a
    condition starts or stops to hold. Nearest first, then in the order of the parameters."""
    values = dict(values)
    active = rules.active(values)
    moves = sorted(
        (
            (distance, place, index)
            for place, gene in enumerate(rules.genes)
            if gene.name in active
            for distance, index in _moves(gene, rules.index(gene.name, values[gene.name]))
        )
    )
    for _, place, index in moves:
        gene = rules.genes[place]
        moved = {**values, gene.name: gene.spec.parameter.values[index]}
        completed = _completed(rules, moved, gene.name)
        if completed is not None:
            yield completed


def fixed_by_one_change(
    rules: Rules, values: Mapping[str, Value], rng: random.Random
) -> dict[str, Value] | None:
    """Canonical values made valid by changing one parameter of a constraint they violate, in
    an order that `rng` chooses; None if no single change is enough."""
    involved = rules.involved_in_violations(values)
    moves = [
        (gene, index)
        for gene in rules.genes
        if gene.name in involved and rules.is_active(gene.name, values)
        for _, index in _moves(gene, rules.index(gene.name, values[gene.name]))
    ]
    rng.shuffle(moves)
    for gene, index in moves[:MAX_FIXES]:
        moved = {**values, gene.name: gene.spec.parameter.values[index]}
        canonical = rules.canonical(moved) if rules.switches(gene.name) else moved
        if rules.satisfied(canonical):
            return canonical
    return None


def _moves(gene: Gene, current: int) -> Iterator[tuple[int, int]]:
    """Distance and index of the other values of the domain."""
    parameter = gene.spec.parameter
    size = parameter.cardinality
    if not parameter.ordered:
        yield from ((1, index) for index in range(size) if index != current)
    elif size <= DENSE_VALUES:
        yield from ((abs(index - current), index) for index in range(size) if index != current)
    else:
        for exponent in range(size.bit_length()):
            for index in (current - (1 << exponent), current + (1 << exponent)):
                if 0 <= index < size:
                    yield 1 << exponent, index


def _completed(rules: Rules, moved: dict[str, Value], changed: str) -> dict[str, Value] | None:
    """`moved` in canonical form and valid, or None."""
    if not rules.switches(changed):
        return moved if rules.still_satisfied(moved, changed) else None
    canonical = rules.canonical(moved)
    differing = [name for name in canonical if canonical[name] != moved[name]]
    if rules.satisfied(canonical):
        return canonical
    woken = [
        gene
        for gene in rules.genes
        if gene.name in differing and rules.is_active(gene.name, canonical)
    ]
    for values in itertools.islice(_alternatives(woken), MAX_COMPLETIONS):
        candidate = rules.canonical({**canonical, **values})
        if rules.satisfied(candidate):
            return candidate
    return None


def _alternatives(woken: Sequence[Gene]) -> Iterator[dict[str, Value]]:
    """Values for parameters that a move has made active, their defaults first."""
    if not woken:
        return
    ordered = [
        [initial(gene), *(v for v in gene.spec.parameter.values if v != initial(gene))]
        for gene in woken
    ]
    names = [gene.name for gene in woken]
    for values in itertools.product(*ordered):
        yield dict(zip(names, values, strict=True))
