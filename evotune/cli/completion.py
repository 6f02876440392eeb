"""`completion`: prints a shell script that completes evotune's commands, options, runs, spaces."""

from __future__ import annotations

import sys

import click
from click.shell_completion import get_completion_class

from evotune.cli.options import Command

_VARIABLE = "_EVOTUNE_COMPLETE"


@click.command(cls=Command, example="evotune completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> int:
    """Print the completion script of a SHELL.

    bash and zsh: evaluate it in the shell's start-up file. fish: save it as
    ~/.config/fish/completions/evotune.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(context.find_root().command, {}, "evotune", _VARIABLE)
    # Not `source()`: for bash it starts bash to ask for its version, and every bash since 2009 is
    # new enough.
    text = made.source_template % made.source_vars()
    sys.stdout.write(text.strip() + "\n")
    return 0
