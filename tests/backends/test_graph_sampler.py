"""A sample is taken again if the GPU reached its first event before its graph was queued."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from evotune.backends.cuda.cuda_session import GraphSampler, _Writing


class Event:
    """An event that the GPU reaches too early in the next `early` samples."""

    early = 0

    def record(self, stream: object) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        Event.early -= 1
        return Event.early >= 0

    def elapsed_time(self, end: Event) -> float:
        return 2.0


class Graph:
    def replay(self) -> None: ...


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    cycles: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", cycles.append)
    monkeypatch.setattr(GraphSampler, "_head_start_cycles", 60_000)
    yield cycles
    Event.early = 0


def sampler() -> GraphSampler:
    made = GraphSampler.__new__(GraphSampler)
    made.before_repeating = lambda: None
    made._count, made._graph = 4, Graph()  # type: ignore[assignment]
    made._start, made._end = Event(), Event()  # type: ignore[assignment]
    made._stream = None  # type: ignore[assignment]
    return made


def test_a_sample_in_time_is_taken_once(slept: list[int]) -> None:
    assert sampler().time_us() == 500.0
    assert slept == [60_000]


def test_a_late_sample_is_taken_again_with_twice_the_head_start(slept: list[int]) -> None:
    Event.early = 2
    assert sampler().time_us() == 500.0
    assert slept == [60_000, 120_000, 240_000]
    other = sampler()  # samplers know from now on that this machine needs a longer head start
    other.time_us()
    assert 230_000 < slept[-1] < 240_000


def test_what_is_always_late_is_taken_in_the_end(slept: list[int]) -> None:
    Event.early = 10**6
    for _ in range(3):
        assert sampler().time_us() == 500.0
    assert max(slept) == 16 * 60_000
    assert len(slept) == 3 * 4


def test_the_head_start_shrinks_to_what_is_needed(slept: list[int]) -> None:
    Event.early = 3
    made = sampler()
    for _ in range(2000):
        made.time_us()
    assert slept[-1] == 60_000


class Made:
    """The event behind writes that were made at `made_us` after the begin of the graph."""

    def __init__(self, made_us: float) -> None:
        self.made_us = made_us

    def elapsed_time(self, end: Made) -> float:
        return (end.made_us - self.made_us) / 1000


@pytest.mark.parametrize(
    ("made_us", "run_us", "shortest_us", "is_settled"),
    [
        (80.0, 100.0, 10.0, True),
        (92.0, 100.0, 10.0, False),
        (87.0, 100.0, 10.0, False),
        (87.0, 102.0, 10.0, True),  # all calls were a little slower
        (92.0, 140.0, 10.0, False),  # held up for 40 us, maybe after the last call
        (92.0, 108.0, 10.0, False),  # held up for 8 us: other processes on the GPU have short turns
        (80.0, 140.0, 10.0, True),
        (80.0, 80.0, 10.0, False),  # calls that are faster than ever before
        (120.0, 140.0, 15.0, True),  # all calls known so far were held up
        (120.0, 140.0, 10.0, False),  # then one was not
    ],
)
def test_writes_are_settled_if_a_call_surely_began_after_them(
    made_us: float, run_us: float, shortest_us: float, is_settled: bool
) -> None:
    """Ten calls of 10 us at best: the last one begins 90 us after the first, or later."""
    writing = _Writing.__new__(_Writing)
    writing.made = Made(made_us)  # type: ignore[assignment]
    writing._last = 10
    needed_us = writing.needed_us(Made(0.0), run_us, 10)  # type: ignore[arg-type]
    assert (needed_us <= shortest_us) is is_settled
