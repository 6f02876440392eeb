"""A space bound to its problem's cases and to a device."""

from __future__ import annotations

from evotune.backends.base.profile import DeviceProfile
from evotune.problems.problem import Case, Problem, WrongSymbol
from evotune.space.bound import BoundSpace, bind
from evotune.space.document import SpaceDocument
from evotune.space.specs import ProblemSpec
from evotune.workers.executor import HELD_OUT, TIMED


def bind_space(
    document: SpaceDocument, spec: ProblemSpec, problem: Problem, profile: DeviceProfile
) -> tuple[BoundSpace, dict[str, list[Case]]]:
    """The bound space and its cases by role; every mistake is a SpaceError with a position."""
    if spec.cases:
        timed, held_out = [problem.case(each.shape, each.variant) for each in spec.cases], []
    else:
        timed, held_out = (_cases(spec, problem, group) for group in ("shapes", "held_out"))
    bound = bind(document, [dict(case.symbols) for case in timed], dict(profile.attributes))
    return bound, {TIMED: timed, HELD_OUT: held_out}


def _cases(spec: ProblemSpec, problem: Problem, group: str) -> list[Case]:
    """A case for each shape of `shapes` or `held_out` in each variant. SpaceError at a wrong
    value."""
    found = []
    for i, shape in enumerate(getattr(spec, group)):
        for j, variant in enumerate(spec.variants):
            try:
                found.append(problem.case(shape, variant))
            except ValueError as error:
                name = error.name if isinstance(error, WrongSymbol) else ""
                place = spec.at("variants", j, name) if name in variant else spec.at(group, i, name)
                raise place.error(str(error)) from error
    return found
