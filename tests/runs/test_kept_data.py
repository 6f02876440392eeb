"""Campaigns on what runs keep: full disks, no memory, paused processes, refused commands."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from workers.faulty import descendants

from evotune.errors import EvotuneError, StoreError
from evotune.runs import environment
from evotune.runs.folder import RunFolder
from evotune.runs.observer import SilentObserver
from evotune.runs.starting import resume_run
from evotune.store import RunStore
from evotune.trial import Configuration, Json, Outcome, OutcomeKind, Trial
from tests.patience import PATIENCE_S

from .killing import only_run
from .runs import evotune, history, recorded_space, run_here, start_killable, stored
from .test_cpu_run import SPACE

pytestmark = pytest.mark.soak
KeepResult = Callable[..., None]
TIMEOUTS = "timeouts: {compile_s: 10, trial_s: 20}\n"
TRIALS = 6


def test_all_processes_paused_for_longer_than_their_limits(
    tmp_path: Path, keep_result: KeepResult
) -> None:
    """Once for longer than a worker may take to start, then for longer than a compiler or a trial
    may take."""
    (tmp_path / "tiny.yaml").write_text(SPACE + TIMEOUTS)
    command = ("run", tmp_path / "tiny.yaml", "--trials", TRIALS, "--runs-dir", tmp_path / "runs")
    process = start_killable(*map(str, command))
    rng = random.Random(0)
    pauses_s = [130.0]
    try:
        time.sleep(2.0)
        _pause(process.pid, pauses_s[0])
        while (run := only_run(tmp_path / "runs")) is None or stored(run) < TRIALS:
            assert process.poll() is None, "it goes on"
            time.sleep(rng.uniform(0.5, 4.0))
            if len(pauses_s) < 6:
                pauses_s.append(40.0)
                _pause(process.pid, pauses_s[-1])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    kinds = Counter(trial.outcome.kind for trial in history(run))
    assert set(kinds) <= {OutcomeKind.OK, OutcomeKind.UNDECIDED}
    keep_result(
        device="cpu",
        pauses=len(pauses_s),
        longest_pause_s=max(pauses_s),
        trials=kinds.total(),
        timed_out=0,
        failed_starts=0,
    )


def _pause(pid: int, seconds: float) -> None:
    """Stops a process and all below it, as pausing its container does."""
    os.kill(pid, signal.SIGSTOP)
    below = descendants(pid)
    for each in below:
        with contextlib.suppress(ProcessLookupError):  # it ended before it was stopped
            os.kill(each, signal.SIGSTOP)
    time.sleep(seconds)
    for each in (pid, *below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGCONT)


def test_a_disk_that_fills_up_at_every_byte_of_a_new_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_result: KeepResult
) -> None:
    """The limit on a file's size holds while the facts are written, or from then on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    set_facts = RunStore.set_facts
    facts = {"state": "running", "space": "x" * 9000}
    found: Counter[str] = Counter()
    for late in (False, True):
        for limit in range(0, 130_000, 256):
            path = tmp_path / f"{late}-{limit}" / "store.sqlite"
            path.parent.mkdir()

            def limited(
                store: RunStore, facts: Mapping[str, Json], late: bool = late, limit: int = limit
            ) -> None:
                if late:
                    set_facts(store, facts)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
                if not late:
                    set_facts(store, facts)

            with monkeypatch.context() as patch:
                patch.setattr(RunStore, "set_facts", limited)
                try:
                    RunStore.create(path, facts).close()
                    found["made"] += 1
                except StoreError:
                    found["refused"] += 1
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, before)
            if path.exists():
                with RunStore.open_for_writing(path) as store:
                    assert store.meta("space") == facts["space"]
                    store.append(Trial(0, Configuration({"A": 1}), Outcome(OutcomeKind.NAN)), 0.0)
                found["can be resumed"] += 1
            shutil.rmtree(path.parent)
    assert found["refused"]
    keep_result(**found, half_made=0)


