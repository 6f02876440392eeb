"""`evotune explode HOW`: a command that raises one named error for each way to end badly."""

from __future__ import annotations

import errno

import click

from evotune.cli.options import Command
from evotune.cli.terminal import Terminal, pass_terminal
from evotune.errors import (
    EnvironmentProblem,
    EvotuneError,
    Interrupted,
    RunLocked,
    SpaceError,
    StoreError,
    UsageError,
)

ERRORS: dict[str, BaseException] = {
    "evotune": EvotuneError("nothing valid"),
    "space": SpaceError("expected a list", file="space.yaml", line=3, column=7),
    "usage": UsageError("no such thing"),
    "environment": EnvironmentProblem("no compiler; install one"),
    "store": StoreError("damaged"),
    "locked": RunLocked("held by 17"),
    "interrupted": Interrupted("stopped"),
    "keyboard": KeyboardInterrupt(),
    "disguised": ImportError("numpy failed to import", name="numpy"),
    "escape": UsageError("bad \x1b[2J\nname"),
    "import": ImportError("no module named torch", name="torch"),
    "full": OSError(errno.ENOSPC, "No space left on device", "store.sqlite"),
    "bug": ZeroDivisionError("division by zero\nsecond line"),
    "own-import": ImportError("cannot import name x", name="evotune.cli"),
}
ERRORS["disguised"].__cause__ = KeyboardInterrupt()


@click.command(cls=Command, example="evotune explode bug")
@click.argument("how")
@pass_terminal
def explode(terminal: Terminal, how: str) -> int:
    """Fail."""
    raise ERRORS[how]
