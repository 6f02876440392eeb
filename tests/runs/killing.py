"""Runs with real compilers and workers, killed at random moments and resumed to their end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from workers.faulty import descendants, wait_until_gone

from evotune.runs.folder import RunFolder, list_runs
from evotune.trial import Trial

from .crashing import Forker
from .runs import digest, history

KILLED = -signal.SIGKILL


def only_run(runs_dir: Path) -> RunFolder | None:
    return next(iter(list_runs(runs_dir)), None)


def kill_again_and_again(
    forker: Forker,
    arguments: tuple[object, ...],
    folder: Path,
    kills: int,
    keep: Callable[..., None],
    *,
    seed: int = 0,
) -> None:
    """Kills runs at random moments and resumes each to its end, until there were `kills` kills.

    `arguments` start a run whose proposals do not depend on measurements (`--strategy random`), so
    that every run must have the history of the unbroken one. Half of the kills end the parent
    alone, the others every process of the run.
    """
    started = time.monotonic()
    assert forker.run(*arguments, "--runs-dir", folder / "unbroken") == 0, forker.output()
    whole_s = time.monotonic() - started
    unbroken = only_run(folder / "unbroken")
    assert unbroken is not None
    rng = random.Random(seed)
    counts = {"kills": 0, "runs": 0, "whole_tree": 0, "parent_alone": 0, "processes_killed": 0}
    while counts["kills"] < kills:
        counts["runs"] += 1
        runs_dir = folder / f"runs-{counts['runs']}"
        forker.cache = folder / f"cache-{counts['runs']}"
        kept: list[Trial] = []
        status = KILLED
        while status == KILLED:
            run = only_run(runs_dir)
            command = arguments if run is None else ("resume", "latest")
            session = forker.start(*command, "--runs-dir", runs_dir)
            if counts["kills"] < kills:
                time.sleep(rng.uniform(0.0, whole_s))
                below = descendants(session.pid)
                alone = rng.random() < 0.5
                for pid in [session.pid, *(() if alone else below)]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                assert not wait_until_gone(below), "an orphan"
            status = session.finish()
            if status == KILLED:
                counts["kills"] += 1
                counts["parent_alone" if alone else "whole_tree"] += 1
                counts["processes_killed"] += 1 + len(below)
            run = only_run(runs_dir)
            now = history(run) if run is not None else []
            assert set(forker.journaled("stored")) <= {trial.number for trial in now}
            assert all(trial in now for trial in kept), "an acknowledged outcome was lost"
            kept = now
        assert status == 0, forker.output()
        assert run is not None
        assert digest(run) == digest(unbroken)
        keep(**counts, lost=0, orphans=0, other_histories=0)
