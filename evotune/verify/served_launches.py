"""Launches of a champion at the sizes that a package could serve, once each."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import msgspec

from evotune.problems.problem import Case, Problem
from evotune.problems.short_cases import short_kinds
from evotune.trial import Check
from evotune.verify.aligned_launches import WORDS
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.kept_checks import ALL_KINDS, nearest_limit
from evotune.verify.random_tests import TimeLimit


def launch_served(
    gate: Gate,
    problem: Problem,
    subjects: Sequence[Subject],
    seed: int,
    verdict: Verdict,
    *,
    limit_s: float,
    longest_s: float = math.inf,
    together: int = 1,
    without: Collection[str] = (),
    begins: Callable[[int], None] = lambda number: None,
) -> list[Case]:
    """Launches each case once, and returns those that passed. Adds one check for all: the nearest
    to its limit.

    Inputs are aligned as little as those that a package serves. The evidence of `together` launches
    is read at once. After `limit_s` of work, or after `longest_s`, no further launch starts, and
    the check says how many were made. The first failure ends them and goes into the verdict.
    `begins` is called with the number of the next launch, from 1 on.
    """
    if not (subjects and verdict.passed):
        return []
    name = f"{len(subjects)} served sizes"
    limit = TimeLimit(limit_s, longest_s)
    within = f"within {min(limit_s, longest_s):.2g} s"
    made = Verdict()
    passed: list[Case] = []
    for start in range(0, len(subjects), together):
        if limit.is_over():
            break
        begins(start + 1)
        some = subjects[start : start + together]
        kinds = [short_kinds(problem, each.case, start + n) for n, each in enumerate(some)]
        for kind in dict.fromkeys(kind for each in kinds for kind in each if kind not in without):
            alike = [each for each, own in zip(some, kinds, strict=True) if kind in own]
            gate.examine_once(alike, kind, seed, made)
        if made.kind is not None:
            failed = made.checks[-1]
            detail = f"{failed.detail}, {WORDS} (a size that a package could serve)"
            verdict.fail(made.kind, msgspec.structs.replace(failed, detail=detail))
            return passed
        passed += [each.case for each in some]
    if not passed:
        detail = f"none began {within}"
        verdict.checks.append(Check(name, ALL_KINDS, "skipped", detail=detail))
        return []
    cut = f"{len(passed)} were launched {within}"
    verdict.checks.append(
        msgspec.structs.replace(
            nearest_limit(made.checks),
            case=name,
            inputs=ALL_KINDS,
            detail=cut if len(passed) < len(subjects) else "",
        )
    )
    return passed
