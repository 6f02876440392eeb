"""`Run`: reads a run's folder, and resumes, verifies and reports the run."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evotune.api.observing import Observer, watching
from evotune.errors import UsageError
from evotune.portfolios.family_file import exportable_runs, read_family, winning_runs
from evotune.report import wording
from evotune.report.data import RunData
from evotune.report.formats import REPORTS
from evotune.report.leaderboard import Row, rank
from evotune.runs.folder import RunFolder, find_family, find_run, list_runs
from evotune.store import RunStore
from evotune.trial import Check, Configuration, Measurement, Outcome, Trial, Value
from evotune.util.commands import RUNS_DIR
from evotune.util.files import whole_file

if TYPE_CHECKING:
    import pandas as pd

    from evotune.api._tuned_kernel import CallableKernel
    from evotune.explain.explanation import Explanation
    from evotune.export.exporting import Exported
    from evotune.runs.ablation import AblationRow
    from evotune.runs.reopening import Verified
    from evotune.runs.starting import RunResult
    from evotune.search.catalog import StrategyMaker


__all__ = [
    "REPORT_STYLES",
    "AblationRow",
    "Candidate",
    "Exported",
    "Run",
    "RunFolder",
    "RunResult",
    "Verified",
    "all_runs",
    "exported",
    "open_run",
    "report_pieces",
]

REPORT_STYLES = ("html", "md", "csv", "json", "jsonl", "parquet", "t4")


def report_pieces(runs: Sequence[Run], style: str) -> Iterator[bytes]:
    """The report of the runs, piece by piece. Raises UsageError for several runs in a style other
    than html."""
    if len(runs) > 1 and style != "html":
        raise UsageError(f"--format {style} takes one run; only html takes several")
    if style == "html":
        from evotune.explain.report_parts import explained_html
        from evotune.report.html import MOST_TRIALS

        with contextlib.ExitStack() as opened:
            thinned = (RunData.thinned(run.folder, MOST_TRIALS) for run in runs)
            yield explained_html([opened.enter_context(data) for data in thinned]).encode()
        return
    with RunData.opened(runs[0].folder) as data:
        if style == "parquet":
            from evotune.report.frame import run_columns, to_parquet

            yield to_parquet(run_columns(data))
            return
        if style == "md":
            from evotune.explain.report_parts import explained_markdown

            yield explained_markdown(data).encode()
            return
        for piece in REPORTS[style](data):
            yield piece.encode()


class Candidate:
    """One row of a run's leaderboard. Times in microseconds.

    `speedup` is baseline time / candidate time, the geometric mean over the timed cases, with the
    95% interval `speedup_low` to `speedup_high`; None in a run on a recorded space. `outcome` is
    the confirmation's if there is one (`confirmed`), else the search's.
    """

    def __init__(self, run: Run, row: Row) -> None:
        self._run = run
        self._row = row

    @property
    def number(self) -> int:
        """The trial's number."""
        return self._row.number

    @property
    def configuration(self) -> Configuration:
        return self._row.configuration

    @property
    def outcome(self) -> Outcome:
        return self._row.outcome

    @property
    def rank(self) -> int:
        """The rank, from 1 for the best; rows whose intervals overlap share a rank."""
        return self._row.rank

    @property
    def confirmed(self) -> bool:
        """Whether a fresh process has measured and checked the candidate again."""
        return self._row.confirmed

    @property
    def speedup(self) -> float | None:
        return self._row.figures.speedup

    @property
    def speedup_low(self) -> float | None:
        return self._row.figures.speedup_low

    @property
    def speedup_high(self) -> float | None:
        return self._row.figures.speedup_high

    @property
    def time_us(self) -> float | None:
        """The time in microseconds, geometric mean over the timed cases."""
        return self._row.figures.time_us

    @property
    def checks(self) -> tuple[Check, ...]:
        return self.outcome.checks

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The times, baseline and speedup of each case."""
        return self.outcome.measurements

    def kernel(self) -> CallableKernel:
        """The kernel as a function of torch tensors, in this process: see `CallableKernel`."""
        from evotune.api._tuned_kernel import CallableKernel

        return CallableKernel(self._run.folder, self.configuration)

    def __repr__(self) -> str:
        figures = self._row.figures
        parts = [] if figures.speedup is None else [wording.speedup_text(figures)]
        parts += [] if figures.time_us is None else [f"{figures.time_us:.4g} µs"]
        if figures.speedup is not None:  # a recording has no baseline, and confirms nothing
            parts += ["confirmed" if self.confirmed else "not confirmed", *self.outcome.flags]
        values = wording.configuration_text(self.configuration)
        return f"<trial {self.number}: {', '.join(parts)}, {values}>"


class Run:
    """A run in its folder, finished or not. Each property reads the folder again, so an active run
    shows its new trials."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        """The folder with the run's files."""

    @property
    def id(self) -> str:
        return self.folder.id

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def state(self) -> str:
        """`finished:REASON` (trials, minutes, …), `interrupted`, `running`, or `killed`."""
        return RunData.load(self.folder, 1).state

    @property
    def skipped_cases(self) -> str:
        """The given cases that no kernel can compute, in words; "" for none."""
        with RunStore.open_for_reading(self.folder.store) as store:
            return str(store.meta("skipped_cases", ""))

    @property
    def best(self) -> Candidate:
        """The leaderboard's first candidate. Raises UsageError if no candidate is valid."""
        rows = self.leaderboard(1)
        if not rows:
            raise UsageError(f"run {self.id} has no valid candidate")
        return rows[0]

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, failed ones too, in the order of their numbers, with the search's
        outcomes."""
        return RunData.load(self.folder).trials

    def leaderboard(self, count: int = 10) -> list[Candidate]:
        """The first `count` rows: confirmed champions first, duplicates folded into one row. Raises
        UsageError for a count that is no integer of at least 0."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise UsageError(f"leaderboard: expected an integer of at least 0, got {count!r}")
        rows = rank(RunData.load(self.folder, count)).rows[:count]
        return [Candidate(self, row) for row in rows]

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with a row for each trial, the leaderboard first. `evotune.report.frame`
        lists the columns.

        Missing values are NA; parameters are in columns `param.NAME`.
        """
        from evotune.report.frame import run_columns, to_pandas

        with RunData.opened(self.folder) as data:
            return to_pandas(run_columns(data))

    def report(self, path: str | Path, style: str | None = None) -> Path:
        """Writes a report of the run to a file. Returns the path.

        `style` is html (a page that opens offline), md, csv, json, jsonl, parquet or t4; None means
        the file's suffix. Raises UsageError for another style or suffix, or a file that cannot be
        written. A report that could not be finished leaves the file as it was.
        """
        path = Path(path)
        style = path.suffix.removeprefix(".").lower() if style is None else style
        if style not in REPORT_STYLES:
            styles = ", ".join(REPORT_STYLES)
            raise UsageError(f"{path}: expected a report's suffix, one of {styles}")
        try:
            with whole_file(path) as file:
                for piece in report_pieces([self], style):
                    file.write(piece)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
        return path

    def resume(
        self,
        *,
        trials: int | None = None,
        minutes: float | None = None,
        champions: int | None = None,
        strategy: StrategyMaker | None = None,
        gpus: int | str | None = None,
        cluster: str | None = None,
        allow_mixed: bool = False,
        trust: bool = False,
        on_trial: Callable[[Trial], object] | None = None,
        on_note: Callable[[str], object] | None = None,
    ) -> Run:
        """Continues the run. `trials`, `minutes` and `champions` are new totals. Returns this run.

        Without `minutes`, `champions` are confirmed however long it takes. Confirmed trials are not
        confirmed again.

        For a run with your own strategy, pass it again as `strategy`. The other arguments are those
        of `tune`; `allow_mixed` also allows another device or driver than before. Raises
        EnvironmentProblem if the run was made elsewhere, RunLocked while another process works on
        it, UsageError for fewer trials than the run has.
        """
        from evotune.api.given_space import trusting

        with trusting(trust):
            self.resumed(
                watching(on_trial, on_note),
                trials=trials,
                minutes=minutes,
                champions=champions,
                strategy=strategy,
                gpus=gpus,
                cluster=cluster,
                allow_mixed=allow_mixed,
            )
        return self

    def resumed(
        self,
        observer: Observer,
        *,
        trials: int | None = None,
        minutes: float | None = None,
        champions: int | None = None,
        strategy: StrategyMaker | None = None,
        gpus: int | str | None = None,
        cluster: str | None = None,
        allow_mixed: bool = False,
    ) -> RunResult:
        """Continues the run for a caller that watches it; see `resume`."""
        from evotune.runs.cluster_run import cluster_request
        from evotune.runs.setup import GpuRequest
        from evotune.runs.starting import resume_run

        return resume_run(
            self.folder,
            observer,
            trials=trials,
            minutes=minutes,
            champions=champions,
            strategy=strategy,
            allow_mixed=allow_mixed,
            gpus=None if gpus is None else GpuRequest.parse(gpus, allow_mixed=allow_mixed),
            cluster=cluster_request(cluster, "auto", gpus, allow_mixed=allow_mixed),
        )

    def remeasured(
        self, configuration: Configuration, other: Run, its_configuration: Configuration
    ) -> Outcome:
        """Times `its_configuration` of the `other` run in alternation with `configuration` of this
        run, and returns the outcome."""
        from evotune.runs.reopening import remeasure

        return remeasure((self.folder, configuration), (other.folder, its_configuration))

    def verify(
        self, configuration: Mapping[str, Value] | None = None, *, top: int = 1
    ) -> list[Verified]:
        """Repeats all checks of a champion in a fresh process, for `configuration` or for the first
        `top` candidates of the leaderboard. Each result has `passed` and `outcome.checks`. The run
        does not change.

        Raises UsageError if the run has no valid candidate, or the configuration is not in the
        space.
        """
        return list(self.verifying(configuration, top=top))

    def verifying(
        self, configuration: Mapping[str, Value] | None = None, *, top: int = 1
    ) -> Iterator[Verified]:
        """Like `verify`, but yields each result as soon as it is known."""
        from evotune.runs.reopening import verify_run

        wanted: list[Mapping[str, Value]] = [configuration] if configuration is not None else []
        if configuration is None:
            wanted += [row.configuration for row in self.leaderboard(top)]
        if not wanted:
            raise UsageError(f"run {self.id} has no valid candidate; name one with --config")
        return verify_run(self.folder, wanted)

    def ablate(self, number: int | None = None) -> list[AblationRow]:
        """Measures the worth of each choice in the best candidate (or in trial `number`): sets one
        parameter at a time to the default or to a neighbouring value, and times the result in
        alternation with the candidate.

        The run stores the rows; the first is the candidate against itself. Raises UsageError if the
        run has no such candidate.
        """
        return list(self.ablating(self.candidate(number)))

    def ablating(self, candidate: Candidate) -> Iterator[AblationRow]:
        """Like `ablate`, but yields each row as soon as it is measured."""
        from evotune.runs.ablation import ablate_run

        return ablate_run(self.folder, candidate.number, candidate.configuration)

    def explain(
        self,
        number: int | None = None,
        *,
        against: str = "",
        measure: bool | None = None,
        effects: bool = True,
        minutes: float | None = None,
        tries: bool = False,
        trust: bool = False,
        on_note: Callable[[str], object] = lambda text: None,
    ) -> Explanation:
        """Explains the best candidate (or trial `number`): what limits it, the worth of its
        choices, the parameters that matter most over the space, and what to try next. A notebook
        shows the explanation, `print` writes it as text, and `to_json` returns its data.

        `against` is baseline, default, a trial's number as text, or RUN:NUMBER. `measure`: None
        makes missing measurements if the run's device is present; False compiles and launches
        nothing. Without `effects` the single choices are not measured. `minutes`: measuring stops
        after this time (defaults to 3 on a CPU), and the next call measures the rest. `tries`
        measures the suggestions that are configurations. `trust`: see `tune`. `on_note` is called
        with a line before each measurement. Raises UsageError for a trial or a side that does not
        exist, and for `tries` with `measure` False. If something must be measured, raises
        EnvironmentProblem if the device is absent, and RunLocked while another process works on the
        run.
        """
        from evotune.api.given_space import trusting
        from evotune.explain.explaining import ExplainRequest, explain_run

        with trusting(trust):
            request = ExplainRequest(number, against, measure, tries, effects, minutes)
            return explain_run(self.folder, request, on_note)

    def export(
        self,
        folder: str | Path,
        *,
        name: str | None = None,
        beside: Sequence[Run] = (),
        trust: bool = False,
    ) -> Path:
        """Writes the run's confirmed champions as a Python package that needs PyTorch and not
        evotune; of callables only the best configuration is written. Returns the folder. Warns of
        a kernel whose figures are too noisy. For problems other than attention it also warns if no
        kernel is surely faster in any timed case, because the package uses the kernels anyway.

        `name` is the package's name; it defaults to the space's. The runs `beside`, which must have
        the same problem and device, go into the same package. `trust`: see `tune`. Raises
        EvotuneError if no champion is confirmed or faster than PyTorch's attention, UsageError for
        an invalid name or folder, EnvironmentProblem if this machine's compilers make machine code
        that differs from what the run measured.
        """
        from evotune.api.given_space import trusting
        from evotune.export.exporting import export_runs

        with trusting(trust):
            runs = [self.folder, *(run.folder for run in beside)]
            found = export_runs(runs, Path(folder), name)
        for doubt in found.doubts:
            warnings.warn(f"{found.name}: {doubt}", stacklevel=2)
        if not found.served and found.configuration is None:
            words = "no kernel is surely faster than the baseline in any timed case"
            warnings.warn(f"{found.name}: {words}; the package uses it all the same", stacklevel=2)
        return found.folder

    def candidate(self, number: int | None = None) -> Candidate:
        """The leaderboard's row of trial `number`, or the first row if `number` is None. Raises
        UsageError if there is no such row."""
        rows = rank(RunData.load(self.folder, 1 if number is None else None)).rows
        chosen = next((row for row in rows if number in (None, row.number)), None)
        if chosen is None:
            no = "candidate" if number is None else f"trial {number} with code of its own"
            raise UsageError(f"run {self.id} has no valid {no}")
        return Candidate(self, chosen)

    def __repr__(self) -> str:
        return f"<evotune run {self.id}: {self.state}>"


def open_run(run: str | Path = "latest", runs_dir: str | Path = RUNS_DIR) -> Run:
    """Opens a run by its id, a unique prefix of its id, its path, or `latest` (the newest run).

    A family (`evotune run attention`) with one winner stands for the winner's run. Raises
    UsageError if there is no such run.
    """
    family = find_family(str(run), Path(runs_dir))
    if family is not None:
        winners = list(winning_runs(family, read_family(family)).values())
        if len(winners) == 1:
            return Run(winners[0])
    return Run(find_run(str(run), Path(runs_dir)))


def all_runs(runs_dir: str | Path = RUNS_DIR) -> list[Run]:
    """The runs of a folder, the oldest first."""
    return [Run(folder) for folder in list_runs(Path(runs_dir))]


def exported(
    runs: Sequence[str | Path], folder: Path, name: str | None, runs_dir: str | Path = RUNS_DIR
) -> Exported:
    """Writes the champions of `runs`, or a portfolio, as a Python package; see `Run.export`. Raises
    UsageError for a portfolio together with anything else."""
    from evotune.export.exporting import export_portfolio, export_runs
    from evotune.portfolios.portfolio_file import portfolio_folder

    if len(runs) == 1 and (family := find_family(str(runs[0]), Path(runs_dir))) is not None:
        return export_runs(exportable_runs(family), folder, name or "attention")
    portfolios = [found for run in runs if (found := portfolio_folder(Path(run))) is not None]
    if not portfolios:
        return export_runs([open_run(run, runs_dir).folder for run in runs], folder, name)
    if len(runs) > 1:
        raise UsageError(f"{portfolios[0]} is a portfolio: export it alone")
    return export_portfolio(portfolios[0], folder, name)
