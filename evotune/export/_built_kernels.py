"""The machine code of exported champions: compiled, compared with the measured code, and
described."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from evotune.backends import registry
from evotune.backends.base.launch import Binary, entry_resources
from evotune.errors import EnvironmentProblem, EvotuneError
from evotune.export._champions import regions
from evotune.export.case_shapes import CaseShapes
from evotune.export.kernel_plan import KernelPlan, comparable, kernel_plan
from evotune.problems.problem import Case, Place
from evotune.runs import environment
from evotune.runs.compiling import build_jobs
from evotune.runs.confirmed_champions import Champion
from evotune.space.specs import KernelSpec
from evotune.trial import Json, Region, Value, number
from evotune.workers.executor import TIMED, CaseJob, Proposal
from evotune.workers.in_flight import InFlight

_STATIC_BYTES = "static_shared_bytes"


@dataclass(frozen=True, slots=True)
class ExportedBinary:
    """Machine code for the cases with the values `fixed` of the symbols that it is compiled for."""

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
    """A champion with everything that a package needs to call it. `regions`: its domain, each with
    the compiled-in values of its machine code, or None if there is only one."""

    champion: Champion
    binaries: tuple[ExportedBinary, ...]
    plan: KernelPlan
    regions: tuple[tuple[Region, Mapping[str, Value] | None], ...]


def checked_cases(champion: Champion) -> Proposal:
    """The cases of its confirmation, recomputed from the trial's number. Raises EvotuneError if the
    kernel does not run on the device any more."""
    planner = champion.run.planner
    proposal = planner.proposal(champion.number, champion.configuration, confirm=True)
    if proposal.rejection:
        raise EvotuneError(f"trial {champion.number} cannot run: {proposal.rejection}")
    return proposal


def built(
    champion: Champion, proposal: Proposal, shapes: CaseShapes, further: Iterable[Case] = ()
) -> BuiltChampion:
    """Compiles a champion, or takes its code from the build cache. Its launches are compared with
    the planner's on the cases of its confirmation and on the `further` ones.

    Raises EnvironmentProblem if the compilers here make other code than the run measured. Raises
    EvotuneError if the champion does not compile, or its expressions do not give the planner's
    launches.
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
            yield msgspec.structs.replace(region, ranges=ranges, cases=len(places)), compiled


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
