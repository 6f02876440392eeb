"""If error and limit are both no more than the rounding of a result, their ratio says nothing."""

from __future__ import annotations

import pytest
import torch

from evotune.cli.verify_command import check_cells
from evotune.problems.problem import rounding_of
from evotune.report import wording
from evotune.report.leaderboard import figures
from evotune.trial import Check, Outcome, OutcomeKind
from evotune.verify.accuracy import (
    errors_against,
    expected,
    is_one_rounding,
    is_rounding,
)

TYPES = [torch.float16, torch.bfloat16, torch.float32]


def values() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1000, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_result_that_is_rounded_once_is_one_rounding_off(dtype: torch.dtype) -> None:
    reference = values()
    wanted = expected(reference, rounding_of(reference, dtype), dtype)
    assert is_rounding(wanted, dtype)
    rounded = errors_against(reference.to(dtype), wanted).max
    assert rounded > 0.4
    assert is_one_rounding(rounded)
    next_one = torch.nextafter(reference.to(dtype), torch.tensor(9.0, dtype=dtype))
    assert not is_one_rounding(errors_against(next_one, wanted).max)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_limit_that_allows_one_element_more_than_rounding_does_tell_something(
    dtype: torch.dtype,
) -> None:
    reference = values()
    tolerance = rounding_of(reference, dtype)
    tolerance[7] *= 1.1
    assert not is_rounding(expected(reference, tolerance, dtype), dtype)
    assert not is_rounding(expected(reference[:0], tolerance[:0], dtype), dtype)


def outcome(*, rounding: bool) -> Outcome:
    check = Check("case", "normal", "passed", 0.49, 1.0, 0.2, 0.6, rounding=rounding)
    return Outcome(OutcomeKind.OK, fitness=0.1, checks=(check,))


def test_reports_show_nothing_there() -> None:
    plain, rounded = figures(outcome(rounding=False)), figures(outcome(rounding=True))
    assert (wording.error_share_text(plain), wording.error_share_text(rounded)) == ("49%", "-")
    assert wording.error_text(plain) == "4.9e-01 / 1.0e+00"
    assert wording.error_text(rounded) == "-"
    assert check_cells(outcome(rounding=True).checks[0])[3:] == ("-", "-", "-", "-")
    assert rounded.error == 0.49, "scripts have the figure"


def test_a_check_that_was_stored_before_has_no_such_mark() -> None:
    stored = outcome(rounding=True).checks[0].to_json()
    assert Check.from_json(stored).rounding
    del stored["rounding"]
    assert not Check.from_json(stored).rounding
