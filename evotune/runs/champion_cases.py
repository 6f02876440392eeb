"""The additional cases of a configuration that is confirmed: which cases its kernel can run, and
the short cases that execute each length that a package could serve.

A package serves the sizes between won cases, and up to a tenth around them. Before the timing
nobody knows which cases are won, so all timed and held-out cases count.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from evotune.errors import SpaceError
from evotune.problems.executed_sizes import (
    LengthPlan,
    Ranges,
    joined_pairs,
    joined_ranges,
    near_ends,
    near_ranges,
    ranges_between,
)
from evotune.problems.problem import Case, HasFeatures, Place, Problem, TensorSpec
from evotune.problems.short_cases import (
    MOST_BYTES,
    SMALL,
    each_upto,
    is_served_from_one,
    length_names,
    pair_cases,
    place_with_ratio,
    ratios_of,
    short_case,
)
from evotune.problems.user import UserProblem
from evotune.runs.launches import Rejected, takes_all
from evotune.space.bound import BoundSpace
from evotune.space.document import SpaceDocument
from evotune.space.language import Expression
from evotune.space.language.nodes import truth
from evotune.space.specs import KernelSpec
from evotune.trial import Check, Configuration, Region
from evotune.verify.kept_checks import ALL_KINDS
from evotune.workers.executor import HELD_OUT, TIMED, CaseJob

_EACH = 512
"""In a range of at most this many lengths near a measured one, each length is executed."""
_TILE = 128
"""Sizes of tiles are divisors of twice or three times this number."""
_SAMPLE = 64
_FIRST, _NEAR, _PAIRS, _SAMPLED, _SHORT = range(5)
"""The order of cases, because there may be no time for all: pairs of sizes of attention, lengths
near measured ones, pairs of sizes of users' problems (which take longer), pairs of their variants
that are not timed, lengths that represent others, short lengths."""
_STEP = 16  # neighbours of a sample differ by a share of 1/16 at most

Spans = list[tuple[int, int]]


def obstacle(
    bound: BoundSpace,
    kernel: KernelSpec,
    configuration: Configuration,
    case: Case,
    sibling: Case,
    *,
    names: Collection[str] | None = None,
) -> str:
    """Why the kernel, compiled for this configuration, cannot run `sibling`, a variant of a `case`
    for which it is tuned; "" if it can.

    `names`: the symbols that the kernel must get as arguments if the two cases differ in them; None
    stands for all symbols.
    """
    unsupported = kernel.unsupported(sibling.symbols)
    if unsupported is not None:
        return unsupported
    differing = [n for n, value in sibling.symbols.items() if case.symbols.get(n) != value]
    told = _symbols_told(bound.document, kernel)
    untold = [n for n in differing if n not in told and (names is None or n in names)]
    if untold and not takes_all(kernel):
        return f"kernel {kernel.name} does not receive {', '.join(untold)}"
    for spec in bound.document.constraints:
        try:
            holds = truth(bound.evaluate(spec.expression, configuration, sibling.symbols))
        except SpaceError as error:
            return error.message
        if not holds:
            return f"the configuration is not valid for it: {spec}"
    return ""


def refusal(  # noqa: PLR0917
    bound: BoundSpace,
    kernel: KernelSpec,
    configuration: Configuration,
    case: Case,
    tuned: Iterable[Case],
    names: Collection[str],
) -> str:
    """Why the kernel cannot run `case`, given the cases for which it is tuned; "" if there is no
    `obstacle` from one of these."""
    reasons = [obstacle(bound, kernel, configuration, like, case, names=names) for like in tuned]
    return reasons[0] if all(reasons) else ""


def symbols_kept(
    document: SpaceDocument,
    kernel: KernelSpec,
    scalars: Iterable[str],
    tensors: Iterable[TensorSpec] = (),
) -> set[str]:
    """The symbols that keep their values in every additional case of the kernel.

    - Compiled-in symbols, because another value needs another binary. A compiled-in `let` does not
      count: see `symbols_kept_in_search`.
    - The `scalars` that the kernel does not receive.
    - `layout`, unless the kernel receives the strides of all `tensors`.
    """
    if takes_all(kernel):
        return set()
    kept = set(kernel.define).difference(document.let)
    kept |= set(scalars) - _symbols_told(document, kernel)
    strided = [spec for spec in tensors if spec.stride_symbols]
    if strided and strides_untold(document, kernel, strided):
        kept.add("layout")
    return kept


def symbols_kept_in_search(
    document: SpaceDocument,
    kernel: KernelSpec,
    scalars: Iterable[str],
    tensors: Sequence[TensorSpec] = (),
) -> set[str]:
    """The `symbols_kept` for trials of the search. They include `layout` if a compiled-in `let`
    depends on strides, because each layout then needs a separate binary. Trials compile only the
    layouts that the space times. The confirmation of a champion compiles the others."""
    kept = symbols_kept(document, kernel, scalars, tensors)
    derived = [document.let[name] for name in kernel.compiled_in if name in document.let]
    strides = {symbol for spec in tensors for symbol in spec.stride_symbols}
    if strides & _names(derived, document.let):
        kept.add("layout")
    return kept


def strides_untold(
    document: SpaceDocument, kernel: KernelSpec, tensors: Iterable[TensorSpec]
) -> tuple[str, ...]:
    """The stride symbols of `tensors` that the kernel lacks: it takes them neither as arguments nor
    in a tensor map, which contains the strides."""
    told = _symbols_told(document, kernel)
    pointers = {argument.name for argument in kernel.arguments if argument.tensor_map is None}
    pointers |= {memory.tensor for memory in kernel.constant_memory}
    return tuple(
        symbol
        for spec in tensors
        if spec.name in pointers
        for symbol in spec.stride_symbols
        if symbol not in told
    )


def scalars_skipped(
    document: SpaceDocument, kernel: KernelSpec, scalars: Iterable[str]
) -> list[Check]:
    """A skipped check that names the scalars that keep the space's value in every case."""
    kept = symbols_kept(document, kernel, scalars)
    names = ", ".join(name for name in scalars if name in kept)
    if not names:
        return []
    how = "is compiled for" if set(kernel.define) & set(scalars) else "does not receive"
    detail = f"kernel {kernel.name} {how} {names}"
    return [Check(f"other values of {names}", ALL_KINDS, "skipped", detail=detail)]


