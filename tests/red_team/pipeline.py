"""Kernels of red-team spaces, each through the whole pipeline as `evotune run` would send it."""

from __future__ import annotations

import time
from pathlib import Path

from evotune.engine.planning import Planner
from evotune.engine.setup import Setup, load_setup
from evotune.execute.local import open_local_executor
from evotune.execute.protocol import HELD_OUT, TIMED, Proposal
from evotune.space.specs import ParameterSpec
from evotune.trial import Configuration, Outcome

SPACES = Path(__file__).parent / "data" / "search_spaces"
SEARCH, CONFIRMATION = "search", "confirmation"
_LONGEST_S = 300.0
_BASELINES = {
    "attention": "sdpa:math",
    "Softmax": "torch:softmax",
    "RmsNorm": "torch:written_out",
    "Matmul": "torch:matmul",
}


def choices(space: str, device: str = "cpu") -> tuple[str, list[str]]:
    """The gene that names a red-team space's kernels, and its values: those of a parameter of one
    kernel, or the names of several."""
    return _choices(load_setup(SPACES / space, device))


def _choices(setup: Setup) -> tuple[str, list[str]]:
    assert setup.document is not None
    if len(setup.document.kernels) > 1:
        return "KERNEL", [kernel.name for kernel in setup.document.kernels]
    (spec,) = setup.document.parameters
    assert isinstance(spec, ParameterSpec)
    return spec.name, [str(value) for value in spec.parameter.values]


class Pipeline:
    """Compile processes, device worker, gate, timing and replay; one trial after the other."""

    def __init__(
        self,
        folder: Path,
        *spaces: str,
        device: str = "cpu",
        trial_timeout_s: float = 120.0,
        first: int = 0,
        without: frozenset[str] = frozenset(),
    ) -> None:
        """All `spaces` have the same problem, and one worker. `first` is the number of the first
        proposal, from which inputs and random shapes are drawn. `without`: checks that are left
        out, to learn what each catches alone."""
        if without:
            raise NotImplementedError(f"no check can be left out yet: {', '.join(sorted(without))}")
        self._planners: dict[str, tuple[Planner, str]] = {}
        baselines: dict[str, str] = {}
        for space in spaces:
            setup = load_setup(SPACES / space, device)
            assert isinstance(setup.planner, Planner)
            assert setup.document is not None
            assert setup.document.problem is not None
            problem, root = setup.document.problem, setup.document.root.absolute()
            self._planners[space] = setup.planner, _choices(setup)[0]
            baseline = _BASELINES[problem.name.rpartition(":")[2]]
            timed = (*setup.cases[TIMED], *setup.cases[HELD_OUT])
            baselines |= {case.label: baseline for case in timed}
        self._executor = open_local_executor(
            folder=folder / "logs",
            cache=folder / "cache",
            profiles=[setup.profile],
            problem=problem.name,
            dtype=problem.dtype,
            root=root,
            deterministic=True,
            trial_timeout_s=trial_timeout_s,
        )
        self._executor.baselines = baselines
        self._count = first

    def run(self, choice: str, space: str = "") -> Outcome:
        """In the search. `space`: which of them; not told, the first."""
        return self._outcome(self._proposal(choice, space, confirm=False))

    def judge(self, choice: str, space: str = "") -> tuple[str, Outcome]:
        """In the search, and as a champion if it passes there: where it ended, and how."""
        searched = self.run(choice, space)
        if not searched.ok:
            return SEARCH, searched
        return CONFIRMATION, self._outcome(self._proposal(choice, space, confirm=True))

    def _proposal(self, choice: str, space: str, *, confirm: bool) -> Proposal:
        planner, gene = self._planners[space or next(iter(self._planners))]
        configuration = Configuration({**planner.bound.default(), gene: choice})
        proposal = planner.proposal(self._count, configuration, confirm=confirm)
        self._count += 1
        return proposal

    def _outcome(self, proposal: Proposal) -> Outcome:
        assert not proposal.rejection, proposal.rejection
        self._executor.submit(proposal)
        deadline = time.monotonic() + _LONGEST_S
        while time.monotonic() < deadline:
            for number, outcome in self._executor.poll(0.5):
                assert number == proposal.number
                return outcome
        raise AssertionError(f"no outcome for {proposal.configuration}")

    def close(self) -> None:
        self._executor.close()
