"""`evotune gate`: its exit code is the verdict, whatever the candidate does."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from report.runs import make_run, ok

from evotune.api import gating
from evotune.errors import EnvironmentProblem
from evotune.runs.starting import RunResult
from evotune.trial import Outcome, OutcomeKind
from evotune.util.processes import child_processes
from tests.cli.conftest import Invoke, start
from tests.patience import PATIENCE_S

PROBLEM = """
from evotune.problems import UserProblem


class RowSum(UserProblem):
    sizes = ("rows", "columns")
    shapes = [{"rows": 8, "columns": 64}]

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows,)}

    def operations(self, rows, columns):
        return rows * columns

    def check(self, rows, columns):
        if rows * columns > 4096:
            raise ValueError("more than 4096 elements")

    def compute(self, x):
        return {"out": x.sum(dim=-1)}


class Other(RowSum):
    shapes = []
"""
SUM = "def row_sum(x):\n    return x.sum(dim=-1)\n"
CPP = """
extern "C" void row_sum(const float *x, float* out, int rows, int columns) {
  for (int row = 0; row < rows; ++row) {
    out[row] = 0;
    for (int column = 0; column < columns; ++column) out[row] += x[row * columns + column];
  }
}
"""
NOISY = Outcome(OutcomeKind.UNDECIDED, reason="(8,64): the machine is too noisy: a launch …")
WRONG = Outcome(OutcomeKind.WRONG_RESULT, reason="out is off\nby a lot")
Ending = Callable[..., None]
GATE = ("gate", "candidate.py", "--task", "problem.py:RowSum")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "problem.py").write_text(PROBLEM)
    (tmp_path / "candidate.py").write_text(SUM)
    return tmp_path


@pytest.fixture
def ending(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ending:
    """Makes the run of a gate end with these outcomes of its trial and of its confirmation."""

    def end(trials: list[Outcome], confirmed: dict[int, Outcome], state: str = "") -> None:
        meta = {"state": state or "finished:trials"}
        run = make_run(folder / "runs", trials, confirmations=confirmed, meta=meta)
        monkeypatch.setattr(gating, "start_run", lambda *given: RunResult(run, "", 1))

    return end


@pytest.mark.parametrize(
    ("outcomes", "code", "line"),
    [
        (([ok(1.5)], {0: ok(1.4)}), 0, "passed: 1.400 times as fast as sdpa:flash"),
        (([WRONG], {}), 1, "refused: out is off by a lot\n"),
        (([ok(1.5)], {0: WRONG}), 1, "refused: out is off by a lot\n"),
        (([ok(1.5)], {0: NOISY}), 6, "undecided: (8,64): the machine is too noisy"),
        (([ok(1.5)], {}), 6, "undecided: the time limit ended before the kernel was checked"),
    ],
)
def test_the_exit_code_is_the_verdict_and_the_reason_is_one_line(
    ending: Ending,
    invoke: Invoke,
    outcomes: tuple[list[Outcome], dict[int, Outcome]],
    code: int,
    line: str,
) -> None:
    ending(*outcomes)
    found = invoke(*GATE, "-q")
    assert (found.exit_code, found.stdout.count("\n")) == (code, 1), found.output
    assert found.stdout.startswith(line)
    written = invoke(*GATE, "-q", "-o", "verdict.json", "--result", "own.json", "--json")
    assert written.exit_code == code
    verdict = json.loads(written.stdout)
    names = "verdict passed reason checks speedup speedup_low speedup_high time_us baseline domain"
    assert verdict.keys() >= {*names.split(), "environment", "outcome", "measurements"}
    assert verdict["verdict"] == line.partition(":")[0]
    assert verdict["passed"] is (code == 0)
    assert json.loads(Path("verdict.json").read_text()) == verdict
    assert json.loads(Path("own.json").read_text()) == verdict


def test_an_interrupted_gate_passes_nothing(ending: Ending, invoke: Invoke) -> None:
    ending([ok(1.5)], {}, "interrupted")
    assert invoke(*GATE).exit_code == 130


def test_a_machine_that_lacks_something_is_no_verdict(
    folder: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise EnvironmentProblem("no compiler; install one")

    monkeypatch.setattr(gating, "start_run", fail)
    found = invoke(*GATE)
    assert (found.exit_code, found.stdout) == (3, "")
    assert "error: no compiler; install one" in found.stderr


def test_a_device_that_is_not_there_gives_no_verdict(folder: Path, invoke: Invoke) -> None:
    found = invoke(*GATE, "--device", "cuda:63")
    assert (found.exit_code, found.stdout) == (3, ""), found.output
    assert "cuda:63" in found.stderr


def test_a_cuda_file_needs_a_task_with_its_launches(folder: Path, invoke: Invoke) -> None:
    (folder / "k.cu").write_text(CPP)
    found = invoke("gate", "k.cu", "--task", "problem.py:RowSum")
    assert found.exit_code == 2
    assert "a CUDA kernel also needs its launches" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["candidate.py"], "name the task"),
        (["missing.py", "--task", "problem.py:RowSum"], "missing.py: no such file"),
        (["candidate.py", "--task", "missing.py"], "cannot read"),
        (["candidate.py", "--task", "problem.py"], "it has RowSum, Other; name it"),
        (["candidate.py", "--task", "problem.py:None"], "has no problem None; it has RowSum"),
        (["candidate.py", "--task", "problem.py:Other"], "Other lists none"),
        ([*GATE[1:], "--entry", "missing", "--shape", "rows"], "expected NAME=VALUE"),
        ([*GATE[1:], "--shape", "rows=3"], "lacks columns"),
        ([*GATE[1:], "--seconds", "0"], "--seconds"),
        (["two.py", "--task", "problem.py:RowSum"], "has one, other; name it as the entry"),
        (["two.cpp", "--task", "problem.py:RowSum"], "several: one, two; name it as the entry"),
    ],
)
def test_a_mistake_of_usage_is_no_verdict(
    folder: Path, invoke: Invoke, arguments: list[str], words: str
) -> None:
    (folder / "two.py").write_text("def one(x): ...\ndef other(x): ...\n")
    two = 'extern "C" void one(float* x) {}\nextern "C" void two(float* x) {}\n'
    (folder / "two.cpp").write_text(two)
    found = invoke("gate", *arguments)
    assert (found.exit_code, found.stdout) == (2, ""), found.output
    assert words in found.stderr


@pytest.mark.parametrize("name", ["candidate.py", "candidate.cpp"])
def test_code_from_elsewhere_needs_an_agreement(
    folder: Path, invoke: Invoke, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / name
    comment = "#" if name.endswith("py") else "//"  # makes the content a new one
    elsewhere.write_text(f"{SUM if comment == '#' else CPP}{comment} {time.time()}")
    found = invoke("gate", elsewhere, *GATE[2:])
    assert found.exit_code == 2, found.output
    assert f"this would execute {elsewhere}, which lies outside this folder" in found.stderr


CHEATS = {
    "ends itself": ("import os\n\ndef f(x):\n    os.kill(os.getpid(), 9)\n", "died of SIGKILL"),
    "exits": ("import os\n\ndef f(x):\n    os._exit(0)\n", ""),
    "calls exit": ("def f(x):\n    raise SystemExit(0)\n", "SystemExit"),
    "exits on import": ("import os\n\nos._exit(0)\n\ndef f(x): ...\n", ""),
    "prints 1 GB": ("def f(x):\n    print('x' * (1 << 30))\n    return x.sum(-1)\n", ""),
    "leaves a process": (
        "import subprocess\n\ndef f(x):\n    subprocess.Popen(['sleep', '1000'])\n"
        "    return x.sum(-1)\n",
        "",
    ),
    "is wrong": ("def f(x):\n    return x[:, 1:].sum(-1)\n", "out is off"),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_candidate_that_breaks_its_process_is_refused_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cheat: str
) -> None:
    text, words = CHEATS[cheat]
    (folder / "candidate.py").write_text(text)
    for name in ("temporary", "cache"):
        (folder / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "temporary"))
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(folder / "cache"))
    before = sorted(folder.iterdir())
    process = start(*GATE, "-q", cwd=folder)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, errors
    assert output.startswith("refused: ")
    assert words in output
    assert sorted(folder.iterdir()) == before
    assert not [path for path in (folder / "temporary").iterdir() if "evotune" in path.name]


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_gate_that_is_ended_passes_nothing(folder: Path, number: signal.Signals) -> None:
    (folder / "candidate.py").write_text("import time\n\ndef f(x):\n    time.sleep(1e6)\n")
    process = start(*GATE, cwd=folder)
    assert process.stderr is not None
    assert any("searching" in line for line in process.stderr)
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)


@pytest.mark.soak
def test_children_that_are_killed_again_and_again_are_no_pass(folder: Path) -> None:
    (folder / "candidate.py").write_text("import time\n\ndef f(x):\n    time.sleep(1e6)\n")
    process = start(*GATE, cwd=folder)
    assert process.stderr is not None
    assert any("searching" in line for line in process.stderr)
    while process.poll() is None:
        for child in child_processes(process.pid):
            os.kill(child, signal.SIGKILL)
        time.sleep(0.2)
    process.communicate()
    assert process.returncode in {1, 3, 6}


ENDS_ITS_ANCESTORS = """
import os


