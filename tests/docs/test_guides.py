"""Each guide, command by command in a fresh folder, with few trials."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from export.making import with_speedup

from evotune.runs.folder import list_runs

from .pages import DOCS, GUIDES, ROOT, Block, blocks, shell_lines

_BUDGETS = {"--trials", "--minutes", "--champions"}

_UNDECIDED = 6


class Reader:
    """Somebody who pastes what a page shows, line by line. A run has few trials, and its champions
    get a speedup with which they can be exported, since that hangs on the machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = self._here = folder
        self._site = folder / "site-packages"
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{self._site}",
            "EVOTUNE_CACHE_DIR": str(folder / "cache"),
            "EVOTUNE_STATE_DIR": str(folder / "state"),
        }

    def follow(self, block: Block) -> None:
        """Every block begins in the folder that the page begins in."""
        self._here = self._folder
        for line in shell_lines(block):
            self._shell(line)

    def python(self, text: str) -> None:
        fewer = re.sub(r"trials=(\d+)", lambda found: f"trials={max(1, int(found[1]) // 12)}", text)
        script = self._folder / "guide.py"  # classes of a script in a file can be problems
        script.write_text(fewer)
        self._here = self._folder
        self._run([sys.executable, str(script)])

    def _shell(self, line: str) -> None:
        program, *words = shlex.split(line)
        if program == "cd":
            self._here = self._here / words[0]
        elif program == "pip":
            options = ["--quiet", "--no-index", "--target", str(self._site)]
            self._run([sys.executable, "-m", "pip", words[0], *options, *words[1:]])
        else:
            assert program == "evotune", line
            command = [sys.executable, "-m", "evotune"]
            if words[0] == "run":
                code = self._run([*command, *self._brief(words)], _UNDECIDED)
                if code == _UNDECIDED:  # one trial leaves too little time to confirm; as it says
                    self._run([*command, "resume", "latest", "--champions", "1"])
            else:
                self._run([*command, *words])
            if words[0] == "run":
                for run in list_runs(self._here / "runs"):
                    with_speedup(run, 1.3)

    @staticmethod
    def _brief(words: list[str]) -> list[str]:
        kept = [
            word
            for at, word in enumerate(words)
            if word not in _BUDGETS and (at == 0 or words[at - 1] not in _BUDGETS)
        ]
        trials = "20" if "exhaustive" in words else "1"  # a recording of some size
        champions = "1" if trials == "1" else "3"
        return [*kept, "--trials", trials, "--champions", champions, "--device", "cpu"]

    def _run(self, command: list[str], also: int = 0) -> int:
        """The exit code, which is 0 or `also`."""
        done = subprocess.run(
            command, cwd=self._here, env=self._environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        said = f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
        assert done.returncode in (0, also), said
        return done.returncode


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_shows_commands_that_a_reader_can_paste(name: str) -> None:
    """Commands that need a GPU, a user's own files or hours stand in blocks of `bash`."""
    shown = [block for block in blocks(DOCS / name) if block.language == "sh"]
    programs = {shlex.split(line)[0] for block in shown for line in shell_lines(block)}
    assert programs <= {"cd", "pip", "evotune"}


@pytest.mark.soak
@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_does_what_it_says(name: str, tmp_path: Path) -> None:
    reader, found = Reader(tmp_path), blocks(DOCS / name)
    for block in found:
        if block.language == "sh":
            reader.follow(block)
    script = "\n".join(block.text for block in found if block.language == "python")
    if script:
        reader.python(script)
