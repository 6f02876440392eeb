"""Evidence of launches: computed on the device, read together, judged later.

Reading takes longer than computing it, since the device must first finish all queued work. So the
evidence of many launches is read at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from evotune.problems.problem import Tensors
from evotune.verify.accuracy import Errors, error_terms, errors_of
from evotune.verify.buffers import Inspection


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of one launch, or of one row of launches, on each of several sets of buffers.

    All of it is on the device.

    - `inspection`: of the launches' writes; None if not wanted.
    - `outputs`: copies of the outputs.
    - `terms`: of the outputs' errors; see `error_terms`.
    - `flags`: further facts, with one bool for each set.
    """

    inspection: Inspection | None
    outputs: Tensors = field(default_factory=dict)
    terms: Mapping[str, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    flags: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def sets(self) -> int:
        if self.inspection:
            return len(self.inspection.flags[0])
        return len(next(iter(self.outputs.values())))


@dataclass(frozen=True, slots=True)
class Findings:
    """The evidence of set `number`, read. `damaged`: there were forbidden writes; `damage` and
    `not_zeroed` describe them (see `Inspection`)."""

    evidence: Evidence
    number: int
    damaged: bool
    errors: Mapping[str, Errors]
    flags: Mapping[str, bool]

    def output(self, name: str) -> torch.Tensor:
        return self.evidence.outputs[name][self.number]

    def damage(self) -> str:
        inspection = self.evidence.inspection
        return inspection.damage(self.number) if inspection else ""

    def not_zeroed(self) -> str:
        inspection = self.evidence.inspection
        return inspection.not_zeroed(self.number) if inspection else ""


def gather(
    inspection: Inspection | None, outputs: Tensors, expected: Mapping[str, torch.Tensor]
) -> Evidence:
    """Evidence with copies of the outputs as they are now. `expected` has one row for each set, or
    one for all: see `accuracy`."""
    terms = {name: error_terms(value, expected[name]) for name, value in outputs.items()}
    return Evidence(inspection, outputs, terms)


def read(evidence: Sequence[Evidence]) -> list[list[Findings]]:
    """Read the findings: for each evidence, its sets. Waits for the device once."""
    rows: list[torch.Tensor] = []
    for each in evidence:
        rows += [*(each.inspection.flags if each.inspection else ()), *each.flags.values()]
        rows += [term for terms in each.terms.values() for term in terms]
    # Flags and terms go into one row of float64, so that one read suffices.
    numbers = iter(torch.cat(rows).tolist())
    answers = iter([[next(numbers) for _ in range(len(row))] for row in rows])
    return [_findings(each, answers) for each in evidence]


def _findings(evidence: Evidence, answers: Iterator[list[float]]) -> list[Findings]:
    damaged: list[float] = []
    if evidence.inspection:
        changed, outside = (next(answers) for _ in evidence.inspection.flags)
        damaged = [max(each) for each in zip(changed, outside, strict=True)]
    flags = {name: next(answers) for name in evidence.flags}
    terms = {name: [next(answers) for _ in terms] for name, terms in evidence.terms.items()}
    return [
        Findings(
            evidence,
            number,
            bool(damaged and damaged[number]),
            errors={
                name: errors_of([t[number] for t in found], evidence.outputs[name][number].numel())
                for name, found in terms.items()
            },
            flags={name: bool(found[number]) for name, found in flags.items()},
        )
        for number in range(evidence.sets)
    ]
