"""Which binary of a kernel a case needs: the values that the kernel has compiled in there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from evotune.problems.problem import Case, HasLayouts, Problem
from evotune.space.bound import BoundSpace
from evotune.space.specs import KernelSpec
from evotune.trial import Value

_SPECIALISED_TESTS = 20


class CompiledIn:
    """The compiled-in values of one kernel.

    A binary is specialised where it is made for the values of a measured case. All other cases
    share the binary that has 0 in their place.
    """

    def __init__(
        self, bound: BoundSpace, kernel: KernelSpec, problem: Problem, measured: Sequence[Case]
    ) -> None:
        self._bound = bound
        self._kernel = kernel
        self._problem = problem
        self._measured = measured
        self._specialised = {
            self._values(kernel.specialise, like)
            for case in measured
            for like in (case, *self._in_other_layouts(case))
        }

    def of(self, case: Case) -> tuple[Value, ...]:
        """The values of the names in `define`, then those of the names in `specialise`."""
        special = self._values(self._kernel.specialise, case)
        if special not in self._specialised:
            special = (0,) * len(special)
        return (*self._values(self._kernel.define, case), *special)

    def further_cases(self, draw: int, kept: Collection[str]) -> list[Case]:
        """Cases for the binaries that a champion has beside those of its trial: the measured cases
        in other layouts, and random cases of the specialised binaries. An exported binary serves
        only the cases between its own checks."""
        if "layout" in kept:
            return []
        others = [
            other
            for case in self._measured
            for other in self._in_other_layouts(case)
            if self.of(other) != self.of(case)
        ]
        return others + list(islice(self._specialised_cases(draw, kept), _SPECIALISED_TESTS))

    def same_binaries(self, cases: Iterable[Case], edges: Iterable[Case]) -> list[Case]:
        """The edges that need no binary beside those of the cases."""
        if not self._kernel.specialise and not self._bound.document.let.keys() & set(
            self._kernel.define
        ):
            return list(edges)
        binaries = {self.of(case) for case in cases}
        return [edge for edge in edges if self.of(edge) in binaries]

    def specialised_kept(self, cases: Iterable[Case]) -> set[str]:
        """The symbols that further cases must keep to need the same specialised binaries; none
        where the cases need no such binary."""
        if not any(map(self._is_specialised, cases)):
            return set()
        return {"layout", *self._layout_sizes}

    @property
    def _layout_sizes(self) -> Sequence[str]:
        return self._problem.layout_sizes if isinstance(self._problem, HasLayouts) else ()

    def _is_specialised(self, case: Case) -> bool:
        return any(self.of(case)[len(self._kernel.define) :])

    def _specialised_cases(self, draw: int, kept: Collection[str]) -> Iterator[Case]:
        cases = [
            like
            for case in self._measured
            for like in (case, *self._in_other_layouts(case))
            if self._is_specialised(like)
        ]
        if cases:
            yield from self._problem.random_cases(
                cases, draw, {*kept, "layout", *self._layout_sizes}
            )

    def _in_other_layouts(self, case: Case) -> Sequence[Case]:
        if not isinstance(self._problem, HasLayouts):
            return ()
        return self._problem.other_layouts(case)

    def _values(self, names: Iterable[str], case: Case) -> tuple[Value, ...]:
        let = self._bound.document.let
        return tuple(
            self._bound.evaluate(let[name], {}, case.symbols) if name in let else case.symbols[name]
            for name in names
        )
