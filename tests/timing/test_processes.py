"""Speedups from several processes: their intervals, and when a machine is too noisy for them."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from evotune.timing.processes import (
    LEAST,
    MOST,
    TOO_NOISY,
    combined,
    fitness_by_process,
    interval_of,
    spread,
    widened,
)
from evotune.trial import Measurement, Outcome, OutcomeKind


def outcome(*speedups: float, held_out: float = 0.0) -> Outcome:
    """The outcome of one process, with a case for each speedup."""
    cases = [(f"({i})", speedup, False) for i, speedup in enumerate(speedups)]
    if held_out:
        cases.append(("(9)", held_out, True))
    fitness = statistics.fmean(map(math.log, speedups))
    return Outcome(
        OutcomeKind.OK,
        fitness=fitness,
        fitness_low=fitness - 0.01,
        fitness_high=fitness + 0.01,
        measurements=tuple(
            Measurement(
                case, 10.0 / s, 9.0 / s, "sdpa", 10.0, s, s * 0.99, s * 1.01, 60, held_out=held
            )
            for case, s, held in cases
        ),
    )


@pytest.mark.parametrize("deviation", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("modes", [False, True])
def test_forty_confirmations_cover_the_pooled_median(deviation: float, modes: bool) -> None:
    """At least 36 of 40 do, on average over 50 repetitions; also with processes of two kinds."""
    rng = random.Random(0)

    def process() -> float:
        middle = rng.choice((0.0, 3 * deviation)) if modes else 0.0
        return 0.2 + middle + rng.gauss(0.0, deviation)

    covered = 0
    for _ in range(50):
        rows = [[process() for _ in range(MOST)] for _ in range(40)]
        pooled = statistics.median(value for row in rows for value in row)
        found = [interval_of(row, [0.002] * MOST) for row in rows]
        covered += sum(each.low <= pooled <= each.high for each in found)
    assert covered / 50 >= 36


def test_the_interval_of_alike_processes_is_as_wide_as_what_their_samples_leave_open() -> None:
    found = interval_of([0.5] * 4, [0.02] * 4)
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.49, 0.51))
    alone = interval_of([0.5], [0.02])
    assert alone.half_width == pytest.approx(0.02)


def test_the_outcome_of_several_processes_has_the_mean_and_the_spread_of_each_case() -> None:
    found = combined([outcome(1.0, 2.0), outcome(1.1, 2.2), outcome(1.21, 2.42)])
    assert found.fitness == pytest.approx(math.log(1.1 * 2.2) / 2)
    first, second = found.measurements
    assert first.processes == (1.0, 1.1, 1.21)
    assert first.speedup == pytest.approx(1.1)
    assert second.speedup == pytest.approx(2.2)
    half = 4.303 * math.log(1.1) / math.sqrt(3)
    assert math.log(first.speedup_high / first.speedup) == pytest.approx(half)
    assert found.fitness_high == pytest.approx(found.fitness + half)
    assert first.samples == 180
    assert fitness_by_process(found) == pytest.approx(
        [math.log(math.sqrt(2) * 1.1**n) for n in range(3)]
    )
    assert Outcome.from_json(found.to_json()) == found


def test_what_is_timed_in_the_first_process_alone_is_as_uncertain_as_the_others() -> None:
    firsts = [outcome(1.0, held_out=3.0), outcome(1.1), outcome(1.21)]
    held_out = combined(firsts).measurements[1]
    assert held_out.processes == ()
    assert held_out.speedup == 3.0
    assert math.log(held_out.speedup_high / 3.0) > 4.303 * math.log(1.1)


def test_a_machine_is_too_noisy_when_the_same_code_differs_by_a_tenth() -> None:
    quiet = combined([outcome(s) for s in (1.00, 1.01, 1.02)])
    assert TOO_NOISY not in quiet.flags
    noisy = combined([outcome(s) for s in (1.00, 1.14, 1.05)])
    assert TOO_NOISY in noisy.flags
    assert spread(fitness_by_process(noisy)) == pytest.approx(0.14)
    # The mean of MOST processes is known well enough all the same.
    known = combined([outcome(s) for s in (1.00, 1.11, *[1.055] * (MOST - 2))])
    assert TOO_NOISY not in known.flags


def test_one_process_is_as_uncertain_as_others_of_like_code() -> None:
    single = outcome(1.5)
    assert widened(single, [0.1]) == single
    wide = widened(single, [0.0, 0.1, 0.2])
    assert wide.fitness_high is not None
    assert wide.fitness is not None
    assert wide.fitness_high - wide.fitness == pytest.approx(math.hypot(4.303 * 0.1, 0.01))
    assert wide.measurements[0].speedup_high > 1.5 * math.exp(0.43)


def test_alike_processes_leave_open_how_a_program_calls() -> None:
    found = combined([outcome(1.5, held_out=2.0), outcome(1.5), outcome(1.5)], 0.02)
    timed, held_out = found.measurements
    assert found.fitness_high == pytest.approx(math.log(1.5) + 0.02)
    assert math.log(timed.speedup / timed.speedup_low) == pytest.approx(0.02)
    assert math.log(held_out.speedup_high / 2.0) > 0.02  # its samples are uncertain as well
    behind = widened(outcome(1.5), [0.0, 0.0, 0.0], 0.02)
    assert behind.fitness_high == pytest.approx(math.log(1.5) + math.hypot(0.01, 0.02))


def test_one_process_alone_is_left_as_it_is() -> None:
    assert combined([outcome(1.5)]) == outcome(1.5)
    assert 1 < LEAST < MOST
