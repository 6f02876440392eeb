"""What launches left behind: looked at on the device, read together, judged later.

Reading takes longer than looking, as the device must first catch up with all that was queued; so
the looks of many launches are read at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from evotune.problems.base import Tensors
from evotune.verify.accuracy import Errors, error_terms
from evotune.verify.buffers import BufferSet, Inspection


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one launch or row of launches: what they touched, copies of the `outputs` and their
    errors (see `error_terms`), and further `flags` (a bool each), all on the device."""

    inspection: Inspection
    outputs: Tensors = field(default_factory=dict)
    errors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    flags: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Findings:
    """What `Evidence` says. Whether something is `damaged`: the inspection tells what."""

    damaged: bool
    errors: Mapping[str, Errors]
    flags: Mapping[str, bool]

    @property
    def flagged(self) -> str:
        """The first name whose flag is set; "" when there is none."""
        return next((name for name, flag in self.flags.items() if flag), "")


def gather(buffers: BufferSet, outputs: Tensors, reference: Mapping[str, torch.Tensor]) -> Evidence:
    """Of the launches so far, with copies of their outputs."""
    errors = {name: error_terms(value, reference[name]) for name, value in outputs.items()}
    return Evidence(buffers.inspect(), outputs, errors)


def read(evidence: Sequence[Evidence]) -> list[Findings]:
    """Waits for the device, once for all of it."""
    flags = [flag for each in evidence for flag in (*each.inspection.flags, *each.flags.values())]
    terms = [term for each in evidence for term in each.errors.values()]
    answers = iter(torch.stack(flags).tolist())
    numbers = iter(torch.stack(terms).tolist() if terms else ())
    return [
        Findings(
            damaged=any([next(answers) for _ in each.inspection.flags]),
            errors={name: Errors(*next(numbers)) for name in each.errors},
            flags={name: next(answers) for name in each.flags},
        )
        for each in evidence
    ]
