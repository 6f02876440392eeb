"""Review of a compiled candidate before its launch: `after_compile` and the device's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evotune.backends.backend import Figures, Limits
from evotune.device.launch import Binary
from evotune.device.profile import DeviceProfile
from evotune.execute.executor import TIMED, BuildReview, CaseJob, worst_resources
from evotune.space.bound import BoundSpace
from evotune.trial import Configuration

_Known = dict[tuple[str, str, tuple[int, ...], int], Figures]


class BuildReviewer:
    """For kernels of one bound space on one device, which has `limits`."""

    def __init__(self, bound: BoundSpace, profile: DeviceProfile, limits: Limits) -> None:
        self._bound = bound
        self._limits = limits
        self._device = profile.attributes

    def review(
        self, configuration: Configuration, cases: Sequence[CaseJob], binaries: Mapping[str, Binary]
    ) -> BuildReview:
        """`binaries` by compile key. The device's limits hold for every case, the space's
        `after_compile` for timed cases alone: the others are not timed."""
        known: _Known = {}
        found = [(case, self._figures(case, binaries[case.compile.key], known)) for case in cases]
        timed = [(case, figures) for case, figures in found if case.role == TIMED]
        resources = {
            **worst_resources(binaries.values()),
            **self._limits.worst(item.values for _, figures in timed for item in figures),
        }
        for case, figures in found:
            for item in figures:
                if item.violation:
                    return BuildReview(resources, f"{case.case.label}: {item.violation}")
        for case, figures in timed:
            values = self._limits.worst(item.values for item in figures)
            violated = self._bound.violated_after_compile(configuration, case.case.symbols, values)
            if violated:
                return BuildReview(resources, f"after_compile: {violated}")
        return BuildReview(resources)

    def _figures(self, case: CaseJob, binary: Binary, known: _Known) -> list[Figures]:
        """Figures of each launch. No grid enters them, so most cases find them `known`."""
        found = []
        for launch in case.plan.completed(binary.resources).launches:
            key = (case.compile.key, launch.entry, launch.block, launch.shared_bytes)
            if key not in known:
                known[key] = self._limits.figures(launch, binary.resources, self._device)
            found.append(known[key])
        return found
