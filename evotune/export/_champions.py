"""Selects the champions of an export: the confirmed ones that serve cases best. Compiles their
machine code, compares it with the measured code, and describes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from evotune.backends import registry
from evotune.backends.base.launch import Binary, entry_resources
from evotune.errors import EnvironmentProblem, EvotuneError, StoreError, UsageError
from evotune.export.case_shapes import (
    WON,
    CaseShapes,
    MeasuredCase,
    ServedRegion,
    exact_regions,
    executed_masks,
    in_order,
    near_regions,
)
from evotune.export.kernel_plan import KernelPlan, comparable, kernel_plan
from evotune.portfolios.matrix_store import Cell, Point, point_of
from evotune.portfolios.portfolio_file import (
    Portfolio,
    PortfolioKernel,
    group_words,
    read_portfolio,
)
from evotune.portfolios.rule import RuleRegion
from evotune.problems import UserProblem
from evotune.problems.problem import Case, Place, distinct_broadcasts
from evotune.runs import environment
from evotune.runs.compiling import build_jobs
from evotune.runs.confirmed_champions import (
    Champion,
    champions_of,
    has_own_check,
    sure_gain_us,
    widened_alone,
)
from evotune.runs.folder import RunFolder
from evotune.runs.reopening import ReopenedRun
from evotune.space.specs import KernelSpec
from evotune.trial import Check, Json, Measurement, Region, Value, number
from evotune.workers.executor import HELD_OUT, TIMED, CaseJob, Proposal
from evotune.workers.in_flight import InFlight

_STATIC_BYTES = "static_shared_bytes"


def confirmed(reopened: ReopenedRun) -> list[Champion]:
    """The run's confirmed champions, the best first. Raises EvotuneError (exit 1) if there is none,
    UsageError for a backend whose kernels cannot be exported."""
    require_exportable(reopened)
    return champions_of(reopened)


def require_exportable(reopened: ReopenedRun) -> None:
    profile = reopened.setup.profile
    if not registry.named(profile.backend).binary_suffix:
        raise UsageError(f"run {reopened.run.id}: kernels for {profile.name} cannot be exported")


def measured(champion: Champion) -> list[MeasuredCase]:
    """The timed and held-out cases with the champion's speedups, warm."""
    by_role = champion.run.setup.cases
    cases = {case.label: case for role in (TIMED, HELD_OUT) for case in by_role[role]}
    return [
        _measured_case(champion, cases[m.case], m)
        for m in champion.outcome.measurements
        if (m.counts or m.held_out) and m.cache == "warm" and m.case in cases
    ]


def _measured_case(champion: Champion, case: Case, measured: Measurement) -> MeasuredCase:
    place, problem = champion.place(case), champion.problem
    known = problem.sizes if isinstance(problem, UserProblem) else case.symbols.keys()
    sizes = frozenset(n for n in known if isinstance(place.ranged.get(n), int))
    gain_us = sure_gain_us(champion.run.setup.profile, problem, measured)
    low = measured.speedup_low
    return MeasuredCase(case.label, place, sizes, low, measured.held_out, gain_us)


