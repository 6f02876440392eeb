"""A device worker that starts before its device is known, and finds it.

Finding a device needs the same libraries as using it, and importing them takes seconds. The worker
writes to the run's log as soon as the run has a folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from evotune.backends.base.backend import Backend
from evotune.backends.base.launch import DeviceProfile
from evotune.workers.child import Child, wait_readable
from evotune.workers.messages import (
    DEVICE_WORKER,
    FromDeviceWorker,
    Preload,
    Preloaded,
    ToDeviceWorker,
)

Worker: TypeAlias = Child[ToDeviceWorker, FromDeviceWorker]

_IMPORT_S = 30.0


class EarlyWorker:
    """Holds at most one early worker. Closing ends the worker, unless it has been taken."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._environment: Mapping[str, str] = {}

    def start(self, backend: Backend) -> None:
        """Starts the worker if the environment that a device's worker needs can be guessed, and
        passes the devices that it finds to the backend. If that fails, the backend looks for
        devices itself."""
        environment = backend.likely_environment()
        if environment is None or self._worker is not None:
            return
        self._environment = environment
        self._worker = Child(DEVICE_WORKER, Path(os.devnull), environment)
        self._worker.send(Preload(backend=backend.name, looks=True))
        if found := self._devices():
            backend.learn(found)

    def _devices(self) -> Sequence[DeviceProfile]:
        """Waits until it has imported its libraries."""
        until_s = time.monotonic() + _IMPORT_S
        while self._worker is not None:
            wait_readable([self._worker], 0.1)
            messages = self._worker.receive()
            if messages is None or time.monotonic() > until_s:
                self.close()
            elif messages and isinstance(messages[0], Preloaded):
                return messages[0].devices
        return ()

    def take(self, environment: Mapping[str, str]) -> Worker | None:
        """The worker, which the caller then owns, if it was started with this environment; else
        None.
        """
        worker = self._worker
        if worker is None or environment != self._environment:
            return None
        self._worker = None
        return worker

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None
