"""`evotune record`: a script runs as Python would run it, and its calls are written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evotune.recorder.calls import Calls
from tests.patience import PATIENCE_S

from .conftest import start

SCRIPT = """\
import sys

assert "torch" not in sys.modules
import os

import torch
from beside import attention

print(__name__, sys.argv[1:], os.getcwd(), os.path.basename(__file__), "sys" in globals())
x = torch.randn(1, 2, 8, 64)
attention(x)
"""
BESIDE = """\
from torch.nn.functional import scaled_dot_product_attention as sdpa
attention = lambda x: sdpa(x, x, x)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "beside.py").write_text(BESIDE)
    path = tmp_path / "scripts" / "predict.py"
    path.write_text(SCRIPT)
    return path


def ran(*words: object, cwd: Path) -> tuple[int, str, str]:
    process = start(*words, cwd=cwd)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def labels(path: Path) -> list[str]:
    return [call.label for call in Calls.load(path)]


def test_a_script_runs_as_python_runs_it(script: Path, tmp_path: Path) -> None:
    plain = subprocess.run(
        [sys.executable, script, "--batch", "4", "-o", "own"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    words = ("record", "-o", "cases.yaml", script, "--batch", 4, "-o", "own")
    code, out, err = ran(*words, cwd=tmp_path)
    assert (code, out) == (0, plain.stdout)
    assert "__main__ ['--batch', '4', '-o', 'own']" in out
    assert labels(tmp_path / "cases.yaml") == ["(1,2,8,64) full"]
    assert "1 call of 1 case" in err
    assert "attention-" in err


@pytest.mark.soak
def test_the_file_may_stand_last_and_other_words_are_the_scripts(
    script: Path, tmp_path: Path
) -> None:
    words = ("record", "--device", "l4", script, "-q", "-o", "cases.json")
    code, out, err = ran(*words, cwd=tmp_path)
    assert (code, "__main__ ['-q']" in out) == (0, True)
    assert labels(tmp_path / "cases.json") == ["(1,2,8,64) full"]
    assert "none: kernel" in err


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no input')", 1, "no input\n"),
        ("raise KeyError('lost')", 1, "KeyError: 'lost'\n"),
    ],
)
def test_the_exit_code_is_the_scripts(
    end: str, code: int, words: str, script: Path, tmp_path: Path
) -> None:
    script.write_text(SCRIPT + end + "\n")
    found, _, err = ran("record", script, "-o", "cases.yaml", cwd=tmp_path)
    assert found == code
    assert words in err
    assert "runpy" not in err
    assert labels(tmp_path / "cases.yaml") == ["(1,2,8,64) full"]


def test_ctrl_c_writes_what_was_recorded(script: Path, tmp_path: Path) -> None:
    script.write_text(SCRIPT + "print('waiting', flush=True)\nimport time\ntime.sleep(3600)\n")
    process = start("record", script, "-o", "cases.yaml", cwd=tmp_path)
    assert process.stdout is not None
    while "waiting" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "interrupted" in err
    assert labels(tmp_path / "cases.yaml") == ["(1,2,8,64) full"]


@pytest.mark.soak
def test_a_script_may_handle_ctrl_c_itself(script: Path, tmp_path: Path) -> None:
    handled = (
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    signal.pause()\n"
    )
    script.write_text(SCRIPT + handled + "except KeyboardInterrupt:\n    sys.exit(5)\n")
    assert ran("record", script, cwd=tmp_path)[0] == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.py",), "missing.py: no such file"),
        (("-o", "missing/cases.yaml", "scripts/predict.py"), "cannot write missing/cases.yaml"),
        (("--device", "l5", "scripts/predict.py"), "unknown device 'l5'"),
        (("--batch", "4", "scripts/predict.py"), "No such option"),
    ],
)
def test_mistakes_are_found_before_the_script_runs(
    words: tuple[str, ...], message: str, script: Path, tmp_path: Path
) -> None:
    code, out, err = ran("record", *words, cwd=tmp_path)
    assert (code, out) == (2, "")
    assert message in err


def test_a_script_without_attention(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('done')\n")
    code, out, err = ran("record", "plain.py", "-o", "cases.yaml", cwd=tmp_path)
    assert (code, out) == (0, "done\n")
    assert "0 calls of 0 cases" in err
    assert (tmp_path / "cases.yaml").read_text() == "[]\n"


@pytest.mark.soak
def test_cases_on_standard_output(script: Path, tmp_path: Path) -> None:
    code, out, _ = ran("record", "-q", "-o", "-", script, cwd=tmp_path)
    assert code == 0
    assert '- problem: "attention"\n  count: 1\n' in out
