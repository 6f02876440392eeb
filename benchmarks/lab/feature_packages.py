"""Tunes the cases of feature_models.py, and exports a package for each problem and dtype.

    python benchmarks/lab/feature_packages.py FOLDER [--items NAME...] [--dtypes float16]
        [--trials 60]
        [--minutes M] [--devices cuda:0] [--tiny] [-o FILE]

Each case of feature_cases.py has a run of its own. Its baseline is SDPA, which serves a program's
other calls. A run of FOLDER that is finished is kept, so the same command goes on where it was
stopped; nothing begins when `--minutes` are over. Prints a JSON record with the command that
measures the models. Exit code 1 where a case is left or a package is missing. `--tiny` makes
packages for the tiny models on the CPU with made up times, to try both commands without a GPU. It
needs the repository's tests.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feature_cases import Case, cases
from model_packages import Commands, Search, exported, searched

_PROBLEMS = {
    "attention_varlen": "feature_varlen",
    "attention_paged": "feature_paged",
}


@dataclass(frozen=True)
class FeatureSearch(Search):
    """A run for one case with any variant."""

    variant: dict[str, Any] = field(default_factory=dict)

    def problem(self, dtype: str) -> dict[str, Any]:
        return {
            "dtype": dtype,
            "shapes": [self.shape],
            "variants": [self.variant],
            "held_out": [],
        }


def search_of(case: Case, number: int, tiny: bool) -> FeatureSearch:
    return FeatureSearch(
        name=f"{number}_{case.item}",
        space=case.space_on_cpu if tiny else case.space,
        shape=case.shape,
        causal=bool(case.variant["causal"]),
        variant=case.variant,
        start={} if tiny else case.start,
        baseline="" if tiny else "sdpa:best",
    )


def made(options: argparse.Namespace, commands: Commands) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    packages: dict[str, str] = {}
    for dtype in options.dtypes:
        of: dict[str, list[str]] = {}
        for number, case in enumerate(cases(options.tiny)):
            if case.item not in options.items:
                continue
            search = search_of(case, number, options.tiny)
            runs.append(searched(options, search, dtype, options.devices[0], commands))
            of.setdefault(_PROBLEMS.get(case.space, "feature_attention"), []).append(
                runs[-1]["run"]
            )
        for name, found in of.items():
            packages[f"{name}_{dtype}"] = exported(
                options.folder / dtype / name, f"{name}_{dtype}", found
            )
    measure = ["python", "benchmarks/lab/feature_models.py", *filter(None, packages.values())]
    return {
        "runs": runs,
        "left": [f"{each['case']}_{each['dtype']}" for each in runs if not each["run"]],
        "packages": packages,
        "measure": " ".join([*measure, *(["--tiny"] if options.tiny else [])]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    items = list(dict.fromkeys(case.item for case in cases(tiny=False)))
    parser.add_argument("--items", nargs="+", choices=items, default=items, help="only for these")
    parser.add_argument("--dtypes", nargs="+", default=["float16"])
    parser.add_argument("--trials", type=int, default=60, help="of each run")
    parser.add_argument("--devices", nargs=1, default=["cuda:0"])
    parser.add_argument("--minutes", type=float, default=math.inf, help="then it ends")
    parser.add_argument("--tiny", action="store_true", help="packages for the CPU, not measured")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.tiny:
        options.dtypes, options.devices = ["float32"], ["cpu"]
    commands = Commands(options.minutes)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, commands.stop)
    record = made(options, commands)
    text = json.dumps(record, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return 0 if all(record["packages"].values()) and not record["left"] else 1


if __name__ == "__main__":
    sys.exit(main())
