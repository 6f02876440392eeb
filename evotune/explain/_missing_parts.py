"""The parts of an explanation that are missing, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evotune.backends.base.gathered import GatheredEvidence
from evotune.explain._limiter import PTX
from evotune.explain._machine_differences import Machine
from evotune.report.data import RunData
from evotune.trial import Json
from evotune.util.commands import run_command
from evotune.util.words import counted

_PARTS: Final = {"static": "machine code"}  # of evidence, in the words of the documentation


def missing_parts(
    data: RunData,
    gathered: GatheredEvidence | None,
    ablation: Mapping[str, Json] | None,
    other: Machine | None,
    *,
    begun: bool = False,
) -> list[str]:
    """`begun`: the ablation has not ended."""
    found = []
    if data.recorded:
        return ["a recorded run has no kernel: no counters, no machine code, no ablation"]
    if gathered is None:
        found.append("counters and machine code of this trial: not measured yet")
    else:
        found += [
            f"{_PARTS.get(part, part)}: {reason}"
            for part, reason in gathered.evidence.unavailable.items()
        ]
        launches = gathered.evidence.launches
        if any(one.static is not None and one.static.source == PTX for one in launches):
            found.append(
                "machine code: PTX was read in its place, since no disassembler read it: "
                "pip install 'evotune[explain]'"
            )
    if ablation is None:
        found.append(
            "the worth of its choices, measured in turn with this trial: not measured yet; the "
            "figures shown come from the run's trials and the search's model"
        )
    elif begun:
        count = ablation.get("left")
        left = counted(count, "change") if count else "some changes"
        found.append(
            f"the worth of all its choices: {left} not measured yet; this goes on with them: "
            f"{run_command('explain', data.path)}"
        )
    if other is not None and other.gathered is None:
        found.append(f"counters and machine code of {other.name}: not measured yet")
    elif other is not None and other.gathered is not None:
        mine = gathered.evidence.unavailable if gathered is not None else {}
        for part, reason in other.gathered.evidence.unavailable.items():
            if mine.get(part) != reason:
                found.append(f"{_PARTS.get(part, part)} of {other.name}: {reason}")
    if data.sample is not None:
        found.append(
            f"the figures over the space rest on {len(data.trials):,} of {data.totals.trials:,} "
            f"trials: the best, and one in {data.sample.every} of the others"
        )
    return found
