"""`gate`: judges one kernel, as a champion of a run is judged."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Unpack

from evotune.api.gate_candidates import Candidate, gated
from evotune.api.given_space import SpaceKeywords, space_file, trusting
from evotune.api.observing import watching
from evotune.errors import UsageError
from evotune.report.data import RunData
from evotune.report.formats import trial_record
from evotune.report.leaderboard import Evidence, Figures, figures, weigh
from evotune.runs.starting import RunRequest, start_run
from evotune.space.objects import Kernel
from evotune.trial import Check, Configuration, Json, Outcome, OutcomeKind, Trial, Value
from evotune.util.files import scratch_folder
from evotune.util.words import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evotune.run_options import SearchSettings
    from evotune.space.search_space import SearchSpace


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's verdict on one kernel: it passed, it is refused, or it is undecided.

    - `record`: the trial's record in reports.
    - `baseline`: by case, the name of the baseline that the kernel was timed against.
    - `environment`: the device, and the versions of what was used.
    """

    configuration: Configuration
    outcome: Outcome
    record: Mapping[str, Json]
    baseline: Mapping[str, str]
    environment: Mapping[str, Json]
    _figures: Figures

    @property
    def passed(self) -> bool:
        """Whether every check passed. Skipped checks are among `checks`."""
        return self.outcome.ok

    @property
    def undecided(self) -> bool:
        """Whether the kernel was neither passed nor refused: the machine was too noisy, or the time
        limit ended first."""
        return self.outcome.undecided

    @property
    def verdict(self) -> Literal["passed", "refused", "undecided"]:
        if self.passed:
            return "passed"
        return "undecided" if self.undecided else "refused"

    @property
    def reason(self) -> str:
        """Why the kernel did not pass, in one line; "" if it passed."""
        return "" if self.passed else self.outcome.reason or self.outcome.kind.value

    @property
    def checks(self) -> tuple[Check, ...]:
        return self.outcome.checks

    @property
    def speedup(self) -> float | None:
        """Baseline time / kernel time, geometric mean over the shapes; None if the kernel did not
        pass."""
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

    def __str__(self) -> str:
        """The verdict in one line, with the figures or the reason."""
        if not self.passed:
            return printable(" ".join(f"{self.verdict}: {self.reason}".split()))
        names = ", ".join(dict.fromkeys(self.baseline.values()))
        time = "" if self.time_us is None else f", {self.time_us:.4g} us"
        return (
            f"passed: {self.speedup:.3f} times as fast as {names} "
            f"(95%: {self.speedup_low:.3f} to {self.speedup_high:.3f}){time}"
        )

    def to_json(self) -> dict[str, Json]:
        """The trial's record in the form of `report --format json`, after `verdict` and `passed`,
        with `baseline` and `environment`."""
        return {
            "verdict": self.verdict,
            "passed": self.passed,
            **self.record,
            "reason": self.reason,
            "baseline": dict(self.baseline),
            "environment": dict(self.environment),
        }


def gate(
    candidate: Candidate,
    *,
    seconds: float | None = None,
    configuration: Mapping[str, Value] | None = None,
    entry: str | None = None,
    device: str = "auto",
    trust: bool = False,
    on_note: Callable[[str], object] | None = None,
    **space_keywords: Unpack[SpaceKeywords],
) -> Verdict:
    """Compiles one kernel, checks it like a champion, and times it in alternation with the
    baseline. Returns a verdict with `passed`, `reason`, `checks` and `speedup`.

    - `candidate`: a kernel object, a Python function, "module:function", or the path of a .cpp or
      .py file, with `problem` and `shapes` as keywords as for `Space`; or a whole space. A function
      takes the problem's inputs by name, unless its parameters are `configuration` and `case`: then
      it makes such a function, as for `evotune.Callable`.
    - `seconds`: the time limit. If it ends first, the verdict is undecided.
    - `configuration`: values of the space's parameters; defaults to the space's default.
    - `entry`: the function in a file that has several.
    - `device`, `trust`, `on_note`: as for `tune`.

    The candidate is executed in processes of its own. Nothing is left on the disk. A kernel that
    fails gives a verdict, not an error; the errors are those of `tune`. Raises UsageError for a
    recorded space, and for a configuration that is not in the space, and KeyboardInterrupt after
    Ctrl-C.
    """
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"seconds: expected a positive number, found {seconds}")
    until_s = math.inf if seconds is None else time.monotonic() + seconds
    with trusting(trust):
        kernel, keywords = gated(candidate, space_keywords, entry)
    if isinstance(kernel, Kernel) and "parameters" not in keywords:
        keywords = {**keywords, "parameters": {"GATED": [1]}}  # a space needs a parameter
    with (
        trusting(trust),
        scratch_folder() as folder,
        space_file(kernel, keywords) as file,
    ):
        request = RunRequest(
            space=file,
            device=device,
            runs_dir=folder / "runs",
            options={"trials": 1, "champions": 1},
            strategy=functools.partial(_Only, configuration),
            patient=True,
            alone=True,
            until_s=until_s,
        )
        data = RunData.load(start_run(request, watching(None, on_note)).run)
    if data.recorded:
        raise UsageError(
            "a recorded space holds only times and no kernel to check: give the kernel's space"
        )
    evidence = next(iter(weigh(data).values()), None)
    if evidence is None or (evidence.outcome.ok and not evidence.confirmation):
        if data.state == "interrupted" and time.monotonic() < until_s:
            raise KeyboardInterrupt
        evidence = _undecided(data, evidence, seconds)
    return _verdict(data, evidence)


def _undecided(data: RunData, found: Evidence | None, seconds: float | None) -> Evidence:
    limit = "time limit" if seconds is None else f"time limit of {seconds:g} s"
    missing = "tried" if found is None else "checked as a champion"
    reason = f"the {limit} ended before the kernel was {missing}"
    outcome = Outcome(OutcomeKind.UNDECIDED, reason=reason)
    trial = found.trial if found else Trial(0, Configuration(data.facts.default or {}), outcome)
    return Evidence(trial, outcome, False, 0)


def _verdict(data: RunData, found: Evidence) -> Verdict:
    return Verdict(
        found.trial.configuration,
        found.outcome,
        trial_record(False, found, 1 if found.outcome.ok else None),
        data.facts.baselines.chosen,
        data.environment,
        figures(found.outcome),
    )


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
