"""Spaces and run folders from somebody else: none of their code runs before the user agrees."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from report.runs import make_run, ok

from evotune.backends.cuda import gpu_profiles
from evotune.errors import SpaceError
from evotune.runs.folder import list_runs
from evotune.runs.setup import load_setup
from tests.patience import PATIENCE_S

from .conftest import ROOT

# These tests run real kernels and confirm a champion each time: they take minutes.
slow = pytest.mark.soak

EXECUTING = [
    "resume RUN --trials 2",
    "verify RUN",
    "ablate RUN",
    "compare RUN:0 RUN:default --remeasure",
    "explain RUN --measure",
    "explain RUN --try",
    "run RUN/sources/space.yaml --trials 1 --champions 1",
]
# The commands repeated after the user agreed: one for each kind, since each takes long.
AGREED = {"native": EXECUTING[:1], "python": EXECUTING[1:2]}
READING = [
    "report RUN --format json",
    "top RUN",
    "status RUN",
    "compare RUN:0 RUN:0",
    "replay RUN --max-evals 1",
]
NATIVE = """
name: sent
root: .
problem: {name: attention, shapes: [{batch: 1, heads: 1, seq_len: 32, head_dim: 16}]}
kernels:
  sent:
    source: kernel.cpp
    entry: attention_forward
    define: [head_dim, causal]
    arguments:
      [q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k,
       q_stride_batch, q_stride_head, q_stride_row, k_stride_batch, k_stride_head, k_stride_row,
       v_stride_batch, v_stride_head, v_stride_row, out_stride_batch, out_stride_head,
       out_stride_row]
parameters: {BLOCK_N: [16], UNROLL: [8], SCHEDULE: {choices: [static, dynamic]}, CHUNK: [1]}
"""
PYTHON = """
name: sent
root: .
problem: {name: "problem.py:Softmax", dtype: float32, shapes: [{rows: 8, columns: 64}]}
kernels:
  sent: {source: softmax/softmax_cpu.cpp, entry: softmax, arguments: [x, out, rows, columns]}
parameters:
  VECTORS: [1]
  EXP_METHOD: {choices: [poly5, poly6, libm]}
  RECOMPUTE: [false]
  SCHEDULE: [static, dynamic]
  CHUNK: [1]
