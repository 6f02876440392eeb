"""`completion`: what a shell needs to complete evotune's commands, options, runs and spaces."""

from __future__ import annotations

import sys

import click
from click.shell_completion import CompletionItem, get_completion_class

from evotune.cli.options import Command
from evotune.command_line import RUNS_DIR

_VARIABLE = "_EVOTUNE_COMPLETE"


@click.command(cls=Command, example="evotune completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script of a SHELL.

    bash and zsh: evaluate it in the shell's start-up file. fish: save it as
    ~/.config/fish/completions/evotune.fish.
    """
    from evotune.cli.main import application

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(application, {}, "evotune", _VARIABLE)
    # Not `source()`: for bash it runs bash to ask its version, and any since 2009 will do.
    text = made.source_template % made.source_vars()
    sys.stdout.write(text.strip() + "\n")
    return 0


def complete_run(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """`latest`, the runs of the folder, newest first, and paths."""
    from evotune.engine.folder import list_runs

    runs_dir = context.params.get("runs_dir") or RUNS_DIR
    names = ["latest", *(run.id for run in reversed(list_runs(runs_dir)))]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def complete_device(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The values of `--device`; of the GPUs that may be here, the first two."""
    from evotune.backends import registry

    known = [
        registry.AUTO,
        *(each for backend in registry.every() for each in backend.completions()),
    ]
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def complete_strategy(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The strategies by name."""
    from evotune.search.catalog import strategy_names

    return [CompletionItem(name) for name in strategy_names() if name.startswith(incomplete)]


def complete_space(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The shipped spaces by name, and files."""
    from evotune.engine.spaces import shipped_spaces

    found = [CompletionItem(name) for name in shipped_spaces() if name.startswith(incomplete)]
    return [*found, CompletionItem(incomplete, type="file")]
