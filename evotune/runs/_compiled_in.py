"""Which binary of a kernel a case needs: the values that the kernel has compiled in there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from evotune.errors import SpaceError
from evotune.problems.executed_sizes import ranges_between
from evotune.problems.problem import Case, HasLayouts, Problem
from evotune.problems.short_cases import pair_cases
from evotune.problems.user import UserProblem
from evotune.space.bound import BoundSpace
from evotune.space.case_scope import CaseEvaluator
from evotune.space.specs import KernelSpec
from evotune.trial import Value

_SPECIALISED_TESTS = 6
"""Random cases for each specialised binary."""
_MOST_BANDS = 32  # cases for pairs of bands that the random cases of a binary leave out
_DRAWN = 100  # the most that are drawn for each, to find so many that the kernel supports


class CompiledIn:
    """The compiled-in values of one kernel.

    A binary is specialised if it is made for the values of a measured case. All other cases with
    the same values of `define` share a binary, which has 0 for each name of `specialise`.
    """

    def __init__(
        self, bound: BoundSpace, kernel: KernelSpec, problem: Problem, measured: Sequence[Case]
    ) -> None:
        """SpaceError for a compiled-in `let` that is no whole number on a measured case."""
        self._bound = bound
        self._evaluator = CaseEvaluator(bound.case_scope({}, {}))
        self._kernel = kernel
        self._problem = problem
        self._measured = [case for case in measured if kernel.unsupported(case.symbols) is None]
        self._specialised: set[tuple[Value, ...]] = set()
        for case in self._measured:
            self._refuse_no_numbers(case)
            for like in (case, *self._in_other_layouts(case)) if kernel.specialise else ():
                self._specialised.add(self._values(kernel.specialise, like.symbols))

    def of(self, case: Case) -> tuple[Value, ...]:
        """The values of the names in `define`, then those of the names in `specialise`."""
        special = self._values(self._kernel.specialise, case.symbols)
        if special not in self._specialised:
            special = (0,) * len(special)
        return (*self._values(self._kernel.define, case.symbols), *special)

    def is_known(self, case: Case, known: Collection[tuple[Value, ...]]) -> bool:
        """Whether the case needs no binary beside the `known` ones and, for each of these, the one
        with 0 for the names of `specialise`."""
        values, count = self.of(case), len(self._kernel.define)
        if values in known or any(values[count:]):
            return values in known
        return any(each[:count] == values[:count] for each in known)

    def further_cases(self, draw: int, kept: Collection[str]) -> list[Case]:
        """Cases for the binaries that only the confirmation compiles: each measured case in other
        layouts, once for each binary, and random cases of the specialised binaries. An exported
        binary serves only the cases between its own checks."""
        found: list[Case] = []
        for case in self._measured if "layout" not in kept else ():
            known = {self.of(case)}
            for other in (*self._in_other_layouts(case), *self._in_odd_layout(case)):
                if self.of(other) not in known:
                    known.add(self.of(other))
                    found.append(other)
        return found + list(self._specialised_cases(draw, kept))

    def same_binaries(self, cases: Iterable[Case], edges: Iterable[Case]) -> list[Case]:
        """The edge cases whose binary is that of one of `cases`."""
        derived = self._bound.document.let.keys() & set(self._kernel.compiled_in)
        if not derived:
            return list(edges)
        binaries = {self.of(case) for case in cases}
        return [edge for edge in edges if self.of(edge) in binaries]

    def specialised_kept(self, cases: Iterable[Case]) -> set[str]:
        """The symbols that an edge case must share with `cases` to need one of their specialised
        binaries. Empty if they need none."""
        found: set[str] = set()
        for case in filter(self.is_specialised, cases):
            found |= {name for name in case.symbols if self._decides(name, case)}
            if isinstance(self._problem, HasLayouts):
                found |= {"layout", *self._problem.layout_sizes}
        return found

    def _specialised_cases(self, draw: int, kept: Collection[str]) -> Iterator[Case]:
        """Random cases of the specialised binaries."""
        likes: dict[tuple[Value, ...], Case] = {}
        for case in self._measured:
            others = self._in_other_layouts(case) if "layout" not in kept else ()
            likes |= {self.of(like): like for like in (case, *others) if self.is_specialised(like)}
        cases = list(likes.values())
        if cases:
            names = {*kept, *self.specialised_kept(cases)}
            found: dict[tuple[Value, ...], list[Case]] = {values: [] for values in likes}
            for case in islice(self._problem.random_cases(cases, draw, names), _DRAWN * len(cases)):
                supported = self._kernel.unsupported(case.symbols) is None
                own = found.get(self.of(case))
                if supported and own is not None and len(own) < _SPECIALISED_TESTS:
                    own.append(case)
                    yield case
            for values, like in likes.items():
                yield from self._in_other_bands([like, *found[values]], names)

    def _in_other_bands(self, cases: Sequence[Case], names: Collection[str]) -> list[Case]:
        """Of a user's problem: cases for the pairs of bands of sizes, up to those of these cases of
        one binary, that none of them has; cheap ones first. A package serves what was executed by
        pairs, and few cases leave bands out. `names` are the symbols that stay as they are."""
        problem = self._problem
        if not isinstance(problem, UserProblem):
            return []
        values = self.of(cases[0])

        def made_of(case: Case) -> Case | None:
            supported = self._kernel.unsupported(case.symbols) is None
            return case if supported and self.of(case) == values else None

        met = [problem.place(case) for case in cases]
        ranges = {
            name: (low if name in names or name in problem.fixed else 1, high)
            for name, (low, high) in ranges_between(met).items()
        }
        like = max(cases, key=problem.bytes_moved)
        made = list(islice(pair_cases(problem, like, met, ranges, names, made_of), _MOST_BANDS))
        return sorted(made, key=problem.bytes_moved)

    def is_specialised(self, case: Case) -> bool:
        """Whether the case's binary is specialised."""
        return any(self.of(case)[len(self._kernel.define) :])

    def _decides(self, name: str, case: Case) -> bool:
        """Whether another value of the size alone changes a specialised value."""
        value = case.symbols[name]
        strides = {n for spec in self._problem.tensors(case) for n in spec.stride_symbols}
        if not isinstance(value, int) or name in strides:
            return False
        names = self._kernel.specialise
        try:
            changed = self._values(names, {**case.symbols, name: value + 1})
        except SpaceError:  # it has no value there
            return True
        return changed != self._values(names, case.symbols)

    def _in_other_layouts(self, case: Case) -> Sequence[Case]:
        if not isinstance(self._problem, HasLayouts):
            return ()
        return self._problem.other_layouts(case)

    def _in_odd_layout(self, case: Case) -> Sequence[Case]:
        return (self._problem.odd_layout(case),) if isinstance(self._problem, HasLayouts) else ()

    def _refuse_no_numbers(self, case: Case) -> None:
        let = self._bound.document.let
        derived = [name for name in self._kernel.compiled_in if name in let]
        for name, value in zip(derived, self._values(derived, case.symbols), strict=True):
            if isinstance(value, str) or value != int(value):
                raise let[name].error(
                    f"'{name}' is {value} for {case.label}: only a whole number can be compiled in"
                )

    def _values(self, names: Iterable[str], symbols: Mapping[str, Value]) -> tuple[Value, ...]:
        let, evaluator = self._bound.document.let, self._evaluator.at(symbols)
        return tuple(
            evaluator.evaluate(let[name], {}) if name in let else symbols[name] for name in names
        )