def names_told(document: SpaceDocument, kernel: KernelSpec) -> set[str]:
    """The names of symbols and tensors that the kernel receives, or that its `supports`
    mentions."""
    return _symbols_told(document, kernel) | {each.symbol for each in kernel.supports}


def _symbols_told(document: SpaceDocument, kernel: KernelSpec) -> set[str]:
    """The names that reach the kernel: compiled in, as arguments, or in a launch."""
    whens = (launch.when for launch in kernel.launches if launch.when is not None)
    names = _names((*kernel.expressions(), *whens), document.let)
    names |= {argument.name for argument in kernel.arguments if argument.name is not None}
    return names | set(kernel.define)


def _names(expressions: Iterable[Expression], let: Mapping[str, Expression]) -> set[str]:
    """All names in the expressions, and in their definitions by `let`."""
    found: set[str] = set()
    waiting = list(expressions)
    while waiting:
        for name in waiting.pop().names:
            if name.name not in found:
                found.add(name.name)
                waiting += [let[name.name]] if name.name in let else []
    return found


def refusal_of(document: SpaceDocument, problem: Problem, case: Case) -> str:
    """Why no kernel of the space can compute the case; "" if one can."""
    reasons = []
    for kernel in document.kernels:
        why = _kernels_refusal(document, kernel, problem, case)
        if not why:
            return ""
        reasons.append(why)
    return reasons[0]


def _kernels_refusal(
    document: SpaceDocument, kernel: KernelSpec, problem: Problem, case: Case
) -> str:
    if why := kernel.unsupported(case.symbols):
        return why
    strided = [spec for spec in problem.tensors(case) if spec.strides]
    if strides_untold(document, kernel, strided):
        return f"kernel {kernel.name} takes contiguous tensors only"
    if missing := missing_features(document, kernel, problem, case):
        return f"kernel {kernel.name} does not compute {', '.join(missing)}"
    return ""


