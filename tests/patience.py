"""How long tests wait for what must happen, also on a machine with thirty busy processes.

A test that passes never waits so long. A test of a time-out uses something that never ends, with a
short limit of its own; nothing that must finish has that limit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from evotune.trial import TOO_NOISY, Outcome, OutcomeKind

if TYPE_CHECKING:
    from evotune.backends.base.launch import CompileFailure
    from evotune.workers.compile_pool import CompilePool
    from evotune.workers.local import LocalExecutor

PATIENCE_S = 3600.0


def assert_cut_short(found: Outcome | CompileFailure, kind: OutcomeKind, reason: str) -> None:
    """That something which needs a core and never ends was ended. Where it got a core for less than
    a tenth of the time, nobody knows whether it would have ended."""
    if found.kind is OutcomeKind.UNDECIDED:
        assert found.reason.startswith(f"{TOO_NOISY}: the "), found
        assert "had no core for most of " in found.reason, found
    else:
        assert found.kind is kind, found
        assert reason in found.reason, found


def passing_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that lets so many seconds pass at once on this process's clock. Of a longer leap
    a time limit takes this process to have been stopped."""
    passed_s, now_s = 0.0, time.monotonic

    def let_pass(seconds: float) -> None:
        nonlocal passed_s
        passed_s += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now_s() + passed_s)
    return let_pass


@contextlib.contextmanager
def limited_trials(executor: LocalExecutor, seconds: float) -> Iterator[None]:
    """Ends each trial that is begun within the block after so many seconds."""
    limits = [slot._limits for slot in executor._devices]
    before = [each._longest_trial_s for each in limits]
    for each in limits:
        each._longest_trial_s = seconds
    try:
        yield
    finally:
        for each, longest_s in zip(limits, before, strict=True):
            each._longest_trial_s = longest_s


@contextlib.contextmanager
def limited_compiler(pool: CompilePool, seconds: float) -> Iterator[CompilePool]:
    """Ends each compilation that is begun within the block after so many seconds."""
    before = pool._timeout_s
    pool._timeout_s = seconds
    try:
        yield pool
    finally:
        pool._timeout_s = before
