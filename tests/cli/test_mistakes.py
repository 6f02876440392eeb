"""Commands with mistakes, in a folder that holds a run: the exit code and the error line."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs.runs import run_here

from .conftest import ROOT, Invoke

RECORDING = ROOT / "tests" / "data" / "synthetic_recording.json.gz"
CPU = ROOT / "search_spaces" / "attention_cpu.yaml"
READERS = ("status", "top", "report", "verify", "resume")


def _cut(run: Path) -> None:
    store = run / "store.sqlite"
    store.write_bytes(store.read_bytes()[:9000])


def _overwrite(run: Path) -> None:
    (run / "store.sqlite").write_text("no store at all\n" * 1000)


def _empty(run: Path) -> None:
    (run / "store.sqlite").write_bytes(b"")


def _newer(run: Path) -> None:
    subprocess.run(
        ["python3", "-c", _SET_VERSION, str(run / "store.sqlite")], check=True, env=os.environ
    )


_SET_VERSION = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA user_version = 99")
connection.close()
"""

DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (_cut, "is damaged ("),
    "overwritten": (_overwrite, "is damaged (file is not a database)"),
    "empty": (_empty, "is not an evotune store"),
    "newer": (_newer, "was written by a newer evotune (store version 99"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_here(RECORDING, tmp_path_factory.mktemp("made") / "runs", trials=60).path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the run, in the test's own folder."""
    return Path(shutil.copytree(made, tmp_path / "runs" / made.name))


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("command", READERS)
def test_a_damaged_store_ends_every_command_with_4_and_what_to_do(
    invoke: Invoke, run: Path, command: str, damage: str
) -> None:
    spoil, words = DAMAGE[damage]
    spoil(run)
    before = (run / "store.sqlite").read_bytes()
    result = invoke(command, "latest")
    assert (result.exit_code, result.stdout) == (4, "")
    assert words in result.stderr
    assert "copy" in result.stderr or "update evotune" in result.stderr
    assert result.stderr.count("\n") == 1
    assert (run / "store.sqlite").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["status", "latest", "--format", "csv"], 2, "Error: Invalid value for '--format'"),
        (["status", "latest", "-o", "no/such/x"], 2, "error: cannot write no/such/x: No such file"),
        (["top"], 2, "Error: Missing argument 'RUN'."),
        (["top", "latest", "-n", "many"], 2, "Error: Invalid value for '-n'"),
        (["top", "latest", "-o", "runs"], 2, "error: cannot write runs: Is a directory"),
        (["top", "latest", "extra"], 2, "Error: Got unexpected extra argument (extra)"),
        (["report", "latest", "-o", "no/such/x"], 2, "error: cannot write no/such/x: No such file"),
        (["report", "2"], 0, ""),
        (["report", "1"], 2, "error: no run '1' in runs (1 run is there)"),
        (["report", "latest", "--runs-dir", "no"], 2, "error: no run 'latest' in no"),
        (["top", "latest", "--runs-dir", "my runs"], 2, "error: no run 'latest' in my runs (ther"),
        (["status", "latest", "--runs-dir", "runs/x"], 2, "error: no run 'latest' in runs/x (the"),
        (["run", "a b.yaml"], 2, "error: a b.yaml: does not exist"),
        (
            ["run", "attention-wgmma", "--device", "a100"],
            3,
            "error: --device a100: this machine has no NVIDIA A100 (found: none); fix: run on one",
        ),
        (
            ["run", "attention-mma", "--device", "a100"],
            3,
            "error: --device a100: this machine has no NVIDIA A100 (found: none); fix: run on one; "
            "or only compile: evotune compile attention-mma --device a100",
        ),
        (["resume", "latest", "--minutes", "0"], 2, "Error: Invalid value for '--minutes'"),
        (["verify", "latest"], 2, "error: run <id> replays a recording: there is no kernel"),
        (["verify", "latest", "--config", "{"], 2, "error: --config is not JSON"),
        (["verify", "latest", "--config", "[]"], 2, "error: --config: expected {"),
        (["verify", "latest", "--config", "{}", "--top", "1"], 2, "error: --config and --top excl"),
        (["verify", "latest", "--top", "0"], 2, "Error: Invalid value for '--top'"),
        (["resume", "latest", "--trials", "10"], 2, "error: run <id> has 60 trials already; ask"),
        (["resume", "latest", "--trials", "1e3"], 2, "Error: Invalid value for '--trials'"),
        (["resume", "latest", "--minutes", "-1"], 2, "Error: Invalid value for '--minutes'"),
        (["run", str(RECORDING), "--minutes", "nan"], 2, "Error: Invalid value for '--minutes'"),
        (["run", str(RECORDING), "--speedup", "inf"], 2, "Error: Invalid value for '--speedup'"),
        (["run", str(RECORDING), "--strategy", "luck"], 2, "error: unknown search strategy 'luck'"),
        (["run", str(RECORDING), "--device", "cpu"], 2, f"error: {RECORDING} is a recorded space"),
        (["run", str(RECORDING), "--gpus", "2"], 2, f"error: {RECORDING} is a recorded space"),
        (
            ["run", "attention-cpu", "--gpus", "all"],
            2,
            f"error: {CPU} holds cpu kernels; --gpus is",
        ),
        (["run", "attention-mma", "--gpus", "0"], 2, "Error: Invalid value for '--gpus': expected"),
        (["resume", "latest", "--gpus", "some"], 2, "Error: Invalid value for '--gpus': expected"),
        (
            ["resume", "latest", "--gpus", "2"],
            2,
            "error: <run>/sources/synthetic_recording.json.gz is",
        ),
        (
            ["run", "attention-cpu", "--trials", "1", "--warm-start", "2"],
            2,
            "error: run <id> shares no parameter with",
        ),
        (
            ["run", "attention-cpu", "--cluster", "host"],
            2,
            "error: --cluster host: expected tcp://",
        ),
        (["resume", "latest", "--cluster", "local:0"], 2, "error: --cluster local:0: expected"),
        (["run", str(RECORDING), "--seed", "x"], 2, "Error: Invalid value for '--seed'"),
        (["run", "/etc"], 2, "error: /etc: expected a file, found a directory"),
        (["run", "/dev/null"], 2, "error: /dev/null: expected a file, found a device"),
        (["check", "/proc/self/mem"], 2, "error: /proc/self/mem: cannot read it: Input/output"),
        (["check", "latest"], 2, "error: no space 'latest'"),
        (["compile", str(RECORDING), "--all"], 2, f"error: {RECORDING} is a recorded space: there"),
        (["compile", "attention-l4", "--device", "l5"], 2, "error: unknown device 'l5'"),
        (
            ["compile", "attention-cpu", "--device", "l4"],
            2,
            f"error: {CPU} holds cpu kernels; they cannot run on --device l4",
        ),
        (["schema", "--format", "json"], 2, "Error: No such option"),
        (["doctor", "latest"], 2, "Error: Got unexpected extra argument (latest)"),
    ],
)
def test_a_mistake_ends_with_its_exit_code_and_one_line(
    invoke: Invoke, run: Path, arguments: list[str], code: int, line: str
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    if code:
        expected = line.replace("<id>", run.name).replace("<run>", str(run))
        assert result.stderr.splitlines()[-1].startswith(expected)
        assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "internal error" not in result.stderr


def test_a_run_that_another_process_works_on_is_not_resumed(invoke: Invoke, run: Path) -> None:
    from evotune.runs.folder import RunFolder

    with RunFolder(run).locked():
        result = invoke("resume", "latest", "--trials", "90")
    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr == f"error: run {run.name} is being worked on by process {os.getpid()}\n"


@pytest.mark.parametrize(
    "command",
    [
        ("run", CPU, "--strategy", "x" * 5000),
        ("check", CPU, "--device", "x" * 5000),
        ("check", "folder/" * 400 + "x"),
        ("top", "x" * 5000),
        ("init", "x" * 5000),
        ("run", CPU, "--trials", "x" * 5000),
        ("x" * 5000,),
    ],
    ids=lambda command: f"{command[0][:8]} {len(command)}",
)
def test_a_long_name_is_quoted_in_part(invoke: Invoke, command: tuple[object, ...]) -> None:
    result = invoke(*command)
    assert result.exit_code == 2
    assert max(map(len, result.stderr.split())) <= 200
    assert "…" in result.stderr
