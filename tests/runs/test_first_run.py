"""`evotune run` without a space and without a limit is a first look that ends in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evotune.backends.cpu import CpuBackend
from evotune.run_options import RunOptions
from evotune.runs import starting
from evotune.runs.observer import SilentObserver
from evotune.runs.spaces import find_space
from evotune.runs.starting import RunRequest, RunResult, start_run


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    """The options with which runs begin; none searches."""
    seen: list[RunOptions] = []

    def finish(
        run: Any, store: Any, setup: Any, options: RunOptions, *rest: Any, **named: Any
    ) -> RunResult:
        seen.append(options)
        return RunResult(run, "trials", 0)

    monkeypatch.setattr(starting, "_finish", finish)
    monkeypatch.setattr(
        starting, "flagship", lambda device, looking: find_space("softmax-cpu")
    )  # small
    return seen


@pytest.mark.parametrize(
    ("space", "options", "minutes"),
    [
        (None, {}, 3.0),
        (None, {"trials": None, "seed": 3}, 3.0),
        (None, {"trials": 500}, None),
        (None, {"minutes": 30.0, "lookahead": 6}, 30.0),
        ("softmax-cpu", {}, None),
    ],
)
def test_a_first_run_without_options_is_short_and_options_replace_its_limits(
    found: list[RunOptions],
    tmp_path: Path,
    space: str | None,
    options: dict[str, Any],
    minutes: float | None,
) -> None:
    start_run(RunRequest(space, "cpu", tmp_path, options=options), SilentObserver())
    assert found[0].minutes == minutes
    usual = 8  # of softmax-cpu
    first = CpuBackend.first_look["lookahead"] if minutes == 3.0 else usual
    assert found[0].lookahead == options.get("lookahead", first)
    assert found[0].champions == 3  # what is confirmed is confirmed as ever
