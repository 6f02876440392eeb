"""Sends the red team's CUDA kernels through search and confirmation in several seeds.

    python -m tests.red_team.run_cuda -o FILE [--seeds 20] [--minutes 10] [--classes shapes,races]
        [--without CHECK ...] [--search-only] [--cache FOLDER] [--behaviours a,b]

Each class has one worker process, and compilers beside it. FILE (JSON) is written after each class
and seed. A second call goes on where the first one ended: it does not repeat the records that FILE
has, and does the work that did not fit into `--minutes`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .cuda_expected import CLASSES, CheatClass, Expected
from .cuda_pipeline import CudaPipeline, Judgement
from .test_cuda import EXPECTED as FIRST
from .unusual_cuda import UNUSUAL, values_of

Record = dict[str, Any]

ALL = {
    "first": CheatClass(
        "cheats_cuda.yaml", {name: Expected(*words) for name, words in FIRST.items()}
    ),
    **CLASSES,
    **{space.removesuffix("_cuda.yaml"): CheatClass(space, {}) for space in UNUSUAL},
}
"""The unusual kernels are right, so nothing is expected to refuse them."""


class Records:
    """The contents of FILE: one record for each class, behaviour and seed."""

    def __init__(self, path: Path, without: frozenset[str]) -> None:
        self._path = path
        self._records: list[Record] = json.loads(path.read_text()) if path.exists() else []
        self._without = sorted(without)

    def missing(self, cheat_class: str, behaviours: list[str], seed: int) -> list[str]:
        done = {
            each["behaviour"]
            for each in self._records
            if (each["class"], each["seed"]) == (cheat_class, seed)
            and each["without"] == self._without
        }
        return [name for name in behaviours if name not in done]

    def add(self, cheat_class: str, found: Judgement) -> Record:
        expected = ALL[cheat_class].expected.get(found.behaviour)
        wanted = found.stage == "" if expected is None else expected.fits(found)
        record: Record = {
            "class": cheat_class,
            "behaviour": found.behaviour,
            "seed": found.seed,
            "without": self._without,
            "stage": found.stage,
            "kind": found.outcome.kind.value,
            "reason": found.outcome.reason,
            "seconds": round(found.seconds, 3),
            "stage_s": {name: round(value, 4) for name, value in found.outcome.stage_s.items()},
            "speedups": [round(each.speedup, 4) for each in found.outcome.measurements],
            "flags": list(found.outcome.flags),
            "as_expected": wanted,
        }
        self._records.append(record)
        return record

    def write(self) -> None:
        """Writes all records or none: a call that is cut off leaves the file as it was."""
        beside = self._path.with_suffix(".part")
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(self._records, indent=1) + "\n")
        os.replace(beside, self._path)

    def summary(self) -> str:
        lines = []
        for cheat_class in ALL:
            mine = [each for each in self._records if each["class"] == cheat_class]
            if not mine:
                continue
            stages = Counter(each["stage"] or "passed" for each in mine)
            counts = ", ".join(f"{count} {stage}" for stage, count in sorted(stages.items()))
            odd = sorted({each["behaviour"] for each in mine if not each["as_expected"]})
            lines.append(f"{cheat_class}: {counts}; not as expected: {', '.join(odd) or 'none'}")
        return "\n".join(lines)


def run_class(
    name: str, seeds: int, records: Records, deadline: float, arguments: argparse.Namespace
) -> None:
    _, behaviours = values_of(ALL[name].space)
    wanted = arguments.behaviours.split(",") if arguments.behaviours else behaviours
    behaviours = [each for each in behaviours if each in wanted]
    all_seeds = range(arguments.first_seed, arguments.first_seed + seeds)
    missing_any = any(records.missing(name, behaviours, seed) for seed in all_seeds)
    if not missing_any or time.monotonic() > deadline:
        return
    with tempfile.TemporaryDirectory() as folder:
        without = frozenset(arguments.without)
        pipeline = CudaPipeline(
            Path(folder),
            ALL[name].space,
            device=arguments.device,
            without=without,
            cache=arguments.cache,
        )
        try:
            for seed in all_seeds:
                missing = records.missing(name, behaviours, seed)
                judged = pipeline.judge(missing, seed, confirm=not arguments.search_only)
                for found in judged:
                    record = records.add(name, found)
                    if not record["as_expected"]:
                        where = record["stage"] or "passed"
                        print(name, found.behaviour, seed, where, record["reason"], flush=True)
                    if time.monotonic() > deadline:
                        return
                records.write()
        finally:
            records.write()
            pipeline.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0, help="where --seeds begin")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--classes", default=",".join(ALL), help="of " + ", ".join(ALL))
    parser.add_argument("--without", action="append", default=[], metavar="CHECK")
    parser.add_argument("--search-only", action="store_true", help="confirm nothing")
    parser.add_argument("--cache", type=Path, help="keep what was compiled here, for another call")
    parser.add_argument(
        "--behaviours", help="only these, for instance those that an earlier call let pass"
    )
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    records = Records(arguments.output, frozenset(arguments.without))
    for name in arguments.classes.split(","):
        run_class(name, arguments.seeds, records, deadline, arguments)
    print(records.summary())


if __name__ == "__main__":
    main()
