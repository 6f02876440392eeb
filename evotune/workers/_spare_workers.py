"""Spare device workers: they have imported their libraries and wait until one is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from evotune.workers.child import Child
from evotune.workers.messages import FromDeviceWorker, ToDeviceWorker

Worker: TypeAlias = Child[ToDeviceWorker, FromDeviceWorker]


class SpareWorkers:
    """The spare workers of one device. Importing PyTorch takes seconds, and opening a spare worker
    less than one."""

    def __init__(self, spawn: Callable[[], Worker]) -> None:
        self._spawn = spawn
        self._waiting: list[Worker] = []

    def keep(self, count: int) -> None:
        """Starts workers until `count` of them wait."""
        while len(self._waiting) < count:
            self._waiting.append(self._spawn())

    def take(self) -> Worker | None:
        """The one that waited longest; None when there is none."""
        return self._waiting.pop(0) if self._waiting else None

    def close(self) -> None:
        for worker in self._waiting:
            worker.kill()
        self._waiting.clear()
