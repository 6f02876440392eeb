"""Sends kernels of red-team spaces through the whole pipeline, as `evotune run` would."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from evotune.runs.planning import Planner
from evotune.runs.setup import Setup, load_setup
from evotune.space.specs import ParameterSpec
from evotune.trial import Configuration, Outcome
from evotune.workers.executor import HELD_OUT, TIMED, Proposal
from evotune.workers.local import open_local_executor
from tests.patience import PATIENCE_S, limited_trials

SPACES = Path(__file__).parent / "data" / "search_spaces"
SEARCH, CONFIRMATION = "search", "confirmation"
_BASELINES = {
    "attention": "sdpa:math",
    "attention_paged": "sdpa:padded",
    "attention_varlen": "sdpa:padded",
    "kernels/softmax/problem.py:Softmax": "torch:softmax",
    "kernels/rms_norm/problem.py:RmsNorm": "torch:written_out",
    "kernels/matmul/problem.py:Matmul": "torch:matmul",
}
_USERS = "torch:eager"


def choices(space: str, device: str = "cpu") -> tuple[str, list[str]]:
    """The gene that names a red-team space's kernels, and its values: the values of the one
    kernel's parameter, or the names of several kernels."""
    return _choices(load_setup(SPACES / space, device))


def problem_of(space: str, device: str = "cpu") -> str:
    """The problem and the dtype of a red-team space. Spaces with the same pair share a worker."""
    document = load_setup(SPACES / space, device).document
    assert document is not None
    assert document.problem is not None
    return f"{document.problem.name} {document.problem.dtype}"


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
        without: frozenset[str] = frozenset(),
        cache: Path | None = None,
    ) -> None:
        """All `spaces` have the same problem; they share one worker. A shipped space is given by
        its path.

        - without: checks to leave out, to find the kernels that one check alone catches
        - cache: of what is compiled, shared with others; by default one in the folder
        """
        self._planners: dict[str, tuple[Planner, str, list[str]]] = {}
        baselines: dict[str, str] = {}
        for space in spaces:
            setup = load_setup(SPACES / space, device)
            assert isinstance(setup.planner, Planner)
            assert setup.document is not None
            assert setup.document.problem is not None
            problem, root = setup.document.problem, setup.document.root.absolute()
            one_gene = len(setup.document.kernels) > 1 or len(setup.document.parameters) == 1
            self._planners[space] = setup.planner, *(_choices(setup) if one_gene else ("", []))
            self._starts = setup.space.starts()
            baseline = _BASELINES.get(problem.name, _USERS)
            if setup.document.baseline == "unfused":
                baseline = "unfused"
            timed = (*setup.cases[TIMED], *setup.cases[HELD_OUT])
            baselines |= {case.label: baseline for case in timed}
        self._executor = open_local_executor(
            folder=folder / "logs",
            cache=cache or folder / "cache",
            profiles=[setup.profile],
            problem=problem.name,
            dtype=problem.dtype,
            root=root,
            deterministic=True,
            compile_timeout_s=PATIENCE_S,
            trial_timeout_s=PATIENCE_S,
            without=without,
        )
        self._executor.baselines = baselines
        self._count = 0
        self.device = setup.profile.name

    def run(self, choice: str, space: str = "", *, number: int | None = None) -> Outcome:
        """The outcome of the kernel in the search.

        - space: by default the first that has the kernel
        - number: of the proposal; its inputs are drawn from it. By default one more than the last
        """
        return self._outcome(self._proposal(choice, space, number, confirm=False))

    def run_endless(self, choice: str, limit_s: float) -> Outcome:
        """The outcome of a kernel that never ends, in the search."""
        with limited_trials(self._executor, limit_s):
            return self.run(choice)

    def judge(
        self, choice: str, space: str = "", *, number: int | None = None
    ) -> tuple[str, Outcome]:
        """Sends the kernel through the search and, if it passes there, through a champion's
        confirmation. Returns the stage where it ended, and its outcome there."""
        searched = self.run(choice, space, number=number)
        if not searched.ok:
            return SEARCH, searched
        return CONFIRMATION, self._outcome(self._proposal(choice, space, number, confirm=True))

    def judge_start(self, index: int, *, number: int, confirm: bool) -> tuple[str, Outcome]:
        """As `judge`, of a configuration with which a search of the last space starts. It is
        confirmed only with `confirm`."""
        planner = next(reversed(self._planners.values()))[0]
        stage, outcome = SEARCH, self._outcome(planner.proposal(number, self._starts[index]))
        if outcome.ok and confirm:
            proposal = planner.proposal(number, self._starts[index], confirm=True)
            stage, outcome = CONFIRMATION, self._outcome(proposal)
        return stage, outcome

    def _proposal(self, choice: str, space: str, number: int | None, *, confirm: bool) -> Proposal:
        planner, gene, _ = self._planners[space or self._space_of(choice)]
        configuration = Configuration({**planner.bound.default(), gene: choice})
        if number is None:
            number = self._count
            self._count += 1
        return planner.proposal(number, configuration, confirm=confirm)

    def _space_of(self, choice: str) -> str:
        return next(name for name, (_, _, known) in self._planners.items() if choice in known)

    def _outcome(self, proposal: Proposal) -> Outcome:
        assert not proposal.rejection, proposal.rejection
        # A proposal for a device is judged again, though the outcome of its code is known.
        self._executor.submit(dataclasses.replace(proposal, device=0))
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for number, outcome in self._executor.poll(0.5):
                assert number == proposal.number
                return outcome
        raise AssertionError(f"no outcome for {proposal.configuration}")

    def close(self) -> None:
        self._executor.close()
