"""What launches left behind: looked at on the device, read together, judged later.

Reading takes longer than looking, as the device must first catch up with all that was queued; so
the looks of many launches are read at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from evotune.problems.base import Tensors
from evotune.verify.accuracy import Errors, error_terms, errors_of
from evotune.verify.buffers import BufferSet, Inspection


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one launch or row of launches: what they touched, copies of the `outputs` and the terms of
    their errors (see `error_terms`), and further `flags` (a bool each), all on the device."""

    inspection: Inspection
    outputs: Tensors = field(default_factory=dict)
    terms: Mapping[str, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    flags: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Findings:
    """What `Evidence` says. Whether something is `damaged`: the inspection tells what."""

    damaged: bool
    errors: Mapping[str, Errors]
    flags: Mapping[str, bool]


def gather(buffers: BufferSet, outputs: Tensors, reference: Mapping[str, torch.Tensor]) -> Evidence:
    """Of the launches so far, with copies of their outputs."""
    terms = {name: error_terms(value, reference[name]) for name, value in outputs.items()}
    return Evidence(buffers.inspect(), outputs, terms)


def read(evidence: Sequence[Evidence]) -> list[Findings]:
    """Waits for the device, once for all of it."""
    flags = [flag for each in evidence for flag in (*each.inspection.flags, *each.flags.values())]
    terms = [term for each in evidence for pair in each.terms.values() for term in pair]
    answers = iter(torch.stack(flags).tolist())
    numbers = iter(torch.stack(terms).tolist() if terms else ())
    return [
        Findings(
            damaged=any([next(answers) for _ in each.inspection.flags]),
            errors={
                name: errors_of([next(numbers) for _ in pair], each.outputs[name].numel())
                for name, pair in each.terms.items()
            },
            flags={name: next(answers) for name in each.flags},
        )
        for each in evidence
    ]
