"""Measures the worth of each part of `evolution`: leaves out one at a time, on recorded spaces.

    python benchmarks/lab/search_ablation.py [FOLDER] [--repeats 10] [--evaluations 120]
        [--lookahead 0] [--parts NAME,NAME,…] [-o FILE]

Scores (`evotune.runs.replay`) are over the first evaluations only, where the parts differ
most, and are paired by seed. The last column is the lead of the whole search.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from evotune.backends.base.recorded import read_recorded_space
from evotune.run_options import SearchSettings
from evotune.runs.replay import PerformanceScale, replay
from evotune.search import evolution, gaussian_process

FOLDER = Path(__file__).parents[2] / "shared" / "recorded_spaces"
SMALLEST_BUDGET = 25


def _any_order(means: Any, deviations: Any, best: float) -> Any:
    return np.random.default_rng(abs(hash((best, len(means))))).random(len(means))


def _kernel_as_it_is(start: Any, *others: Any) -> Any:
    return start, 0.0


def _normal(means: Any, deviations: Any, best: float) -> Any:
    """The ln of the expected improvement under the model's own normal distribution."""
    z = (means - best) / deviations
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    tail = np.array([0.5 * math.erfc(x) for x in (-z / math.sqrt(2)).tolist()])
    return np.log(np.maximum(deviations * (density + z * tail), 1e-300)) + 1e-6 * z


def _certain(self: Any, *others: Any) -> None:
    self.chances = np.ones(len(others[-1]))


PARTS: Mapping[str, Mapping[str, tuple[Any, Any]]] = {
    "whole": {},
    "no model of times": {"log_expected_improvement": (evolution, _any_order)},
    "no model of failures": {
        "__init__": (evolution.Feasibility, _certain),
        "fail": (evolution.Feasibility, lambda self, row: None),
    },
    "no fit of the kernels": {"fit_kernel": (evolution, _kernel_as_it_is)},
    "fitness as it is": {
        "of_the_slower_half": (gaussian_process.Warp, lambda fitness: gaussian_process.Warp())
    },
    "normal distribution": {"log_expected_improvement": (evolution, _normal)},
    "neither of these two": {
        "of_the_slower_half": (gaussian_process.Warp, lambda fitness: gaussian_process.Warp()),
        "log_expected_improvement": (evolution, _normal),
    },
    "smooth axes only": {
        "_CATEGORIES": (gaussian_process, (1e-3, 1e-3)),
        "_TYPICAL_CATEGORY": (gaussian_process, -6.9),
    },
    "first proposals as they come": {"_BLIND": (evolution, 1)},
    "no neighbours": {
        "_NEIGHBOURHOODS": (evolution, 0),
        "_SECOND_NEIGHBOURHOODS": (evolution, 0),
    },
    "no children": {"_CHILDREN": (evolution, 0)},
    "no immigrants": {"_IMMIGRANTS": (evolution, 0)},
    "neither neighbours nor children": {
        "_NEIGHBOURHOODS": (evolution, 0),
        "_SECOND_NEIGHBOURHOODS": (evolution, 0),
        "_CHILDREN": (evolution, 0),
    },
}


@contextlib.contextmanager
def without(part: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, (place, value) in PARTS[part].items():
            stack.enter_context(mock.patch.object(place, name, value))
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--evaluations", type=int, default=120)
    parser.add_argument("--lookahead", type=int, default=0)
    parser.add_argument("--parts", default=",".join(PARTS), help="besides the whole")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    parts = dict.fromkeys(["whole", *options.parts.split(",")])
    scores: dict[str, dict[str, list[float]]] = {part: {} for part in parts}
    for path in sorted(options.folder.glob("*/*.json.gz")):
        recording = read_recorded_space(path)
        scale = PerformanceScale(recording.times_ms.values())
        if scale.budget < SMALLEST_BUDGET:
            continue
        count = min(scale.budget, options.evaluations)
        name = f"{path.parent.name} {path.name.partition('.')[0]}"
        settings = [
            SearchSettings(seed=seed, lookahead=options.lookahead)
            for seed in range(options.repeats)
        ]
        for part, found in scores.items():
            with without(part):
                runs = [replay(recording, "evolution", each, count, 0) for each in settings]
                found[name] = [scale.score([e.time_ms for e in run], count) for run in runs]
            print(name, part, f"{statistics.fmean(found[name]):.3f}", flush=True)
    print(table(scores))
    if options.output:
        document = {
            "date": datetime.now(UTC).date().isoformat(),
            "command": f"python benchmarks/lab/search_ablation.py --repeats {options.repeats}"
            f" --evaluations {options.evaluations} --lookahead {options.lookahead}"
            + f' --parts "{options.parts}"'
            * (list(parts) != list(PARTS)),
            "scores": {
                part: {name: [round(s, 4) for s in runs] for name, runs in found.items()}
                for part, found in scores.items()
            },
        }
        options.output.write_text(json.dumps(document) + "\n")


def table(scores: Mapping[str, Mapping[str, list[float]]]) -> str:
    lines = ["| | mean score | the whole leads by |", "|---|---|---|"]
    whole = scores["whole"]
    for part, found in scores.items():
        mean = statistics.fmean(statistics.fmean(runs) for runs in found.values())
        leads = [
            [own - other for own, other in zip(whole[name], runs, strict=True)]
            for name, runs in found.items()
        ]
        lead = statistics.fmean(statistics.fmean(group) for group in leads)
        error = math.sqrt(math.fsum(statistics.variance(g) / len(g) for g in leads)) / len(leads)
        lines.append(f"| {part} | {mean:.3f} | {lead:+.3f} ± {error:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
