"""The worked examples of CONTRIBUTING.md do what the page says."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from evotune.cli.main import application
from tests.runs.runs import brief_confirmations

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"```(\S+)\n(.*?)```", PAGE, re.DOTALL)


def _python(folder: Path, *words: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "EVOTUNE_CACHE_DIR": str(folder / "cache"),
    }
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with every file that the page shows: its first line names it."""
    for _, text in BLOCKS:
        named = re.match(r"(?:#|//) (\w+\.\w+)\n", text)
        if named is not None:
            (tmp_path / named[1]).write_text(text)
    return tmp_path


def test_the_problem_the_kernel_and_its_space_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = [
        line.split()
        for language, text in BLOCKS
        for line in text.splitlines()
        if language == "sh" and line.startswith("evotune ")
    ]
    assert [command[1] for command in commands] == ["check", "run"]
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the child processes
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(folder / "cache"))
    with brief_confirmations():
        for _, *words in [*commands, ["evotune", "report", "latest", "--format", "csv"]]:
            done = CliRunner().invoke(application, words, prog_name="evotune")
            assert done.exit_code == 0, done.stderr
    (trial,) = csv.DictReader(io.StringIO(done.stdout))
    assert (trial["outcome"], trial["confirmed"]) == ("ok", "True"), trial["reason"]


def test_the_strategy_finds_the_best_that_the_page_says(folder: Path) -> None:
    (said,) = re.findall(r"It prints `(.*?)`", PAGE)
    assert _python(folder, "try_climb.py").strip() == said


def test_the_strategy_satisfies_the_protocol(folder: Path) -> None:
    """It resumes from a snapshot, and covers a space without repeats."""
    script = """
from climb import Climb
from try_climb import space, strategy
from evotune.run_options import SearchSettings
from evotune.search.strategy import Strategy
from evotune.trial import Outcome, OutcomeKind, Trial

resumed: Strategy = Climb(space, SearchSettings(seed=0))
resumed.restore(strategy.snapshot())
proposals = []
for number in range(40, 60):
    proposals.append(resumed.ask(number, ()))
    assert proposals[-1] == strategy.ask(number, ())
    for each in (strategy, resumed):
        each.tell(Trial(number, proposals[-1], Outcome(OutcomeKind.COMPILE_ERROR, reason="x")))
assert len(set(proposals)) == 20
assert resumed.ask(60, ()) is None
"""
    _python(folder, "-c", script)


def test_the_commands_of_the_checks_exist() -> None:
    targets = re.findall(r"`make ([a-z-]+)`", PAGE)
    makefile = (ROOT / "Makefile").read_text()
    assert {"check", "test", "test-gpu", "soak", "bench"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
