"""Tells how today's last steps would change the rule of a recorded portfolio.

    python benchmarks/lab/portfolio_again.py benchmarks/results/portfolio_h200.json

FILE is a record of portfolio.py. Its regions are taken as they are. Then they lose the parts where
evotune's model of the kernels' speed expects a loss of a case that was not tried, and cases of the
list that they serve badly get regions of their own. It needs no GPU. Prints what changes; then, for
the record's rule, its regions without single cases, and today's rule:

- the speedup over SDPA of all cases of the list, by the cells that were measured,
- the share of that of the best champion that was measured there,
- the share of the own champion's in the searched cases, found as the portfolio found them,
- the mean and the least speedup of the record's random cases, by the calls that were timed: PyTorch
  has 1 where no kernel serves a case. A random case that another kernel served is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from portfolio import listed

from evotune.backends import registry
from evotune.portfolios.building import representatives
from evotune.portfolios.case_searches import worst_served
from evotune.portfolios.drawn_cases import DrawnCases
from evotune.portfolios.matrix_store import REFUSED, Point, Score, point_of
from evotune.portfolios.rule import RuleRegion, held_out_labels, judged, kernel_at, without_doubts
from evotune.portfolios.served_rule import single_cases
from evotune.problems.attention import Attention
from evotune.problems.problem import Case
from evotune.runs.confirmed_champions import is_won, widened_alone
from evotune.space.specs import GivenCase
from evotune.trial import Domain, Measurement

PROBLEM = Attention("float16")
PROFILE = registry.named("cuda").profile("h200", compile_only=True)
_FIRST = 8
"""portfolio.py's --kernels: so many searches come before the matrix."""
_LABEL = re.compile(r"\((\d+),(\d+),(\d+),(\d+)\) (full|causal)")
Kernel = tuple[str, int]
"""The run, whose name begins with its time, and the trial."""


def given_cases() -> dict[str, GivenCase]:
    """The list's cases by label."""
    found = {}
    for each in listed(tiny=False):
        shape = {name: value for name, value in each.items() if name != "causal"}
        given = GivenCase(shape, {"causal": each["causal"]})
        found[PROBLEM.case(given.shape, given.variant).label] = given
    return found


def points_of(record: Mapping[str, Any], kernels: Sequence[Kernel]) -> list[Point]:
    """All measured cases with the scores of these kernels, those of the list first."""
    cells = {(each["case"], each["run"], each["trial"]): each for each in record["cells"]}
    given = given_cases()
    drawn = sorted({each["case"] for each in record["cells"]} - given.keys())
    cases = [PROBLEM.case(each.shape, each.variant) for each in given.values()]
    cases += [_case(*found.groups()) for label in drawn if (found := _LABEL.fullmatch(label))]
    return [
        point_of(PROBLEM, case).with_scores(
            [_score(cells.get((case.label, *kernel))) for kernel in kernels]
        )
        for case in cases
    ]


def _case(batch: object, heads: object, length: object, head_dim: object, mask: object) -> Case:
    sizes = {"batch": batch, "heads": heads, "seq_len": length, "head_dim": head_dim}
    shape = {name: int(str(value)) for name, value in sizes.items()}
    return PROBLEM.case(shape, {"causal": mask == "causal"})


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
    kernels. `points`: the list's. `first`: the number of searches before the matrix was
    measured."""
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


def calls_of(
    record: Mapping[str, Any], before: Sequence[RuleRegion], after: Sequence[RuleRegion]
) -> list[float]:
    """The speedups of the random cases that were timed, with the rule `after` in place of the
    record's."""
    found = []
    anywhere = [Score(1.0, 1.0, won=True)] * (1 + max(region.kernel for region in before))
    for call in record["calls"]:
        mask = "causal" if call["causal"] else "full"
        case = _case(call["batch"], call["heads"], call["length"], call["head_dim"], mask)
        point = point_of(PROBLEM, case).with_scores(anywhere)
        kernel = kernel_at(after, point)
        if kernel is None:
            found.append(1.0)
        elif kernel == kernel_at(before, point):
            found.append(call["speedup"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("record", type=Path, metavar="FILE")
    record = json.loads(parser.parse_args().record.read_text())
    kernels = sorted({(each["run"], each["trial"]) for each in record["cells"]})
    used = [kernels.index((each["run"], each["trial"])) for each in record["kernels"]]
    points = points_of(record, kernels)
    given = given_cases()
    on_list = points[: len(given)]
    recorded = [
        msgspec.structs.replace(region, kernel=used[region.kernel])
        for region in msgspec.convert(record["rule"], list[RuleRegion])
    ]
    general = [region for region in recorded if not region.exact]
    draws = DrawnCases(PROBLEM, given, 0, int(PROFILE.attributes["multiprocessors"]))
    held_out = held_out_labels(on_list, 0.2, 0)
    left, cuts = without_doubts(
        general,
        lambda region: draws.doubted(region, points, lambda kernel, case: True),
        [point for point in on_list if point.label not in held_out],
    )
    domains = {
        number: msgspec.convert(each["domain"], Domain).regions
        for number, each in zip(used, record["kernels"], strict=True)
    }
    alone = single_cases(left, on_list, domains)
    for each in cuts:
        print(f"cut: {each.words}")
    for region in alone:
        print(f"{region.words}: kernel {region.kernel} (at least {region.speedup_low:.3f}x)")
    own = list(searched(on_list, kernels, _FIRST))
    for name, regions in (
        ("the record's rule", recorded),
        ("its regions", general),
        ("today's rule", [*alone, *left]),
    ):
        figures = judged(on_list, regions)
        logs = [
            (0.0 if (kernel := kernel_at(regions, point)) is None else point.gain(kernel))
            - point.gain(number)
            for number, point in enumerate(own)
        ]
        calls = calls_of(record, recorded, regions)
        mean = math.exp(sum(map(math.log, calls)) / len(calls))
        print(
            f"{name}: {figures.served} of {figures.cases} by kernels, {figures.mean:.3f}x SDPA, "
            f"{figures.of_best:.3f} of the best champion, "
            f"{math.exp(sum(logs) / len(logs)):.3f} of the own one in {len(logs)} searched cases; "
            f"{len(calls)} random cases {mean:.3f}x, the slowest {min(calls):.3f}x"
        )


if __name__ == "__main__":
    main()
