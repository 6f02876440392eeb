"""How many losses a portfolio's rule serves among made-up kernels, whose times are all known.

    python benchmarks/lab/portfolio_draws.py [--seeds 8] [--random 1000] [--most N] [-o FILE.json]

No GPU is needed. Each seed makes twelve kernels of 64, 128 or 192 rows a tile: a time is the number
of waves of tiles on 132 multiprocessors, with a launch's overhead and 5% noise that is the same for
a kernel and a case each time. The baseline has tiles of 128 rows and fills its waves better. The
rule is learnt from the 60 cases of portfolio.py, tried on drawn cases as in a portfolio, and served
to random cases. `below`: how many of these are below 0.98 of the baseline. `untried`: the same
figures of the rule that keeps the parts where the model expects a loss of a case that was not
tried. With `--most` no round of draws begins after so many, as where a portfolio has no time left.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from portfolio import drawn, geometric, listed

from evotune.portfolios.building import chosen_kernels
from evotune.portfolios.drawn_cases import DrawnCases
from evotune.portfolios.matrix_store import Point, Score, point_of
from evotune.portfolios.rule import (
    RuleRegion,
    judged,
    kernel_at,
    learnt_leaves,
    regions_of,
    without_doubts,
    without_losses,
)
from evotune.problems.attention import Attention
from evotune.problems.problem import Case
from evotune.space.specs import GivenCase
from evotune.trial import Region

_PROBLEM = Attention("float16")
_MULTIPROCESSORS = 132
_WIDENED = 1.0125  # a speedup / the lower end of its interval
_RULES, _ROUNDS = 4, 6
_RATES = {64: 1000.0, 128: 1500.0}
_RANGES: dict[str, tuple[float, float]] = {
    "batch": (1, 16), "heads": (1, 40), "seq_len_q": (116, 9011), "seq_len_k": (1, 9011),
    "group": (1, 1), "softmax_scale": (0.01, 1.0), "elements": (1, 1 << 40),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Kernel:
    """`tuned_causal`: with the other mask it is 10% slower."""

    name: str
    head_dim: int
    tuned_causal: bool
    rows: int
    rate: float
    persistent: bool
    overhead: float

    def time(self, case: Case) -> float:
        heads = int(case.symbols["batch"]) * int(case.symbols["heads"])
        length, causal = int(case.symbols["seq_len_q"]), bool(case.symbols["causal"])
        waves = heads * math.ceil(length / self.rows) / _MULTIPROCESSORS
        keys = length / 2 + self.rows / 2 if causal else math.ceil(length / 128) * 128
        whole = max(waves + 0.5, 1.0) if causal else float(math.ceil(waves))
        whole = (whole + max(1.0, waves)) / 2 if self.persistent else whole
        rate = self.rate * (1.0 if causal == self.tuned_causal else 0.9)
        work = self.rows * keys * self.head_dim / 64
        return (self.overhead + whole * work / rate) * self._noise(case)

    def _noise(self, case: Case) -> float:
        digest = hashlib.blake2b(f"{self.name} {case.label}".encode(), digest_size=8).digest()
        return 1.0 + 0.05 * (int.from_bytes(digest, "big") / 2**64 - 0.5)


def made(seed: int) -> tuple[list[Kernel], dict[int, list[Kernel]]]:
    """The kernels, and the baseline by head size (for each mask, in that order)."""
    rng = random.Random(seed)
    kernels = [
        Kernel(
            f"{dim} {causal} {number}",
            dim,
            causal,
            rng.choice([64, 128, 192]),
            rate * rng.uniform(0.95, 1.18),
            rng.random() < 0.5,
            rng.uniform(2.4, 5.6),
        )
        for dim, rate in _RATES.items()
        for causal in (False, True)
        for number in range(3)
    ]
    baselines = {
        dim: [Kernel("baseline", dim, causal, 128, rate, True, 4.0) for causal in (False, True)]
        for dim, rate in _RATES.items()
    }
    return kernels, baselines


def measured(seed: int, count: int, most: float) -> dict[str, Any]:
    kernels, baselines = made(seed)

    def scored(case: Case, only: int | None = None) -> Point:
        def score(number: int) -> Score | None:
            kernel = kernels[number]
            if kernel.head_dim != case.symbols["head_dim"] or only not in (None, number):
                return None
            baseline = baselines[kernel.head_dim][bool(case.symbols["causal"])]
            speedup = baseline.time(case) / kernel.time(case)
            return Score(speedup, speedup / _WIDENED, won=speedup >= _WIDENED)

        return point_of(_PROBLEM, case).with_scores([score(n) for n in range(len(kernels))])

    given: dict[str, GivenCase] = {}
    points: list[Point] = []
    for entry in listed(tiny=False):
        variant = {"causal": entry.pop("causal")}
        case = _PROBLEM.case(entry, variant)
        given[case.label] = GivenCase(entry, variant)
        points.append(scored(case))
    chosen = chosen_kernels(points, 8)
    domains = {
        number: [
            Region({"dtype": "float16", "head_dim": k.head_dim, "causal": causal}, _RANGES, 100)
            for causal in (False, True)
        ]
        for number, k in enumerate(kernels)
    }
    draws = DrawnCases(_PROBLEM, given, 0, _MULTIPROCESSORS)
    tried, untried, rule = learnt(points, chosen, domains, draws, scored, most)
    others = []
    for each in drawn(count, seed + 10, tiny=False):
        shape = {"batch": each["batch"], "heads": 16, "seq_len": each["length"]}
        case = _PROBLEM.case({**shape, "head_dim": each["head_dim"]}, {"causal": each["causal"]})
        others.append(scored(case))
    return {
        "seed": seed,
        "draws": tried,
        **_figures(rule, points, others),
        "untried": _figures(untried, points, others),
    }


def _figures(
    rule: Sequence[RuleRegion], points: Sequence[Point], others: Sequence[Point]
) -> dict[str, Any]:
    speedups, served = [], 0
    for point in others:
        kernel = kernel_at(rule, point)
        score = None if kernel is None else point.scores[kernel]
        speedups.append(1.0 if score is None else score.speedup)
        served += score is not None
    return {
        "regions": len(rule),
        "listed_mean": judged(points, rule).mean,
        "random_mean": geometric(speedups),
        "served": served,
        "below": sum(speedup < 0.98 for speedup in speedups),
        "worst": min(speedups),
    }


def learnt(  # noqa: PLR0917
    points: Sequence[Point],
    chosen: Sequence[int],
    domains: dict[int, list[Region]],
    draws: DrawnCases,
    scored: Callable[..., Point],
    most: float,
) -> tuple[int, list[RuleRegion], list[RuleRegion]]:
    """The number of drawn cases, the rule with the parts where a loss is expected, and without
    them: as in evotune/portfolios/building.py."""
    known: dict[str, tuple[Point, Case]] = {}
    lost: dict[str, Point] = {}
    number = 0
    leaves = learnt_leaves(points, chosen)
    for left in reversed(range(_RULES)):
        regions = regions_of(leaves, domains)
        for _ in range(_ROUNDS):
            seen = [*points, *(point for point, _ in known.values())]
            new = draws.drawn(regions, seen, lambda kernel, case: True)
            if not new or number >= most:
                break
            number += len(new)
            for kernel, case in new:
                scores = list(scored(case, kernel).scores)
                if case.label in known:
                    before = known[case.label][0].scores
                    scores = [a or b for a, b in zip(scores, before, strict=True)]
                known[case.label] = scored(case).with_scores(scores), case
        losing = [
            (point, case)
            for point, case in known.values()
            if point.label not in lost and any(s is not None and not s.won for s in point.scores)
        ]
        if not (losing and left) or number >= most:
            break
        for point, case in losing:
            whole = scored(case).scores
            scores = [s if n in chosen else point.scores[n] for n, s in enumerate(whole)]
            known[point.label] = point.with_scores(scores), case
            lost[point.label] = dataclasses.replace(point.with_scores(scores), weight=0.0)
        leaves = learnt_leaves([*points, *lost.values()], chosen)
    judges = [point for point, _ in known.values()]
    untried, _ = without_losses(regions, judges, points, drawn=True)
    rule, _ = without_doubts(
        untried,
        lambda region: draws.doubted(region, [*points, *judges], lambda kernel, case: True),
        points,
    )
    return number, untried, rule


def _mean(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each figure, but for the seed."""
    return {
        name: _mean([record[name] for record in records])
        if isinstance(value, dict)
        else statistics.mean(record[name] for record in records)
        for name, value in records[0].items()
        if name != "seed"
    }


def _rounded(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _rounded(value) if isinstance(value, dict) else round(value, 4)
        for name, value in record.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--random", type=int, default=1000, help="the number of random cases")
    parser.add_argument("--most", type=float, default=math.inf, help="draws; then no round begins")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    records = []
    for seed in range(options.seeds):
        records.append(measured(seed, options.random, options.most))
        print(_rounded(records[-1]), flush=True)
    mean = _mean(records)
    print("mean", _rounded(mean))
    if options.output:
        command = f"python benchmarks/lab/portfolio_draws.py --seeds {options.seeds}"
        command += f" --most {options.most:g}" if options.most < math.inf else ""
        data = {"command": command, "mean": mean, "seeds": records}
        options.output.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