def f(x):
    pid = os.getppid()
    while pid > 1:
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        if "gate" in open(f"/proc/{pid}/cmdline").read():
            os.kill(pid, SIGNAL)
            break
        pid = int(fields[1])
    return x.sum(dim=-1)
"""


@pytest.mark.soak
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL", "SIGUSR1"])
def test_a_candidate_that_ends_the_judge_does_not_pass(folder: Path, name: str) -> None:
    number = getattr(signal, name)
    (folder / "candidate.py").write_text(ENDS_ITS_ANCESTORS.replace("SIGNAL", str(int(number))))
    process = start(*GATE, cwd=folder)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert "passed" not in output
    assert process.returncode in {130, -number}


@pytest.mark.soak
def test_a_right_kernel_passes_and_a_time_limit_leaves_a_hang_undecided(folder: Path) -> None:
    (folder / "candidate.cpp").write_text(CPP)
    right = start("gate", "candidate.cpp", *GATE[2:], cwd=folder)
    right.communicate(timeout=PATIENCE_S)
    assert right.returncode == 0
    (folder / "candidate.py").write_text("import time\n\ndef f(x):\n    time.sleep(1e6)\n")
    hanging = start(*GATE, "--seconds", "5", cwd=folder)
    output, _ = hanging.communicate(timeout=PATIENCE_S)
    assert (hanging.returncode, output.partition(":")[0]) == (6, "undecided")
