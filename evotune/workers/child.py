"""Starts a child process in its own process group, exchanges messages with it, and kills the whole
group.

`wait_readable` waits for several children.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from evotune.errors import EnvironmentProblem
from evotune.util.channel import FromWorker, Reader, ToWorker, UnreadableMessage, Wire, framed
from evotune.util.files import WORKER_FOLDER, scratch_folder
from evotune.util.processes import describe_status, module_command

_KILL_TIMEOUT_S = 60.0  # a GPU's memory and a running kernel take their time to be cleared

_FULL_LOG_BYTES = 256 << 20
"""A new log begins after this much output of candidates: `entry` limits each file to 1 GiB."""


class Child(Generic[ToWorker, FromWorker]):
    """The parent's side of `python -m <module>`.

    The child's stderr and everything that native code prints go to `log`. The child dies with its
    parent (`evotune.workers.entry`), and the folder of its own (`worker_folder`) goes with it.
    """

    def __init__(
        self, wire: Wire[ToWorker, FromWorker], log: Path, environment: Mapping[str, str]
    ) -> None:
        self._wire = wire
        self._log = log
        self._reader = Reader(wire.from_worker)
        self._ended = False
        self.unreadable = ""
        """Why `receive` could not read a message of the child; "" if it could read all."""
        with log.open("ab") as file:
            if file.tell() > _FULL_LOG_BYTES:  # else this child soon could not say why it died
                file.truncate(0)
            self._log_start = file.seek(0, os.SEEK_END)
            self._folder = contextlib.ExitStack()
            own = {WORKER_FOLDER: str(self._folder.enter_context(scratch_folder()))}
            try:
                self._process = subprocess.Popen(
                    module_command(wire.module, str(os.getpid())),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    start_new_session=True,
                    env={**os.environ, **own, **environment},
                )
            except OSError as error:  # no more processes, files or memory; Python is gone
                self._folder.close()
                raise EnvironmentProblem(
                    f"{wire.worker} cannot be started: {error.strerror}; repair that, then resume "
                    "the run"
                ) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin_fd = self._process.stdin.fileno()
        self._fd = self._process.stdout.fileno()
        os.set_blocking(self._stdin_fd, False)
        os.set_blocking(self._fd, False)
        self._unsent = bytearray()

    @property
    def log(self) -> Path:
        return self._log

    def move_log(self, log: Path) -> None:
        """Notes that the child now writes to another log."""
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._fd

    def send(self, message: ToWorker) -> None:
        """Sends a message without waiting for the child to read it: `wait_readable` sends the rest
        of a large message. Ignores a broken pipe, because `receive` reports that the child is gone.
        """
        assert isinstance(message, msgspec.Struct)
        self._unsent += framed(message)
        self._send_on()

    def _send_on(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._stdin_fd, self._unsent)]
        except BlockingIOError:
            pass  # the pipe is full
        except BrokenPipeError:
            self._unsent.clear()

    def receive(self) -> list[FromWorker] | None:
        """The messages that have arrived; None if the child is gone or has sent an `unreadable`
        message."""
        try:
            data = os.read(self._fd, 1 << 18)
        except BlockingIOError:
            return []
        if not data and not self._reader.failed:
            return None
        try:
            messages = self._reader.feed(data)
        except UnreadableMessage as error:
            self.unreadable = str(error)
            return None
        if self._reader.failed:
            self._signal_group()  # closes its pipe, so the next call comes at once and says why
        return messages

    def _signal_group(self) -> None:
        if self._ended:
            return
        # Until the child is reaped, no other process or group can have its id.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> int:
        """Kills the whole group, reaps the child and closes its pipes. Returns its exit status."""
        if not self._ended:
            self._signal_group()
            try:
                self._process.wait(_KILL_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                raise EnvironmentProblem(
                    f"{self._wire.worker} does not die: it hangs in a driver or a file system; "
                    "fix: reboot"
                ) from error
            self._close_pipes()
            self._folder.close()
            self._ended = True
        return self._process.returncode

    def reap(self, grace_s: float = 2.0) -> int:
        """Waits at most `grace_s` for a child that `receive` gave up, then kills the rest of its
        group. Returns the child's exit status."""
        deadline = time.monotonic() + (0.0 if self.unreadable else grace_s)
        dead = os.WEXITED | os.WNOHANG | os.WNOWAIT  # does not reap: see `_signal_group`
        while not self._ended and os.waitid(os.P_PID, self._process.pid, dead) is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        return self.kill()

    def _close_pipes(self) -> None:
        self._fd = self._stdin_fd = -1  # the numbers may soon be other files'
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def end_in_words(self, status: int) -> str:
        """How the child ended, as a sentence: its exit status, from `reap`, or its unreadable
        message."""
        if self.unreadable:
            return f"{self._wire.worker} sent a message that cannot be read: {self.unreadable}"
        return f"{self._wire.worker} {describe_status(status)}"

    def log_tail(self, limit: int = 4096) -> str:
        """The end of this child's part of the log, which earlier children may share; "" if the log
        was removed."""
        try:
            with self._log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, end - limit))
                return file.read().decode(errors="replace").strip()
        except FileNotFoundError:
            return ""


def kill_all(children: Iterable[Child[Any, Any]]) -> None:
    """Kills all children in parallel, because a process that has a GPU open takes long to die."""
    children = list(children)
    for child in children:
        child._signal_group()
    for child in children:
        child.kill()


_Waiting = TypeVar("_Waiting", bound=Child[Any, Any] | int)


def wait_readable(waiting: Iterable[_Waiting], timeout_s: float) -> list[_Waiting]:
    """Waits at most `timeout_s` until some of the children or file descriptors are readable, and
    returns these. Meanwhile sends the children what is left of their messages."""
    deadline = time.monotonic() + timeout_s
    by_fd = {each if isinstance(each, int) else each.fileno(): each for each in waiting}
    while True:
        poll = select.poll()  # `select.select` refuses file descriptors from 1024 on
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        sending = [each for each in by_fd.values() if isinstance(each, Child) and each._unsent]
        for child in sending:
            poll.register(child._stdin_fd, select.POLLOUT)
        left_s = max(0.0, deadline - time.monotonic())
        ready = poll.poll(math.ceil(1000 * left_s))
        for child in sending:
            child._send_on()
        readable = [by_fd[fd] for fd, _ in ready if fd in by_fd]
        if readable or not ready or not left_s:
            return readable
