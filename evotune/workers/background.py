"""Runs an executor in a thread of its own, so that it hands out work while the search computes.

The search's model now and then takes a tenth of a second. Devices and compilers need not wait for
it: proposals that were submitted before go on.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from evotune.trial import Outcome
from evotune.workers.executor import Proposal
from evotune.workers.local import LocalExecutor

_TURN_S = 0.2


class BackgroundExecutor:
    """See `evotune.workers.executor.Executor`. Until `close` other threads only call `inner.wake`
    and read `inner.step`.

    The thread lives until `close`, because the kernel kills a child process when the thread that
    started it ends. An error of `inner` ends the thread; the next call raises it.
    """

    def __init__(self, inner: LocalExecutor) -> None:
        self._inner = inner
        self._commands: deque[Callable[[], None]] = deque()
        self._done: queue.SimpleQueue[tuple[int, Outcome] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="executor", daemon=True)
        self._thread.start()

    @property
    def step(self) -> str:
        return self._inner.step

    def submit(self, proposal: Proposal) -> None:
        self._command(lambda: self._inner.submit(proposal))

    def set_contender(self, fitness: float) -> None:
        self._command(lambda: self._inner.set_contender(fitness))

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        done: list[tuple[int, Outcome]] = []
        try:
            item = self._done.get(timeout=timeout_s)
            while True:
                if item is not None:
                    done.append(item)
                item = self._done.get_nowait()
        except queue.Empty:
            pass
        if not done and self._error is not None:
            raise self._error
        return done

    def drop(self) -> None:
        dropped: Future[None] = Future()

        def drop() -> None:
            self._inner.drop()
            dropped.set_result(None)

        self._command(drop)
        while not dropped.done() and self._thread.is_alive():
            self._thread.join(0.005)
        self.poll(0.0)  # raises if the thread failed; drops outcomes that were ready, too

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._inner.wake()
            try:
                self._thread.join()
            finally:  # also at a second Ctrl-C: in a notebook the workers would live on
                self._thread.join()
                self._inner.close()

    def _command(self, action: Callable[[], None]) -> None:
        if self._error is not None:
            raise self._error
        self._commands.append(action)
        self._inner.wake()

    def _work(self) -> None:
        try:
            while not self._closing:
                while self._commands:
                    self._commands.popleft()()
                for item in self._inner.poll(_TURN_S):
                    self._done.put(item)
        except BaseException as error:  # noqa: BLE001 (raised again in the thread that polls)
            self._error = error
            self._done.put(None)
