"""Looking at a space without compiling or running it: `evotune check`."""

from __future__ import annotations

from dataclasses import dataclass

from evotune.backends import registry
from evotune.engine.setup import Setup, load_setup
from evotune.engine.spaces import find_space
from evotune.execute.device_slot import ProblemSource
from evotune.execute.problem_check import check_problem
from evotune.execute.protocol import TIMED
from evotune.problems import UserProblem, create_problem
from evotune.search.catalog import STRATEGY_NAMES, strategy_names
from evotune.space.bound import BoundSpace
from evotune.space.counting.blame import ConstraintReport
from evotune.space.parameters import Parameter
from evotune.space.protocol import SpaceSize
from evotune.space.specs import SearchSpec
from evotune.space.suggest import did_you_mean


@dataclass(frozen=True, slots=True)
class KernelSummary:
    """One kernel of a space and where it applies, in words."""

    name: str
    source: str
    language: str
    supports: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `evotune check` prints about a valid space."""

    name: str
    path: str
    device: str
    size: SpaceSize
    parameters: tuple[Parameter, ...]
    constraints: tuple[ConstraintReport, ...]
    after_compile: tuple[str, ...]
    kernels: tuple[KernelSummary, ...]
    cases: tuple[str, ...]


def try_problem(setup: Setup) -> None:
    """Calls all that the user wrote in a problem's file once; ProblemMistake if it is wrong."""
    document = setup.document
    if document is None or document.problem is None:
        return
    spec, root = document.problem, document.root.absolute()
    problem = create_problem(spec.name, spec.dtype, root)
    if isinstance(problem, UserProblem):
        source = ProblemSource(spec.name, spec.dtype, root)
        timed = registry.named(setup.profile.backend).times_user_problems
        check_problem(problem, source, setup.cases[TIMED], timed=timed)


def check_space(space: str, device: str) -> CheckReport:
    """Validates a space for a device; SpaceError or ProblemMistake at the first mistake."""
    path = find_space(space)
    setup = load_setup(path, device, compile_only=True)
    size = setup.space.size()
    setup.space.starts()
    try_problem(setup)
    document = setup.document
    if document is not None:
        _require_strategy(document.search)
    return CheckReport(
        name=setup.name,
        path=str(path),
        device=setup.profile.name,
        size=size,
        parameters=setup.space.parameters,
        constraints=tuple(setup.space.constraint_report())
        if isinstance(setup.space, BoundSpace)
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
        cases=tuple(case.label for cases in setup.cases.values() for case in cases),
    )


def _require_strategy(search: SearchSpec) -> None:
    if search.strategy in STRATEGY_NAMES:
        return
    names = strategy_names()
    if search.strategy not in names:
        hint = did_you_mean(search.strategy, names)
        known = ", ".join(names)
        raise search.position.error(
            f"unknown search strategy {search.strategy!r}{hint}; there are {known}"
        )
