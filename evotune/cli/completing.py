"""The values that a shell offers when it completes options and arguments."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from evotune.util.commands import RUNS_DIR


def complete_run(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """`latest` and the folder's runs, newest first; paths when none of these fits."""
    from evotune.api.run import all_runs

    runs_dir = context.params.get("runs_dir") or RUNS_DIR
    names = ["latest", *(run.id for run in reversed(all_runs(runs_dir)))]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def complete_device(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The values of `--device`: `auto`, and the names that each backend offers."""
    from evotune.api.machine import device_names

    return [CompletionItem(name) for name in device_names() if name.startswith(incomplete)]


def complete_strategy(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The strategies by name."""
    from evotune.api.machine import strategy_names

    return [CompletionItem(name) for name in strategy_names() if name.startswith(incomplete)]


def complete_space(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The shipped spaces by name, and files."""
    from evotune.api.machine import shipped_spaces

    found = [CompletionItem(name) for name in shipped_spaces() if name.startswith(incomplete)]
    return [*found, CompletionItem(incomplete, type="file")]
