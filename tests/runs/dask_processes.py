"""Real Dask schedulers and workers, to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


class Dask:
    """A scheduler and workers without nannies, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "scheduler.json"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._count = 0
        self.scheduler = self._start(
            "scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard",
            "--scheduler-file", self._file,
        )  # fmt: skip

    def _start(self, what: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, given)])
        with (self._folder / f"{what}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{what}", *map(str, arguments)],
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    @property
    def address(self) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                return str(json.loads(self._file.read_text())["address"])
            except (OSError, ValueError):
                time.sleep(0.02)
        raise AssertionError((self._folder / "scheduler.log").read_text())

    def add_worker(self, threads: int = 3) -> str:
        name = f"worker-{self._count}"
        self._count += 1
        self.workers[name] = self._start(
            "worker", self.address, "--no-nanny", "--nthreads", str(threads), "--name", name,
            "--no-dashboard", "--host", "127.0.0.1", "--local-directory", self._folder / name,
        )  # fmt: skip
        return name

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self.workers.pop(name)
        os.killpg(process.pid, number)
        process.wait()

    def close(self) -> None:
        for name in list(self.workers):
            self.kill(name)
        if self.scheduler.poll() is None:
            os.killpg(self.scheduler.pid, signal.SIGKILL)
        self.scheduler.wait()
