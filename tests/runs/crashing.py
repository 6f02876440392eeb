"""A process that imports evotune once and forks for every command, so that a command starts fast.

A command can be told to kill itself (SIGKILL) right before or after a named step. It writes a
journal of its trials: `submitted N` when trial N goes to the executor, `stored N` when its outcome
is committed.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

# name: (module, attribute, before or after its n-th call, n)
CRASH_POINTS: dict[str, tuple[str, str, str, int]] = {
    "folder made": ("evotune.runs.starting", "create_folder", "after", 1),
    "sources copied": ("evotune.runs.starting", "snapshot", "after", 1),
    "lock about to be taken": ("evotune.runs.folder", "RunFolder.locked", "before", 1),
    "store begun": ("evotune.store.run_store", "RunStore.set_facts", "before", 1),
    "facts half written": ("evotune.store.run_store", "keep_table_sum", "before", 1),
    "store about to appear": ("os", "rename", "before", 1),
    "store appeared": ("os", "rename", "after", 1),
    "run about to begin": ("evotune.runs.starting", "RunWork.run_to_end", "before", 1),
    "first outcome about to be stored": ("evotune.store.run_store", "RunStore.append", "before", 1),
    "first outcome stored": ("evotune.store.run_store", "RunStore.append", "after", 1),
    "outcome about to be stored": ("evotune.store.run_store", "RunStore.append", "before", 33),
    "outcome stored": ("evotune.store.run_store", "RunStore.append", "after", 33),
    "outcome told": ("evotune.runs.search_loop", "SearchLoop._tell", "after", 33),
    "snapshot about to be saved": (
        "evotune.store.run_store",
        "RunStore.save_snapshot",
        "before",
        2,
    ),
    "snapshot saved": ("evotune.store.run_store", "RunStore.save_snapshot", "after", 3),
    "log about to be moved": ("evotune.store.run_store", "RunStore.sync", "before", 30),
    "log moved": ("evotune.store.run_store", "RunStore.sync", "after", 30),
    "search ended": ("evotune.runs.search_loop", "SearchLoop.run", "after", 1),
    "store about to be closed": ("evotune.store.run_store", "RunStore.close", "before", 2),
}
BEFORE_THE_RUN_EXISTS = tuple(CRASH_POINTS)[:6]
CPU_CRASH_POINTS: dict[str, tuple[str, str, str, int]] = {
    "baselines timed": ("evotune.workers.local", "LocalExecutor.time_baselines", "after", 1),
    "compiled": ("evotune.workers.local", "LocalExecutor._compiled", "after", 3),
    "measured": ("evotune.store.run_store", "RunStore.append", "before", 2),
    "confirmation about to be stored": ("evotune.store.run_store", "RunStore.confirm", "before", 1),
    "confirmation stored": ("evotune.store.run_store", "RunStore.confirm", "after", 1),
}
_IMPORTED_BY_EVERY_COMMAND = (
    *("evotune.cli.run_commands", "evotune.cli.progress", "evotune.runs.starting"),
    *("evotune.search.evolution", "evotune.report.screen"),
)
_ROOT = Path(__file__).parents[2]
_SNAPSHOT_EVERY = 20  # so that a short run saves some


@dataclass(frozen=True)
class Session:
    """One command under way; `finish` waits for it."""

    pid: int
    """No other process gets this id before `finish`, even if the command has ended."""
    _requests: IO[str]
    _answers: IO[str]

    def finish(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        self._requests.write("wait\n")
        self._requests.flush()
        return int(json.loads(self._answers.readline())["status"])


def _own_path() -> list[str]:
    """The folders that PYTHONPATH names, for packages beside the environment's."""
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


class Forker:
    """Starts commands, one at a time. Their output goes to `folder`/output.log."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._output = folder / "output.log"
        self.journal = folder / "journal"
        self.cache = folder / "cache"  # of compiled kernels, for the next commands
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *_own_path()])},
        )

    def __enter__(self) -> Forker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def start(self, *arguments: object, crash: str = "") -> Session:
        """`crash` is the name of a crash point; the journal starts anew."""
        self.journal.write_text("")
        request = {
            "arguments": [str(argument) for argument in arguments],
            "crash": crash,
            "journal": str(self.journal),
            "output": str(self._output),
            "cache": str(self.cache),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        pid = json.loads(self._process.stdout.readline())["pid"]
        return Session(pid, self._process.stdin, self._process.stdout)

    def run(self, *arguments: object, crash: str = "") -> int:
        return self.start(*arguments, crash=crash).finish()

    def journaled(self, what: str) -> list[int]:
        lines = (line.split() for line in self.journal.read_text().splitlines())
        return [int(number) for word, number in lines if word == what]

    def output(self) -> str:
        return self._output.read_text()


def _serve() -> None:
    import evotune.cli.main

    for module in _IMPORTED_BY_EVERY_COMMAND:
        importlib.import_module(module)
    while line := sys.stdin.readline():
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(request)
            _die_at(request["crash"])
            evotune.cli.main.main(request["arguments"])
        print(json.dumps({"pid": pid}), flush=True)
        sys.stdin.readline()  # "wait"
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({"status": status}), flush=True)


def _become(request: dict[str, str]) -> None:
    """Makes this process a command with its own streams, cache and journal."""
    os.environ["EVOTUNE_CACHE_DIR"] = request["cache"]
    with open(os.devnull) as null, open(request["output"], "w") as output:
        os.dup2(null.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    from evotune.runs import search_loop
    from evotune.runs.kernel_run import InlineExecutor
    from evotune.store import RunStore
    from evotune.workers.local import LocalExecutor

    search_loop._SNAPSHOT_EVERY = _SNAPSHOT_EVERY
    journal = os.open(request["journal"], os.O_WRONLY | os.O_APPEND)
    for owner in (InlineExecutor, LocalExecutor):
        _journal_calls(owner, "submit", journal, "submitted")
    _journal_calls(RunStore, "append", journal, "stored")


def _journal_calls(owner: Any, name: str, journal: int, word: str) -> None:
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def journaled(self: Any, item: Any, *rest: Any) -> Any:
        result = inner(self, item, *rest)
        os.write(journal, f"{word} {item.number}\n".encode())
        return result

    setattr(owner, name, journaled)


def _die_at(name: str) -> None:
    if not name:
        return
    module, attribute, side, nth = {**CRASH_POINTS, **CPU_CRASH_POINTS}[name]
    owner: Any = importlib.import_module(module)
    *path, last = attribute.split(".")
    for step in path:
        owner = getattr(owner, step)
    setattr(owner, last, _deadly(vars(owner)[last], side, nth))


def _deadly(inner: Any, side: str, nth: int) -> Any:
    calls = 0
    plain = inner.__func__ if isinstance(inner, staticmethod | classmethod) else inner

    @functools.wraps(plain)
    def deadly(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = plain(*arguments, **options)
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return deadly if plain is inner else type(inner)(deadly)


if __name__ == "__main__":
    _serve()
