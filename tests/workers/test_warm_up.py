"""A spare worker makes inputs before its first request: what happens if that fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from evotune.backends.base.session import Session
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.problems import Case
from evotune.workers.device_worker import warm_up
from evotune.workers.trial_runner import TrialRunner


class FailingRunner(TrialRunner):
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def warm_up(self, cases: Sequence[Case]) -> None:
        raise self._error


class BrokenSession(CpuSession):
    def fault(self, error: RuntimeError) -> object:  # type: ignore[override]
        return "illegal memory access"


@pytest.mark.parametrize("error", [ValueError("no such size"), RuntimeError("odd"), SystemExit(3)])
def test_a_mistake_in_a_problem_is_left_to_the_first_trial(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    warm_up(FailingRunner(error), CpuSession(), ())
    assert f"warming up failed: {error!r}" in capsys.readouterr().err


@pytest.mark.parametrize(("session", "raises"), [(CpuSession(), False), (BrokenSession(), True)])
def test_a_broken_device_ends_the_worker(session: Session, raises: bool) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    if not raises:
        warm_up(FailingRunner(error), session, ())
        return
    with pytest.raises(RuntimeError, match="illegal memory access"):
        warm_up(FailingRunner(error), session, ())
