"""Sends each case to the shipped spaces that can compute it, and puts cases that are alike into one
group.

A group has cases that one search tunes for together: the same problem, dtype, layout, compiled-in
values and able spaces, and no size more than a factor of 2 from that of the group's heaviest case.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evotune.backends import registry
from evotune.errors import UsageError
from evotune.languages import language
from evotune.portfolios.family_file import Contender, Group, Unserved
from evotune.portfolios.matrix_store import Point, point_of
from evotune.portfolios.near_champions import distance_from, expected_speedup
from evotune.problems import create_problem
from evotune.problems.problem import Case, Problem, WrongSymbol
from evotune.runs.given_cases import (
    ATTENTION,
    SpaceAnswer,
    profile_of,
    shipped_documents,
    spaces_for,
    why_none,
)
from evotune.runs.spaces import find_space, source_path
from evotune.space.document import SpaceDocument, load_space
from evotune.space.reading.case_file import CaseEntry
from evotune.space.specs import GivenCase
from evotune.util.words import counted

_FACTOR = 2.0
"""No size of a group differs from the heaviest case's by a larger factor."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """Cases sorted by the spaces that can compute them, the heaviest group first."""

    groups: tuple[Group, ...]
    unserved: tuple[Unserved, ...]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A case with the spaces that can compute it."""

    case: Case
    given: GivenCase
    point: Point
    problem: Problem
    able: tuple[SpaceAnswer, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for cases that may share a group, whatever their sizes."""
        place = self.point.place
        fixed = tuple(sorted((name, repr(value)) for name, value in place.fixed.items()))
        grouped = place.ranged.get("group", 1) != 1
        names = tuple(answer.space for answer in self.able)
        return self.problem.name, self.problem.dtype, fixed, place.layout, grouped, names


def sorted_cases(entries: Sequence[CaseEntry], device: str) -> Sorted:
    """Sends each case to spaces for the device. `device` may be a GPU's name without the GPU.

    An entry without a dtype gets that of the device's flagship space. Raises SpaceError, with the
    position, for a case in a list that its problem does not have; in a recording or a miss log such
    a case goes nowhere. Raises UsageError for an unknown device.
    """
    placed: dict[tuple[str, str, str], _Placed] = {}
    unserved: dict[tuple[str, str], Unserved] = {}
    dtype = _usual_dtype(device)
    for given in entries:
        entry = _apart(given, dtype)
        answers = spaces_for(entry, device)
        if why := why_none(answers):
            words = _words(entry)
            count = unserved[words, why].count if (words, why) in unserved else 0
            unserved[words, why] = Unserved(words, why + _elsewhere(entry), count + entry.count)
            continue
        found = _placed(entry, answers)
        key = found.problem.name, found.problem.dtype, found.case.label
        if key in placed:
            count = placed[key].given.count + entry.count
            same = GivenCase(found.given.shape, found.given.variant, count)
            found = dataclasses.replace(found, given=same)
        placed[key] = found
    groups = _groups(list(placed.values()))
    return Sorted(tuple(groups), tuple(unserved.values()))


def point_in(problem: Problem, given: GivenCase) -> Point:
    """The point of a case, by which its distance to other cases is measured."""
    return point_of(problem, problem.case(given.shape, given.variant), given.count)


def group_entries(group: Group) -> list[CaseEntry]:
    """The cases of a group in the form that a run takes."""
    return [CaseEntry({}, c.shape, c.variant, None, c.count) for c in group.cases]


def _usual_dtype(device: str) -> str:
    backend = registry.named(profile_of(device).backend)
    spec = load_space(find_space(backend.flagship)).problem if backend.flagship else None
    return spec.dtype if spec is not None else "float32"


def _apart(entry: CaseEntry, dtype: str) -> CaseEntry:
    """The entry with shape and variant apart, and with a dtype."""
    entry = dataclasses.replace(entry, dtype=entry.dtype or dtype)
    if entry.logged:
        return entry
    problem = create_problem(entry.problem or ATTENTION[0], "float32")  # any has these symbols
    variant = {n: v for n, v in entry.symbols.items() if n in problem.variant_symbols}
    shape = {n: v for n, v in entry.symbols.items() if n not in variant}
    try:
        problem.case(shape, variant)
    except ValueError as error:
        at = entry.at(error.name) if isinstance(error, WrongSymbol) else entry.position
        raise at.error(str(error)) from error
    return dataclasses.replace(entry, shape=shape, variant=variant)


def _placed(entry: CaseEntry, answers: Sequence[SpaceAnswer]) -> _Placed:
    assert entry.dtype is not None
    problem = create_problem(entry.problem or ATTENTION[0], entry.dtype)
    case = problem.case(dict(entry.shape), dict(entry.variant))
    given = GivenCase(dict(entry.shape), dict(entry.variant), entry.count)
    able = tuple(answer for answer in answers if not answer.why)
    return _Placed(case, given, point_of(problem, case, entry.count), problem, able)


