"""What launches left behind: looked at on the device, read together, judged later.

Reading takes longer than looking, as the device must first catch up with all that was queued; so
the looks of many launches are read at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from evotune.problems.base import Tensors
from evotune.verify.accuracy import Errors, error_terms, errors_of
from evotune.verify.buffers import Inspection


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one launch or row of launches on each of several sets of buffers: what they touched,
    copies of the `outputs` and the terms of their errors (see `error_terms`), and further `flags`,
    a bool a set; all on the device. Without an `inspection`, nobody asks what they touched."""

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
    """What `evidence` says of set `number`. Whether something is `damaged`: `damage` and
    `not_zeroed` tell what (see `Inspection`)."""

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
    """With copies of what the launches had written then; what is `expected` of each set, or of all
    (one): see `accuracy`."""
    terms = {name: error_terms(value, expected[name]) for name, value in outputs.items()}
    return Evidence(inspection, outputs, terms)


def read(evidence: Sequence[Evidence]) -> list[list[Findings]]:
    """Of each its sets. Waits for the device, once for all of it."""
    rows: list[torch.Tensor] = []
    for each in evidence:
        rows += [*(each.inspection.flags if each.inspection else ()), *each.flags.values()]
        rows += [term for terms in each.terms.values() for term in terms]
    # In one row of float64, which holds flags too: one answer.
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
