"""`evotune tune-model`: a script in processes of its own, its screen and its exit codes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evotune.api import script_tuning
from evotune.api.model_package import Gain, ModelCall
from evotune.api.model_tuning import SDPA
from tests.api.tiny_models import made_up_searches
from tests.patience import PATIENCE_S

from .conftest import Invoke, start

SCRIPT = """\
import os
import sys

import torch
import torch.nn.functional as F

print(__name__, sys.argv[1:], os.path.basename(__file__), "beside" in sys.modules)
import beside

x = torch.randn(1, 2, beside.LENGTH, 32)
with torch.no_grad():
    for _ in range(int(sys.argv[1])):
        F.scaled_dot_product_attention(x, x, x)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "beside.py").write_text("LENGTH = 48\n")
    (folder / "predict.py").write_text(SCRIPT)
    return folder / "predict.py"


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The whole script is not run: it takes 6 ms with a package, else 9. Grows by whether."""
    runs: list[bool] = []
    run = script_tuning._ScriptTarget._run

    def made_up(self: Any, job: script_tuning._Job) -> script_tuning._Answer:
        if job.kind == "calls":
            return run(self, job)
        runs.append(bool(job.packages))
        return script_tuning._Answer(script_us=6e3 if job.packages else 9e3)

    monkeypatch.setattr(script_tuning._ScriptTarget, "_run", made_up)
    return runs


def test_a_script_is_tuned_served_and_timed(
    invoke: Invoke, script: Path, whole: list[bool], tmp_path: Path
) -> None:
    with made_up_searches():
        done = invoke("tune-model", script, 3, "--last", "--trials", 1, "-o", "tuned")
    assert done.exit_code == 0, done.output
    told = done.stdout
    assert told.startswith("predict.py 3 --last on ")
    assert "\n    3  (1,2,48,32) full  float32        100.0%  " in told
    assert "\nattention   " in told
    assert "\nscript      1.500x [1.500, 1.500], 9 ms before, 6 ms now\n" in told
    assert "import tuned_attention; tuned_attention.activate()" in told
    assert (tmp_path / "tuned" / "package" / "tuned_attention" / "dispatch.json").is_file()
    printed = (tmp_path / "tuned" / "script.log").read_text()
    assert printed == "__main__ ['3', '--last'] predict.py False\n"
    assert whole == [False, *(5 * [True, False, False, True])]


@pytest.mark.soak
def test_a_script_that_takes_too_long_is_not_timed_as_a_whole(
    invoke: Invoke, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ModelCall(
        problem="attention",
        shape={"batch": 1, "heads": 2, "seq_len_q": 48, "seq_len_k": 48, "head_dim": 32},
        variant={"causal": False},
        dtype="float32",
        call={"function": SDPA, "device": "cpu"},
        count=1,
        time_us=10.0,
    )

    def made_up(self: Any, job: script_tuning._Job) -> script_tuning._Answer:
        gain = Gain(2.0, 1.9, 2.1, 10.0, 5.0) if job.packages else None
        calls = [msgspec.structs.replace(call, gain=gain)]
        return script_tuning._Answer(calls=calls, device="cpu:2", script_us=60e6)

    monkeypatch.setattr(script_tuning._ScriptTarget, "_run", made_up)
    with made_up_searches():
        done = invoke("tune-model", "--minutes", 19, script, "-o", "tuned")
    assert done.exit_code == 0, done.output
    assert "attention   2.000x [1.900, 2.100]; 100.0% of its time is served" in done.stdout
    assert "script      not timed: 20 runs take 20 minutes: see --minutes" in done.stdout


@pytest.mark.soak
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys\nsys.exit(7)\n", "predict.py ended with status 7; see tuned/script.log"),
        ("import os\nos.kill(os.getpid(), 9)\n", "predict.py died of SIGKILL; see tuned/script"),
    ],
)
def test_a_script_that_fails_ends_the_command(
    invoke: Invoke, script: Path, text: str, words: str
) -> None:
    script.write_text(text)
    done = invoke("tune-model", script, "-o", "tuned")
    assert done.exit_code == 1, done.output
    assert words in done.stderr


@pytest.mark.soak
def test_a_script_without_attention_wins_nothing(invoke: Invoke, script: Path) -> None:
    done = invoke("tune-model", script, 0)
    assert done.exit_code == 1, done.output
    assert "no call of attention was seen" in done.stdout
    done = invoke("tune-model", script, 1)
    assert done.exit_code == 2
    assert "tuned_model is of predict.py 0, not of predict.py 1" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.py",), "missing.py: no such file"),
        (("scripts/predict.py", "--minutes", "0"), "--minutes: expected a positive number"),
        (("scripts/predict.py", "--trials", "1.5"), "--trials: expected a positive number"),
        (("--minutes", "-1", "scripts/predict.py"), "Invalid value for '--minutes'"),
        (("scripts/predict.py", "-o", "torch/../scripts"), "is not empty and has no model.json"),
    ],
)
def test_mistakes_are_usage_errors(
    invoke: Invoke, script: Path, words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    done = invoke("tune-model", *words)
    assert done.exit_code == 2, done.output
    assert message in done.stderr


def test_ctrl_c_ends_the_script_too(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "import os, time\nopen('begun', 'w').write(str(os.getpid()))\ntime.sleep(3600)\n"
    )
    process = start("tune-model", script, cwd=tmp_path)
    wait_for(lambda: (tmp_path / "begun").is_file() and (tmp_path / "begun").read_text())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "the same command continues: " in err
    child = (tmp_path / "begun").read_text()
    assert not Path("/proc", child).exists()
    assert not (tmp_path / "tuned_model" / "model.json").exists()


def wait_for(there: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.soak
def test_the_whole_script_is_timed(
    invoke: Invoke, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = script_tuning.TimingSettings(min_rounds=1, max_rounds=1)
    monkeypatch.setattr(script_tuning, "_SETTINGS", settings)
    with made_up_searches():
        done = invoke("tune-model", script, 2, "--trials", 1)
    assert done.exit_code == 0, done.output
    assert "\nscript      " in done.stdout
