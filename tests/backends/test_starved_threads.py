"""Threads that have no core on a busy machine are not left at work; time is scripted here."""

from __future__ import annotations

import pytest

from evotune.backends.cpu import process_state
from evotune.backends.cpu.process_state import BesideBaseline, kept_busy


class Machine:
    """Another thread of this process, number 7, runs until it has had `work_s` on a core. It gets
    `share` of the time."""

    def __init__(self, work_s: float, share: float, patch: pytest.MonkeyPatch) -> None:
        self.now_s, self._work_s, self._share = 0.0, work_s, share
        patch.setattr(process_state.time, "perf_counter", lambda: self.now_s)
        patch.setattr(process_state.time, "sleep", self.sleep)
        patch.setattr(process_state, "_running_threads", self.running)
        patch.setattr(process_state, "cpu_seconds", lambda: {7: self.worked_s})
        patch.setattr(process_state, "_seconds_of_other_threads", lambda: self.worked_s)
        patch.setattr(process_state.native_runtime, "rest", lambda: None)
        patch.setattr(process_state.native_runtime, "threads", frozenset)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    @property
    def worked_s(self) -> float:
        return min(self._work_s, self._share * self.now_s)

    def running(self) -> set[int]:
        return {7} if self.worked_s < self._work_s else set()


@pytest.mark.parametrize(
    ("work_s", "share", "is_busy"),
    [
        (0.0002, 1.0, False),  # it spins for a while before it sleeps
        (0.0002, 0.001, False),  # it would sleep as soon as it had a core
        (1.0, 0.0, False),  # it never has one, and takes none
        (1.0, 1.0, True),
        (1.0, 0.05, True),  # on a busy machine
    ],
)
def test_only_time_on_a_core_makes_a_thread_busy(
    work_s: float, share: float, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(work_s, share, monkeypatch)
    assert bool(kept_busy()) is is_busy


@pytest.mark.parametrize(("share", "is_disturbed"), [(0.0, False), (0.02, False), (1.0, True)])
def test_a_thread_that_waits_for_a_core_does_not_disturb_a_baseline(
    share: float, is_disturbed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it spins in the baseline's time for as long as it would have spun before."""
    beside = BesideBaseline(threads=1)
    for _ in range(20):
        machine = Machine(1.0 if share else 0.0002, share, monkeypatch)
        beside.let_rest()
        began = {7: machine.worked_s}
        machine._share = 1.0
        machine.sleep(0.001)
        beside.count(began, 0.001)
    assert bool(beside.words()) is is_disturbed
