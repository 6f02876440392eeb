"""Launches of a champion on inputs that are aligned as little as those that a package serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from evotune.verify.buffers import LEAST_ALIGNMENT
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.kept_checks import ALL_KINDS, nearest_limit

WORDS = f"inputs at an alignment of {LEAST_ALIGNMENT} bytes"


def launch_aligned(
    gate: Gate,
    subjects: Sequence[Subject],
    kind: str,
    seed: int,
    verdict: Verdict,
    *,
    begins: Callable[[int], None] = lambda number: None,
) -> None:
    """Launches each case once, with every input at a multiple of 16 bytes and of no more: a kernel
    whose vectors need more would crash, or be wrong, on a view that a package serves. Other checks
    have inputs at multiples of 256 bytes.

    Adds one check for all: the nearest to its limit. The first failure ends the launches and goes
    into the verdict. `begins` is called with the number of the next launch, from 1 on.
    """
    if not (subjects and verdict.passed):
        return
    made = Verdict()
    for number, subject in enumerate(subjects, 1):
        begins(number)
        gate.examine_once([subject], kind, seed, made, is_kept=True)
        if made.kind is not None:
            failed = made.checks[-1]
            detail = f"{failed.detail} ({WORDS})"
            verdict.fail(made.kind, msgspec.structs.replace(failed, detail=detail))
            return
    name = f"{len(subjects)} cases, {WORDS}"
    nearest = nearest_limit(made.checks)
    verdict.checks.append(msgspec.structs.replace(nearest, case=name, inputs=ALL_KINDS))
