"""The live view on a pseudo-terminal: the text on its screen in the end."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyte
import pytest

from evotune.cli.progress import Standing, panel
from evotune.runs.observer import Progress
from evotune.trial import Configuration, Trial

from .conftest import _python_path
from .test_progress import Clock, info, ok

ROWS, COLUMNS = 24, 80
TESTS = Path(__file__).parents[1]

RUN = """
import sys, threading
from report.runs import ok
from evotune.cli.progress import progress_observer
from evotune.cli.terminal import Terminal
from evotune.runs.observer import Progress, RunInfo
from evotune.trial import Configuration, Trial
from rich.live import Live

drawn, refresh = threading.Event(), Live.refresh

def noted(live):
    refresh(live)
    drawn.set()

Live.refresh = noted

def draw():
    for _ in range(2):  # the first picture may have begun before the call
        drawn.clear()
        drawn.wait()

with progress_observer(Terminal()) as observer:
    observer.started(RunInfo("id", "runs/id", "space", "CPU", "evolution", 3, 8, 100, None, 0, 2))
    draw()
    for number, parameters in enumerate(map(int, sys.argv[1:])):
        values = {f"PARAMETER_{n}": number for n in range(parameters)}
        trial = Trial(number, Configuration(values), ok(1.5 + number))
        observer.told(trial, Progress(number + 1, 10.0, 0, trial))
        draw()
        observer.confirmed(trial, ok(1.25))
        draw()
    observer.finished("trials", 12.0)
"""


def on_screen(*parameters: int) -> tuple[list[str], list[str]]:
    """Runs the live view for one best configuration after the other, with these numbers of
    parameters; returns the lines on the screen and the lines that were scrolled off it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "PYTHONPATH": f"{_python_path()}:{TESTS}", "TERM": "xterm"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *map(str, parameters)],
        stdin=slave, stdout=slave, stderr=slave, env=environment,
    )  # fmt: skip
    os.close(slave)
    screen = pyte.HistoryScreen(COLUMNS, ROWS, history=1000)
    stream = pyte.ByteStream(screen)
    try:
        while data := os.read(master, 1 << 16):
            stream.feed(data)
    except OSError:  # Linux: the other side is closed
        pass
    finally:
        os.close(master)
    assert process.wait() == 0
    above = ["".join(line[at].data for at in range(COLUMNS)) for line in screen.history.top]
    return [line.rstrip() for line in screen.display], [line.rstrip() for line in above]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("parameters", [(2, 40), (40, 2), (100, 100)])
def test_the_screen_holds_the_last_panel_and_no_line_of_an_earlier_one(
    parameters: tuple[int, ...],
) -> None:
    screen, above = on_screen(*parameters)
    lines = [line for line in (*above, *screen) if line]
    assert lines[:3] == [
        "confirmed trial 0: 1.250x [1.238, 1.262]",
        "confirmed trial 1: 1.250x [1.238, 1.262]",
        "space on CPU: evolution, seed 3",
    ]
    assert lines[3] == "ended: trial budget spent (12 s)"
    assert lines[-1].startswith("time in")
    assert "space on CPU: evolution, seed 3" in screen, "all of it is on the screen"
    assert len(lines[2:]) < ROWS
    (best,) = (line for line in lines if line.startswith("best"))
    assert best == "best      2.500x [2.475, 2.525] (trial 1)"


def test_what_a_low_terminal_cannot_show_is_cut_the_least_important_first() -> None:
    standing = Standing(Clock(), info())
    for number in range(3):
        values = {f"PARAMETER_{n}": number for n in range(20)}
        trial = Trial(number, Configuration(values), ok(1.0 + number))
        elites = [(0.1 * place, trial.configuration) for place in range(5)]
        standing.tell(trial, Progress(number + 1, 10.0, 0, trial, elites))

    def shown(height: int | None) -> list[str]:
        return [row.plain for row in panel(standing, COLUMNS, height=height).renderables]

    def elites_of(rows: list[str]) -> list[str]:
        first = next(at for at, row in enumerate(rows) if row.startswith("elites"))
        return rows[first : first + 5]

    whole = shown(None)
    assert shown(len(whole)) == whole
    for height in range(1, len(whole)):
        assert len(shown(height)) == height
    assert shown(len(whole) - 5) == [line for line in whole if line not in elites_of(whole)]
    assert shown(3) == whole[:3]
    (cut,) = (line for line in shown(len(whole) - 6) if line.endswith("…"))
    assert any(line.startswith(cut[:-1]) for line in whole)
