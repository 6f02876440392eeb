"""`replay`: a search strategy on a space that was measured before."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

import evotune
from evotune.cli.options import (
    STRATEGIES,
    Command,
    complete_run,
    complete_strategy,
    format_option,
    output_option,
    runs_dir_option,
)
from evotune.cli.terminal import Terminal, opened_output, pass_terminal

if TYPE_CHECKING:
    from evotune.api.replaying import Evaluation, Replay


@click.command(cls=Command, example="evotune replay cache.json.gz --strategy local --repeats 20")
@click.argument("cache", type=click.Path(path_type=Path), shell_complete=complete_run)
@click.option(
    "--strategy",
    metavar="NAME",
    shell_complete=complete_strategy,
    default="evolution",
    show_default=True,
    help=f"How to search: {STRATEGIES}.",
)
@click.option(
    "--max-evals",
    type=click.IntRange(min=1),
    help="Evaluations in each repeat; the score's own budget if not given.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many repeats, each with its own seed.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the first repeat; each further one adds 1.",
)
@click.option(
    "--lookahead",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Proposals in flight; a run on a device has 16.",
)
@format_option(("table", "jsonl"), "table")
@output_option
@runs_dir_option
@pass_terminal
def replay(
    terminal: Terminal,
    *,
    cache: Path,
    strategy: str,
    max_evals: int | None,
    repeats: int,
    seed: int,
    lookahead: int,
    style: str,
    output: str,
    runs_dir: Path,
) -> int:
    """Run a search strategy on a recorded space.

    No device is needed. CACHE is a Kernel Tuner cache (also .gz, also unfinished), T4 results, an
    evotune run (id, unique prefix or path) or its report (--format json), or a space file with
    `recorded:`. The table has the published performance score: 0 is random search, 1 the optimum at
    once. The jsonl form has a line for each evaluation: {"repeat", "eval", "config", "time_ms"};
    the time of a failure is null.
    """
    from evotune.api.replaying import budget, find_recording, replaying
    from evotune.cli.tables import print_tables, text_table
    from evotune.report.formats import to_jsonl

    if style == "jsonl":
        recording = find_recording(cache, runs_dir)
        count = budget(recording) if max_evals is None else max_evals
        options = {"seed": seed, "lookahead": lookahead}
        with opened_output(output) as write:
            for evaluation in replaying(recording, strategy, count, repeats, **options):
                write(to_jsonl([_record(evaluation)]))
        return 0
    found = evotune.replay(
        cache,
        strategy=strategy,
        evaluations=max_evals,
        repeats=repeats,
        seed=seed,
        lookahead=lookahead,
        runs_dir=runs_dir,
    )
    facts = list(_facts(found, strategy))
    print_tables(terminal, [text_table(("space", found.recording.name), facts)], output)
    return 0


def _record(evaluation: Evaluation) -> dict[str, object]:
    return {
        "repeat": evaluation.repeat,
        "eval": evaluation.number,
        "config": evaluation.configuration.to_json(),
        "time_ms": evaluation.time_ms,
    }


def _facts(found: Replay, strategy: str) -> Iterator[tuple[str, str]]:
    recording, repeats = found.recording, found.repeats
    unfinished = "" if recording.complete else ", unfinished"
    yield "device", recording.device_name or "unnamed"
    size, valid = len(recording.space), len(recording.times_ms)
    yield "configurations", f"{size}, {valid} of them valid{unfinished}"
    yield "strategy", f"{strategy}, {len(repeats)} repeats of {found.evaluations} evaluations"
    if (score := found.score) is not None:
        scale = found.scale
        error = "" if score.standard_error is None else f" ± {score.standard_error:.3f}"
        yield "budget of the score", f"{scale.budget} evaluations"
        yield "score", f"{score.mean:.3f}{error} (0 random search, 1 the optimum at once)"
        yield "end below random", f"{score.below_random:.0%}"
        yield "optimum", f"{scale.optimum:.6g} ms"
        best = [repeat.best_ms for repeat in repeats if repeat.best_ms is not None]
        yield "best found, median", f"{statistics.median(best):.6g} ms" if best else "none"
        for percent in (5, 1):
            reached = [r.evaluations_to(scale.optimum * (1 + percent / 100)) for r in repeats]
            yield f"within {percent}%", _reached(reached)
    costs = [cost for repeat in repeats for cost in repeat.search_s]
    yield "search", f"{1000 * statistics.median(costs):.2f} ms an evaluation (median)"


def _reached(evaluations: list[int | None]) -> str:
    """The median over all repeats. A repeat that did not reach the time counts as longer than any
    that did."""
    found = sorted(n for n in evaluations if n is not None)
    share = f"{len(found)} of {len(evaluations)} repeats"
    middle = (len(evaluations) - 1) // 2
    return f"{share}, median after {found[middle]}" if middle < len(found) else share
