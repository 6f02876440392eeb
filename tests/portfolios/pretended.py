"""Portfolios without a search and a clock: runs are fabricated, cells have made-up times."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evotune.backends.base.launch import DeviceProfile
from evotune.portfolios import case_searches, drawn_cases
from evotune.portfolios.building import build_portfolio
from evotune.portfolios.matrix_store import PortfolioRequest
from evotune.portfolios.portfolio_file import Portfolio
from evotune.problems.problem import Case
from evotune.runs import planning
from evotune.runs.confirmed_champions import Champion
from evotune.runs.observer import Observer, SilentObserver
from evotune.runs.starting import RunRequest, RunResult
from evotune.space.reading.case_file import given_cases
from evotune.trial import Configuration, Measurement, Outcome, OutcomeKind, Value
from evotune.verify.kept_checks import checked_domain
from evotune.workers.executor import TIMED, BaselineReport, BaselineTiming, Proposal
from tests.export.making import fabricated, tiny_space

Speedup = Callable[[Configuration, Case], float]
"""Of a configuration on a case; 0 where the gate refuses it, infinity where the worker dies."""


class Killed(BaseException):
    """Ends the process's work at once, as a signal would."""


@dataclass
class PretendedDevice:
    """An executor that measures by a formula. It is killed after so many cells."""

    speedup: Speedup
    killed_after: int = 10**9
    measured: list[tuple[str, str]] = field(default_factory=list)
    timed: list[str] = field(default_factory=list)
    baselines: Mapping[str, str] = field(default_factory=dict)
    _waiting: list[Proposal] = field(default_factory=list)

    wrong_at: Callable[[Configuration, Case], bool] = lambda configuration, case: False
    """Whether the gate refuses the kernel at this served size."""
    killed_at_launches: int = 10**9
    """Killed when kernels are to be launched at served sizes for the so many-th time, from 0 on."""
    time_for: int = 10**9
    """So many launches at served sizes are made each time."""
    lost: bool = False
    """Whether the worker is lost when it launches at served sizes."""
    launched: list[list[str]] = field(default_factory=list)
    """The labels of the cases, for each time that a kernel is launched at served sizes."""
    confirmed: list[str] = field(default_factory=list)
    confirms: bool = True
    problem: Any = None
    step: str = ""
    profile: DeviceProfile | None = None

    @contextlib.contextmanager
    def opened(self, champion: Champion) -> Iterator[Any]:
        self.problem, self.profile = champion.problem, champion.run.setup.profile
        try:
            yield self
        finally:
            self._waiting.clear()

    def time_baselines(
        self, cases: Sequence[Case], libraries: Sequence[str] = ()
    ) -> BaselineReport:
        self.timed += [case.label for case in cases]
        names = ("sdpa:flash", "sdpa:math", "torch:softmax")
        timings = tuple(BaselineTiming(case.label, n, 10.0, True) for case in cases for n in names)
        return BaselineReport(timings, 0.0)

    def submit(self, proposal: Proposal) -> None:
        self._waiting.append(proposal)

    def poll(self, timeout_s: float) -> list[tuple[int, Outcome]]:
        if len(self.measured) >= self.killed_after:
            raise Killed
        proposal = self._waiting.pop(0)
        if proposal.only_served:
            if len(self.launched) >= self.killed_at_launches:
                raise Killed
            return [(proposal.number, self._launched(proposal))]
        if proposal.confirm:
            return [(proposal.number, self._confirmation(proposal))]
        (job,) = proposal.cases
        assert self.baselines[job.case.label]
        self.measured.append((job.case.label, proposal.configuration.key))
        return [(proposal.number, self._outcome(proposal.configuration, job.case))]

    def _launched(self, proposal: Proposal) -> Outcome:
        made = proposal.cases[: self.time_for]
        self.launched.append([job.case.label for job in made])
        if self.lost:
            return Outcome(OutcomeKind.WORKER_LOST, reason="killed by somebody else")
        for job in made:
            if self.wrong_at(proposal.configuration, job.case):
                reason = f"{job.case.label}: off (a size that a package could serve)"
                return Outcome(OutcomeKind.WRONG_RESULT, reason=reason)
        inside = [(job.compile.key, job.case) for job in made]
        assert self.profile is not None
        by_length = {binary for binary, _ in inside}
        found = checked_domain(self.problem, inside, self.profile, proposal.lengths, by_length)
        return Outcome(OutcomeKind.OK, 0.0, domain=found)

    def _confirmation(self, proposal: Proposal) -> Outcome:
        (job,) = (job for job in proposal.cases if job.role == TIMED)
        self.confirmed.append(job.case.label)
        outcome = self._outcome(proposal.configuration, job.case)
        if not (outcome.ok and self.confirms):
            return Outcome(OutcomeKind.WRONG_RESULT, reason="random test 7")
        inside = [(each.compile.key, each.case) for each in proposal.cases]
        assert self.profile is not None
        found = checked_domain(self.problem, inside, self.profile)
        return msgspec.structs.replace(outcome, domain=found)

    def _outcome(self, configuration: Configuration, case: Case) -> Outcome:
        speedup = self.speedup(configuration, case)
        if math.isinf(speedup):
            return Outcome(OutcomeKind.WORKER_LOST, reason="killed by somebody else")
        if speedup == 0.0:
            return Outcome(OutcomeKind.WRONG_RESULT, reason=f"{case.label}: off")
        low, high = speedup * 0.99, speedup * 1.01
        measured = Measurement(case.label, 10 / speedup, 9 / speedup, "sdpa:flash", 10.0, speedup,
                               low, high, 20)  # fmt: skip
        logs = [math.log(value) for value in (speedup, low, high)]
        return Outcome(OutcomeKind.OK, *logs, measurements=(measured,))


