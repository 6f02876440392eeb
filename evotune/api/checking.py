"""`check`, `compile` and `gate`: examine a space, or one kernel, without a search.

`check` and `compile` work on a machine with or without the device. `gate` checks and times one
kernel as a champion is checked and timed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from evotune.api.given_space import (
    AnyCases,
    AnySpace,
    SpaceKeywords,
    case_entries,
    space_file,
    trusting,
)
from evotune.api.tuning import tune
from evotune.errors import EvotuneError, UsageError
from evotune.report.data import RunData
from evotune.report.formats import trial_record
from evotune.report.leaderboard import Evidence, Figures, figures, weigh
from evotune.runs.compiling import CompileRow, CompileSummary, compile_space
from evotune.runs.inspect import CheckReport, check_space
from evotune.space.objects import Kernel
from evotune.trial import Check, Configuration, Json, Outcome, Value
from evotune.util.files import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evotune.run_options import SearchSettings
    from evotune.space.search_space import SearchSpace
    from evotune.trial import Trial


__all__ = ["SAMPLE", "CheckReport", "CompileRow", "CompileSummary", "check", "compile"]

SAMPLE = 16


def check(
    space: AnySpace,
    *,
    device: str = "auto",
    cases: AnyCases | None = None,
    trust: bool = False,
    **space_keywords: Unpack[SpaceKeywords],
) -> CheckReport:
    """Validates a space for a device and counts its configurations, without compiling anything. A
    GPU's name (l4, h100, …) needs no GPU.

    The report has `size.valid`, `parameters`, `cases`, and `constraints` with the number of
    configurations that each removes. `space`, `cases`, `trust` and the keywords are those of
    `tune`; `skipped` names the cases that no kernel can compute. Raises SpaceError or
    ProblemMistake for the first mistake.

    >>> import evotune
    >>> found = evotune.check("softmax-cpu")
    >>> found.name, found.size.valid, found.kernels[0].language
    ('softmax-cpu', 288, 'cpp')
    """
    with (
        trusting(trust),
        space_file(space, space_keywords, compile_only=True) as file,
    ):
        return check_space(file, device, case_entries(cases))


def compile(
    space: AnySpace,
    *,
    device: str = "auto",
    sample: int | None = SAMPLE,
    seed: int = 0,
    cases: AnyCases | None = None,
    trust: bool = False,
    on_row: Callable[[CompileRow, CompileSummary], object] | None = None,
    **space_keywords: Unpack[SpaceKeywords],
) -> CompileSummary:
    """Compiles `sample` random configurations of a space, or all when it is None, on all cores.

    No kernel is run, so a GPU's name (l4, h100, …) needs no GPU. The summary has the counts
    `tried`, `compiled` and `failed`, and `all_compile` and `reasons`. `on_row` gets each
    configuration's result as it finishes (outcome, resources, seconds), with the counts so far; the
    summary does not keep the results.

    The other arguments are those of `tune`. Raises UsageError for a recorded space.

    >>> import evotune
    >>> evotune.compile("softmax-cpu", sample=1).all_compile
    True
    """
    with (
        trusting(trust),
        space_file(space, space_keywords, compile_only=True) as file,
    ):
        return compile_space(
            file,
            device,
            sample=sample,
            seed=seed,
            on_row=on_row or (lambda row, summary: None),
            cases=case_entries(cases),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's verdict on one configuration. `record` is the trial's record in reports."""

    configuration: Configuration
    outcome: Outcome
    record: Mapping[str, Json]
    _figures: Figures

    @property
    def passed(self) -> bool:
        """Whether every check passed. Skipped checks are among `checks`."""
        return self.outcome.ok

    @property
    def undecided(self) -> bool:
        """Whether the machine was too noisy to judge the kernel, which was then neither passed nor
        refused."""
        return self.outcome.undecided

    @property
    def reason(self) -> str:
        """Why the kernel did not pass, in one line; "" if it passed."""
        return self.outcome.reason

    @property
    def checks(self) -> tuple[Check, ...]:
        return self.outcome.checks

    @property
    def speedup(self) -> float | None:
        """Baseline time / kernel time, geometric mean over the shapes; None if the kernel
        failed."""
        return self._figures.speedup

    @property
    def speedup_low(self) -> float | None:
        """The lower bound of the 95% interval of `speedup`."""
        return self._figures.speedup_low

    @property
    def speedup_high(self) -> float | None:
        return self._figures.speedup_high

    @property
    def time_us(self) -> float | None:
        """The time in microseconds, geometric mean over the shapes."""
        return self._figures.time_us

    def to_json(self) -> dict[str, Json]:
        """The trial's record in the form of `report --format json`, with `passed` first."""
        return {"passed": self.passed, **self.record}


def gate(
    candidate: AnySpace,
    *,
    configuration: Mapping[str, Value] | None = None,
    device: str = "auto",
    trust: bool = False,
    **space_keywords: Unpack[SpaceKeywords],
) -> Verdict:
    """Compiles one kernel, checks it like a champion, and times it in alternation with the
    baseline. Returns a verdict with `passed`, `checks` and `speedup`.

    `candidate` is a kernel, with `problem` and `shapes` as keywords as for `Space`, or a whole
    space. `configuration` has the values of its parameters; None means its default. Nothing is left
    on the disk. A kernel that fails gives a verdict, not an error; the errors are those of `tune`.

    Raises UsageError for a recorded space, and for a configuration that is not in the space. Raises
    EvotuneError if the space's own `budget: {minutes}` ended first, and KeyboardInterrupt after
    Ctrl-C.
    """
    if isinstance(candidate, Kernel) and "parameters" not in space_keywords:
        space_keywords["parameters"] = {"GATED": [1]}  # a space needs at least one parameter
    given: dict[str, Any] = dict(space_keywords)
    with scratch_folder() as folder:
        strategy = functools.partial(_Only, configuration)
        run = tune(
            candidate,
            trials=1,
            champions=1,
            strategy=strategy,
            device=device,
            runs_dir=Path(folder) / "runs",
            trust=trust,
            racing=False,
            **given,
        )
        data = RunData.load(run.folder)
        if (
            data.facts.unconfirmed
            and not data.confirmations
            and data.facts.settings.minutes is None
        ):
            # A busy machine: the one kernel is confirmed all the same, however long it takes.
            run.resume(champions=1, strategy=strategy, trust=trust)
            data = RunData.load(run.folder)
        if data.state == "interrupted":  # `tune` returns then, but nothing was judged
            raise KeyboardInterrupt
        if data.recorded:
            raise UsageError(
                "a recorded space holds only times and no kernel to check: give the kernel's space"
            )
        evidence = next(iter(weigh(data).values()), None)
    if evidence is None:
        raise EvotuneError("the time limit ended before the kernel was tried")
    if evidence.outcome.ok and not evidence.confirmation:
        raise EvotuneError("the time limit ended before the kernel was checked as a champion")
    return _verdict(evidence)


def _verdict(found: Evidence) -> Verdict:
    record = trial_record(False, found, 1 if found.outcome.ok else None)
    return Verdict(found.trial.configuration, found.outcome, record, figures(found.outcome))


class _Only:
    """A search that tries one configuration."""

    def __init__(
        self,
        wanted: Mapping[str, Value] | None,
        space: SearchSpace,
        settings: SearchSettings,
    ) -> None:
        self._wanted = space.default() if wanted is None else wanted

    def ask(self, number: int, pending: Sequence[Configuration]) -> Mapping[str, Value]:
        return self._wanted

    def tell(self, trial: Trial) -> None:
        """There is nothing to learn."""
