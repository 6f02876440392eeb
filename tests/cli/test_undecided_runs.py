"""A run of which nothing was confirmed, since the machine was too noisy, ends with exit code 6."""

from __future__ import annotations

from pathlib import Path

import pytest
from report.runs import configuration, make_run, ok

from evotune.cli import run_commands
from evotune.cli.progress import Standing, confirmation
from evotune.cli.terminal import Terminal
from evotune.runs.starting import RunResult
from evotune.runs.starting import is_undecided as undecided
from evotune.store import RunStore
from evotune.trial import Configuration, Outcome, OutcomeKind, Trial

NOISY = Outcome(OutcomeKind.UNDECIDED, reason="512x64: the machine is too noisy: a launch …")
REFUSED = Outcome(OutcomeKind.WRONG_RESULT, reason="out is off")


@pytest.mark.parametrize(
    ("searched", "confirmed", "is_undecided"),
    [
        ([ok(1.2), ok(1.1)], {0: NOISY}, True),
        ([ok(1.2), ok(1.1)], {0: NOISY, 1: REFUSED}, True),
        ([ok(1.2), ok(1.1)], {0: NOISY, 1: ok(1.1)}, False),
        ([ok(1.2), ok(1.1)], {0: REFUSED}, False),
        ([ok(1.2), NOISY], {}, False),
        ([REFUSED, NOISY], {}, True),
        ([REFUSED, REFUSED], {}, False),
    ],
)
def test_a_run_is_undecided_if_noise_alone_kept_it_from_a_champion(
    searched: list[Outcome], confirmed: dict[int, Outcome], is_undecided: bool, tmp_path: Path
) -> None:
    run = make_run(tmp_path, searched, confirmations=confirmed)
    with RunStore.open_for_reading(run.store) as store:
        assert undecided(store) is is_undecided


@pytest.mark.parametrize(
    ("reason", "undecided", "code"),
    [("trials", True, 6), ("trials", False, 0), ("interrupted", True, 130)],
)
def test_the_exit_code_and_a_line_say_so(
    reason: str,
    undecided: bool,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = make_run(tmp_path, [ok(1.2)], confirmations={0: NOISY} if undecided else {0: ok(1.2)})
    result = RunResult(run, reason, 1, undecided)
    assert run_commands._conclude(Terminal(), result, None, None, False) == code
    said = capsys.readouterr()
    line = "undecided: no kernel was confirmed, since the machine is too noisy"
    assert (line in said.err) is (code == 6)
    again = f"on a quiet machine: evotune resume {run.id} --champions 3 --runs-dir {tmp_path}\n"
    assert (again in said.err) is (code == 6)
    assert (
        "trial 0 is undecided in confirmation: 512x64: the machine is too noisy" in said.out
    ) is (undecided)


def test_a_confirmation_that_ends_undecided_is_said_in_one_line() -> None:
    trial = Trial(3, Configuration(configuration(3)), ok(1.2))
    line = confirmation(trial, NOISY)
    assert line.startswith("trial 3 is undecided and was not confirmed: 512x64: the machine is too")
    assert Standing(confirmed={3: NOISY, 4: REFUSED}).confirmations() == (
        "trial 3 undecided, trial 4 failed"
    )


@pytest.mark.parametrize(
    ("confirmed", "reason", "code"),
    [
        ({0: REFUSED, 1: REFUSED}, "trials", 1),
        ({0: REFUSED, 1: ok(1.1)}, "trials", 0),
        ({0: REFUSED, 1: REFUSED}, "interrupted", 130),
        ({}, "trials", 0),  # a recording confirms nothing
    ],
)
def test_a_run_whose_finalists_all_fail_their_confirmation_has_no_valid_candidate(
    confirmed: dict[int, Outcome],
    reason: str,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = make_run(tmp_path, [ok(1.2), ok(1.1)], confirmations=confirmed)
    result = RunResult(run, reason, 2)
    assert run_commands._conclude(Terminal(), result, None, None, False) == code
    assert ("resume: " in capsys.readouterr().err) is (code != 130 or bool(confirmed))
