"""Judges each CUDA kernel of the red team again without the check that refused it.

    python -m tests.red_team.leave_one_out -o FILE [--classes shapes,races] [--minutes 5]
        [--cache FOLDER] [--device cuda:0]

A kernel that then passes is caught by that check alone. Checks that every kernel needs (the
comparison on normal inputs of the timed cases, intact guards, a device's faults) are not left out.
FILE (JSON) has a record for each kernel: the check, and the check that refused it in its place, ""
if none did.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from evotune.trial import Check, Outcome
from evotune.verify.champion_launches import CASE as DISTURBED
from evotune.verify.champion_launches import WORDS as ALIGNED
from evotune.workers.executor import RANDOM, TIMED

from .cuda_expected import CLASSES
from .cuda_pipeline import CudaPipeline, Judgement

BASIC = "basic"
"""Stands for the checks that cannot be left out."""
_NAMES = {
    "watched": "watch",
    "altered in place": "alter",
    "altered from the start": "start",
    "changing": "reuse",
    "replayed": "replay",
}
_SEED = 0


def refusing_check(outcome: Outcome, roles: dict[str, str]) -> str:
    """The name by which the executor leaves the check out; `roles` are those of the cases."""
    failed = [check for check in outcome.checks if check.status == "failed"]
    return _name(failed[-1], roles) if failed else BASIC


def _name(check: Check, roles: dict[str, str]) -> str:
    how = next((how for how in _NAMES if check.inputs.startswith(how)), "")
    role = roles.get(check.case, RANDOM)  # random cases differ by trial: `roles` lacks them
    kind = BASIC if check.inputs == "normal" else check.inputs
    alternatives = {
        "sanitizer": "sanitizer" in check.inputs,
        "perturbation": check.case == DISTURBED,
        "alignment": ALIGNED in check.detail,
        _NAMES.get(how, ""): bool(how),
        RANDOM: role == RANDOM,
        "second launch": "differ between two equal launches" in check.detail,
        role: role != TIMED,
        kind: True,
    }
    return next(name for name, holds in alternatives.items() if holds)


class Campaign:
    """One class: all of its kernels, then each without its check."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self._name = name
        self._arguments = arguments
        self._behaviours = list(CLASSES[name].expected)
        self._roles: dict[str, str] = {}

    def judge(self, behaviours: list[str], without: str = "") -> list[Judgement]:
        with tempfile.TemporaryDirectory() as folder:
            pipeline = CudaPipeline(
                Path(folder),
                CLASSES[self._name].space,
                device=self._arguments.device,
                without=frozenset([without] if without else []),
                cache=self._arguments.cache,
            )
            try:
                self._roles = pipeline.roles(behaviours[0])
                return list(pipeline.judge(behaviours, _SEED))
            finally:
                pipeline.close()

    def records(self, deadline: float) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        groups: dict[str, list[str]] = defaultdict(list)
        for each in self.judge(self._behaviours):
            check = refusing_check(each.outcome, self._roles) if each.stage else ""
            record = {"class": self._name, "behaviour": each.behaviour, "stage": each.stage}
            found.append({**record, "check": check, "reason": each.outcome.reason})
            if check not in ("", BASIC):
                groups[check].append(each.behaviour)
        for check, behaviours in groups.items():
            if time.monotonic() > deadline:
                break
            again = {each.behaviour: each for each in self.judge(behaviours, check)}
            for record in found:
                if other := again.get(record["behaviour"]):
                    record["without_it_stage"] = other.stage
                    record["without_it"] = (
                        refusing_check(other.outcome, self._roles) if other.stage else ""
                    )
                    record["without_it_reason"] = other.outcome.reason
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--classes", default=",".join(CLASSES), help="of " + ", ".join(CLASSES))
    parser.add_argument("--cache", type=Path, help="keep what was compiled here, for another call")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    records: list[dict[str, str]] = []
    for name in arguments.classes.split(","):
        if time.monotonic() < deadline:
            records += Campaign(name, arguments).records(deadline)
            arguments.output.write_text(json.dumps(records, indent=1) + "\n")
    alone = [each for each in records if each.get("without_it_stage") == ""]
    for each in alone:
        print(f"{each['class']} {each['behaviour']}: {each['check']} alone")
    print(f"{len(records)} kernels, {len(alone)} caught by one check alone")


if __name__ == "__main__":
    main()
