"""Kernels of a red-team space, each through the whole pipeline as `evotune run` would send it."""

from __future__ import annotations

import time
from pathlib import Path

from evotune.engine.setup import load_setup
from evotune.execute.local import open_local_executor
from evotune.execute.protocol import TIMED
from evotune.trial import Configuration, Outcome

SPACES = Path(__file__).parent / "data" / "search_spaces"


class Pipeline:
    """Compile processes, device worker, gate, timing and replay; one trial after the other."""

    def __init__(self, folder: Path, space: str, *, trial_timeout_s: float = 120.0) -> None:
        setup = load_setup(SPACES / space, "cpu")
        assert setup.planner is not None
        self._planner = setup.planner
        self._executor = open_local_executor(
            folder=folder / "logs",
            cache=folder / "cache",
            profiles=[setup.profile],
            problem="attention",
            dtype="float32",
            deterministic=True,
            trial_timeout_s=trial_timeout_s,
        )
        self._executor.baselines = {case.label: "sdpa:math" for case in setup.cases[TIMED]}
        self._count = 0

    def run(self, gene: str, choice: str) -> Outcome:
        proposal = self._planner.proposal(self._count, Configuration({gene: choice}))
        self._count += 1
        self._executor.submit(proposal)
        deadline = time.monotonic() + 120.0
        while time.monotonic() < deadline:
            for number, outcome in self._executor.poll(0.5):
                assert number == proposal.number
                return outcome
        raise AssertionError(f"no outcome for {choice}")

    def close(self) -> None:
        self._executor.close()
