"""From a configuration to everything needed to compile, launch, check and time it."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from evotune.backends import registry
from evotune.backends.base.launch import CompileJob, LaunchPlan
from evotune.backends.base.profile import DeviceProfile
from evotune.errors import SpaceError
from evotune.problems.problem import Case, Problem
from evotune.runs._champion_cases import (
    obstacle,
    refusal,
    scalars_skipped,
    strides_untold,
    symbols_kept,
    symbols_kept_in_search,
)
from evotune.runs._compile_jobs import CompileJobs
from evotune.runs._compiled_in import CompiledIn
from evotune.runs._served_cases import served_cases
from evotune.runs.launches import CasePlanner, NoInteger, Rejected, refuse_unknown_arguments
from evotune.space.bound import BoundSpace
from evotune.space.case_scope import CaseEvaluator
from evotune.space.document import SpaceDocument
from evotune.space.language.scalar import Environment
from evotune.space.specs import KernelSpec
from evotune.trial import Check, Configuration, Region, Value
from evotune.verify.kept_checks import ALL_KINDS
from evotune.workers.build_review import BuildRules
from evotune.workers.executor import EDGE, HELD_OUT, RANDOM, SERVED, TIMED, CaseJob, Proposal

_RANDOM_TESTS, _MOST_RANDOM_TESTS = 120, 240
"""For each kind of timed cases, such as a mask, and in all: so many meet most pairs of classes."""
_RANDOM_SHAPES = 1200  # the most that are drawn to find so many that the kernel supports

_CompileJobs = dict[tuple[Value, ...], CompileJob]  # by the symbols that are compiled in


@dataclass(frozen=True, slots=True)
class _CasePlan:
    """A kernel on a case, before there is a configuration."""

    case: Case
    role: str
    compiled_in: tuple[Value, ...]
    flops: int
    launches: CasePlanner


class Planner:
    """Turns configurations of one bound space into proposals. Raises SpaceError when made."""

    def __init__(
        self,
        document: SpaceDocument,
        bound: BoundSpace,
        problem: Problem,
        cases: Mapping[str, Sequence[Case]],
        profile: DeviceProfile,
        *,
        sources: Mapping[str, Mapping[str, bytes]],
        secret: str = "",
    ) -> None:
        """`sources`: as `CompileJobs` takes them."""
        self._secret = secret
        self.bound = bound
        self._document = document
        self.problem = problem
        self._cases = cases
        self._profile = profile
        self._architecture = architecture(profile)
        self._compiling = CompileJobs(document, problem, profile, sources)
        scalars, tensors = self._scalars(cases[TIMED]), problem.tensors(cases[TIMED][0])
        self._kept, searched = (
            {each.name: kept(document, each, scalars, tensors) for each in document.kernels}
            for kept in (symbols_kept, symbols_kept_in_search)
        )
        measured = (*cases[TIMED], *cases[HELD_OUT])
        self._compiled_in = {
            each.name: CompiledIn(bound, each, problem, measured) for each in document.kernels
        }
        self._edges = {
            kernel.name: self._searched_edges(kernel, searched[kernel.name])
            for kernel in document.kernels
        }
        self._searched: dict[str, list[_CasePlan]] = {}  # by kernel
        kinds = len({repr(problem.place(case).fixed) for case in cases[TIMED]})
        self._random_tests = min(_RANDOM_TESTS * kinds, _MOST_RANDOM_TESTS)
        self._limits = registry.named(profile.backend).limits()
        refuse_unknown_arguments(document, bound, problem, cases[TIMED])

    @property
    def rules(self) -> BuildRules | None:
        """The rules for compiled proposals; None where the backend knows no limits."""
        if self._limits is None:
            return None
        return BuildRules(self.bound, self._limits, self._profile.attributes)

    def at(self, root: Path) -> Planner:
        """The same planner; compilers read the sources under another root."""
        moved = copy.copy(self)
        moved._compiling = self._compiling.at(root)
        return moved

    def proposal(
        self, number: int, configuration: Configuration, *, confirm: bool = False
    ) -> Proposal:
        """The proposal with its compiler runs and launches on every case; a rejection if a case
        breaks a limit of the device.

        With `confirm` it also has the cases that only a champion is checked on: held-out ones, edge
        shapes that need another binary, variants that the space does not tune, random shapes.
        """
        kernel = self.kernel_of(configuration)
        compile_jobs: _CompileJobs = {}
        try:
            jobs = self._case_jobs(kernel, configuration, compile_jobs)
        except Rejected as rejected:
            return Proposal(number, configuration, rejection=str(rejected), confirm=confirm)
        skipped: list[Check] = []
        evaluator = CaseEvaluator(self.bound.case_scope(configuration, {}))
        if confirm:
            jobs += self._edge_jobs(kernel, configuration, compile_jobs, skipped)
            jobs += self._random_jobs(
                kernel, configuration, evaluator, compile_jobs, number, skipped
            )
            jobs += self._sibling_jobs(kernel, configuration, compile_jobs, skipped)
            scalars = self._scalars(self._cases[TIMED])
            skipped += scalars_skipped(self._document, kernel, scalars)
        cases = tuple(job for job in jobs if confirm or job.role != HELD_OUT)
        made = Proposal(number, configuration, cases, confirm=confirm, skipped=tuple(skipped))
        return self._with_lengths(kernel, made, evaluator, compile_jobs) if confirm else made

    def served_proposal(
        self,
        number: int,
        configuration: Configuration,
        cases: Iterable[Case],
        wanted: Sequence[Region],
    ) -> Proposal:
        """The short cases alone that execute the `wanted` regions; see `served_cases`. The kernel
        is known to run the `cases`, which lie there, and no case needs a binary beside theirs.
        """
        kernel = self.kernel_of(configuration)
        compile_jobs: _CompileJobs = {}
        known = [self._case_job(kernel, configuration, case, TIMED, compile_jobs) for case in cases]
        made = Proposal(number, configuration, tuple(known), only_served=True)
        evaluator = CaseEvaluator(self.bound.case_scope(configuration, {}))
        return self._with_lengths(kernel, made, evaluator, compile_jobs, wanted)

    def refuse_fractions(self, configuration: Configuration) -> None:
        """SpaceError where a launch of the configuration has no integer where one belongs."""
        try:
            self._case_jobs(self.kernel_of(configuration), configuration, {})
        except NoInteger as found:
            raise found.error from None
        except Rejected:
            pass

    def _with_lengths(
        self,
        kernel: KernelSpec,
        made: Proposal,
        evaluator: CaseEvaluator,
        compile_jobs: _CompileJobs,
        wanted: Sequence[Region] = (),
    ) -> Proposal:
        """The proposal with the short cases that execute what a package could serve."""
        compiled_in = self._compiled_in[kernel.name]

        def job_of(case: Case) -> CaseJob:
            if kernel.unsupported(case.symbols) or not compiled_in.is_known(case, compile_jobs):
                raise Rejected("the kernel or its binaries do not take the case")
            plan = self._case_plan(kernel, case, SERVED, evaluator.at(case.symbols))
            return self._planned_job(kernel, made.configuration, {}, plan, compile_jobs)

        kept, specialised = self._kept[kernel.name], compiled_in.is_specialised
        known = made.cases
        jobs, lengths = served_cases(self.problem, known, kept, job_of, specialised, wanted)
        if made.only_served:
            return dataclasses.replace(made, cases=tuple(jobs), lengths=lengths)
        labels = {job.case.label for job in known if job.role != RANDOM}
        further = [job for job in jobs if job.case.label not in labels]
        return dataclasses.replace(made, cases=(*known, *further), lengths=lengths)

    def _scalars(self, cases: Iterable[Case]) -> tuple[str, ...]:
        """The scalars of any of these cases."""
        return tuple(dict.fromkeys(name for each in cases for name in self.problem.scalars(each)))

    def case_job(self, configuration: Configuration, case: Case) -> CaseJob:
        """For a case outside the space. Rejected or SpaceError when the kernel cannot run it."""
        kernel = self.kernel_of(configuration)
        if why := self._strides_missing(kernel, case):
            raise Rejected(why)
        names = {*self._scalars((*self._cases[TIMED], case)), *self.problem.place(case).fixed}
        if why := refusal(self.bound, kernel, configuration, case, self._cases[TIMED], names):
            raise Rejected(why)
        return self._case_job(kernel, configuration, case, TIMED, {})

    def _case_jobs(
        self, kernel: KernelSpec, configuration: Configuration, compile_jobs: _CompileJobs
    ) -> list[CaseJob]:
        """Held-out cases too: a configuration that cannot run on them is rejected at once."""
        known = configuration.to_json()
        return [
            self._planned_job(kernel, configuration, known, plan, compile_jobs)
            for plan in self._case_plans(kernel)
        ]

    def _case_plans(self, kernel: KernelSpec) -> list[_CasePlan]:
        """The kernel must support every timed case; other cases that it does not support are left
        out."""
        if kernel.name in self._searched:
            return self._searched[kernel.name]
        unsupported = kernel.unsupported(self._architecture)
        if unsupported is not None:
            raise Rejected(unsupported)
        plans = []
        cases = {**self._cases, EDGE: self._edges[kernel.name]}
        for role in (TIMED, EDGE, HELD_OUT):
            for case in cases[role]:
                unsupported = kernel.unsupported(case.symbols)
                if unsupported is None:
                    unsupported = self._strides_missing(kernel, case)
                if unsupported is not None and role == TIMED:
                    raise Rejected(unsupported)
                if unsupported is None:
                    plans.append(self._case_plan(kernel, case, role))
        self._searched[kernel.name] = plans
        return plans

    def strided_tensors(self, configuration: Configuration, case: Case) -> frozenset[str]:
        """The tensors whose strides the configuration's kernel is told."""
        kernel, specs = self.kernel_of(configuration), self.problem.tensors(case)
        return frozenset(
            spec.name
            for spec in specs
            if spec.stride_symbols and not strides_untold(self._document, kernel, [spec])
        )

    def _strides_missing(self, kernel: KernelSpec, case: Case) -> str | None:
        """Why the kernel cannot run a case whose tensors are not contiguous; None when it can."""
        strided = [spec for spec in self.problem.tensors(case) if spec.strides]
        untold = strides_untold(self._document, kernel, strided)
        if not untold:
            return None
        name = kernel.name
        return f"kernel {name} takes contiguous tensors only: it does not receive {untold[0]}"

    def _edge_cases(self, kept: Collection[str]) -> list[Case]:
        """The edge cases of all timed cases, without the timed cases themselves."""
        timed = {case.label for case in self._cases[TIMED]}
        edges = {
            edge.label: edge
            for case in self._cases[TIMED]
            for edge in self.problem.edge_cases(case, kept)
        }
        return [edge for label, edge in edges.items() if label not in timed]

    def _searched_edges(self, kernel: KernelSpec, kept: Collection[str]) -> list[Case]:
        """The edge cases that need no binary beside those of the timed cases."""
        compiled_in, timed = self._compiled_in[kernel.name], self._cases[TIMED]
        edges = self._edge_cases({*kept, *compiled_in.specialised_kept(timed)})
        return compiled_in.same_binaries(timed, edges)

    def _case_plan(
        self, kernel: KernelSpec, case: Case, role: str, evaluator: CaseEvaluator | None = None
    ) -> _CasePlan:
        arch = int(self._profile.attributes.get("arch", 0))
        launches = CasePlanner(
            kernel,
            case,
            evaluator or self.bound.evaluator(case.symbols),
            self.problem.tensors(case),
            arch,
            optional=self.problem.optional,
        )
        flops = self.problem.flops(case)
        values = self._compiled_in[kernel.name].of(case)
        return _CasePlan(case, role, values, flops, launches)

    def _case_job(
        self,
        kernel: KernelSpec,
        configuration: Configuration,
        case: Case,
        role: str,
        compile_jobs: _CompileJobs,
    ) -> CaseJob:
        plan = self._case_plan(kernel, case, role)
        return self._planned_job(kernel, configuration, configuration.to_json(), plan, compile_jobs)

    def _planned_job(
        self,
        kernel: KernelSpec,
        configuration: Configuration,
        known: Environment,
        case_plan: _CasePlan,
        compile_jobs: _CompileJobs,
    ) -> CaseJob:
        case, values = case_plan.case, case_plan.compiled_in
        plan = case_plan.launches.plan(known)
        self._check_launches(kernel, plan, case)
        if values not in compile_jobs:
            job = self._compiling.job(kernel, configuration, case, plan, values)
            compile_jobs[values] = job
        return CaseJob(case, case_plan.role, compile_jobs[values], plan, case_plan.flops)

    def _edge_jobs(
        self,
        kernel: KernelSpec,
        configuration: Configuration,
        compile_jobs: _CompileJobs,
        skipped: list[Check],
    ) -> list[CaseJob]:
        """Edge shapes that the search leaves out, since they may need another binary."""
        known = {edge.label for edge in self._edges[kernel.name]}
        edges = self._edge_cases(self._kept[kernel.name])
        return self._unknown_edges(kernel, configuration, edges, known, compile_jobs, skipped)

    def _unknown_edges(  # noqa: PLR0917
        self,
        kernel: KernelSpec,
        configuration: Configuration,
        edges: Sequence[Case],
        known: set[str],
        compile_jobs: _CompileJobs,
        skipped: list[Check],
    ) -> list[CaseJob]:
        """The supported ones of these edge shapes that are not `known` yet."""
        jobs = []
        for edge in edges:
            if edge.label not in known and kernel.unsupported(edge.symbols) is None:
                known.add(edge.label)
                try:
                    job = self._case_job(kernel, configuration, edge, EDGE, compile_jobs)
                except (Rejected, SpaceError) as error:
                    detail = str(error)
                    skipped.append(Check(edge.label, ALL_KINDS, "skipped", detail=detail))
                else:
                    jobs.append(job)
        return jobs

    def _sibling_jobs(
        self,
        kernel: KernelSpec,
        configuration: Configuration,
        compile_jobs: _CompileJobs,
        skipped: list[Check],
    ) -> list[CaseJob]:
        """Edge shapes of the variants that the space does not tune: a kernel that gets the variant
        as an argument must be right for each. They may need another binary."""
        tuned = {case.label for case in self._cases[TIMED]}
        known = {case.label for cases in self._cases.values() for case in cases}
        known |= {case.label for case in self._edges[kernel.name]}
        kept = self._kept[kernel.name]
        jobs: list[CaseJob] = []
        for case in self._cases[TIMED]:
            for sibling in self.problem.siblings(case):
                if sibling.label in tuned:
                    continue
                why = obstacle(self.bound, kernel, configuration, case, sibling)
                if why:
                    skipped.append(
                        Check(f"edge shapes of {sibling.label}", ALL_KINDS, "skipped", detail=why)
                    )
                    continue
                edges = self.problem.edge_cases(sibling, kept)
                jobs += self._unknown_edges(
                    kernel, configuration, edges, known, compile_jobs, skipped
                )
        return jobs

    def _random_jobs(  # noqa: PLR0917
        self,
        kernel: KernelSpec,
        configuration: Configuration,
        evaluator: CaseEvaluator,
        compile_jobs: _CompileJobs,
        seed: int,
        skipped: list[Check],
    ) -> list[CaseJob]:
        """The measured cases with the binaries of other layouts, and random shapes that need no
        further binary."""
        text = f"{self._secret}/shapes/{seed}".encode()
        draw = int.from_bytes(hashlib.sha256(text).digest()[:6], "big")
        jobs: list[CaseJob] = []
        further = 0  # tests of other layouts and of far tensors come on top
        kept, compiled_in = self._kept[kernel.name], self._compiled_in[kernel.name]
        drawn = self.problem.random_cases(self._cases[TIMED], draw, kept)
        known = {case.label for case in self._cases[TIMED]}
        others = compiled_in.further_cases(draw, kept)
        for case in chain(others, islice(drawn, _RANDOM_SHAPES)):
            if len(jobs) - further == self._random_tests:
                break
            is_other = case in others
            compiled = is_other or compiled_in.is_known(case, compile_jobs)
            if compiled and case.label not in known and kernel.unsupported(case.symbols) is None:
                known.add(case.label)
                try:
                    plan = self._case_plan(kernel, case, RANDOM, evaluator.at(case.symbols))
                    job = self._planned_job(kernel, configuration, {}, plan, compile_jobs)
                except (Rejected, SpaceError):
                    continue
                jobs.append(job)
                of_far = any(spec.is_far for spec in self.problem.tensors(case))
                further += of_far or is_other
        if not jobs:
            detail = f"kernel {kernel.name} needs another binary for every random shape"
            skipped.append(Check("random tests", ALL_KINDS, "skipped", detail=detail))
        return jobs

    def _check_launches(self, kernel: KernelSpec, plan: LaunchPlan, case: Case) -> None:
        if kernel.launches and not plan.launches:
            raise Rejected(
                f"{case.label}: no launch of kernel {kernel.name} has a 'when' that holds"
            )
        if self._limits is not None:
            for launch in plan.launches:
                violation = self._limits.violation(launch, self._profile.attributes)
                if violation:
                    raise Rejected(f"{case.label}: {violation}")

    def compile_jobs(self, configuration: Configuration) -> list[CompileJob]:
        """The distinct compiler runs of the timed cases."""
        jobs = {job.compile.key: job.compile for job in self.proposal(0, configuration).cases}
        return list(jobs.values())

    def kernel_of(self, configuration: Configuration) -> KernelSpec:
        name = configuration.get("KERNEL")
        return self._document.kernel(str(name) if name is not None else None)


def architecture(profile: DeviceProfile) -> dict[str, Value]:
    """`arch`, for kernels that state the architectures they support; a CPU has none."""
    return {name: profile.attributes[name] for name in ("arch",) if name in profile.attributes}