def test_commands_with_little_memory(tmp_path: Path, keep_result: KeepResult) -> None:
    """OpenBLAS ends its process itself where it finds no memory; nobody can catch that."""
    space = recorded_space(tmp_path / "space")
    run = run_here(space, tmp_path / "runs", trials=50)
    found: Counter[str] = Counter()
    for command in (
        evotune("top", run.path),
        evotune("report", run.path, "--format", "html", "-o", tmp_path / "page.html"),
        evotune("run", space, "--trials", "20", "--runs-dir", tmp_path / "more"),
    ):
        for mib in (16, 20, 30, 40, 60, 80, 120, 150, 170, 200, 250, 300, 400, 600):
            script = f"ulimit -v {1024 * mib} && exec {shlex.join(command)}"
            done = subprocess.run(
                ["bash", "-c", script], capture_output=True, text=True, check=False
            )
            if "OpenBLAS" in done.stderr:
                found["ended by OpenBLAS"] += 1
                continue
            assert done.returncode in (0, 3), (mib, command, done.stderr)
            assert "Traceback" not in done.stderr
            found[f"exit code {done.returncode}"] += 1
    assert found["exit code 3"] > 5
    keep_result(**found, internal_errors=0)


def test_refused_resumes_of_killed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_result: KeepResult
) -> None:
    """Whatever the moment at which the run was killed, and with a damaged byte or without."""
    whole = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=120)
    outcomes = history(whole)
    monkeypatch.setattr(environment, "changes", lambda then, now: ["another driver"])
    rng = random.Random(0)
    refused = damaged = 0
    for kept in range(1, 101):
        folder = tmp_path / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        _killed_after(whole, outcomes[:kept], folder, rng)
        if kept % 2:
            _change_a_byte(folder / f"store.sqlite{rng.choice(['', '-wal'])}", rng)
        run = RunFolder(folder)
        before = _files_of(run)
        for trials in (1, 200):
            with pytest.raises(EvotuneError) as caught:
                resume_run(run, SilentObserver(), trials=trials)
            refused += 1
            damaged += caught.value.exit_code == 4
            assert _files_of(run) == before
    keep_result(refused=refused, refused_as_damaged=damaged, files_changed=0)


def _killed_after(
    whole: RunFolder, outcomes: list[Trial], folder: Path, rng: random.Random
) -> None:
    """The folder of a run like `whole` that was killed after these outcomes."""
    shutil.copytree(whole.path, folder, ignore=shutil.ignore_patterns("store.*"))
    with RunStore.open_for_reading(whole.store) as store:
        names = ("settings", "device", "space_file", "kind", "space", "environment", "sources")
        facts = {name: store.meta(name) for name in names}
    with RunStore.create(folder / "made.sqlite", facts) as store:
        for trial in outcomes:
            store.append(trial, 0.0)
            if rng.random() < 0.03:
                store._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        for end in ("", "-wal"):
            shutil.copy(folder / f"made.sqlite{end}", folder / f"store.sqlite{end}")
    for path in folder.glob("made.*"):
        path.unlink()


def _change_a_byte(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= rng.randint(1, 255)
    path.write_bytes(content)


def _files_of(run: RunFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.path.glob("store.s*[el6]")}


def test_outputs_that_are_no_files(tmp_path: Path, keep_result: KeepResult) -> None:
    run = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=20)
    commands = (
        ("top", run.path),
        ("report", run.path, "--format", "csv"),
        ("report", run.path, "--format", "html"),
        ("report", run.path, "--format", "parquet"),
        ("compare", f"{run.path}:0", f"{run.path}:1"),
        ("explain", run.path),
        ("replay", run.path, "--max-evals", "3"),
        ("list",),
        ("schema",),
        ("doctor",),
    )
    outputs = ("/", ".", "", "/proc", "/proc/self/mem", "/dev/full", tmp_path / "no" / "file")
    for command in commands:
        for output in outputs:
            done = subprocess.run(
                evotune(*command, "-o", output),
                cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            assert done.returncode == 2, (command, output, done.stderr)
            assert len(errors) == 1
            assert errors[0].startswith("error: cannot write ")
    keep_result(commands=len(commands), outputs=len(outputs), internal_errors=0)