def missing_features(
    document: SpaceDocument, kernel: KernelSpec, problem: Problem, case: Case
) -> list[str]:
    """The features of the case that no name tells the kernel of."""
    if not isinstance(problem, HasFeatures) or takes_all(kernel):
        return []
    told = names_told(document, kernel)
    return [name for name, known_by in problem.features_of(case).items() if not known_by & told]


def served_cases(  # noqa: PLR0917
    problem: Problem,
    known: Sequence[CaseJob],
    kept: Collection[str],
    job_of: Callable[[Case], CaseJob],
    is_specialised: Callable[[Case], bool],
    wanted: Sequence[Region] = (),
) -> tuple[list[CaseJob], tuple[LengthPlan, ...]]:
    """The cases that execute the sizes near the `known` timed and held-out cases of a confirmation,
    and the lengths that they execute together. Some of the cases may be among the known ones.

    - `kept`: symbols that no case may change.
    - `job_of` raises Rejected, SpaceError or ValueError for a case that the kernel cannot run.
    - `is_specialised`: whether a case's binary is made for the sizes of a measured case, so that it
      says nothing about other lengths.
    - `wanted`: regions to execute in addition. Their own `pairs` and `executed` lengths were
      executed before. A user's problem is always executed near the cases.
    """
    ranked: list[tuple[int, CaseJob]] = []
    plans: list[LengthPlan] = []
    groups: dict[tuple[str, str], list[Case]] = {}
    for each in known:
        if each.role not in (TIMED, HELD_OUT):
            continue
        place = problem.place(each.case)
        key = repr(sorted(place.fixed.items())), repr(ratios_of(problem, place))
        groups.setdefault(key, []).append(each.case)
    for cases in groups.values():
        place = problem.place(cases[0])
        regions = [region for region in wanted if region.fixed == place.fixed]
        own: dict[str, tuple[int, CaseJob]] = {}
        for name in length_names(problem, kept):
            one = _OneLength(problem, cases[0], name, kept, job_of, is_specialised)
            values = [int(problem.place(case).ranged[name]) for case in cases]
            near, sampled = wanted_lengths(
                values,
                _reach(problem, place, name, values, regions),
                each_upto=each_upto(problem),
                rng=random.Random(f"{cases[0].label} {name}"),
            )
            for plan, executed in (*_each(one, near), *_sampled(one, sampled)):
                plans.append(plan)
                for length, job in executed.items():
                    rank = _rank(length, values, each=plan.each)
                    own.setdefault(job.case.label, (rank, job))
        launched = [*(job.case for _, job in own.values()), *cases]
        met = [*map(problem.place, _of_one_binary(launched, is_specialised))]
        for job in _pairs(problem, cases, met, kept, job_of, regions):
            rank = _PAIRS if isinstance(problem, UserProblem) else _FIRST
            own.setdefault(job.case.label, (rank, job))
        ranked += own.values()
    ranked += [(_PAIRS, job) for job in _of_other_variants(problem, known, kept, job_of)]
    ranked.sort(key=lambda each: each[0])  # there may be no time for all
    return list({job.case.label: job for _, job in ranked}.values()), tuple(plans)


# --- Pairs of bands of sizes ----------------------------------------------------------------------


def _pairs(  # noqa: PLR0917
    problem: Problem,
    cases: Sequence[Case],
    met: list[Place],
    kept: Collection[str],
    job_of: Callable[[Case], CaseJob],
    regions: Sequence[Region],
) -> Iterator[CaseJob]:
    """A case for each pair of bands near the measured cases that no other case covers. For
    attention also between them, with few rows, and in the wanted `regions`."""
    places = [place_with_ratio(problem, case) for case in cases]
    before = joined_pairs(*(region.pairs for region in regions))
    boxes: list[tuple[Case, Ranges]] = [(cases[0], near_ranges(places))]
    most_bytes = MOST_BYTES
    if isinstance(problem, UserProblem):
        boxes = [(case, near_ranges([place])) for case, place in zip(cases, places, strict=True)]
    elif regions:
        largest = max(cases, key=problem.bytes_moved)
        boxes = [(largest, region.ranges) for region in regions]
        most_bytes = max(most_bytes, problem.bytes_moved(largest))
    job = _or_none(job_of)
    for like, ranges in boxes:
        yield from pair_cases(problem, like, met, ranges, kept, job, before, most_bytes)


