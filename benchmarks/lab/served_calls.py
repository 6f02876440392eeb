"""Compares the calls that packages serve with and without executed lengths.

    python benchmarks/lab/served_calls.py SPACE... [--device cpu|h200|l4]

No kernel runs. Every case of the confirmation of a space's default counts as passed, each timed and
held-out case as won. The served regions of that domain are compared with those of the same domain
without its pairs and executed lengths, as an older evotune would have made it. `equal` means that
no call is lost.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable

import msgspec

from evotune.export.case_shapes import MeasuredCase, ServedRegion, near_regions
from evotune.problems import UserProblem
from evotune.problems.problem import Problem
from evotune.problems.short_cases import place_with_ratio
from evotune.runs.setup import load_kernel_setup
from evotune.runs.spaces import find_space
from evotune.verify.kept_checks import checked_domain
from evotune.workers.executor import HELD_OUT, SERVED, TIMED, CaseJob


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spaces", nargs="+")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print("| space | served launches | planning, CPU s | regions before | after | |")
    print("|---|---|---|---|---|---|")
    for space in options.spaces:
        print(_row(space, options.device), flush=True)


def _row(space: str, device: str) -> str:
    setup = load_kernel_setup(find_space(space), device, compile_only=device != "cpu")
    problem = setup.planner.problem
    began_s = time.process_time()
    proposal = setup.planner.proposal(0, setup.space.default(), confirm=True)
    planned_s = time.process_time() - began_s
    roles = Counter(job.role for job in proposal.cases)
    checked = [(job.compile.key, job.case) for job in proposal.cases]
    launched = {job.compile.key for job in proposal.cases if job.role == SERVED}
    domain = checked_domain(problem, checked, setup.profile, proposal.lengths, launched)
    won = [_won(problem, job) for job in proposal.cases if job.role in (TIMED, HELD_OUT)]
    older = [msgspec.structs.replace(r, pairs={}, executed=None) for r in domain.regions]
    before, after = (
        _boxes(near_regions(0, won, regions)) for regions in (older, list(domain.regions))
    )
    same = "equal" if before == after else "differ"
    return (
        f"| {space} | {roles[SERVED]} | {planned_s:.2f} | {len(before)} | {len(after)} | {same} |"
    )


def _won(problem: Problem, job: CaseJob) -> MeasuredCase:
    place = place_with_ratio(problem, job.case)
    known = problem.sizes if isinstance(problem, UserProblem) else tuple(job.case.symbols)
    sizes = frozenset(name for name in known if isinstance(place.ranged.get(name), int))
    return MeasuredCase(job.case.label, place, sizes, 1.5, job.role == HELD_OUT)


def _boxes(regions: Iterable[ServedRegion]) -> list[str]:
    return sorted(
        repr((sorted(region.fixed.items()), sorted((n, *e) for n, e in region.ranges.items())))
        for region in regions
    )


if __name__ == "__main__":
    main()