default: {EXP_METHOD: poly6}
baseline: torch:best
"""


class Receiver:
    """A user with a working folder and a state folder; foreign code that runs leaves a mark."""

    def __init__(self, folder: Path, mark: Path) -> None:
        self.folder, self.mark = folder / "here", mark
        self.folder.mkdir()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "EVOTUNE_CACHE_DIR": str(folder.parent / "cache"),
            "EVOTUNE_STATE_DIR": str(folder / "state"),
        }

    def evotune(self, words: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Runs a command; afterwards `ran` tells whether foreign code ran too."""
        return subprocess.run(
            [sys.executable, "-m", "evotune", *words.split(), *more],
            cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def ran(self) -> bool:
        """Whether foreign code ran since the last call; removes the mark."""
        found = self.mark.exists()
        self.mark.unlink(missing_ok=True)
        return found

    def refuses(self, words: str, because: str) -> None:
        done = self.evotune(words)
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert because in error
        assert error.endswith("read it, then add --trust")
        assert not self.ran()

    def does(self, words: str, *more: str) -> None:
        done = self.evotune(words, *more)
        assert done.returncode == 0, (words, done.stdout, done.stderr)


class Sent:
    """A space that somebody else wrote, and a run of it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind, self.mark = kind, folder / "mark"
        space = folder / "sender" / "here"
        sender = Receiver(self._made(folder / "sender"), self.mark)
        self.code = "header.h" if kind == "native" else "problem.py"
        kernels = ROOT / "kernels"
        if kind == "native":
            (space / "space.yaml").write_text(NATIVE)
            (space / "header.h").write_text(
                "#include <cstdio>\n__attribute__((constructor)) static void leave_a_mark() {\n"
                f'  if (FILE* file = std::fopen("{self.mark}", "w")) std::fclose(file);\n}}\n'
            )
            text = (kernels / "attention" / "1_scalar.cpp").read_text()
            (space / "kernel.cpp").write_text('#include "header.h"\n' + text)
            (space / "parts").mkdir()
            for header in (kernels / "attention" / "parts").glob("*.h"):
                shutil.copy(header, space / "parts")
        else:
            (space / "space.yaml").write_text(PYTHON)
            text = (kernels / "softmax" / "problem.py").read_text()
            (space / "problem.py").write_text(f"{text}\nopen({str(self.mark)!r}, 'w').close()\n")
            for name in ("softmax/softmax_cpu.cpp", "attention/parts/simd.h"):
                (space / name).parent.mkdir(parents=True)
                shutil.copy(kernels / name, space / name)
        self.space = space
        sender.does("run space.yaml --trials 1 --champions 1")
        assert sender.ran()
        (run,) = list_runs(space / "runs")
        self.run = run.path

    @staticmethod
    def _made(folder: Path) -> Path:
        folder.mkdir()
        return folder


@pytest.fixture(scope="module", params=["native", "python"])
def sent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sent:
    return Sent(tmp_path_factory.mktemp("agreement"), request.param)


@pytest.fixture
def receiver(sent: Sent, tmp_path: Path) -> Receiver:
    sent.mark.unlink(missing_ok=True)
    return Receiver(tmp_path, sent.mark)


@slow
@pytest.mark.parametrize("place", ["here/inbox", "elsewhere"])
def test_code_of_a_received_run_is_not_executed_unasked(
    sent: Sent, receiver: Receiver, tmp_path: Path, place: str
) -> None:
    run = tmp_path / place / "received"
    shutil.copytree(sent.run, run)
    for words in EXECUTING:
        receiver.refuses(words.replace("RUN", str(run)), "which came with a run's folder")
    for words in READING:
        receiver.does(words.replace("RUN", str(run)))
        assert not receiver.ran(), words


@slow
def test_the_best_of_a_received_run_begin_another_one_without_its_code(
    sent: Sent, receiver: Receiver
) -> None:
    receiver.does(f"run rms-norm-cpu --trials 1 --champions 1 --warm-start {sent.run}")
    assert not receiver.ran()


@slow
def test_once_agreed_code_of_a_received_run_is_executed_until_it_changes(
    sent: Sent, receiver: Receiver, tmp_path: Path
) -> None:
    run = tmp_path / "received"
    shutil.copytree(sent.run, run)
    receiver.does(f"compare {run}:0 {run}:default --remeasure --trust")
    assert receiver.ran()
    for words in AGREED[sent.kind]:
        receiver.does(words.replace("RUN", str(run)))
        assert receiver.ran(), words
    code = run / "sources" / sent.code
    code.write_text(code.read_text() + "\n")
    done = receiver.evotune(f"verify {run}")
    assert done.returncode == 4, (done.stdout, done.stderr)
    assert f"{sent.code} was changed since the run began" in done.stderr
    assert not receiver.ran()


@slow
def test_a_space_from_elsewhere_is_run_only_once_somebody_agreed(
    sent: Sent, receiver: Receiver, tmp_path: Path
) -> None:
    space = tmp_path / "elsewhere"
    shutil.copytree(sent.space, space, ignore=shutil.ignore_patterns("runs"))
    words = f"run {space}/space.yaml --trials 1 --champions 1"
    receiver.refuses(words, "which lies outside this folder")
    if sent.code == "problem.py":  # reading a Python problem runs it
        receiver.refuses(f"check {space}/space.yaml --no-compile", "problem.py, which lies outside")
    else:  # compiling a kernel does not execute it
        receiver.does(f"check {space}/space.yaml")
        receiver.does(f"compile {space}/space.yaml")
        assert not receiver.ran()
    receiver.does(words, "--trust-problem")  # the flag's old name
    assert receiver.ran()
    receiver.does("resume latest --trials 2")  # a new process runs the run's copies unasked


@slow
def test_the_workers_of_a_cluster_execute_what_the_coordinator_was_told_to(
    sent: Sent, receiver: Receiver, tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    run = tmp_path / "received"
    shutil.copytree(sent.run, run)
    words = f"resume {run} --trials 2 --allow-mixed --cluster local:1"
    receiver.refuses(words, "came with a run's folder")
    receiver.does(words, "--trust")
    assert receiver.ran()


@slow
@pytest.mark.parametrize(("answer", "expected"), [("y\n", 0), ("n\n", 2), ("\x04", 2)])
def test_at_a_terminal_the_files_are_named_and_somebody_is_asked(
    sent: Sent, receiver: Receiver, tmp_path: Path, answer: str, expected: int
) -> None:
    run = tmp_path / "rec\x1b[2Jeived"  # a name that would clear the screen
    shutil.copytree(sent.run, run)
    code, said = _at_a_terminal(receiver, ["verify", str(run)], answer)
    assert code == expected, said
    assert receiver.ran() == (expected == 0)
    assert f"sources/{sent.code}" in said
    assert "\x1b[2J" not in said


def _at_a_terminal(receiver: Receiver, words: list[str], answer: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "evotune", *words],
        cwd=receiver.folder, env=receiver.environment, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    said, deadline, asked = b"", time.monotonic() + PATIENCE_S, False
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                said += os.read(ours, 1 << 16)
            except OSError:  # the other side is closed
                break
        if not asked and b"[y/N]" in said:
            os.write(ours, answer.encode())
            asked = True
    os.close(ours)
    return process.wait(), said.decode(errors="replace")


# --- kernels for a GPU: refused on machines without one too ----------------------------------

GPU = """
name: sent
root: .
problem: {name: attention, shapes: [{batch: 1, heads: 1, seq_len: 64, head_dim: 64}]}
kernels:
  sent: {source: SOURCE, entry: f, arguments: [q, k, v, out], launches: [LAUNCH]}
parameters: {A: [1, 2]}
"""
LAUNCHES = {"k.cu": "{grid: [1], block: [32]}", "k.py": "{grid: [1]}"}


@pytest.mark.usefixtures("nobody_agreed")
@pytest.mark.parametrize("source", LAUNCHES)
@pytest.mark.parametrize("place", ["here/run/sources", "elsewhere"])
def test_kernels_for_a_gpu_are_executed_only_once_somebody_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, place: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    make_run(tmp_path / "here", [ok(1.0)], name="run")
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    (folder / source).write_text("// nobody has read this\n")
    space = folder / "space.yaml"
    space.write_text(GPU.replace("SOURCE", source).replace("LAUNCH", LAUNCHES[source]))
    monkeypatch.setattr(
        "evotune.backends.cuda.discovery.open_profile",
        lambda *asked, **named: gpu_profiles.named("h200"),
    )
    with pytest.raises(SpaceError, match=rf"space\.yaml:6:\d+: .*{source}, which .* add --trust"):
        load_setup(space, "h200")
    if source == "k.cu":
        load_setup(space, "h200", compile_only=True)
    else:  # compiling a Triton kernel runs its Python
        with pytest.raises(SpaceError, match=r"k\.py, which"):
            load_setup(space, "h200", compile_only=True)
