"""Rank correlation of predicted and measured single changes, on recorded trials: no device needed.

    python benchmarks/lab/explain_predictions.py [--trials 150] [-o FILE]

`results/attention_h200.t4.json.gz` holds 8,904 configurations of attention-mma, measured on an
H200. Ten parts of `--trials` trials each are taken for runs. In each part the model predicts what
every other measured configuration that differs from the best one in one parameter brings, with the
figures of launches and without them. Differences of the measured speedups are the truth.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from explain_trials import rank_correlation
from tuning import ROOT

from evotune.explain.explaining import launch_figures
from evotune.explain.predicting import LaunchFigures, Predictor, table_of
from evotune.runs.evidence_gathering import Access
from evotune.runs.reopening import ReopenedRun
from evotune.runs.setup import load_kernel_setup
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

RECORDED = Path(__file__).parents[1] / "results" / "attention_h200.t4.json.gz"
PARTS = 10


def recorded_trials() -> list[Trial]:
    results = json.loads(gzip.decompress(RECORDED.read_bytes()))["results"]
    found = []
    for number, result in enumerate(sorted(results, key=lambda item: item["timestamp"])):
        figures = {item["name"]: item["value"] for item in result["measurements"]}
        kind = OutcomeKind(figures["outcome"])
        fitness = math.log(figures["speedup"]) if kind is OutcomeKind.OK else None
        configuration = Configuration(result["configuration"])
        found.append(Trial(number, configuration, Outcome(kind, fitness)))
    return found


def figures_of_launches() -> Callable[[Configuration], LaunchFigures]:
    setup = load_kernel_setup(ROOT / "search_spaces/attention_mma.yaml", "h200", compile_only=True)
    access = Access(ReopenedRun(None, setup, {}, {}), "no device is needed")  # type: ignore[arg-type]
    return lambda configuration: launch_figures(access, configuration)


def part_pairs(
    trials: list[Trial], part: list[Trial], known: Callable[[Configuration], LaunchFigures] | None
) -> list[tuple[float, float]]:
    """(predicted, measured) of each single change of the part's best trial."""
    truth = {t.configuration: t.outcome.fitness for t in trials if t.outcome.fitness is not None}
    best = max(part, key=lambda trial: trial.outcome.fitness or -math.inf).configuration
    near = [c for c in truth if sum(c[name] != best[name] for name in c) == 1]
    predicted = Predictor(table_of(part), known).changes(best, near)
    return [
        (difference.mean, truth[one] - truth[best])
        for difference, one in zip(predicted, near, strict=True)
        if difference is not None
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=150)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    trials, known = recorded_trials(), figures_of_launches()
    step = len(trials) // PARTS
    parts = [trials[at * step : at * step + options.trials] for at in range(PARTS)]
    found: dict[str, Any] = {"trials": options.trials}
    for name, figures in (("trials alone", None), ("with figures of launches", known)):
        each = [part_pairs(trials, part, figures) for part in parts]
        pooled = [pair for pairs in each for pair in pairs]
        ranks = [rank for pairs in each if (rank := rank_correlation(pairs)) is not None]
        found[name] = {
            "changes": len(pooled),
            "rank_correlation": rank_correlation(pooled),
            "median_of_parts": statistics.median(ranks),
        }
        print(f"{options.trials} trials, {name}: {found[name]}", flush=True)
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
