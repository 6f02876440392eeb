"""An executor at work in a thread of its own: it hands out work while the search still thinks.

The search's model takes a tenth of a second now and then. Devices and compilers must not wait for
that: what is known already goes on.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from evotune.execute.local import LocalExecutor
from evotune.execute.protocol import Proposal
from evotune.trial import Outcome

_TURN_S = 0.2


class BackgroundExecutor:
    """See `evotune.execute.protocol.Executor`. From now on `inner` belongs to the thread.

    The thread lives until `close`: the kernel ends children whose creator, a thread, has ended.
    An error of `inner` ends the thread, and is raised by the next call.
    """

    def __init__(self, inner: LocalExecutor) -> None:
        self._inner = inner
        self._commands: deque[Callable[[], None]] = deque()
        self._done: queue.SimpleQueue[tuple[int, Outcome] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="executor", daemon=True)
        self._thread.start()

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
        self.poll(0.0)  # raises if the thread failed; what had finished before is dropped as well

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._inner.wake()
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
