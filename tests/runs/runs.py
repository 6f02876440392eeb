"""Recorded runs for tests: made in this process or in one that can be killed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evotune.runs import ablation, confirming, planning
from evotune.runs.folder import RunFolder, list_runs
from evotune.runs.observer import SilentObserver
from evotune.runs.starting import RunRequest, start_run
from evotune.store import RunStore
from evotune.trial import Trial
from tests.patience import PATIENCE_S

RECORDING = Path(__file__).parents[1] / "data" / "synthetic_recording.json.gz"


def recorded_space(folder: Path, *, delay_ms: float = 0.0, lookahead: int = 16) -> Path:
    """A space file beside its own copy of the recording."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(RECORDING, folder / "recording.json.gz")
    path = folder / "space.yaml"
    path.write_text(
        f"name: recorded-test\nroot: .\n"
        f"recorded: {{file: recording.json.gz, delay_ms: {delay_ms}}}\n"
        f"search: {{population: 16, elites: 4, lookahead: {lookahead}}}\n"
    )
    return path


def run_here(space: Path, runs_dir: Path, **options: object) -> RunFolder:
    """A whole run in this process."""
    return start_run(run_request(space, runs_dir, **options), SilentObserver()).run


def run_request(space: Path, runs_dir: Path, **given: Any) -> RunRequest:
    """`given`: fields of the request, or options of the run, by name."""
    fields = {field.name for field in dataclasses.fields(RunRequest)}
    options = {name: value for name, value in given.items() if name not in fields}
    rest = {name: value for name, value in given.items() if name in fields}
    return RunRequest(str(space), runs_dir=runs_dir, options=options, **rest)


@contextlib.contextmanager
def few_random_tests(count: int) -> Iterator[None]:
    """Plans so many for a champion, and no launches at served sizes. To draw and to plan them all
    takes up to a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_RANDOM_TESTS", count)
        patch.setattr(planning, "_MOST_RANDOM_TESTS", count)
        patch.setattr(planning, "served_cases", lambda *given: ([], ()))
        yield


@contextlib.contextmanager
def brief_confirmations(processes: int = 1) -> Iterator[None]:
    """Times champions in so few processes, instead of three to six, and after ten random tests
    instead of a hundred, without launches at served sizes: these take most of a short run."""
    with pytest.MonkeyPatch.context() as patch, few_random_tests(10):
        patch.setattr(confirming, "MOST", processes)
        patch.setattr(ablation, "MOST", processes)
        yield


def history(run: RunFolder) -> list[Trial]:
    with RunStore.open_for_reading(run.store) as store:
        return list(store.trials())


def digest(run: RunFolder) -> str:
    with RunStore.open_for_reading(run.store) as store:
        return store.history_digest()


def evotune(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "evotune", *map(str, arguments)]


def start_killable(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """An evotune command as the leader of its own process group."""
    return subprocess.Popen(
        evotune(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_when_stored(process: subprocess.Popen[bytes], runs_dir: Path, count: int) -> RunFolder:
    """SIGKILLs the group once the only run of `runs_dir` has stored `count` outcomes."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        runs = list_runs(runs_dir)
        if runs and stored(runs[0]) >= count:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return runs[0]
        if process.poll() is not None:
            raise AssertionError(f"the run ended ({process.returncode}) before it could be killed")
        time.sleep(0.002)
    raise AssertionError(f"{count} outcomes were not stored in time")


def stored(run: RunFolder) -> int:
    """Outcomes in the store; 0 while it is being made."""
    import sqlite3

    try:
        connection = sqlite3.connect(f"{run.store.resolve().as_uri()}?mode=ro", uri=True)
        try:
            return int(connection.execute("SELECT count(*) FROM outcomes").fetchone()[0])
        finally:
            connection.close()
    except sqlite3.Error:
        return 0
