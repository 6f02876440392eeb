"""Finds the sizes of a user's problem with which its inputs have given shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from evotune.problems._written import Written
from evotune.problems.problem import Case
from evotune.trial import Value

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
_STEPS = (1, 2, 3)


class _Problem(Protocol):
    """A user's problem, as far as its sizes go."""

    @property
    def sizes(self) -> Sequence[str]: ...

    @property
    def flags(self) -> Sequence[str]: ...

    @property
    def written(self) -> Written: ...

    def case(self, shape: Mapping[str, Value], variant: Mapping[str, Value]) -> Case: ...


def solved_case(
    problem: _Problem, shapes: Shapes, options: Mapping[str, Value], tuned: Sequence[Case]
) -> Case:
    """The case whose inputs have these shapes. `options` give some of its sizes and constants.
    Sizes that neither shapes nor options give are as in the cases `tuned`. ValueError, one line,
    when no case fits, or several do."""

    fits: dict[str, Case] = {}
    unknown = [name for name in problem.sizes if name not in options]
    for like in tuned:
        flags = {name: bool(options.get(name, like.symbols[name])) for name in problem.flags}
        shapes_of = functools.partial(_shapes, problem, flags)
        start = {name: int(options.get(name, like.symbols[name])) for name in problem.sizes}
        sizes = solve_sizes(shapes_of, shapes, unknown, start)
        own = {name: value for name, value in options.items() if name not in flags}
        case = problem.case({**sizes, **own}, flags)
        if shapes_of({name: int(case.symbols[name]) for name in problem.sizes}) == dict(shapes):
            fits[case.label] = case
    if len(fits) == 1:
        return next(iter(fits.values()))
    names = ", ".join(problem.sizes)
    found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if fits:
        raise ValueError(
            f"the inputs' shapes ({found}) leave open which of {', '.join(fits)} is meant: say "
            f"the sizes by name ({names})"
        )
    raise ValueError(f"no {names} fit the inputs' shapes: {found}")


def _shapes(problem: _Problem, flags: Mapping[str, bool], sizes: Mapping[str, int]) -> Shapes:
    return problem.written.shapes("inputs", {**sizes, **flags})


def solve_sizes(
    shapes_of: Callable[[dict[str, int]], Shapes],
    wanted: Shapes,
    names: Iterable[str],
    start: Mapping[str, int],
) -> dict[str, int]:
    """Solves for the sizes `names`, beginning with the values in `start`.

    An extent that depends linearly on one unknown size alone determines that size. With it known,
    other extents may depend on one unknown size alone. Sizes that the shapes do not determine keep
    their value in `start`. The caller must check that the answer fits.
    """
    sizes, unknown = dict(start), set(names)
    while unknown:
        found = _one_known(shapes_of, wanted, sizes, unknown)
        if found is None:
            break
        name, value = found
        sizes[name] = value
        unknown.discard(name)
    return sizes


def _one_known(
    shapes_of: Callable[[dict[str, int]], Shapes],
    wanted: Shapes,
    sizes: dict[str, int],
    unknown: set[str],
) -> tuple[str, int] | None:
    """A size that one extent determines, and its value; None when there is none."""
    before = _extents(shapes_of(sizes))
    lines = {
        name: [_extents(shapes_of({**sizes, name: sizes[name] + step})) for step in _STEPS]
        for name in sorted(unknown)
    }
    for place, extent in _extents(wanted).items():
        moving = [
            name
            for name, after in lines.items()
            if any(some.get(place) != before.get(place) for some in after)
        ]
        if len(moving) != 1 or place not in before:
            continue
        (name,) = moving
        slope = lines[name][0].get(place, 0) - before[place]
        straight = all(
            some.get(place) == before[place] + slope * step
            for step, some in zip(_STEPS, lines[name], strict=True)
        )
        if straight and slope and not (extent - before[place]) % slope:
            value = sizes[name] + (extent - before[place]) // slope
            if value >= 1:
                return name, value
    return None


def _extents(shapes: Shapes) -> dict[tuple[str, int], int]:
    return {
        (name, axis): extent for name, shape in shapes.items() for axis, extent in enumerate(shape)
    }
