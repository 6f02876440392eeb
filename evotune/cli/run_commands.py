"""`run`, `resume`, `replay`: start a search, continue one, search a recorded space."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

import evotune
from evotune.cli.family_views import resume_family, run_family
from evotune.cli.options import (
    POSITIVE,
    STRATEGIES,
    Command,
    cases_option,
    cluster_option,
    complete_run,
    complete_strategy,
    device_option,
    format_option,
    gpus_option,
    output_option,
    run_argument,
    runs_dir_option,
    space_argument,
    trust_option,
)
from evotune.cli.terminal import (
    Terminal,
    opened_output,
    pass_terminal,
    print_leaderboard,
    print_tables,
    text_table,
)
from evotune.trial import TOO_NOISY
from evotune.util.commands import python_command, run_command

if TYPE_CHECKING:
    from evotune.api.run import RunResult
    from evotune.api.tuning import Evaluation, Replay
    from evotune.report.data import RunData

_SHOWN_ROWS = 5
_NO_VALID_CANDIDATE = 1
_UNDECIDED = 6
_INTERRUPTED = 130


@click.command(cls=Command, example="evotune run attention-cpu --trials 200 --seed 1")
@space_argument(required=False)
@click.option("--trials", type=click.IntRange(min=1), help="Stop after this many trials.")
@click.option(
    "--minutes",
    type=POSITIVE,
    help="Stop after this many minutes of work, over all sessions. 70% of them are for searching, "
    "the rest for confirming, which may take longer.",
)
@click.option("--compiles", type=click.IntRange(min=1), help="Stop after this many compiles.")
@click.option("--speedup", type=POSITIVE, help="Stop when a candidate reaches this speedup.")
@click.option(
    "--no-improvement",
    type=click.IntRange(min=1),
    help="Stop after this many trials without a better one.",
)
@click.option(
    "--warm-start",
    metavar="RUN",
    shell_complete=complete_run,
    help="Start from the best configurations of this run, even if it is from another device.",
)
@cases_option(
    "Tune for the cases of this file in place of the space's: a list in YAML or JSON, or the miss "
    "log of an exported package. Cases that no kernel can compute are skipped, with a note."
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the search.")
@click.option(
    "--strategy",
    metavar="NAME",
    shell_complete=complete_strategy,
    help=f"{STRATEGIES}; defaults to the space's choice.",
)
@click.option(
    "--racing/--no-racing",
    default=True,
    help="Take fewer samples of candidates that cannot win; --no-racing takes as many as of "
    "others.",
)
@click.option(
    "--lookahead",
    type=click.IntRange(min=0, max=10_000),
    help="Trials in flight: proposal n knows the outcomes before n - N. Fixed for the run.",
)
@click.option(
    "--champions",
    type=click.IntRange(0, 100),
    help="How many of the best trials to confirm in fresh processes; defaults to 3, 0 "
    "confirms none.",
)
@gpus_option
@cluster_option
@click.option(
    "--allow-mixed",
    is_flag=True,
    help="Use GPUs of several models together; they are ranked separately.",
)
@trust_option
@device_option
@runs_dir_option
@pass_terminal
def run(
    terminal: Terminal,
    /,
    *,
    space: str | None,
    warm_start: str | None,
    cases: Path | None,
    strategy: str | None,
    gpus: int | str | None,
    cluster: str | None,
    allow_mixed: bool,
    device: str,
    runs_dir: Path,
    **options: bool | float | None,
) -> int:
    """Search SPACE for the fastest correct configuration.

    SPACE is a file, or the name of a space that ships with evotune. It defaults to the device's
    flagship space; on a CPU this takes three minutes unless a limit is given. After the first
    Ctrl-C the run finishes cleanly, and you can resume it.

    `attention` names all shipped attention spaces. It needs --cases: each case goes to the spaces
    that can compute it, these race for a small part of the budget, and the better ones go on.
    --trials and --minutes are then totals for all cases.
    """
    from evotune.api.family_run import is_family
    from evotune.api.tuning import new_run
    from evotune.cli.progress import show_progress

    if is_family(space):
        given = {**options, "warm_start": warm_start, "strategy": strategy}
        given |= {"gpus": gpus, "cluster": cluster}
        return run_family(terminal, cases, device, runs_dir, given)
    with show_progress(terminal) as observer:
        result = new_run(
            space,
            observer,
            options,
            device=device,
            runs_dir=runs_dir,
            strategy=strategy,
            warm_start=warm_start,
            cases=cases,
            gpus=gpus,
            cluster=cluster,
            allow_mixed=allow_mixed,
            command=("evotune", *sys.argv[1:]),
        )
    return _conclude(terminal, result, gpus, cluster, allow_mixed)


@click.command(cls=Command, example="evotune resume latest --trials 2000")
@run_argument
@click.option("--trials", type=click.IntRange(min=1), help="New total of trials.")
@click.option(
    "--minutes",
    type=POSITIVE,
    help="New total of minutes, over all sessions; 70% of them are for searching.",
)
@click.option(
    "--champions",
    type=click.IntRange(1, 100),
    help="Confirm this many of the best trials. Confirmed ones are not confirmed again. Without "
    "--minutes there is no time limit.",
)
@trust_option
@click.option("--allow-mixed", is_flag=True, help="Continue even with another device or driver.")
@gpus_option
@cluster_option
@runs_dir_option
@pass_terminal
def resume(
    terminal: Terminal,
    *,
    run: str,
    trials: int | None,
    minutes: float | None,
    champions: int | None,
    allow_mixed: bool,
    gpus: int | str | None,
    cluster: str | None,
    runs_dir: Path,
) -> int:
    """Continue an interrupted run, or a finished one.

    A finished run needs more budget: new totals of trials or minutes, or more champions. Confirmed
    trials are not confirmed again.
    """
    from evotune.api.family_run import open_family
    from evotune.api.run import open_run
    from evotune.cli.progress import show_progress

    family = open_family(run, runs_dir)
    if family is not None:
        return resume_family(terminal, family, trials, minutes, champions)
    found = open_run(run, runs_dir)
    terminal.crash_folder = found.folder.logs
    with show_progress(terminal) as observer:
        result = found.resumed(
            observer,
            trials=trials,
            minutes=minutes,
            champions=champions,
            gpus=gpus,
            cluster=cluster,
            allow_mixed=allow_mixed,
        )
    return _conclude(terminal, result, gpus, cluster, allow_mixed)


def _conclude(
    terminal: Terminal,
    result: RunResult,
    gpus: int | str | None,
    cluster: str | None,
    allow_mixed: bool,
) -> int:
    """Prints the leaderboard on stdout and the next commands on stderr; returns the exit code."""
    from evotune.report.data import RunData
    from evotune.report.summary import more_budget, no_win

    interrupted = result.reason == "interrupted"
    data = RunData.load(result.run, _SHOWN_ROWS)
    confirmed = any(each.ok for each in data.confirmations.values())
    refused = bool(data.confirmations) and not confirmed
    failed = 0 if result.ok_trials and not refused else _NO_VALID_CANDIDATE
    cut = data.facts.unconfirmed and not confirmed
    if not interrupted and (result.undecided or (result.ok_trials and cut)):
        failed = _UNDECIDED
    terminal.verdict = _INTERRUPTED if interrupted else failed
    print_leaderboard(terminal, data, _SHOWN_ROWS)
    sys.stdout.flush()
    more = more_budget(result.reason, data.facts.settings)
    if failed == _UNDECIDED:
        champions = ("--champions", data.facts.settings.champions)
        options = champions if result.ok_trials else more or ()
        again = run_command("resume", result.run.path, *options)
        why = "" if cut else f"undecided: no kernel was confirmed, since {TOO_NOISY}; "
        terminal.note(f"{why}on a quiet machine: {again}")
    elif failed and more and not refused:
        terminal.note("next: correct the file and start a new run; this one has its own copy")
    elif more is not None:
        devices = more_devices(gpus, cluster, allow_mixed)
        terminal.note(f"resume: {run_command('resume', result.run.path, *more, *devices)}")
    page = ("--format", "html", "-o", "report.html")
    terminal.note(f"report: {run_command('report', result.run.path, *page)}")
    if data.won:
        _offer_package(terminal, result, data)
    elif not failed and not interrupted and not data.recorded:
        terminal.note(no_win(data))
    return terminal.verdict


def _offer_package(terminal: Terminal, result: RunResult, data: RunData) -> None:
    """Tells how the winner gets into a program."""
    from evotune.util.commands import package_commands

    problem = data.facts.problem.name
    found = package_commands(str(result.run.path), data.space, problem)
    terminal.note(f"export: {found.export}")
    terminal.note(f"use: {found.install}; {python_command('-c', found.use)}")


def more_devices(gpus: int | str | None, cluster: str | None, allow_mixed: bool) -> list[str]:
    """The device options to repeat when the run is resumed, because its store does not have
    them."""
    return [
        *([] if gpus is None else ["--gpus", str(gpus)]),
        *([] if cluster is None else ["--cluster", cluster]),
        *(["--allow-mixed"] if allow_mixed else []),
    ]


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
    help="Evaluations in each repeat; defaults to the score's own budget.",
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
    help="Seed of the first repeat; each later one adds 1.",
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
    from evotune.api.tuning import budget, find_recording, replaying
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
