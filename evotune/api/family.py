"""The family `attention`: a name for all shipped attention spaces, which share the cases of a list.

`tune_family` sends each case to the spaces that can compute it, and returns a `FamilyRun`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evotune.api.family_run import FamilyRun, observing_runs, saying, where_table
from evotune.api.given_space import AnyCases, case_entries
from evotune.errors import UsageError
from evotune.portfolios.case_searches import Observing
from evotune.portfolios.family_file import Contender, FamilyBudget, Group, Unserved
from evotune.portfolios.family_groups import group_entries, sorted_cases
from evotune.portfolios.family_race import NO_CASES, FamilyRequest, start_family
from evotune.report.front import TextTable
from evotune.runs.compiling import CompileRow, CompileSummary, compile_space
from evotune.runs.inspect import CheckReport, check_space
from evotune.trial import Trial, Value
from evotune.util.commands import RUNS_DIR

__all__ = ["CasesSent", "FamilySearch", "new_family", "sent_cases", "tune_family"]


@dataclass(frozen=True, slots=True)
class CasesSent:
    """The spaces to which cases are sent on a device: `groups` of cases that are tuned together,
    each with its spaces, and the cases that no space can compute, each with the reason."""

    device: str
    groups: tuple[Group, ...]
    unserved: tuple[Unserved, ...]

    def table(self) -> TextTable:
        """A table with a row for each case."""
        return where_table(self.groups, self.unserved)

    def searches(self) -> Iterator[FamilySearch]:
        """The searches that a run would make: each group in each space that races for it."""
        for group in self.groups:
            for contender in group.contenders:
                yield FamilySearch(group, contender, self.device)


@dataclass(frozen=True, slots=True)
class FamilySearch:
    """A search that a run of the family makes: one space with the cases of one group."""

    group: Group
    contender: Contender
    device: str

    @property
    def space(self) -> str:
        return self.contender.space

    def check(self) -> CheckReport:
        """The result of `evotune.check` for the space and these cases."""
        entries = group_entries(self.group)
        return check_space(self.space, self.device, entries, self.contender.dtype)

    def compile(
        self,
        *,
        sample: int | None,
        seed: int = 0,
        on_row: Callable[[CompileRow, CompileSummary], object] = lambda row, summary: None,
    ) -> CompileSummary:
        """The result of `evotune.compile` for the space and these cases."""
        return compile_space(
            self.space,
            self.device,
            sample=sample,
            seed=seed,
            on_row=on_row,
            cases=group_entries(self.group),
            dtype=self.contender.dtype,
        )


def tune_family(
    cases: AnyCases,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    champions: int = 3,
    seed: int | None = None,
    device: str = "auto",
    runs_dir: str | Path = RUNS_DIR,
    on_trial: Callable[[Trial], object] | None = None,
    on_note: Callable[[str], object] | None = None,
) -> FamilyRun:
    """Tunes the shipped spaces of attention for the cases. Returns the finished family.

    Each case goes to the spaces that can compute it on the device. In each group of similar cases
    the spaces race for a small part of the budget, the better ones go on, and the winner's
    champions are confirmed.

    - `cases`: a file, or a list of symbols of a shape and a variant with an optional `count` and
      `dtype`. `evotune.record` writes such a file.
    - `trials`, `minutes`: totals for all cases together. If both are None, each search has the
      space's own number of trials.
    - `champions`: how many of each winner's candidates are confirmed in fresh processes.
    - the other arguments: as in `tune`.

    Ctrl-C raises KeyboardInterrupt; `FamilyRun.resume` continues. Raises SpaceError or UsageError
    for a mistake in the arguments, and UsageError if no space can compute any of the cases.
    """
    options = {} if seed is None else {"seed": seed}
    return new_family(
        cases,
        observing_runs(on_trial, on_note),
        on_note,
        trials=trials,
        minutes=minutes,
        champions=champions,
        options=options,
        device=device,
        runs_dir=runs_dir,
    )


def new_family(
    cases: AnyCases | None,
    observing: Observing,
    say: Callable[[str], object] | None,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    champions: int | None = None,
    options: Mapping[str, Value] | None = None,
    device: str = "auto",
    runs_dir: str | Path = RUNS_DIR,
    command: tuple[str, ...] = (),
) -> FamilyRun:
    """`tune_family` for a caller that watches the searches."""
    request = FamilyRequest(
        cases=case_entries(cases),
        device=device,
        runs_dir=Path(runs_dir),
        budget=FamilyBudget(trials, minutes),
        options=options or {},
        champions=3 if champions is None else champions,
        command=command,
    )
    return FamilyRun(start_family(request, observing, saying(say)))


def sent_cases(cases: AnyCases | None, device: str = "auto") -> CasesSent:
    """Sends cases to the spaces that can compute them on the device. A GPU's name needs no GPU.
    Raises SpaceError for a mistake in the cases, and UsageError without cases or for an unknown
    device."""
    entries = case_entries(cases)
    if not entries:
        raise UsageError(NO_CASES)
    found = sorted_cases(entries, device)
    return CasesSent(device, found.groups, found.unserved)