def _of_other_variants(
    problem: Problem,
    known: Sequence[CaseJob],
    kept: Collection[str],
    job_of: Callable[[Case], CaseJob],
) -> Iterator[CaseJob]:
    """For a user's problem: cases of the variants that are not timed, for each pair of bands
    between their edge cases. These variants have no random cases, and a package serves them."""
    if not isinstance(problem, UserProblem):
        return
    timed = [problem.place(job.case).fixed for job in known if job.role in (TIMED, HELD_OUT)]
    groups: dict[str, list[Case]] = {}
    for job in known:
        fixed = problem.place(job.case).fixed
        if fixed not in timed:
            groups.setdefault(repr(sorted(fixed.items())), []).append(job.case)
    for cases in groups.values():
        met = [problem.place(case) for case in cases]
        ranges = ranges_between(met)
        like = max(cases, key=problem.bytes_moved)
        yield from pair_cases(problem, like, met, ranges, kept, _or_none(job_of))


def _or_none(job_of: Callable[[Case], CaseJob]) -> Callable[[Case], CaseJob | None]:
    """A version of `job_of` that returns None for a case that the kernel cannot run."""

    def made(case: Case) -> CaseJob | None:
        try:
            return job_of(case)
        except (Rejected, SpaceError, ValueError):
            return None

    return made


def _of_one_binary(cases: Iterable[Case], is_specialised: Callable[[Case], bool]) -> list[Case]:
    """The cases without those of specialised binaries, unless all have such a one."""
    all_cases = list(cases)
    return [case for case in all_cases if not is_specialised(case)] or all_cases


# --- Lengths --------------------------------------------------------------------------------------


def _reach(
    problem: Problem, place: Place, name: str, measured: Sequence[int], regions: Sequence[Region]
) -> Spans:
    """The lengths that could be served around the `measured` ones, without those that were executed
    before. `place`: of one of the cases."""
    low, high = near_ends(measured)
    spans = [(int(region.ranges[name][0]), int(region.ranges[name][1])) for region in regions]
    if is_served_from_one(problem):
        spans = [(1, max([high, *(last for _, last in spans)]))]
    elif not regions:
        spans = [(max(1, low), high)]
    before = joined_ranges(
        ends
        for region in regions
        for each in region.executed or ()
        if each.name == name and each.alike == ratios_of(problem, place)
        for ends in each.ranges
    )
    return [part for low, high in joined_ranges(spans) for part in _left_of(low, high, before)]


def wanted_lengths(
    measured: Sequence[int], reach: Spans, *, each_upto: int, rng: random.Random
) -> tuple[Spans, tuple[Spans, list[int]]]:
    """Divides the lengths in `reach` in two: the ranges in which each length is executed (near
    measured lengths, and up to `each_upto`), and the other ranges, with the lengths that represent
    them."""
    around = [near_ends([each]) for each in sorted(set(measured))]
    each = joined_ranges([(1, each_upto), *(a for a in around if a[1] - a[0] < _EACH)])
    exact = [
        (max(low, first), min(high, last))
        for low, high in reach
        for first, last in each
        if first <= high and low <= last
    ]
    others = [part for low, high in reach for part in _left_of(low, high, exact)]
    numbers = sorted(_one_of_each_remainder(others, rng)) if others else []
    return exact, (others, numbers)


def _left_of(low: int, high: int, ranges: Spans) -> Iterator[tuple[int, int]]:
    """What is left of low to high without these ranges, which rise."""
    for first, last in ranges:
        if last < low or first > high:
            continue
        if low < first:
            yield low, first - 1
        low = last + 1
    if low <= high:
        yield low, high