def _words(entry: CaseEntry) -> str:
    """The case's label, if it is one of its problem; else its symbols."""
    try:
        problem = create_problem(entry.problem or ATTENTION[0], entry.dtype or "float32")
        return f"{problem.case(dict(entry.shape), dict(entry.variant)).label} {entry.dtype}"
    except ValueError:
        symbols = {**entry.shape, **entry.variant, "dtype": entry.dtype}
        return ", ".join(f"{name} {value}" for name, value in symbols.items())


def _elsewhere(entry: CaseEntry) -> str:
    """`; attention-mma can on a10`: a space that can compute the case on another device; "" where
    none can on any."""
    seen = set()
    for name in _devices():
        profile = profile_of(name)
        kind = profile.backend, profile.arch
        if kind in seen:
            continue
        seen.add(kind)
        able = [answer for answer in spaces_for(entry, name) if not answer.why]
        if able:
            contenders, _ = chosen_contenders(_placed(entry, able))
            names = contenders or [Contender(able[0].space)]
            return f"; {names[0].space} can on {name}"
    return ""


def _devices() -> Iterator[str]:
    """The devices that need not be here, by the names that `--device` takes."""
    for backend in registry.own():
        if backend.flagship:
            yield from backend.models() or backend.requests[:1]


def _groups(placed: Sequence[_Placed]) -> list[Group]:
    order = sorted(placed, key=lambda each: (-each.given.count, each.case.label))
    found: list[list[_Placed]] = []
    for each in order:
        same = (group for group in found if group[0].key == each.key)
        home = next((group for group in same if _are_near(group[0].point, each.point)), None)
        if home is None:
            found.append([each])
        else:
            home.append(each)
    weights = [sum(each.given.count for each in group) for group in found]
    ranked = sorted(range(len(found)), key=lambda n: (-weights[n], n))
    shares = budget_shares(weights)
    names: dict[str, int] = {}
    groups = []
    for number in ranked:
        group = found[number]
        name = _name(group)
        names[name] = names.get(name, 0) + 1
        contenders, passed_over = chosen_contenders(group[0])
        groups.append(
            Group(
                name=name if names[name] == 1 else f"{name} {names[name]}",
                problem=group[0].problem.name,
                dtype=group[0].problem.dtype,
                cases=tuple(each.given for each in group),
                labels=tuple(each.case.label for each in group),
                contenders=tuple(contenders),
                passed_over=passed_over,
                share=shares[number],
            )
        )
    return groups


def budget_shares(weights: Sequence[float]) -> list[float]:
    """The share of each group: half of the budget is divided equally, half by the counts of the
    cases. So a group of rare cases is tuned, too."""
    total = sum(weights)
    return [0.5 / len(weights) + 0.5 * weight / total for weight in weights]


def _are_near(heaviest: Point, other: Point) -> bool:
    return all(
        abs(math.log(size / other.features[name])) <= math.log(_FACTOR) + 1e-9
        for name, size in heaviest.features.items()
        if name in other.features
    )


def _name(group: Sequence[_Placed]) -> str:
    """`(1,8,512,64) full float16`, with `and 2 more` of several cases."""
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{group[0].case.label} {group[0].problem.dtype}{more}"


def chosen_contenders(placed: _Placed) -> tuple[list[Contender], dict[str, str]]:
    """The spaces that race, and the reasons why the others do not. Spaces of which recorded
    champions promise most come first, then those of the highest rung.

    Spaces with the same kernel file are one rung. Of these only one races: a space that has the
    dtype and no additional features, and whose cases are nearest.
    """
    documents = dict(shipped_documents(ATTENTION))
    rungs: dict[str, list[SpaceAnswer]] = {}
    passed_over: dict[str, str] = {}
    for answer in placed.able:
        kernel = documents[answer.space].kernels[0]
        if language(kernel.language).runs_when_compiled:
            passed_over[answer.space] = f"kernels in {kernel.language} are not in the family"
            continue
        rungs.setdefault(source_path(documents[answer.space], kernel), []).append(answer)
    found = []
    for source in sorted(rungs, reverse=True):
        first, *others = sorted(
            rungs[source], key=lambda answer: _fit(documents[answer.space], answer, placed)
        )
        found.append(Contender(first.space, first.dtype))
        for other in others:
            passed_over[other.space] = f"{first.space} has the same kernels and is nearer"
    problem, point = placed.problem, placed.point
    found.sort(key=lambda each: -expected_speedup(each.space, problem, point))
    return found, passed_over


def _fit(
    document: SpaceDocument, answer: SpaceAnswer, placed: _Placed
) -> tuple[bool, bool, float, int, str]:
    """Sorts the spaces of a rung: the one that fits a case best comes first."""
    assert document.problem is not None
    own: set[str] = {name for variant in document.problem.variants for name in variant}
    features = bool(own - {"causal"})
    away = distance_from(answer.space, placed.problem, placed.point)
    return bool(answer.dtype), features, away, len(document.kernels), answer.space


def require_cases(found: Sorted) -> None:
    """Raises UsageError if no space can compute any case."""
    if not found.groups:
        first = max(found.unserved, key=lambda each: each.count)
        of = counted(len(found.unserved), "case")
        raise UsageError(f"no shipped space can compute any of {of}: {first.case}: {first.why}")
