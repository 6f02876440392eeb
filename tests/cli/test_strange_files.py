"""A pipe, a device, a socket or a circle of links where a file should be: one line, at once."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from report.runs import make_run, ok

from .conftest import ROOT, Invoke

RECORDING = ROOT / "tests" / "data" / "synthetic_recording.json.gz"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.open(path.parent, os.O_RDONLY)  # a socket's own path must be short
        server.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


STRANGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (os.mkfifo, "expected a file, found a named pipe"),
    "socket": (_socket, "expected a file, found a socket"),
    "folder": (Path.mkdir, "expected a file, found a directory"),
    "circle": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
}
KERNEL = """\
name: strange
problem: {name: NAME, shapes: [{n: 4}]}
kernels:
  only: {source: kernels/SOURCE, entry: f, arguments: []}
parameters: {A: [1, 2]}
"""


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """Interrupts a command that waits for a pipe: that test fails, and the others go on."""

    def give_up(*_: object) -> None:
        raise AssertionError("the command waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _refused(invoke: Invoke, words: str, *arguments: object, code: int = 2) -> str:
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    return result.stderr


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("command", ["check", "replay", "run"])
def test_a_recording_that_is_no_file_is_refused_at_its_place(
    invoke: Invoke, tmp_path: Path, kind: str, command: str
) -> None:
    make, words = STRANGE[kind]
    make(tmp_path / "rec.json")
    (tmp_path / "space.yaml").write_text("name: r\nrecorded: {file: rec.json}\n")
    line = _refused(invoke, words, command, "space.yaml")
    assert "space.yaml:2:18: " in line
    assert "rec.json" in line


@pytest.mark.parametrize("kind", STRANGE)
def test_a_problem_that_is_no_file_is_refused_at_its_place(
    invoke: Invoke, tmp_path: Path, kind: str
) -> None:
    make, words = STRANGE[kind]
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.cpp").write_text("")
    make(tmp_path / "problem.py")
    text = KERNEL.replace("NAME", '"problem.py:P"').replace("SOURCE", "a.cpp")
    (tmp_path / "space.yaml").write_text(text)
    assert "space.yaml:2:10: " in _refused(invoke, words, "check", "space.yaml")


@pytest.mark.parametrize("kind", STRANGE)
def test_a_source_that_is_no_file_is_refused_at_its_place(
    invoke: Invoke, tmp_path: Path, kind: str
) -> None:
    make, words = STRANGE[kind]
    (tmp_path / "kernels").mkdir()
    make(tmp_path / "kernels" / "a.cpp")
    shape = "{batch: 1, heads: 1, seq_len: 64, head_dim: 32}"
    text = KERNEL.replace("NAME", "attention").replace("SOURCE", "a.cpp")
    (tmp_path / "space.yaml").write_text(text.replace("{n: 4}", shape))
    assert "space.yaml:4:9: " in _refused(invoke, words, "check", "space.yaml")


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("command", ["check", "run", "compile", "replay"])
@pytest.mark.parametrize("name", ["space.yaml", "rec.json", "named"])
def test_what_a_command_is_given_must_be_a_file(
    invoke: Invoke, tmp_path: Path, kind: str, command: str, name: str
) -> None:
    make, words = STRANGE[kind]
    make(tmp_path / name)
    if command == "replay" and kind == "folder":
        words = f"no run '{name}'"  # a run may be named by its folder
    assert name in _refused(invoke, words, command, name)


def test_a_device_is_no_file(invoke: Invoke, tmp_path: Path) -> None:
    words = "expected a file, found a device"
    for command in ("check", "replay"):
        _refused(invoke, words, command, "/dev/zero")
    (tmp_path / "space.yaml").write_text("name: r\nroot: /\nrecorded: {file: dev/zero}\n")
    assert "space.yaml:3:18: " in _refused(invoke, words, "check", "space.yaml")


def test_a_root_that_is_no_folder_is_refused_at_its_place(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to("root")
    recorded = "name: r\nroot: root\nrecorded: {file: rec.json}\n"
    kernel = KERNEL.replace("NAME", "attention").replace("SOURCE", "a.cpp")
    for text in (recorded, kernel.replace("problem", "root: root\nproblem", 1)):
        (tmp_path / "space.yaml").write_text(text)
        for command in ("check", "run", "compile"):
            line = _refused(invoke, "Too many levels of symbolic links", command, "space.yaml")
            assert "space.yaml:2:7: " in line
    (tmp_path / "root").unlink()
    (tmp_path / "root").write_text("")
    line = _refused(invoke, "root is not a folder", "check", "space.yaml")
    assert "space.yaml:2:7: " in line


def test_a_runs_folder_in_a_circle_of_links_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    words = "Too many levels of symbolic links"
    _refused(invoke, words, "run", RECORDING, "--trials", "3", "--runs-dir", "circle")
    _refused(invoke, "no run 'latest' in circle", "top", "latest", "--runs-dir", "circle")


def test_pipes_in_the_folder_of_a_run_are_waited_for_by_no_command(
    invoke: Invoke, tmp_path: Path
) -> None:
    assert invoke("run", RECORDING, "--trials", "20").exit_code == 0
    (run,) = (tmp_path / "runs").iterdir()
    (run / "environment.json").unlink()
    os.mkfifo(run / "environment.json")
    _refused(invoke, "environment.json is damaged", "resume", "latest", "--trials", "30", code=4)
    result = invoke("report", "latest", "--format", "json")
    assert result.exit_code == 0
    assert "expected a file, found a named pipe" in result.stdout
    (run / "store.sqlite").unlink()
    os.mkfifo(run / "store.sqlite")
    for command in ("resume", "status", "top"):
        _refused(invoke, "store.sqlite is missing", command, "latest", code=4)
    _refused(invoke, "store.sqlite is missing", "run", RECORDING, "--warm-start", run.name, code=4)


@pytest.mark.parametrize("kind", [*STRANGE, "device", "unwritable"])
def test_a_lock_that_is_no_file_is_told_at_once(invoke: Invoke, tmp_path: Path, kind: str) -> None:
    run = make_run(tmp_path, [ok(1.2)])
    lock = run.path / "lock"
    lock.unlink(missing_ok=True)
    if kind in STRANGE:
        STRANGE[kind][0](lock)
    else:
        lock.symlink_to("/dev/null" if kind == "device" else "/proc/self/timers")
    assert invoke("top", run.path).exit_code == 0
    _refused(invoke, str(lock), "resume", run.path, "--trials", 2, code=3)


@pytest.mark.parametrize("output", ["/", ".", ""])
def test_a_folder_is_no_output(invoke: Invoke, tmp_path: Path, output: str) -> None:
    run = make_run(tmp_path, [ok(1.2)])
    for style in ("json", "csv", "parquet"):
        _refused(invoke, "Is a directory", "report", run.path, "--format", style, "-o", output)
    _refused(invoke, f"cannot write {output or '.'}: ", "schema", "-o", output)
