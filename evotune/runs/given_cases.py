"""Cases that a user gives in place of those of a space: those are kept that a kernel takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from evotune.backends.base.launch import DeviceProfile
from evotune.errors import UsageError
from evotune.problems.problem import Problem, WrongSymbol
from evotune.runs._champion_cases import refusal_of
from evotune.runs.able_spaces import AbleSpaces, refused_variant, unserved
from evotune.space.document import SpaceDocument
from evotune.space.reading.case_file import CaseEntry
from evotune.space.specs import GivenCase
from evotune.trial import Json, Value
from evotune.util.words import counted

GIVEN_CASES = "given_cases"
"""A fact of a run's store: the cases that took the place of those of the space."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A case of the file that the space cannot serve. `count`: its weight; `why`: in words."""

    case: str
    why: str
    count: float


def kept_cases(
    document: SpaceDocument,
    problem: Problem,
    entries: Sequence[CaseEntry],
    profile: DeviceProfile,
    *,
    stored: bool = False,
) -> tuple[tuple[GivenCase, ...], tuple[Skipped, ...]]:
    """The cases that a kernel of the space takes, each once with the sum of its counts, and the
    rest, with the names of shipped spaces that take them on the device.

    Raises SpaceError, with the entry's position, for invalid symbols. In a miss log they are
    skipped, because a program may call anything. Raises UsageError if no case is left. `stored`:
    they are the cases of a run, which were kept when it began, perhaps by an older evotune.
    """
    kept: dict[str, GivenCase] = {}
    skipped: list[Skipped] = []
    others = AbleSpaces(problem, profile)
    for entry in entries:
        shape, variant = _apart(problem, entry)
        words = ", ".join(f"{name} {value}" for name, value in {**shape, **variant}.items())
        if entry.dtype not in (None, problem.dtype):
            why = f"dtype {entry.dtype}, where the space has {problem.dtype}"
            skipped.append(Skipped(words, why, entry.count))
            continue
        if why := _refused(problem, entry):
            skipped.append(Skipped(words, why, entry.count))
            continue
        try:
            case = problem.case(shape, variant)
        except ValueError as error:
            if not entry.logged:
                at = entry.at(error.name) if isinstance(error, WrongSymbol) else entry.position
                raise at.error(str(error)) from error
            skipped.append(Skipped(words, str(error), entry.count))
            continue
        if not stored and (why := refusal_of(document, problem, case)):
            skipped.append(Skipped(case.label, why + others.hint(case), entry.count))
            continue
        count = entry.count + (kept[case.label].count if case.label in kept else 0)
        kept[case.label] = GivenCase(shape, variant, count)
    if not kept:
        of = counted(len(entries), "case")
        raise UsageError(f"the space can serve none of {of}: {_most_frequent(skipped)}")
    return tuple(kept.values()), tuple(skipped)


def stored_cases(stored: Json) -> list[CaseEntry]:
    """The cases that a user gave, of the store's fact `GIVEN_CASES`. Raises ValueError for anything
    else."""
    return [
        CaseEntry({}, case.shape, case.variant, None, case.count)
        for case in msgspec.convert(stored, list[GivenCase])
    ]


def skipped_in_words(skipped: Sequence[Skipped], kept: int) -> str:
    """`3 of 12 cases are skipped: 2 for WHY, 1 for WHY`; "" if none is."""
    if not skipped:
        return ""
    are = "is" if len(skipped) == 1 else "are"
    reasons = Counter(each.why for each in skipped).most_common()
    told = "; ".join(f"{number} for {why}" for why, number in reasons[:3])
    more = f"; and {len(reasons) - 3} more reasons" if len(reasons) > 3 else ""
    return f"{len(skipped)} of {kept + len(skipped)} cases {are} skipped: {told}{more}"


def _most_frequent(skipped: Sequence[Skipped]) -> str:
    ((why, _),) = Counter(each.why for each in skipped).most_common(1)
    return why


def _refused(problem: Problem, entry: CaseEntry) -> str:
    """Why a recorded call is no case of the problem, whatever its sizes; "" where it may be one."""
    if entry.problem not in (None, problem.name):
        return f"a call of {entry.problem}, where the space has {problem.name}"
    return unserved(entry.call) or refused_variant(problem, entry.variant)


def _apart(problem: Problem, entry: CaseEntry) -> tuple[dict[str, Value], dict[str, Value]]:
    """Shape and variant of the entry."""
    shape: Mapping[str, Value] = entry.shape
    variant: Mapping[str, Value] = entry.variant
    if not entry.logged:
        of_variants = problem.variant_symbols
        shape = {n: value for n, value in entry.symbols.items() if n not in of_variants}
        variant = {n: value for n, value in entry.symbols.items() if n in of_variants}
    return dict(shape), dict(variant)
