"""Compares `evolution` with random search on made-up spaces, each hard in a different way.

    python benchmarks/lab/search_holdout.py [--repeats 5] [--instances 2] [--evaluations 150]
        [--lookahead 0] [-o FILE]

The spaces are unlike the recorded ones, and show how the search does on such spaces. They had a
veto (a change of the search that lost score on them was not taken, see "The search" in
docs/design.md), but nothing was fitted to them. Each instance of a kind is drawn anew, from the
instance's number. The score is that of `search_score.py`, over `--evaluations` at most: 0 is the
expected result of random search. `ends below random` is the share of runs whose best is worse than
that at the end. `random` runs too, for comparison: its own score is below 0 wherever times have a
long tail.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evotune.backends.base.recorded import RecordedSpace
from evotune.run_options import SearchSettings
from evotune.runs.replay import PerformanceScale, replay
from evotune.space.search_space import (
    Boolean,
    Categorical,
    ExplicitSpace,
    OrderedParameter,
    Parameter,
)
from evotune.trial import Configuration

Floats: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]  # configurations x parameters
Landscape: TypeAlias = tuple[Sequence[Parameter], Indices, Floats]  # ln of times; NaN: it fails

_STRATEGIES = ("evolution", "random")


def ordered(*counts: int) -> list[Parameter]:
    return [OrderedParameter(f"P{i}", tuple(range(1, n + 1))) for i, n in enumerate(counts)]


def everything(parameters: Sequence[Parameter]) -> Indices:
    return np.array(list(itertools.product(*(range(p.cardinality) for p in parameters))))


def effects(rows: Indices, rng: np.random.Generator, smooth: bool = True) -> Floats:
    """A main effect of each parameter (a parabola if smooth) and an interaction of each pair."""
    total = np.zeros(len(rows))
    count = rows.shape[1]
    cards = rows.max(axis=0) + 1
    places = rows / np.maximum(cards - 1, 1)
    for i in range(count):
        if smooth:
            total += rng.gamma(1.0) * (places[:, i] - rng.random()) ** 2
        else:
            total += rng.normal(0, 0.5, cards[i])[rows[:, i]]
    for i, j in itertools.combinations(range(count), 2):
        if smooth:
            total += rng.normal(0, 0.3) * places[:, i] * places[:, j]
        else:
            total += rng.normal(0, 0.3, (cards[i], cards[j]))[rows[:, i], rows[:, j]]
    return total


def rugged(rng: np.random.Generator) -> Landscape:
    """A smooth trend plus noise of the same size. The noise is fixed for each configuration."""
    parameters = ordered(6, 5, 4, 6, 5)
    rows = everything(parameters)
    times = effects(rows, rng)
    return parameters, rows, times + rng.normal(0, times.std(), len(rows))


def failing(rng: np.random.Generator, share: float) -> Landscape:
    """A share of the configurations fails: those beyond a plane. The fast ones lie close to it."""
    parameters = ordered(6, 5, 4, 6, 5)
    rows = everything(parameters)
    places = rows / (rows.max(axis=0))
    demand = places @ rng.random(rows.shape[1])
    times = effects(rows, rng) - demand
    times[demand > np.quantile(demand, 1 - share)] = np.nan
    return parameters, rows, times


def scattered_failures(rng: np.random.Generator) -> Landscape:
    """Half of the configurations fail, at random: there is nothing to learn from."""
    parameters = ordered(6, 5, 4, 6, 5)
    rows = everything(parameters)
    times = effects(rows, rng)
    times[rng.random(len(rows)) < 0.5] = np.nan
    return parameters, rows, times


def irrelevant(rng: np.random.Generator) -> Landscape:
    """Three parameters change the time, nine change nothing."""
    parameters = [*ordered(8, 8, 8), *(Boolean(f"B{i}") for i in range(9))]
    rows = everything(parameters)
    rows = rows[rng.choice(len(rows), 20_000, replace=False)]
    return parameters, rows, effects(rows[:, :3], rng)


def booleans(rng: np.random.Generator) -> Landscape:
    """Thirteen switches that interact in pairs."""
    parameters = [Boolean(f"B{i}") for i in range(13)]
    rows = everything(parameters)
    return parameters, rows, effects(rows, rng, smooth=False)


def unordered(rng: np.random.Generator) -> Landscape:
    """Four parameters of twelve words each, without an order."""
    parameters = [Categorical(f"C{i}", tuple(f"v{k}" for k in range(12))) for i in range(4)]
    rows = everything(parameters)
    return parameters, rows, effects(rows, rng, smooth=False)


def large(rng: np.random.Generator) -> Landscape:
    """Fifty thousand configurations of a billion combinations: hardly any has a neighbour."""
    parameters = ordered(*(8,) * 10)
    rows = rng.integers(0, 8, (50_000, 10))
    return parameters, np.unique(rows, axis=0), effects(np.unique(rows, axis=0), rng)


def constrained(rng: np.random.Generator) -> Landscape:
    """Few of the combinations are valid: the product of two parameters must be divisible by the
    product of two others."""
    parameters = ordered(12, 12, 12, 12, 4)
    rows = everything(parameters)
    values = rows + 1
    rows = rows[(values[:, 0] * values[:, 1]) % (values[:, 2] * values[:, 3]) == 0]
    return parameters, rows, effects(rows, rng)


def plateaus(rng: np.random.Generator) -> Landscape:
    """Only six different times."""
    parameters = ordered(6, 5, 4, 6, 5)
    rows = everything(parameters)
    times = effects(rows, rng)
    return parameters, rows, np.digitize(times, np.quantile(times, [0.01, 0.1, 0.3, 0.5, 0.8])) / 4


def long_tail(rng: np.random.Generator) -> Landscape:
    """Times over five orders of magnitude."""
    parameters = ordered(6, 5, 4, 6, 5)
    rows = everything(parameters)
    times = effects(rows, rng)
    return parameters, rows, 2.5 * (times - times.mean()) / times.std()


def needles(rng: np.random.Generator) -> Landscape:
    """Pure noise: learning cannot help here, and it must not hurt."""
    parameters = ordered(6, 5, 4, 6, 5)
    rows = everything(parameters)
    return parameters, rows, rng.gamma(2.0, 0.3, len(rows))


KINDS: Mapping[str, Callable[[np.random.Generator], Landscape]] = {
    "rugged": rugged,
    "half fails, behind a plane": lambda rng: failing(rng, 0.5),
    "90% fails, behind a plane": lambda rng: failing(rng, 0.9),
    "half fails, anywhere": scattered_failures,
    "9 of 12 parameters irrelevant": irrelevant,
    "13 switches": booleans,
    "words without order": unordered,
    "50,000 of a billion": large,
    "strongly constrained": constrained,
    "six different times": plateaus,
    "five orders of magnitude": long_tail,
    "pure noise": needles,
}


def recording(kind: str, instance: int) -> RecordedSpace:
    parameters, rows, logs = KINDS[kind](np.random.default_rng([instance, len(kind)]))
    domains = [(p.name, p.values) for p in parameters]
    members = [
        Configuration({name: values[i] for (name, values), i in zip(domains, row, strict=True)})
        for row in rows.tolist()
    ]
    outcomes = list(zip(members, logs.tolist(), strict=True))
    return RecordedSpace(
        kind,
        "made up",
        ExplicitSpace(parameters, members),
        {c: math.exp(log) for c, log in outcomes if not math.isnan(log)},
        {c: "RuntimeFailedConfig" for c, log in outcomes if math.isnan(log)},
    )


def runs(options: argparse.Namespace, kind: str) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """Yields (strategy, instance, seed, results) for each run."""
    for instance in range(options.instances):
        space = recording(kind, instance)
        scale = PerformanceScale(space.times_ms.values())
        for strategy, seed in itertools.product(_STRATEGIES, range(options.repeats)):
            settings = SearchSettings(seed=seed, lookahead=options.lookahead)
            run = replay(space, strategy, settings, options.evaluations, seed)
            times = [evaluation.time_ms for evaluation in run]
            yield (
                strategy,
                instance,
                seed,
                {
                    "score": round(scale.score(times, options.evaluations), 4),
                    "below_random": scale.ends_below_random(times, options.evaluations),
                    "failed": sum(time is None for time in times),
                },
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--evaluations", type=int, default=150)
    parser.add_argument("--lookahead", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help="by a part of the name")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for kind in KINDS:
        if not any(part in kind for part in options.kinds.split(",")):
            continue
        found[kind] = {strategy: [] for strategy in _STRATEGIES}
        for strategy, _, _, result in runs(options, kind):
            found[kind][strategy].append(result)
        print(kind, _cells(found[kind]["evolution"]), flush=True)
    print(table(found))
    if options.output:
        document = {
            "date": datetime.now(UTC).date().isoformat(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "command": f"python benchmarks/lab/search_holdout.py --repeats {options.repeats} "
            f"--instances {options.instances} --evaluations {options.evaluations} "
            f"--lookahead {options.lookahead}",
            "spaces": found,
        }
        options.output.write_text(json.dumps(document) + "\n")


def _cells(results: Sequence[Mapping[str, Any]]) -> list[str]:
    scores = [result["score"] for result in results]
    error = statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else math.nan
    below = statistics.fmean(result["below_random"] for result in results)
    failed = statistics.fmean(result["failed"] for result in results)
    return [f"{statistics.fmean(scores):.2f} ± {error:.2f}", f"{below:.0%}", f"{failed:.0f}"]


def table(found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> str:
    lines = [
        "| space | evolution | ends below random | failed | random | ends below random | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, results in found.items():
        cells = [cell for strategy in _STRATEGIES for cell in _cells(results[strategy])]
        lines.append(f"| {' | '.join([kind, *cells])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
