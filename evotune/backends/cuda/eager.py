"""Times calls that Python issues one by one, as a PyTorch user's program does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch


class EagerSampler:
    """See `evotune.device.protocol.Sampler`. Its time per call is the larger of two: the
    processor's time to issue a call and the GPU's time to run it. One synchronization ends the row.

    A candidate's call is its bare launches through CuPy; a baseline's is a call of PyTorch's API.
    """

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._calls = calls

    def run(self) -> None:
        for call in self._calls:
            call()
        torch.cuda.synchronize()

    def time_us(self) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter_ns()
        self.run()
        return (time.perf_counter_ns() - started) / 1000 / len(self._calls)
