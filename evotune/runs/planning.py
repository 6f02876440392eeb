"""Plans everything that is needed to compile, launch, check and time a configuration."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from evotune.backends import registry
from evotune.backends.base.launch import POINTERS, CompileJob, DeviceProfile, LaunchPlan
from evotune.backends.base.sources import POINTER, fingerprint, told_folder
from evotune.errors import SpaceError
from evotune.languages import language
from evotune.problems.executed_sizes import ranges_between
from evotune.problems.problem import Case, HasLayouts, Problem
from evotune.problems.short_cases import pair_cases
from evotune.problems.user import UserProblem
from evotune.runs.champion_cases import (
    obstacle,
    refusal,
    scalars_skipped,
    served_cases,
    strides_untold,
    symbols_kept,
    symbols_kept_in_search,
)
from evotune.runs.launches import (
    CasePlanner,
    NoInteger,
    Rejected,
    refuse_unknown_arguments,
    takes_all,
)
from evotune.runs.spaces import source_path
from evotune.space.bound import BoundSpace
from evotune.space.case_scope import CaseEvaluator
from evotune.space.document import SpaceDocument
from evotune.space.language.nodes import Environment
from evotune.space.specs import KernelSpec, filled
from evotune.trial import Check, Configuration, Region, Value
from evotune.verify.kept_checks import ALL_KINDS
from evotune.workers.executor import EDGE, HELD_OUT, RANDOM, SERVED, TIMED, CaseJob, Proposal
from evotune.workers.in_flight import BuildRules

_RANDOM_TESTS, _MOST_RANDOM_TESTS = 120, 240
"""The number of random tests for each kind of timed cases, such as a mask, and in all. So many
tests meet most pairs of classes of sizes."""
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
        """The rules for compiled proposals; None if the backend has no limits."""
        if self._limits is None:
            return None
        return BuildRules(self.bound, self._limits, self._profile.attributes)

    def at(self, root: Path) -> Planner:
        """A copy of the planner whose compilers read the sources under `root`."""
        moved = copy.copy(self)
        moved._compiling = self._compiling.at(root)
        return moved

    def proposal(
        self, number: int, configuration: Configuration, *, confirm: bool = False
    ) -> Proposal:
        """The proposal, with its compiler runs and launches on every case. It has a rejection if a
        case breaks a limit of the device.

        With `confirm` it also has the cases on which only champions are checked: held-out ones,
        edge shapes that need another binary, variants that the space does not tune, random shapes.
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
        """A proposal of only the short cases that execute the `wanted` regions; see `served_cases`.
        The kernel is known to run the `cases`, which lie in these regions, and no case needs a
        binary other than theirs.
        """
        kernel = self.kernel_of(configuration)
        compile_jobs: _CompileJobs = {}
        known = [self._case_job(kernel, configuration, case, TIMED, compile_jobs) for case in cases]
        made = Proposal(number, configuration, tuple(known), only_served=True)
        evaluator = CaseEvaluator(self.bound.case_scope(configuration, {}))
        return self._with_lengths(kernel, made, evaluator, compile_jobs, wanted)

    def refuse_fractions(self, configuration: Configuration) -> None:
        """Raises SpaceError if a launch of the configuration has a fraction where an integer is
        required."""
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
        if takes_all(kernel):  # no package has it
            return made
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
        """The job of a case outside the space. Raises Rejected or SpaceError if the kernel cannot
        run it.
        """
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
        """The tensors whose strides the configuration's kernel takes as arguments."""
        kernel, specs = self.kernel_of(configuration), self.problem.tensors(case)
        return frozenset(
            spec.name
            for spec in specs
            if spec.stride_symbols and not strides_untold(self._document, kernel, [spec])
        )

    def _strides_missing(self, kernel: KernelSpec, case: Case) -> str | None:
        """Why the kernel cannot run a case whose tensors are not contiguous; None if it can."""
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
        """The edge cases that need no binary other than those of the timed cases."""
        if takes_all(kernel):  # each case is built, which may take seconds
            return []
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
        other binary."""
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
    """The symbol `arch`, for kernels that state the architectures they support; empty for a CPU."""
    return {name: profile.attributes[name] for name in ("arch",) if name in profile.attributes}


class CompileJobs:
    """Makes the compiler runs of one space on one device. Raises SpaceError if two macros collide,
    UsageError if a compiler cannot take the folder's name."""

    def __init__(
        self,
        document: SpaceDocument,
        problem: Problem,
        profile: DeviceProfile,
        sources: Mapping[str, Mapping[str, bytes]],
    ) -> None:
        """`sources`: the files of each kernel. If a file changes later, the compiler refuses it."""
        self._document = document
        self._problem = problem
        self._profile = profile
        self._sources = {name: fingerprint(files) for name, files in sources.items()}
        self._source_paths = {k.name: source_path(document, k) for k in document.kernels}
        self._choices = _choice_constants(document)
        self._root = told_folder(document.root)
        self._refuse_collisions()

    def at(self, root: Path) -> CompileJobs:
        """A copy of the jobs that reads the sources under `root`."""
        moved = copy.copy(self)
        moved._root = told_folder(root)
        return moved

    def job(
        self,
        kernel: KernelSpec,
        configuration: Configuration,
        case: Case,
        plan: LaunchPlan,
        compiled_in: Sequence[Value],
    ) -> CompileJob:
        """The compiler run for a configuration on a case; `plan`: its launches there;
        `compiled_in`: the values of the kernel's compiled-in names."""
        if takes_all(kernel):
            values = {name: v for name, v in configuration.items() if name != "KERNEL"}
            return self._as_it_is(kernel, values)
        defines = dict(self._choices)
        for name, value in configuration.items():
            if name != "KERNEL":
                defines[name] = _as_integer(name, value, defines)
        for index, dtype in enumerate(self._problem.dtypes, start=1):
            defines[f"DTYPE_{dtype.upper()}"] = index
        defines["DTYPE"] = defines[f"DTYPE_{self._problem.dtype.upper()}"]
        formulas = self._problem.formulas(case)
        for name, value in zip(kernel.compiled_in, compiled_in, strict=True):
            if name != "dtype" and name not in formulas:
                defines[name.upper()] = _as_integer(name, value, defines)
        return CompileJob(
            language=kernel.language,
            root=self._root,
            source=self._source_paths[kernel.name],
            defines=tuple(defines.items()),
            options=tuple(filled(option, configuration) for option in kernel.options),
            arch=self._profile.arch,
            sources_sha256=self._sources[kernel.name],
            formulas=tuple(formulas[n] for n in kernel.define if n in formulas and formulas[n][1]),
            **self._typed(kernel, case, plan),
        )

    def _as_it_is(self, kernel: KernelSpec, values: Mapping[str, Value]) -> CompileJob:
        """The job of a kernel that takes the configuration's values as they are."""
        return CompileJob(
            language=kernel.language,
            root=self._root,
            source=self._source_paths[kernel.name],
            defines=(),
            options=(),
            arch=self._profile.arch,
            sources_sha256=self._sources[kernel.name],
            entry=kernel.entry,
            values=tuple(values.items()),
        )

    def _typed(self, kernel: KernelSpec, case: Case, plan: LaunchPlan) -> dict[str, Any]:
        """The entries and argument types, as the language's compiler takes them."""
        if not language(kernel.language).one_entry:
            entries = {launch.entry: None for launch in plan.launches} or {kernel.entry: None}
            given = (POINTER if a.type in POINTERS else a.type for a in plan.arguments)
            return {"entries": tuple(entries), "signature": tuple(given)}
        pointees = {spec.name: f"*{spec.dtype}" for spec in self._problem.tensors(case)}
        pointees |= {workspace.name: "*byte" for workspace in kernel.workspace}
        extra = language(kernel.language).extra_arguments
        own = plan.arguments[: len(plan.arguments) - len(extra)]
        types = (pointees.get(a.name, "*byte") if a.type in POINTERS else a.type for a in own)
        return {"entry": kernel.entry, "signature": tuple(types)}

    def _refuse_collisions(self) -> None:
        """Raises SpaceError at the second of two things that would become the same -D name."""
        taken = {f"DTYPE_{dtype.upper()}" for dtype in self._problem.dtypes} | {"DTYPE"}
        kernels = self._document.kernels
        own = {name for kernel in kernels for name in language(kernel.language).taken_macros}
        for kernel in kernels:
            places = zip(kernel.compiled_in, kernel.compiled_in_positions, strict=True)
            if wrong := [(name, place) for name, place in places if name.upper() in own]:
                name, place = wrong[0]
                raise place.error(
                    f"the compiler's own header uses {name.upper()}, so '{name}' cannot be "
                    "compiled in; pass it as an argument"
                )
        for kernel in self._document.kernels:
            taken |= {name.upper() for name in kernel.compiled_in}
        for spec in self._document.parameters:
            choices = [v for v in (*spec.parameter.values, spec.otherwise) if isinstance(v, str)]
            words = [f"{spec.name}_{word.upper()}" for word in dict.fromkeys(choices)]
            for name in (spec.name, *(words if spec.name != "KERNEL" else ())):
                if name in own:
                    raise spec.position.error(
                        f"the compiler's own header uses {name}, so no macro can have this name; "
                        "rename the parameter"
                    )
                if name in taken:
                    raise spec.position.error(
                        f"{spec.name} needs the macro {name}, which is taken by another parameter, "
                        "choice, dtype or compiled-in symbol"
                    )
                taken.add(name)


