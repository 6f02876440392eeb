"""Tells how the single cases of today's rules would change the rule of a recorded portfolio.

    python benchmarks/portfolio_again.py benchmarks/results/portfolio_h200.json

FILE is a record of portfolio.py. Its regions stay as they are: evotune's single_cases adds those of
cases of the list that they serve badly, by the cells that were measured. It needs no GPU. Prints
the added regions; then, without and with them, the speedup over SDPA of all cases of the list, the
share of that of the best champion that was measured there, and the share of the own champion's in
the searched cases. Which cases those are is found as the portfolio found it; without single cases
the last figure must be the record's `searched_of_own_champion`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from portfolio import listed

from evotune.backends import registry
from evotune.engine.confirmed_champions import is_won, widened_alone
from evotune.portfolios._held_out_judge import held_out_labels, judged
from evotune.portfolios._representatives import representatives
from evotune.portfolios._search_plan import worst_served
from evotune.portfolios._single_cases import single_cases
from evotune.portfolios.points import REFUSED, Point, Score, point_of
from evotune.portfolios.rule import RuleRegion, kernel_at
from evotune.problems.attention import Attention
from evotune.trial import Domain, Measurement

PROBLEM = Attention("float16")
PROFILE = registry.named("cuda").profile("h200", compile_only=True)
_FIRST = 8
"""portfolio.py's --kernels: so many searches come before the matrix."""
Kernel = tuple[str, int]
"""The run, whose name begins with its time, and the trial."""


def points_of(record: Mapping[str, Any], kernels: Sequence[Kernel]) -> list[Point]:
    """The cases of the list with the scores of these kernels."""
    cells = {(each["case"], each["run"], each["trial"]): each for each in record["cells"]}
    found = []
    for given in listed(tiny=False):
        shape = {name: value for name, value in given.items() if name != "causal"}
        case = PROBLEM.case(shape, {"causal": given["causal"]})
        scores = [_score(cells.get((case.label, *kernel))) for kernel in kernels]
        found.append(point_of(PROBLEM, case).with_scores(scores))
    return found


def _score(cell: Mapping[str, Any] | None) -> Score | None:
    """As a portfolio scores a cell of one process."""
    if cell is None:
        return None
    if cell["speedup"] is None:
        return REFUSED
    times = {name: cell[name] for name in ("case", "time_us", "baseline_us", "speedup")}
    ends = {name: cell[name] for name in ("speedup_low", "speedup_high")}
    alone = Measurement(**times, **ends, time_min_us=cell["time_us"], baseline="", samples=1)
    measured = widened_alone(PROFILE, alone)
    return Score(measured.speedup, measured.speedup_low, is_won(PROFILE, PROBLEM, measured))


def searched(points: Sequence[Point], kernels: Sequence[Kernel], first: int) -> Iterator[Point]:
    """The searched cases, in the order of the searches, of which the n-th found the n-th of these
    kernels. `first`: the number of searches before the matrix was measured."""
    held_out = held_out_labels(points, 0.2, 0)
    seen = [point for point in points if point.label not in held_out]
    variants = PROBLEM.variant_symbols
    labels = [seen[number].label for number in representatives(seen, first, 0, variants)]
    while len(labels) < len(kernels):
        known = [point.with_scores(point.scores[: len(labels)]) for point in seen]
        worst = worst_served(known, set(labels), variants)
        assert worst is not None
        labels.append(worst)
    by_label = {point.label: point for point in points}
    yield from (by_label[label] for label in labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("record", type=Path, metavar="FILE")
    record = json.loads(parser.parse_args().record.read_text())
    kernels = sorted({(each["run"], each["trial"]) for each in record["cells"]})
    used = [kernels.index((each["run"], each["trial"])) for each in record["kernels"]]
    points = points_of(record, kernels)
    general = [
        msgspec.structs.replace(region, kernel=used[region.kernel])
        for region in msgspec.convert(record["rule"], list[RuleRegion])
        if not region.exact
    ]
    domains = {
        number: msgspec.convert(each["domain"], Domain).regions
        for number, each in zip(used, record["kernels"], strict=True)
    }
    alone = single_cases(general, points, domains)
    for region in alone:
        print(f"{region.words}: kernel {region.kernel} (at least {region.speedup_low:.3f}x)")
    own = list(searched(points, kernels, _FIRST))
    for name, regions in (("without single cases", general), ("with them", [*alone, *general])):
        figures = judged(points, regions)
        logs = [
            (0.0 if (kernel := kernel_at(regions, point)) is None else point.gain(kernel))
            - point.gain(number)
            for number, point in enumerate(own)
        ]
        print(
            f"{name}: {figures.served} of {figures.cases} by kernels, {figures.mean:.3f}x SDPA, "
            f"{figures.of_best:.3f} of the best champion, "
            f"{math.exp(sum(logs) / len(logs)):.3f} of the own one in {len(logs)} searched cases"
        )


if __name__ == "__main__":
    main()
