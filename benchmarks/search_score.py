"""Measures the published performance score of evotune's strategies and of its peers' strategies.

    python benchmarks/search_score.py [FOLDER] [--repeats 30] [--strategies NAME,NAME,…]
    python benchmarks/search_score.py --table benchmarks/results/search_score.json

FOLDER holds the recorded spaces (`*/*.json.gz`, default ../shared/recorded_spaces). The peers need
the `bench` extra. Runs are paired: repeat i has seed i for every strategy. Runs that the results
hold already are not made again. So an interrupted measurement can be continued, and a change of one
strategy needs only its own runs (delete them, or give --again with its name in --strategies).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import statistics
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from lab.search_peers import FOLDER, PEERS, Times, peer_runs

from evotune.backends.base.recorded import RecordedSpace, read_recorded_space
from evotune.run_options import SearchSettings
from evotune.runs.replay import PerformanceScale, replay

RESULTS = Path(__file__).parent / "results" / "search_score.json"
# evolution@16 has 16 proposals in flight, as a run on a device has.
OWN = ("evolution", "evolution@16", "local", "random")
SMALLEST_BUDGET = 25
BUDGETS = (25, 50, 100, 200)  # also scored, besides the space's own budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--strategies", default=",".join((*OWN, *PEERS)))
    parser.add_argument("--again", action="store_true", help="drop what is known of them first")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", type=Path, help="print the table of these results")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return
    names = options.strategies.split(",")
    results = _load(options.results)
    if options.again:
        for space in results["spaces"].values():
            for name in names:
                space["strategies"].pop(name, None)
    for _ in _measure(results, options.folder, names, options.repeats):
        results["environment"] = _environment()
        results["command"] = "python benchmarks/search_score.py"
        options.results.write_text(_compact(results))
    print(table(results))


def _load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {"spaces": {}}


def _measure(
    results: dict[str, Any], folder: Path, names: Sequence[str], repeats: int
) -> Iterator[None]:
    """Yields after each run, so that the caller can save it: a long measurement may be stopped."""
    for path in sorted(folder.glob("*/*.json.gz")):
        recording = read_recorded_space(path)
        scale = PerformanceScale(recording.times_ms.values())
        space = results["spaces"].setdefault(
            f"{path.parent.name} {path.name.partition('.')[0]}",
            {
                "configurations": len(recording.space),
                "valid": len(recording.times_ms),
                "budget": scale.budget,
                "strategies": {},
            },
        )
        for name in names:
            runs = space["strategies"].setdefault(name, [])
            for times in _runs(name, recording, scale.budget, range(len(runs), repeats)):
                runs.append(_scored(times, scale))
                yield


def _runs(name: str, recording: RecordedSpace, evaluations: int, seeds: range) -> Iterator[Times]:
    if name in PEERS:
        yield from peer_runs(name, recording, evaluations, seeds)
        return
    strategy, _, lookahead = name.partition("@")
    for seed in seeds:
        settings = SearchSettings(seed=seed, lookahead=int(lookahead or 0))
        run = replay(recording, strategy, settings, evaluations, seed)
        yield [evaluation.time_ms for evaluation in run]


def _scored(times: Times, scale: PerformanceScale) -> dict[str, Any]:
    """The figures of a run.

    - scores: the score by budget, the space's own budget last
    - below_random: whether the run ends below random search
    - failed: the number of failed evaluations
    - best_over_optimum: the best time over the optimum
    """
    budgets = [*(b for b in BUDGETS if b < scale.budget), scale.budget]
    return {
        "scores": {str(budget): round(scale.score(times, budget), 4) for budget in budgets},
        "below_random": scale.ends_below_random(times),
        "failed": sum(time is None for time in times),
        "best_over_optimum": round(
            min((t for t in times if t is not None), default=math.inf) / scale.optimum, 5
        ),
    }


def table(results: Mapping[str, Any]) -> str:
    """Two tables: scores with standard errors, for each space and over the spaces with a budget of
    at least 25; and the lead of `evolution` on each space."""
    spaces = results["spaces"]
    judged = [name for name, space in spaces.items() if space["budget"] >= SMALLEST_BUDGET]
    strategies = list(dict.fromkeys(s for space in spaces.values() for s in space["strategies"]))
    lines = [
        "| strategy | repeats | mean | evolution leads by | end below random | "
        + " | ".join(f"{name} ({spaces[name]['budget']})" for name in spaces)
        + " |",
        "|---|" + "---|" * (4 + len(spaces)),
    ]
    leads = ["| evolution leads by | " + " | ".join(spaces) + " |", "|---|" + "---|" * len(spaces)]
    for strategy in strategies:
        if strategy != "evolution":
            cells = [strategy, *(_lead(spaces, [name], strategy) for name in spaces)]
            leads.append("| " + " | ".join(cells) + " |")
        own = {name: _scores(spaces[name], strategy) for name in spaces}
        if not all(own[name] for name in judged):
            continue
        below = [r["below_random"] for name in judged for r in spaces[name]["strategies"][strategy]]
        cells = [
            strategy,
            str(min(len(own[name]) for name in judged)),
            _text(*_mean_of_means([own[name] for name in judged])),
            "" if strategy == "evolution" else _lead(spaces, judged, strategy),
            f"{statistics.fmean(below):.1%}",
            *(_text(*_mean_of_means([own[name]])) if own[name] else "" for name in spaces),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *leads])


def _scores(space: Mapping[str, Any], strategy: str) -> list[float]:
    return [list(r["scores"].values())[-1] for r in space["strategies"].get(strategy, ())]


def _lead(spaces: Mapping[str, Any], judged: Sequence[str], strategy: str) -> str:
    """The lead of evolution, paired by seed; also in standard errors of the paired difference."""
    differences = []
    for name in judged:
        pairs = zip(
            _scores(spaces[name], "evolution"), _scores(spaces[name], strategy), strict=False
        )
        differences.append([own - other for own, other in pairs])
    if not all(len(d) > 1 for d in differences):
        return ""
    mean, error = _mean_of_means(differences)
    return f"{_text(mean, error)} ({mean / error:.1f} SE)" if error else _text(mean, error)


def _mean_of_means(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The mean of the groups' means, and its standard error."""
    mean = statistics.fmean(statistics.fmean(group) for group in groups)
    variances = [statistics.variance(g) / len(g) if len(g) > 1 else 0.0 for g in groups]
    return mean, math.sqrt(math.fsum(variances)) / len(groups)


def _text(mean: float, error: float) -> str:
    return f"{mean:.3f} ± {error:.3f}"


def _environment() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("evotune", "numpy", "deap", "kernel_tuner", "optuna"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {**versions, "date": datetime.now(UTC).date().isoformat()}


def _compact(results: Mapping[str, Any]) -> str:
    """The results as JSON, with one run a line."""
    text = json.dumps(results, indent=1)
    run = r'\{\s+"scores": \{[^}]*\},[^}]*\}'
    return re.sub(run, lambda found: " ".join(found.group().split()), text) + "\n"


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    sys.exit(main())
