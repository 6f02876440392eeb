"""Command lines in messages, which a user can paste into a shell as they stand."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

RUNS_DIR = Path("runs")
"""The default folder of the runs."""


def command_line(*words: object) -> str:
    """`evotune WORD …`, each word quoted where a shell would read it otherwise."""
    return f"{_program()} {shlex.join(map(str, words))}"


def run_command(name: str, run: str | Path, *words: object) -> str:
    """`evotune NAME RUN WORD …` for the run in the folder `run`, wherever that folder is."""
    folder = Path(run).absolute()
    where = _runs_dir(folder.parent)
    return command_line(name, folder.name, *words, *(("--runs-dir", where) if where else ()))


def python_command(*words: object) -> str:
    """`python WORD …` for the Python that runs evotune, which another environment's is not."""
    python = "python" if _program() == "evotune" else shlex.quote(sys.executable)
    return f"{python} {shlex.join(map(str, words))}"


def install_command(folder: str | Path) -> str:
    """The line that installs the exported package in `folder` where evotune itself is installed."""
    path = str(folder)
    path = path if Path(path).is_absolute() else f"./{path}"  # a bare name is one of the index
    words = ("pip", "install", "--no-deps", path)
    return shlex.join(words) if _program() == "evotune" else python_command("-m", *words)


def _runs_dir(folder: Path) -> str:
    """The shortest name of the folder from the working folder; "" where it is the default."""
    if folder == RUNS_DIR.absolute():
        return ""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def _program() -> str:
    """The shell's words that start this evotune, from any folder: its name alone where the shell
    finds it. The shell does not find it in a virtual environment that is not active."""
    called = Path(sys.argv[0])
    module = called.name == "__main__.py" and called.parent.name == "evotune"
    if not module and called.name != "evotune":
        return "evotune"  # another program uses evotune as a library
    found = shutil.which("evotune")
    script = Path(sys.executable).with_name("evotune") if module else called
    if found is not None and os.path.realpath(found) == os.path.realpath(script):
        return "evotune"
    return (
        f"{shlex.quote(sys.executable)} -m evotune"
        if module
        else shlex.quote(str(called.absolute()))
    )
