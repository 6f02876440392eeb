"""Review of a compiled candidate before its launch: `after_compile` and the device's limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evotune.backends.base.backend import Figures, Limits
from evotune.backends.base.launch import Binary
from evotune.space.bound import BoundSpace
from evotune.trial import NamedFigures, Value
from evotune.workers.executor import TIMED, CaseJob, Proposal

_Known = dict[tuple[str, str, tuple[int, ...], int], Figures]


@dataclass(frozen=True, slots=True)
class BuildRules:
    """The rules for binaries of one space on one device.

    - `space`: has the `after_compile` constraints.
    - `limits`: the backend's; `device`: the attributes of the device's profile.
    """

    space: BoundSpace
    limits: Limits
    device: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class BuildReview:
    """A candidate judged by its compiled figures: `resources` for its record, and as `violation`
    why it must not be launched ("" when it may be)."""

    resources: NamedFigures
    violation: str = ""


def review_build(
    proposal: Proposal, binaries: Mapping[str, Binary], rules: BuildRules | None
) -> BuildReview:
    """Reviews the proposal's own binaries, not the rival's. `binaries` by compile key.

    The device's limits hold for every case, `after_compile` for timed cases alone: the others are
    not timed. Without rules nothing is refused.
    """
    own = {case.compile.key: binaries[case.compile.key] for case in proposal.cases}
    resources = _worst_resources(own.values())
    if rules is None:
        return BuildReview(resources)
    known: _Known = {}
    found = [(case, _figures(case, own[case.compile.key], rules, known)) for case in proposal.cases]
    timed = [(case, figures) for case, figures in found if case.role == TIMED]
    resources |= rules.limits.worst(item.values for _, figures in timed for item in figures)
    for case, figures in found:
        for item in figures:
            if item.violation:
                return BuildReview(resources, f"{case.case.label}: {item.violation}")
    for case, figures in timed:
        values = rules.limits.worst(item.values for item in figures)
        violated = rules.space.violated_after_compile(
            proposal.configuration, case.case.symbols, values
        )
        if violated:
            return BuildReview(resources, f"after_compile: {violated}")
    return BuildReview(resources)


def _figures(case: CaseJob, binary: Binary, rules: BuildRules, known: _Known) -> list[Figures]:
    """The figures of each launch. No grid enters them, so most cases find them `known`."""
    found = []
    for launch in case.plan.completed(binary.resources).launches:
        key = (case.compile.key, launch.entry, launch.block, launch.shared_bytes)
        if key not in known:
            known[key] = rules.limits.figures(launch, binary.resources, rules.device)
        found.append(known[key])
    return found


def _worst_resources(binaries: Iterable[Binary]) -> dict[str, int | float]:
    """The largest value of every figure, without the figures of single functions."""
    found: dict[str, int | float] = {}
    for binary in binaries:
        for name, value in binary.resources.items():
            if isinstance(value, int | float):
                found[name] = max(value, found.get(name, value))
    return found
