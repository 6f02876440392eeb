"""Waits for a core do not count towards a limit; the counters are those of Linux, scripted here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from evotune.backends.base import time_limits
from evotune.backends.base.time_limits import (
    HeldUp,
    Patience,
    WatchedTime,
    allowance_s,
    communicate,
)


class Process:
    """A process that ends after `needed_s` on a clock; it waits for a core while `share` of the
    time passes."""

    pid = 1

    def __init__(self, needed_s: float, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self._needed_s, self._share = 0.0, needed_s, share
        self.killed = False
        monkeypatch.setattr(time_limits.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time_limits, "_waits", self._waits)

    def _waits(self, pid: int) -> Iterator[tuple[tuple[int, int], float]]:
        yield (1, 1), self._share * self.now_s
        yield (1, 2), 0.5 * self._share * self.now_s

    def wait(self, timeout_s: float | None = None) -> int:
        if self.killed:
            return -9
        assert timeout_s is not None
        self.now_s += timeout_s
        if (1 - self._share) * self.now_s >= self._needed_s:
            return 0
        raise subprocess.TimeoutExpired("process", timeout_s)

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize(
    ("needed_s", "share", "status", "exhausted"),
    [
        (9.0, 0.0, 0, False),
        (11.0, 0.0, None, False),  # it takes too long and waited for nobody
        (9.0, 0.8, 0, False),  # it got a fifth of a core
        (11.0, 0.8, None, False),
        (9.0, 0.999, None, True),  # it got next to nothing
    ],
)
def test_a_limit_counts_the_time_with_a_core(
    needed_s: float,
    share: float,
    status: int | None,
    exhausted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process(needed_s, share, monkeypatch)
    patience = Patience(10.0)
    assert patience.status(process) == status  # type: ignore[arg-type]
    assert patience.exhausted is exhausted
    assert process.killed is (status is None)
    assert process.now_s < 101.0


def test_waits_are_those_since_the_begin_and_survive_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = {(1, 1): 5.0}
    monkeypatch.setattr(time_limits, "_waits", lambda pid: iter(waits.items()))
    held = HeldUp(1)
    assert held.seconds() == 0.0
    waits |= {(1, 1): 6.0, (1, 2): 3.0, (7, 7): 2.0}  # a thread, and a child
    assert held.seconds() == 5.0
    del waits[7, 7]
    assert held.seconds() == 5.0
    assert allowance_s(held, 10.0) == (5.0, False)
    assert allowance_s(held, 0.5) == (4.5, True)


def test_a_process_of_this_system_has_counters() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert HeldUp(process.pid).seconds() >= 0.0
    finally:
        process.communicate(b"\n")
    assert HeldUp(process.pid).seconds() == 0.0


def test_the_time_in_which_nobody_looked_counts_little(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time_limits.time, "monotonic", lambda: now_s)
    watched = WatchedTime()
    for _ in range(10):
        now_s += 0.5
        watched.seconds()
    assert watched.seconds() == 5.0
    now_s += 3600.0  # the container was paused for an hour
    assert watched.seconds() == 6.0
    now_s += 0.25
    assert watched.seconds() == 6.25


def test_a_process_that_is_stopped_with_the_one_that_waits_for_it_is_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process(9.0, 0.0, monkeypatch)
    wait = process.wait

    def stopped_at_3_s(timeout_s: float | None = None) -> int:
        status = wait(timeout_s)
        return status

    def paused(timeout_s: float | None = None) -> int:
        if 3.0 <= process.now_s < 4.0:
            process.now_s += 3600.0
            process._needed_s += 3600.0
        return stopped_at_3_s(timeout_s)

    monkeypatch.setattr(process, "wait", paused)
    patience = Patience(10.0)
    assert patience.status(process) == 0  # type: ignore[arg-type]
    assert not patience.exhausted


def test_a_tool_that_is_stopped_with_this_process_may_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = "import time; print('one', flush=True); time.sleep(0.7); print('two')"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        now_s, began_s = time_limits.time.monotonic, time_limits.time.monotonic()
        # An hour passes soon after the start, in one leap.
        monkeypatch.setattr(
            time_limits.time,
            "monotonic",
            lambda: now_s() + 3600.0 * (now_s() - began_s > 0.1),
        )
        assert communicate(process, 60.0) == (b"one\ntwo\n", None)


def test_a_tool_that_never_ends_is_given_up() -> None:
    script = "import time; print('one', flush=True); time.sleep(3600)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            communicate(process, 0.6)
        assert process.poll() is None
        process.kill()
