from __future__ import annotations

from evotune.cli.verify_command import CHECK_COLUMNS, check_cells, check_details, checks_text
from evotune.trial import Check, Outcome, OutcomeKind

from .runs import ok

PASSED = Check("(1,2,64,32) full", "needle", "passed", 1.234e-6, 2e-6, 1e-7, 3e-7)
SKIPPED = Check("edge shapes", "compute-sanitizer memcheck", "skipped", detail="not installed")


def test_a_check_is_a_line_and_what_it_lacks_a_dash() -> None:
    cells = check_cells(PASSED)
    assert len(cells) == len(CHECK_COLUMNS)
    assert cells[:3] == ("(1,2,64,32) full", "needle", "passed")
    assert cells[3:] == ("1.2e-06", "2.0e-06", "1.0e-07", "3.0e-07")
    assert check_cells(SKIPPED)[2:] == ("skipped", "-", "-", "-", "-")
    outcome = Outcome(OutcomeKind.OK, fitness=0.0, checks=(PASSED, SKIPPED))
    where = "edge shapes, compute-sanitizer memcheck"
    assert check_details(outcome) == [f"skipped: {where}: not installed"]


def test_skipped_checks_are_counted_apart_from_those_that_passed() -> None:
    outcome = ok(1.0)
    made = Outcome(OutcomeKind.OK, fitness=0.0, checks=(PASSED, SKIPPED, PASSED, SKIPPED))
    assert checks_text(made) == "ok: 2 passed, 2 skipped"
    assert checks_text(outcome) == "ok: 1 passed"
    failed = Outcome(OutcomeKind.COMPILE_ERROR, reason="no such type")
    assert checks_text(failed) == "compile_error (no such type): no check was made"