def regions(champion: Champion, checked: Iterable[Case]) -> tuple[Region, ...]:
    """The regions of a champion's domain.

    If the problem has its own `check`, the regions are the single `checked` cases. A package does
    not contain that Python code, so it cannot know which other sizes the problem refuses.
    """
    if not has_own_check(champion.problem):
        return champion.domain.regions
    places = [champion.place(case) for case in checked if champion.holds(case)]
    return tuple(
        Region(place.fixed, {n: (value, value) for n, value in place.ranged.items()}, 1)
        for place in places
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """The champions of a package, by their number in it, and the regions that they serve, in the
    order in which the package searches them.

    - `timed`: additional cases that were timed and are served, by the champion's number. The
      package's `check` compares these, or the cases of exact regions if there are none.
    - `rule`: the text about its portfolio in the package's README; None for a package of runs.
    """

    champions: tuple[Champion, ...]
    served: tuple[ServedRegion, ...]
    timed: tuple[tuple[int, Case], ...] = ()
    rule: Mapping[str, Json] | None = None

    @property
    def best(self) -> Champion:
        """The champion whose fitness interval has the highest lower end."""
        return min(self.champions, key=lambda champion: (-champion.bound, champion.key))


def _covering(champions: Sequence[Champion]) -> Iterable[int]:
    """The best champion for each of the values that regions fix, such as a size that is compiled
    in. Attention needs none: PyTorch serves the cases that no champion wins."""
    found: dict[str, int] = {}
    for index in sorted(range(len(champions)), key=lambda n: (-champions[n].bound, n)):
        if isinstance(champions[index].problem, UserProblem):
            for region in champions[index].domain.regions:
                found.setdefault(repr(sorted(region.fixed.items())), index)
    return found.values()


def selected(champions: Sequence[Champion]) -> Selection:
    """The champions of a package: each that wins a timed case against all others, the best one, and
    each that serves some cases alone.

    Raises EvotuneError (exit 1) if no champion wins a case of attention: then PyTorch would serve
    all calls.
    """
    ordered = sorted(champions, key=lambda champion: champion.key)
    figures = [measured(champion) for champion in ordered]
    exact = in_order(
        region
        for index, cases in enumerate(figures)
        for region in exact_regions(index, cases, ordered[index].domain.regions)
    )
    best = min(range(len(ordered)), key=lambda n: (-ordered[n].bound, ordered[n].key))
    winners: dict[str, int] = {}
    for region in exact:
        own = region.mask_sizes[:1]
        winners.setdefault(repr((region.fixed, region.ranges, own)), region.kernel)
    chosen = sorted({best, *winners.values(), *_covering(ordered)})
    regions: list[ServedRegion] = []
    for index, old in enumerate(chosen):
        domain = ordered[old].domain.regions
        regions += exact_regions(index, figures[old], domain)
        if not has_own_check(ordered[old].problem):
            regions += near_regions(index, figures[old], domain)
    if isinstance(ordered[0].problem, UserProblem):
        return Selection(tuple(ordered[n] for n in chosen), tuple(in_order(regions)))
    if not regions:
        raise EvotuneError(
            "no confirmed champion is surely faster than PyTorch in any case: a package would "
            "serve no call; search on (`evotune resume RUN --trials N`), on a quiet machine"
        )
    timed = () if exact else _held_out(ordered[best], figures[best])
    return Selection(tuple(ordered[n] for n in chosen), tuple(in_order(regions)), tuple(timed))


def _held_out(champion: Champion, figures: Iterable[MeasuredCase]) -> Iterator[tuple[int, Case]]:
    """The held-out cases that the only champion of a package won in its domain."""
    won = {each.label for each in figures if each.won}
    for case in champion.run.setup.cases[HELD_OUT]:
        if case.label in won and champion.holds(case):
            yield 0, case


_Timed = Mapping[Cell, Measurement]


def selected_by_rule(folder: Path) -> Selection:
    """The champions that a portfolio's rule names. Raises UsageError if the portfolio is not
    finished, StoreError if its runs have changed, and EvotuneError (exit 1) if its rule names no
    kernel.
    """
    found, timed, further = read_portfolio(folder)
    if not found.rule:
        raise EvotuneError(
            f"no kernel of the portfolio in {folder} is surely faster than PyTorch in any "
            "case: a package would serve no call"
        )
    champions = [_champion(folder, kernel) for kernel in found.kernels]
    problem = champions[0].problem
    held_out = {case.label: case.held_out for case in found.cases}
    served: list[tuple[int, Case]] = []
    points: dict[str, Point] = {}
    for each in found.cases:
        case = problem.case(each.given.shape, each.given.variant)
        points[case.label] = point_of(problem, case)
        number = _kernel_of(found, timed, points[case.label])
        if number is not None:
            served.append((number, case))
    return Selection(
        champions=tuple(
            _with_figures(
                champion,
                [
                    msgspec.structs.replace(
                        widened_alone(champion.run.setup.profile, measured),
                        held_out=held_out[case.label],
                    )
                    for at, case in served
                    if at == number
                    and (measured := timed.get(Cell(case.label, *champion.key))) is not None
                ],
                [
                    check
                    for cell, outcome in further
                    if (cell.run, cell.trial) == champion.key and outcome.ok
                    for check in outcome.checks
                ],
            )
            for number, champion in enumerate(champions)
        ),
        served=tuple(
            ServedRegion(
                region.kernel,
                region.fixed,
                region.ranges,
                region.speedup_low,
                not region.exact,
                _mask_sizes(found, region, points),
            )
            for region in found.rule
        ),
        timed=tuple(served),
        rule=_in_words(found, isinstance(problem, UserProblem)),
    )


def _mask_sizes(
    found: Portfolio, region: RuleRegion, points: Mapping[str, Point]
) -> tuple[str, ...]:
    """How masks may be broadcast in the region: see `executed_masks`."""
    kernel = found.kernels[region.kernel]
    cells = [row for row in found.cells if (row.run, row.trial) == (kernel.run, kernel.trial)]
    low = {row.case: row.speedup_low or 0.0 for row in cells if row.case in points}
    lost = [points[label].place for label, speedup in low.items() if speedup < WON]
    won = [points[label].place for label in region.cases]
    return executed_masks(region.fixed, region.ranges, won, lost, kernel.domain.regions)


def _kernel_of(found: Portfolio, timed: _Timed, point: Point) -> int | None:
    """The kernel that a package takes for a case of the list; None for PyTorch. A kernel without a
    figure there cannot run the case."""
    for region in found.rule:
        kernel = found.kernels[region.kernel]
        if region.holds(point) and Cell(point.label, kernel.run, kernel.trial) in timed:
            return region.kernel
    return None


def _champion(folder: Path, kernel: PortfolioKernel) -> Champion:
    """The champion as its run confirmed it, with the domain that the portfolio found."""
    run = RunFolder(folder / kernel.run)
    if not run.store.is_file():
        raise StoreError(f"{run.path} is missing: the portfolio names its trial {kernel.trial}")
    reopened = ReopenedRun.load(run, anywhere=True)
    require_exportable(reopened)
    for champion in champions_of(reopened):
        if champion.number == kernel.trial:
            outcome = msgspec.structs.replace(champion.outcome, domain=kernel.domain)
            return dataclasses.replace(champion, outcome=outcome)
    raise StoreError(f"trial {kernel.trial} of run {kernel.run} is not confirmed any more")


def _with_figures(champion: Champion, figures: list[Measurement], checks: list[Check]) -> Champion:
    """The champion with the figures of the matrix in addition to those of its confirmation, and
    with the portfolio's additional checks: on other variants, and at served sizes."""
    outcome = champion.outcome
    known = {measured.case for measured in outcome.measurements}
    more = tuple(measured for measured in figures if measured.case not in known)
    outcome = msgspec.structs.replace(
        outcome,
        measurements=(*outcome.measurements, *more),
        checks=(*outcome.checks, *checks),
    )
    return dataclasses.replace(champion, outcome=outcome)


def _in_words(found: Portfolio, keeps_all: bool) -> dict[str, Json]:
    """The portfolio in the certificate. `keeps_all`: there is nothing that serves other cases."""
    return {
        "rule": [
            {
                "cases": region.words,
                "kernel": region.kernel,
                "speedup_low": region.speedup_low,
                "measured": len(region.cases),
            }
            for region in found.rule
        ],
        "otherwise": "the kernel with the greatest speedup" if keeps_all else "PyTorch",
        "figures": {
            group_words(found, name, name.replace("_", " ")): msgspec.to_builtins(
                found.figures[name]
            )
            for name in _groups(found)
        },
        "cuts": [each.words for each in found.cuts],
    }


def _groups(found: Portfolio) -> Iterator[str]:
    return (name for name in ("listed", "seen", "held_out", "drawn") if name in found.figures)


@dataclass(frozen=True, slots=True)
class ExportedBinary:
    """Machine code for the cases in which the compiled-in symbols have the values `fixed`."""

    fixed: Mapping[str, Value]
    binary: Binary
    code: bytes

    def file(self, suffix: str) -> str:
        return f"binaries/{self.binary.sha256[:16]}{suffix}"

    def to_json(self, suffix: str) -> dict[str, Json]:
        return {
            "fixed": dict(self.fixed),
            "file": self.file(suffix),
            "sha256": self.binary.sha256,
            "resources": {
                name: value
                for name, value in self.binary.resources.items()
                if not isinstance(value, Mapping)
            },
        }


@dataclass(frozen=True, slots=True)
class BuiltChampion:
    """A champion with everything that a package needs to call it. `regions`: the regions of its
    domain, each with the compiled-in values of its machine code, or None if there is only one
    machine code."""

    champion: Champion
    binaries: tuple[ExportedBinary, ...]
    plan: KernelPlan
    regions: tuple[tuple[Region, Mapping[str, Value] | None], ...]


def checked_cases(champion: Champion) -> Proposal:
    """The cases of the champion's confirmation, recomputed from the trial's number. Raises
    EvotuneError if the kernel no longer runs on the device."""
    planner = champion.run.planner
    proposal = planner.proposal(champion.number, champion.configuration, confirm=True)
    if proposal.rejection:
        raise EvotuneError(f"trial {champion.number} cannot run: {proposal.rejection}")
    return proposal


def built(
    champion: Champion, proposal: Proposal, shapes: CaseShapes, further: Iterable[Case] = ()
) -> BuiltChampion:
    """Compiles a champion, or takes its code from the build cache. Compares its launches with the
    planner's on the cases of its confirmation and on the `further` ones.

    Raises EnvironmentProblem if this machine's compilers make other code than the run measured.
    Raises EvotuneError if the champion does not compile, or if its expressions do not give the
    planner's launches.
    """
    binaries = _compiled(champion, proposal)
    _require_measured_code(champion, proposal, binaries)
    inside = [job for job in proposal.cases if champion.holds(job.case)]
    kernel = champion.run.planner.kernel_of(champion.configuration)
    planned = [champion.run.planner.case_job(champion.configuration, case) for case in further]
    plan = _plan(champion, kernel, shapes, [*inside, *planned], binaries)
    domain = regions(champion, [job.case for job in inside])
    return BuiltChampion(
        champion=champion,
        binaries=tuple(_distinct(kernel, inside, binaries)),
        plan=plan,
        regions=tuple(_by_binary(champion, kernel, domain, [*inside, *planned])),
    )


def _compiled(champion: Champion, proposal: Proposal) -> dict[str, Binary]:
    timeout_s = champion.run.setup.document.timeouts.compile_s
    found = build_jobs(proposal.compile_jobs.values(), timeout_s)
    for result in found.values():
        if not isinstance(result, Binary):
            raise EvotuneError(f"trial {champion.number} does not compile: {result.reason}")
    return {key: result for key, result in found.items() if isinstance(result, Binary)}


def _require_measured_code(
    champion: Champion, proposal: Proposal, binaries: Mapping[str, Binary]
) -> None:
    """The fingerprint of the confirmation or of the trial, which cover machine code and launches,
    must be those of this code. The trial's has fewer cases, and outlives a change of evotune in
    the choice of random shapes."""
    known = champion.outcome.binary
    if not known or _fingerprint(proposal, binaries) == known:
        return
    searched = champion.run.planner.proposal(champion.number, champion.configuration)
    known = champion.searched_code
    if not known or _fingerprint(searched, binaries) == known:
        return
    setup = champion.run.setup
    now = environment.describe(setup.profile, (), setup.languages)
    changes = environment.changes(champion.record(), now)
    differing = [line for line in changes if line.startswith("compiler")]
    raise EnvironmentProblem(
        f"run {champion.run.run.id}: the machine code that is made here is not the code that was "
        "measured"
        f"{''.join(f' ({line})' for line in differing)}; export where the run was made"
    )


def _fingerprint(proposal: Proposal, binaries: Mapping[str, Binary]) -> str:
    flight = InFlight(proposal, dict(binaries))
    flight.review()
    return flight.fingerprint


def _plan(
    champion: Champion,
    kernel: KernelSpec,
    shapes: CaseShapes,
    inside: Sequence[CaseJob],
    binaries: Mapping[str, Binary],
) -> KernelPlan:
    setup, problem = champion.run.setup, champion.run.planner.problem
    scope = setup.space.case_scope(champion.configuration, {"dtype": problem.dtype})
    limits = registry.named(setup.profile.backend).limits()
    plan = kernel_plan(
        kernel,
        scope,
        shapes=shapes.nodes(scope),
        strides=shapes.strides,
        optional=shapes.optional,
        dtypes=shapes.dtypes,
        types=max(([a.type for a in job.plan.arguments] for job in inside), key=len),
        constraints=setup.document.constraints,
        bounds=limits.bounds(setup.profile.attributes) if limits else None,
        static_bytes=max(map(_static_bytes, binaries.values())),
    )
    for job in inside:
        symbols = {name: value for name, value in job.case.symbols.items() if name != "dtype"}
        if job.role != TIMED and not plan.keeps(setup.document.constraints, symbols):
            continue  # the package leaves the case to PyTorch
        if not plan.holds(symbols) or comparable(plan.at(symbols)) != comparable(job.plan):
            raise EvotuneError(
                f"kernel {kernel.name} cannot be exported: its launches on {job.case.label} do not "
                "follow from the expressions of the space"
            )
    return plan


def _static_bytes(binary: Binary) -> int:
    found = [binary.resources, *entry_resources(binary.resources).values()]
    return max(int(number(each, _STATIC_BYTES) or 0) for each in found)


def _by_binary(
    champion: Champion, kernel: KernelSpec, domain: Sequence[Region], checked: Iterable[CaseJob]
) -> Iterator[tuple[Region, Mapping[str, Value] | None]]:
    """The regions. If a kernel has several binaries, each region has its binary's compiled-in
    values; a region with cases of several binaries is divided."""
    placed = [(champion.place(job.case), job) for job in checked]
    several = len({job.compile.key for _, job in placed}) > 1
    for region in domain:
        found: dict[str, tuple[list[Place], Mapping[str, Value]]] = {}
        for place, job in placed if several else ():
            if place.is_in(region.fixed, region.ranges):
                compiled = _compiled_in(kernel, job)
                found.setdefault(job.compile.key, ([], compiled))[0].append(place)
        if len(found) < 2:
            yield region, next((compiled for _, compiled in found.values()), None)
        for places, compiled in found.values() if len(found) > 1 else ():
            met = {name: [place.ranged[name] for place in places] for name in region.ranges}
            ranges = {name: (min(values), max(values)) for name, values in met.items()}
            sizes = distinct_broadcasts(sorted({place.mask_sizes for place in places} - {""}))
            own = {"ranges": ranges, "cases": len(places), "mask_sizes": sizes}
            yield msgspec.structs.replace(region, **own), compiled


def _compiled_in(kernel: KernelSpec, job: CaseJob) -> Mapping[str, Value]:
    """The compiled-in values. A binary with 0 for every name of `specialise` serves any value of
    them, so these names are left out."""
    found = {name: _fixed(job, name) for name in kernel.define if name != "dtype"}
    special = {name: _fixed(job, name) for name in kernel.specialise}
    return {**found, **special} if any(special.values()) else found


def _fixed(job: CaseJob, name: str) -> Value:
    """The value of a compiled-in symbol, or of a compiled-in `let`: a number."""
    found = job.case.symbols.get(name)
    return dict(job.compile.defines)[name.upper()] if found is None else found


def _distinct(
    kernel: KernelSpec, inside: Sequence[CaseJob], binaries: Mapping[str, Binary]
) -> list[ExportedBinary]:
    """Specialised ones first: a package takes the first that fits a case."""
    found: dict[str, ExportedBinary] = {}
    for job in inside:
        key = job.compile.key
        if key not in found:
            fixed = _compiled_in(kernel, job)
            with open(binaries[key].path, "rb") as file:
                found[key] = ExportedBinary(fixed, binaries[key], file.read())
    return sorted(
        found.values(), key=lambda each: (-len(each.fixed), repr(sorted(each.fixed.items())))
    )
