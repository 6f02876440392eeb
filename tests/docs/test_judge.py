"""The programs of "A judge for your agent", each with the package that it is for."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import evotune
from evotune.formats import evaluators
from tests.patience import PATIENCE_S

from .pages import DOCS, ROOT, blocks

_NAME = re.compile(r"# (\w+\.py)\n")
RIGHT = "def row_sum(x):\n    return x.sum(dim=-1)\n"
WRONG = "def row_sum(x):\n    return x[:, 1:].sum(dim=-1)\n"
AGENT = f"""
texts = iter([{WRONG!r}, {RIGHT!r}, "A = 1"] * 4)


def propose(best, answer):
    print("told:", answer)
    return next(texts)


class Proposer:
    name = "recorded"

    def propose(self, context):
        from evotoolkit import Proposal

        return [Proposal(context.call_id, {{"candidate.py": next(texts)}})]


proposer = Proposer()
"""
_PRETENDED = """
import evotune
from evotune.errors import UsageError
from evotune.formats import evaluators
from tests.formats.pretended_gate import verdict_of


def gate(candidate, *, problem, shapes, seconds, **more):
    assert (problem, shapes, seconds) == ("problem.py:RowSum", [{"rows": 64, "columns": 1000}], 120)
    text = open(candidate).read()
    if "def " not in text:
        raise UsageError("candidate.py must have a function")
    return verdict_of("wrong" if "1:" in text else "1.5")


evotune.gate = evaluators.gate = gate
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's programs, with an agent."""
    for block in blocks(DOCS / "judge.md"):
        if found := _NAME.match(block.text):
            (tmp_path / found[1]).write_text(block.text)
    (tmp_path / "candidate.py").write_text(RIGHT)
    other = (tmp_path / "evaluator.py").read_text().replace("openevolve", "shinka")
    (tmp_path / "evaluate.py").write_text(other + "\nevaluate.main()\n")  # as the page says
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(tmp_path)]))
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def pretending(folder: Path, name: str) -> None:
    """The program's gate judges by the text, without running it."""
    program = folder / name
    program.write_text(_PRETENDED + program.read_text())


def ran(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plain_loop(folder: Path) -> None:
    pretending(folder, "loop.py")
    said = ran(folder, "loop.py")
    assert said.count("passed: 1.500 times as fast") == 6  # printed and told
    assert "told: refused: out is off" in said
    assert "told: candidate.py must have a function" in said


@pytest.mark.soak
def test_the_command_and_the_plain_loop_with_the_gate_itself(folder: Path) -> None:
    words = ("--task", "problem.py", "--shape", "rows=64,columns=1000")
    assert ran(folder, "-m", "evotune", "gate", "candidate.py", *words).startswith("passed: ")
    program = folder / "loop.py"
    program.write_text(program.read_text().replace("range(10)", "range(2)"))
    task = folder / "problem.py"
    task.write_text(task.read_text().replace(', "seconds": 120', ""))
    said = ran(folder, "loop.py")
    assert "0 refused: " in said
    assert "1 passed: " in said


def test_openevolve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openevolve")
    from openevolve.config import EvaluatorConfig
    from openevolve.evaluator import Evaluator

    pretending(folder, "evaluator.py")
    monkeypatch.setattr(evotune, "gate", evotune.gate)  # the file is executed in this process
    monkeypatch.setattr(evaluators, "gate", evaluators.gate)
    evaluator = Evaluator(EvaluatorConfig(timeout=600), str(folder / "evaluator.py"))
    right = asyncio.run(evaluator.evaluate_program(RIGHT, "right"))
    wrong = asyncio.run(evaluator.evaluate_program(WRONG, "wrong"))
    assert right["combined_score"] == pytest.approx(1.35)
    assert wrong["combined_score"] == 0.0


def test_shinka(folder: Path) -> None:
    pytest.importorskip("shinka")
    from shinka.launch.scheduler import JobScheduler, LocalJobConfig

    pretending(folder, "evaluate.py")
    config = LocalJobConfig(eval_program_path=str(folder / "evaluate.py"))
    (folder / "results").mkdir()
    scheduler = JobScheduler("local", config)
    found, _ = scheduler.run(str(folder / "candidate.py"), str(folder / "results"))
    assert found["correct"]["correct"] is True
    assert found["metrics"]["combined_score"] == pytest.approx(1.35)


def test_evotoolkit(folder: Path) -> None:
    pytest.importorskip("evotoolkit")
    pretending(folder, "search.py")
    program = folder / "search.py"
    program.write_text(program.read_text().replace("budget=20", "budget=3"))
    said = ran(folder, "search.py")
    events = (folder / "search" / "events.jsonl").read_text()
    assert "passed: 1.500 times as fast" in events, said
    assert "refused: out is off" in events


def test_the_evaluators_of_the_page_without_their_packages(folder: Path) -> None:
    pretending(folder, "evaluator.py")
    pretending(folder, "evaluate.py")
    with (folder / "evaluator.py").open("a") as program:
        program.write("print(evaluate('candidate.py'))\n")
    assert "1.35" in ran(folder, "evaluator.py")
    ran(folder, "evaluate.py", "--program_path", "candidate.py", "--results_dir", "results")
    correct = json.loads((folder / "results" / "correct.json").read_text())
    assert correct == {"correct": True, "error": None}