@dataclass
class PretendedSearch:
    """Takes the place of `start_run`: each search finds the values that `found` names for its
    case."""

    space: Path
    found: Callable[[RunRequest], Mapping[str, Value]]
    requests: list[RunRequest] = field(default_factory=list)
    stopped_at: int = 10**9
    reason: str = "trials"

    def start(self, request: RunRequest, observer: Observer) -> RunResult:
        if len(self.requests) >= self.stopped_at:
            raise Killed
        self.requests.append(request)
        run = fabricated(
            self.space,
            request.runs_dir.parent,
            values=self.found(request),
            given=request.cases,
            facts=request.facts,
        )
        target = request.runs_dir / run.id
        if run.path.parent != request.runs_dir:
            run.path.rename(target)
        return RunResult(type(run)(target), self.reason, 1)


@contextlib.contextmanager
def pretending(search: PretendedSearch, candidates: int = 100) -> Iterator[None]:
    """Draws are made among so few `candidates`, a user's among 600, and few random tests are
    planned: these take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case_searches, "start_run", search.start)
        patch.setattr(planning, "_RANDOM_TESTS", 20)
        patch.setattr(drawn_cases, "_CANDIDATES", candidates)
        patch.setattr(drawn_cases, "_TRIES", 5 * candidates)
        yield


@contextlib.contextmanager
def silent() -> Iterator[Observer]:
    yield SilentObserver()


def softmax_space(folder: Path) -> Path:
    return tiny_space("softmax-cpu", folder / "space")


def softmax_request(folder: Path, space: Path, /, **given: Any) -> PortfolioRequest:
    """A portfolio of twelve cases, of few rows and of many."""
    cases = [{"rows": rows, "columns": columns}
             for rows in (4, 8, 64, 128) for columns in (32, 64, 100)]  # fmt: skip
    wanted: dict[str, Any] = {
        "space": str(space),
        "cases": given_cases(cases),
        "runs_dir": folder / "runs",
        "most_kernels": 2,
        "device": "cpu",
        **given,
    }
    return PortfolioRequest(**wanted)


def by_rows(request: RunRequest) -> Mapping[str, Value]:
    """A search of few rows finds another kernel than one of many."""
    return {"CHUNK": 1} if int(request.cases[0].shape["rows"]) < 20 else {"CHUNK": 2}


def built(
    request: PortfolioRequest,
    search: PretendedSearch,
    device: PretendedDevice,
    say: Callable[[str], None] = lambda text: None,
    candidates: int = 100,
) -> Portfolio:
    with pretending(search, candidates):
        return build_portfolio(request, observing=silent, say=say, open_executor=device.opened)


def served_losses(found: Portfolio) -> list[str]:
    """The measured cells that a kernel lost and the rule gives to it."""
    lost = []
    for cell in found.cells:
        if cell.speedup is not None and cell.speedup < 1.0:
            sizes = dict(zip(("rows", "columns"), re.findall(r"\d+", cell.case), strict=False))
            for region in found.rule:
                kernel = found.kernels[region.kernel]
                holds = all(
                    region.ranges[name][0] <= int(size) <= region.ranges[name][1]
                    for name, size in sizes.items()
                )
                if holds and (kernel.run, kernel.trial) == (cell.run, cell.trial):
                    lost.append(cell.case)
    return lost
