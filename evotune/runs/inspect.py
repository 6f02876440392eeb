"""Checks a space without compiling or running it, for `evotune check`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evotune.backends import registry
from evotune.problems import UserProblem, create_problem
from evotune.problems.loading import baseline_names
from evotune.problems.problem import HasAdvice
from evotune.runs.compiling import distinct_samples
from evotune.runs.given_cases import skipped_in_words
from evotune.runs.kernel_executor import require_baseline
from evotune.runs.setup import KernelSetup, load_setup
from evotune.runs.spaces import find_space, read_kernel_sources
from evotune.search.catalog import strategy_names
from evotune.space.counting.blame import ConstraintReport
from evotune.space.document import SpaceDocument
from evotune.space.language import Expression
from evotune.space.reading.case_file import CaseEntry
from evotune.space.reading.yaml_source import Position
from evotune.space.search_space import Parameter, SpaceSize
from evotune.space.specs import parameters_in
from evotune.util.words import did_you_mean
from evotune.workers.device_slot import ProblemSource
from evotune.workers.executor import TIMED
from evotune.workers.problem_check import check_problem

_PLANNED = 16
"""So many configurations are planned, the default first: `check` compiles as many."""


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """One kernel of a space, and the conditions under which it is used, in words."""

    name: str
    source: str
    language: str
    supports: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The facts about a valid space that `evotune check` prints.

    `skipped`: the given cases that no kernel can compute, in words; "" for none. `unread`:
    parameters that no kernel and no launch reads. `advice`: a line, with its position, for each
    shape or variant that may be a misunderstanding. `warnings`: lines about the user's problem.
    """

    name: str
    path: str
    device: str
    size: SpaceSize
    parameters: tuple[Parameter, ...]
    constraints: tuple[ConstraintReport, ...]
    after_compile: tuple[str, ...]
    kernels: tuple[KernelSummary, ...]
    cases: tuple[str, ...]
    skipped: str = ""
    unread: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def try_problem(setup: KernelSetup) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Calls every method of a user's problem. Raises ProblemMistake if one is wrong. Returns the
    names of the problem's baselines on its device (empty if unknown) and warnings."""
    spec, root = setup.problem_spec, setup.root
    problem = create_problem(spec.name, spec.dtype, root)
    tried: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    if isinstance(problem, UserProblem):
        source = ProblemSource(spec.name, spec.dtype, root)
        timed = registry.named(setup.profile.backend).times_user_problems
        found = check_problem(problem, source, setup.cases[TIMED], timed=timed)
        tried, warnings = found.baselines, found.warnings
    return baseline_names(problem) or tried, warnings


def check_space(
    space: str, device: str, cases: Sequence[CaseEntry] = (), dtype: str = ""
) -> CheckReport:
    """Validates a space for a device. Raises SpaceError or ProblemMistake for the first mistake.
    `cases` and `dtype` replace the space's."""
    path = find_space(space)
    setup = load_setup(path, device, compile_only=True, cases=cases, dtype=dtype)
    size = setup.space.size()
    setup.space.starts()
    warnings: tuple[str, ...] = ()
    if isinstance(setup, KernelSetup):
        for configuration in distinct_samples(setup.space, _PLANNED, 0):
            setup.planner.refuse_fractions(configuration)
        names, warnings = try_problem(setup)
        require_baseline(setup.document, names)
    document = setup.document
    if document is not None:
        _require_strategy(document.options.strategy, document.search_position)
    return CheckReport(
        name=setup.name,
        path=str(path),
        device=setup.profile.name,
        size=size,
        parameters=setup.space.parameters,
        constraints=tuple(setup.space.constraint_report())
        if isinstance(setup, KernelSetup)
        else (),
        after_compile=tuple(str(spec) for spec in document.after_compile) if document else (),
        kernels=tuple(
            KernelSummary(
                kernel.name,
                kernel.source.name,
                kernel.language,
                ", ".join(str(support) for support in kernel.supports) or "everything",
            )
            for kernel in (document.kernels if document else ())
        ),
        cases=tuple(case.label for cases in setup.cases.values() for case in cases)
        if isinstance(setup, KernelSetup)
        else (),
        skipped=skipped_in_words(setup.skipped, len(setup.problem_spec.cases))
        if isinstance(setup, KernelSetup)
        else "",
        unread=tuple(unread_parameters(document)) if document else (),
        warnings=warnings,
        advice=tuple(_advice(setup)) if isinstance(setup, KernelSetup) else (),
    )


def _advice(setup: KernelSetup) -> Iterator[str]:
    spec = setup.problem_spec
    problem = create_problem(spec.name, spec.dtype, setup.root)
    if not isinstance(problem, HasAdvice):
        return
    for group in ("shapes", "held_out"):
        for number, shape in enumerate(getattr(spec, group)):
            for variant in spec.variants:
                if advice := problem.advice(shape, variant):
                    yield str(spec.at(group, number).error(advice))


def _require_strategy(strategy: str, position: Position) -> None:
    names = strategy_names()
    if strategy not in names:
        hint = did_you_mean(strategy, names)
        known = ", ".join(names)
        raise position.error(f"unknown search strategy {strategy!r}{hint}; there are {known}")


_WORD = re.compile(rb"\w+")
_CHOICE_OF_A_KERNEL = "KERNEL"


def unread_parameters(document: SpaceDocument) -> list[str]:
    """The parameters that nothing reads: their names occur in no kernel's files, in no compiler
    option, and in no expression of a kernel's arguments, workspaces or launches. Empty for a
    recorded space, which has no kernel.
    """
    if not document.kernels:
        return []
    words = {
        word.decode()
        for kernel in document.kernels
        for content in read_kernel_sources(document, kernel).values()
        for word in _WORD.findall(content)
    }
    words |= _names(document.kernels)
    options = (option for kernel in document.kernels for option in kernel.options)
    words.update(*map(parameters_in, options))
    read = {_CHOICE_OF_A_KERNEL, *words}
    lets = list(document.let.items())
    for _ in lets:  # a let may use others
        for name, expression in lets:
            if name in read:
                read |= {each.name for each in expression.names}
    return [spec.parameter.name for spec in document.parameters if spec.parameter.name not in read]


def _names(found: object) -> set[str]:
    return {name.name for expression in _expressions(found) for name in expression.names}


def _expressions(found: object) -> Iterator[Expression]:
    if isinstance(found, Expression):
        yield found
    elif dataclasses.is_dataclass(found):
        for each in dataclasses.fields(found):
            yield from _expressions(getattr(found, each.name))
    elif isinstance(found, tuple | list):
        for each in found:
            yield from _expressions(each)
    elif isinstance(found, Mapping):
        yield from _expressions(list(found.values()))
