"""Measures the cost of `evolution`: ask + tell after 1,000 and 10,000 outcomes, on a real space.

    python benchmarks/lab/search_cost.py [--space attention-mma --device h200] [-o FILE]

Outcomes are made up (a smooth function of the values, one in ten fails), so only the search's own
time is measured. Most asks look into a pool of candidates that exists already; a few make a new
one. The median shows the cost of most asks, the mean the cost over a run. Times are CPU time, so
that other work on the machine does not count; set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

from evotune.run_options import SearchSettings
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.search.catalog import create_strategy
from evotune.space.search_space import SearchSpace
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

ASKS = 128


def outcome(space: SearchSpace, configuration: Configuration) -> Outcome:
    """A made-up outcome: the best is in the middle of every domain. A tenth fails, chosen by the
    values alone."""
    if random.Random(configuration.key).random() < 0.1:
        return Outcome(OutcomeKind.LAUNCH_ERROR)
    off = 0.0
    for parameter in space.parameters:
        if parameter.cardinality > 1:
            place = parameter.index(configuration[parameter.name]) / (parameter.cardinality - 1)
            off += (place - 0.5) ** 2
    return Outcome(OutcomeKind.OK, fitness=-off)


def costs_ms(space: SearchSpace, told: int, lookahead: int) -> list[float]:
    """The costs of ASKS proposals in a row, each an ask and the tell of the oldest in flight."""
    strategy = create_strategy("evolution", space, SearchSettings(lookahead=lookahead))
    rng = random.Random(0)
    configurations = dict.fromkeys(space.sample(rng) for _ in range(told))
    while len(configurations) < told:
        configurations[space.sample(rng)] = None
    for number, configuration in enumerate(configurations):
        strategy.tell(Trial(number, configuration, outcome(space, configuration)))
    strategy.ask(told, ())  # makes the fits that a run would have made before
    pending: deque[Configuration] = deque()
    costs = []
    for number in range(told, told + ASKS + lookahead):
        oldest = pending.popleft() if len(pending) > lookahead else None
        result = outcome(space, oldest) if oldest is not None else None
        started_s = time.process_time()
        if oldest is not None and result is not None:
            strategy.tell(Trial(number - lookahead - 1, oldest, result))
        proposal = strategy.ask(number, tuple(pending))
        costs.append(1000 * (time.process_time() - started_s))
        if proposal is None:
            break
        pending.append(proposal)
    return costs[lookahead:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="attention-mma")
    parser.add_argument("--device", default="h200")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    space = load_setup(find_space(options.space), options.device, compile_only=True).space
    rows = []
    for lookahead in (0, 16):
        for told in (1_000, 10_000):
            costs = costs_ms(space, told, lookahead)
            row = {
                "told": told,
                "lookahead": lookahead,
                "median_ms": round(statistics.median(costs), 3),
                "mean_ms": round(statistics.fmean(costs), 3),
                "largest_ms": round(max(costs), 1),
            }
            print(row, flush=True)
            rows.append(row)
    if options.output:
        document = {
            "space": options.space,
            "device": options.device,
            "python": platform.python_version(),
            "date": datetime.now(UTC).date().isoformat(),
            "command": "python benchmarks/lab/search_cost.py",
            "costs": rows,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
