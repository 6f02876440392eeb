"""Reports made by several processes: the same bytes, and no process is left behind."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store.forging import forge

from evotune.errors import EnvironmentProblem, StoreError
from evotune.report import whole
from evotune.report.data import RunData
from evotune.report.whole import mapped
from evotune.runs.folder import RunFolder
from evotune.trial import Outcome, OutcomeKind
from tests.patience import PATIENCE_S

from .runs import failed, make_run, ok, text_of

# A command that a shell started in the background ignores Ctrl-C, and so do its children.
_SLEEPERS = """import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from evotune.report.whole import mapped
for done in mapped(time.sleep, [0, 0] + [0.2] * 1000, 2):
    print("ready", flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with failures, missing figures, twins, confirmations and text that is not ASCII."""
    outcomes = [
        failed(OutcomeKind.TIMEOUT, "=långsam\n") if n % 7 == 0
        else Outcome(OutcomeKind.OK, fitness=n / 9, resources={"registers": n, "odd": n % 2 == 0})
        if n % 5 == 0
        else ok(1 + n / 50, duplicate_of=n - 1 if n % 11 == 0 else None)
        for n in range(90)
    ]  # fmt: skip
    wrong = failed(OutcomeKind.WRONG_RESULT)
    return make_run(tmp_path, outcomes, confirmations={89: ok(2.5), 88: wrong})


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_MANY", 50)
    monkeypatch.setattr(whole, "TRIALS_A_PART", 20)
    monkeypatch.setattr(whole, "available", lambda: 2)


def report(run: RunFolder, style: str) -> str:
    with RunData.opened(run) as data:
        return text_of(style, data)


@pytest.mark.parametrize("style", ["json", "t4", "csv"])
def test_what_processes_make_is_what_one_makes(
    run: RunFolder, style: str, request: pytest.FixtureRequest
) -> None:
    alone = report(run, style)
    loaded = text_of(style, RunData.load(run))
    request.getfixturevalue("two_processes")
    assert report(run, style) == alone == loaded


@pytest.mark.usefixtures("two_processes")
def test_damage_that_another_process_meets_is_a_store_error(run: RunFolder) -> None:
    text = '{"kind":"nan","flags":5}'
    forge(run.store, f"UPDATE outcomes SET outcome = '{text}' WHERE number = 33")
    with pytest.raises(StoreError, match=r"is damaged .*flags"):
        report(run, "jsonl")


def test_results_come_in_order_whatever_the_number_of_parts() -> None:
    assert list(mapped(operator.neg, range(50), 2)) == [-n for n in range(50)]
    assert list(mapped(operator.neg, [], 2)) == []


def test_an_error_of_the_work_is_raised() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(mapped(int, ["1", "x"], 2))


def test_a_process_that_dies_ends_the_report() -> None:
    with pytest.raises(EnvironmentProblem, match="was killed") as caught:
        list(mapped(os._exit, [1], 2))
    assert caught.value.exit_code == 3


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_an_interrupted_report(by: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _SLEEPERS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        assert parent.stdout.readline() == "ready\n"
        group = os.getpgid(parent.pid)
        assert len(_members(group)) >= 3
        # Ctrl-C at a terminal reaches the whole group, a kill only the one process.
        (os.killpg if by is signal.SIGINT else os.kill)(parent.pid, by)
        parent.wait(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while _members(group) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not _members(group)
        # At most one traceback: the parent's own, none of its children's.
        assert parent.stderr.read().count("Traceback") <= 1


def _members(group: int) -> list[int]:
    """The processes of the group, without zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, _, of_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(of_group) == group and state != "Z":
            found.append(int(entry.name))
    return found
