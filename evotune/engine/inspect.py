"""Looking at a space without compiling or running it: `evotune check`."""

from __future__ import annotations

from dataclasses import dataclass

from evotune.engine.setup import load_setup
from evotune.engine.spaces import find_space
from evotune.space.bound import BoundSpace
from evotune.space.counting.blame import ConstraintReport
from evotune.space.parameters import Parameter
from evotune.space.protocol import SpaceSize


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


def check_space(space: str, device: str) -> CheckReport:
    """Validates a space for a device; SpaceError at the first mistake."""
    path = find_space(space)
    setup = load_setup(path, device, compile_only=True)
    size = setup.space.size()
    setup.space.starts()
    document = setup.document
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
