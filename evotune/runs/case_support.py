"""Which cases a space computes, and which shipped spaces compute the others."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from evotune.backends import registry
from evotune.backends.base.profile import DeviceProfile
from evotune.problems.problem import Case, HasFeatures, Problem
from evotune.runs._champion_cases import names_told, strides_untold
from evotune.runs.spaces import shipped_spaces
from evotune.space.document import SpaceDocument, load_space
from evotune.space.specs import KernelSpec

_MOST_NAMED = 3


def refusal_of(document: SpaceDocument, problem: Problem, case: Case) -> str:
    """Why no kernel of the space takes the case; "" where one does."""
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
    if isinstance(problem, HasFeatures):
        told = names_told(document, kernel)
        untold = [n for n, known_by in problem.features_of(case).items() if not known_by & told]
        if untold:
            return f"kernel {kernel.name} does not compute {', '.join(untold)}"
    return ""


class AbleSpaces:
    """Finds the shipped spaces of the same problem, dtype and device as a space's."""

    def __init__(self, problem: Problem, profile: DeviceProfile) -> None:
        self._problem = problem
        self._profile = profile

    def hint(self, case: Case) -> str:
        """` (use attention-features-cpu)`: those that take a case; "" for none."""
        names = [
            name
            for name, document in self._documents
            if not refusal_of(document, self._problem, case)
        ]
        return f" (use {' or '.join(names[:_MOST_NAMED])})" if names else ""

    @functools.cached_property
    def _documents(self) -> list[tuple[str, SpaceDocument]]:
        return list(self._alike())

    def _alike(self) -> Iterator[tuple[str, SpaceDocument]]:
        arch = {n: v for n, v in self._profile.attributes.items() if n == "arch"}
        for name, path in shipped_spaces().items():
            document = load_space(path)
            spec = document.problem
            if spec is None or (spec.name, spec.dtype) != (self._problem.name, self._problem.dtype):
                continue
            kernel = document.kernels[0]
            same = registry.speaking(kernel.language).name == self._profile.backend
            if same and kernel.unsupported(arch) is None:
                yield name, document
