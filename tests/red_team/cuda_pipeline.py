"""Sends CUDA kernels of a red-team space through the search and, if they pass, through a champion's
confirmation, which `evotune run` makes only for the best of a run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evotune.problems.problem import Case
from evotune.runs.setup import load_setup
from evotune.trial import Configuration, Outcome
from evotune.workers.executor import TIMED, Proposal
from evotune.workers.local import open_local_executor

from .pipeline import SPACES

SEARCH, CHAMPION = "search", "champion"
_SEED_STEP = 10_007  # prime, and more than a space has kernels: no two seeds share a trial's number
_LONGEST_S = 400.0  # compiling all kernels of a space, or confirming one, takes less


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of a kernel. `stage` is the stage that refused it, "" if it passed both."""

    behaviour: str
    seed: int
    stage: str
    outcome: Outcome
    seconds: float


class CudaPipeline:
    """Compilers, one worker on one GPU, gate, timing, replay and confirmation for one space.

    `without` names checks to leave out, to find the kernels that one check alone catches.
    """

    def __init__(
        self,
        folder: Path,
        space: str,
        *,
        device: str = "cuda:0",
        without: frozenset[str] = frozenset(),
        cache: Path | None = None,
    ) -> None:
        setup = load_setup(SPACES / space, device)
        document = setup.document
        assert setup.planner is not None
        assert document is not None
        assert document.problem is not None
        self._planner = setup.planner
        self.device = setup.profile.name
        self._executor = open_local_executor(
            folder=folder / "logs",
            cache=cache or folder / "cache",
            profiles=setup.devices,
            problem=document.problem.name,
            dtype=document.problem.dtype,
            root=document.root.absolute(),
            deterministic=document.deterministic,
            trial_timeout_s=document.timeouts.trial_s,
            without=without,
            rules=setup.planner.rules,
        )
        try:
            self._choose_baselines(setup.cases[TIMED])
        except BaseException:
            self._executor.close()
            raise
        (spec,) = document.parameters
        self._gene = spec.name
        self.behaviours = [str(value) for value in spec.parameter.values]

    def _choose_baselines(self, cases: Sequence[Case]) -> None:
        """Chooses the fastest right baseline of each case, as a run does."""
        timings = self._executor.time_baselines(cases).timings
        passed = sorted((t for t in timings if t.passed), key=lambda t: -t.time_us)
        self._executor.baselines = {timing.case: timing.name for timing in passed}

    def roles(self, behaviour: str) -> dict[str, str]:
        """The roles of a confirmation's cases, by their labels."""
        proposal = self._proposal(behaviour, 0, confirm=True)
        return {each.case.label: each.role for each in proposal.cases}

    def judge(
        self, behaviours: Sequence[str], seed: int, *, confirm: bool = True
    ) -> Iterator[Judgement]:
        """Judges each behaviour once. All are compiled side by side and measured one after the
        other; kernels that pass the search are then confirmed, each in a fresh worker."""
        passed: list[str] = []
        for name, outcome, seconds in self._run(behaviours, seed, confirm=False):
            if outcome.ok and confirm:
                passed.append(name)
            else:
                stage = "" if outcome.ok else SEARCH
                yield Judgement(name, seed, stage, outcome, seconds)
        for name in passed:
            for _, outcome, seconds in self._run([name], seed, confirm=True):
                yield Judgement(name, seed, "" if outcome.ok else CHAMPION, outcome, seconds)

    def _proposal(self, behaviour: str, seed: int, *, confirm: bool) -> Proposal:
        number = seed * _SEED_STEP + self.behaviours.index(behaviour)
        configuration = Configuration({self._gene: behaviour})
        proposal = self._planner.proposal(number, configuration, confirm=confirm)
        # A device is named so that the kernel is measured in each seed: otherwise it would get the
        # outcome of the same code in an earlier seed.
        return dataclasses.replace(proposal, device=0)

    def _run(
        self, behaviours: Sequence[str], seed: int, *, confirm: bool
    ) -> Iterator[tuple[str, Outcome, float]]:
        """The outcome of each behaviour, with the seconds since the outcome before it."""
        names: dict[int, str] = {}
        for name in behaviours:
            proposal = self._proposal(name, seed, confirm=confirm)
            names[proposal.number] = name
            self._executor.submit(proposal)
        last = time.monotonic()
        deadline = last + _LONGEST_S
        while names:
            for number, outcome in self._executor.poll(0.5):
                now = time.monotonic()
                yield names.pop(number), outcome, now - last
                last = time.monotonic()
                deadline = last + _LONGEST_S
            if time.monotonic() > deadline:
                raise AssertionError(f"no outcome for {', '.join(names.values())}")

    def drop(self) -> None:
        """Gives up the trials that have not finished."""
        self._executor.drop()

    def close(self) -> None:
        self._executor.close()