def _choice_constants(document: SpaceDocument) -> dict[str, int]:
    """NAME_CHOICE constants for every parameter that has identifiers among its values.

    They count from 1, because the preprocessor treats an unknown name as 0, and a choice that a
    space lacks must not equal one that it has.
    """
    constants: dict[str, int] = {}
    for spec in document.parameters:
        if spec.name == "KERNEL":
            continue
        words = (*spec.parameter.values, spec.otherwise)
        identifiers = list(dict.fromkeys(word for word in words if isinstance(word, str)))
        for index, word in enumerate(identifiers, start=1):
            constants[f"{spec.name}_{word.upper()}"] = index
    return constants


def _as_integer(name: str, value: Value, constants: Mapping[str, int]) -> int:
    if isinstance(value, str):
        return constants[f"{name.upper()}_{value.upper()}"]
    if value != int(value):
        raise Rejected(f"'{name}' is {value}: only a whole number can be compiled in")
    return int(value)


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
        """Raises SpaceError for a compiled-in `let` that is no whole number on a measured case."""
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
        """Whether the case's binary is one of the `known` ones, or one of these with 0 for the
        names of `specialise`."""
        values, count = self.of(case), len(self._kernel.define)
        if values in known or any(values[count:]):
            return values in known
        return any(each[:count] == values[:count] for each in known)

    def further_cases(self, draw: int, kept: Collection[str]) -> list[Case]:
        """Cases for the binaries that only a confirmation compiles: each measured case in other
        layouts, once for each binary, and random cases of the specialised binaries. They are needed
        because an exported binary serves only the cases between its own checks. So each binary also
        gets every way of broadcasting a mask."""
        found: list[Case] = []
        for case in self._measured if "layout" not in kept else ():
            known = {self.of(case)}
            for other in (*self._in_other_layouts(case), *self._in_odd_layout(case)):
                if self.of(other) not in known:
                    known.add(self.of(other))
                    found.append(other)
        return [*found, *self._other_masks(kept), *self._specialised_cases(draw, kept)]

    def _other_masks(self, kept: Collection[str]) -> Iterator[Case]:
        """The measured cases with their mask broadcast in other ways, once for each binary. Edge
        cases have all of them, but only in a binary that serves any strides."""
        known: set[object] = set()
        for case in self._measured if self._has_derived else ():
            problem = self._problem
            others = problem.other_masks(case, kept) if isinstance(problem, HasLayouts) else ()
            for other in others:
                place = problem.place(other)
                key = self.of(other), repr(sorted(place.fixed.items())), place.mask_sizes
                if key not in known:
                    known.add(key)
                    yield other

    @property
    def _has_derived(self) -> bool:
        """Whether a `let` is compiled in: one that may depend on strides."""
        return bool(self._bound.document.let.keys() & set(self._kernel.compiled_in))

    def same_binaries(self, cases: Iterable[Case], edges: Iterable[Case]) -> list[Case]:
        """The edge cases whose binary is that of one of `cases`."""
        if not self._has_derived:
            return list(edges)
        binaries = {self.of(case) for case in cases}
        return [edge for edge in edges if self.of(edge) in binaries]

    def specialised_kept(self, cases: Iterable[Case]) -> set[str]:
        """The symbols in which an edge case must agree with one of `cases` to use its specialised
        binary. Empty if no case has one."""
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
        """For a user's problem: cases for the pairs of size bands, up to those of these cases of
        one binary, that none of them covers; cheap ones first. A package serves what was executed
        by pairs, and few cases leave bands out. `names` are the symbols that stay as they are."""
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