def _one_of_each_remainder(ranges: Spans, rng: random.Random) -> set[int]:
    """Lengths with every remainder mod 256 and mod 384, and so mod their divisors, as far as the
    ranges have them; both ends; the neighbours of each power of two; some more, without a long
    gap."""
    found: set[int] = set()
    inside = [n for low, high in ranges for n in (low, high)]
    for low, high in ranges:
        at = low
        while at < high:
            found.add(at)
            at += max(1, at // _STEP)
        found |= {n for bits in range(2, 32) for n in _beside(1 << bits) if low <= n <= high}
    total = sum(high - low + 1 for low, high in ranges)

    def at_place(place: int) -> int:
        for low, high in ranges:
            if place <= high - low:
                return low + place
            place -= high - low + 1
        raise IndexError(place)

    found |= {*inside, *(at_place(rng.randrange(total)) for _ in range(min(total, _SAMPLE)))}
    for size in (3 * _TILE, 2 * _TILE):
        missing = set(range(size)) - {n % size for n in found}
        for remainder in sorted(missing):
            steps = [
                (low + (remainder - low) % size, high)
                for low, high in ranges
                if low + (remainder - low) % size <= high
            ]
            if steps:
                first, last = rng.choice(steps)
                found.add(first + size * rng.randrange((last - first) // size + 1))
    return found


def _beside(power: int) -> tuple[int, ...]:
    half = power // 2
    return (power - 1, power, power + 1, power + half - 1, power + half, power + half + 1)


class _OneLength:
    """Makes the jobs of one length of the cases like one."""

    def __init__(  # noqa: PLR0917
        self,
        problem: Problem,
        like: Case,
        name: str,
        kept: Collection[str],
        job_of: Callable[[Case], CaseJob],
        is_specialised: Callable[[Case], bool],
    ) -> None:
        place = problem.place(like)
        self.fixed, self.alike, self.name = place.fixed, ratios_of(problem, place), name
        self._problem, self._like, self._kept, self._job_of = problem, like, kept, job_of
        self._small = list(SMALL)
        self._is_specialised = is_specialised

    def job(self, length: int) -> CaseJob | None:
        """None if the kernel does not take the length."""
        for small in self._small:
            try:
                case = short_case(self._problem, self._like, self.name, length, self._kept, small)
                made = self._job_of(case)
            except (Rejected, SpaceError, ValueError):
                continue
            self._small.remove(small)
            self._small.insert(0, small)  # the next lengths will need no other one
            return made
        return None

    def jobs(self, numbers: Iterable[int]) -> dict[int, CaseJob]:
        made = {number: job for number in numbers if (job := self.job(number)) is not None}
        cases = _of_one_binary((job.case for job in made.values()), self._is_specialised)
        labels = {case.label for case in cases}
        return {number: job for number, job in made.items() if job.case.label in labels}

    def plan(self, low: int, high: int, numbers: Iterable[int], *, each: bool) -> LengthPlan:
        return LengthPlan(self.fixed, self.alike, self.name, low, high, tuple(numbers), each)


def _rank(length: int, measured: Sequence[int], *, each: bool) -> int:
    """The rank of a length; see `_NEAR`."""
    near = any(low <= length <= high for low, high in (near_ends([m]) for m in measured))
    return _SAMPLED if not each else _NEAR if near else _SHORT


def _each(one: _OneLength, ranges: Spans) -> Iterator[tuple[LengthPlan, dict[int, CaseJob]]]:
    for low, high in ranges:
        made = one.jobs(range(low, high + 1))
        yield one.plan(low, high, made, each=True), made


def _sampled(
    one: _OneLength, sampled: tuple[Spans, list[int]]
) -> Iterator[tuple[LengthPlan, dict[int, CaseJob]]]:
    ranges, numbers = sampled
    if not ranges:
        return
    made = one.jobs(numbers)
    for low, high in ranges:
        yield one.plan(low, high, made, each=False), made
