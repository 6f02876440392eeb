"""Kernels that are wrong at single sizes which a package would serve are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.trial import Configuration, OutcomeKind, Region
from evotune.verify.champion_launches import launch_served
from evotune.verify.gate import Verdict
from evotune.verify.kept_checks import checked_domain
from evotune.workers.executor import SERVED, TIMED, Proposal
from tests.sweeps import swept

from .in_process import InProcess
from .pipeline import SPACES

SPACE = "cheats_cpu_served_lengths.yaml"
WRONG = {
    "wrong_at_2047_keys": "x2047,32)",
    "wrong_at_multiples_of_384": ",32)",
    "wrong_at_63_mod_64_with_groups_of_4": ",32)",
    "wrong_for_batches_of_long_rows": "(2,",
}

SOON = ("wrong_at_2047_keys", "wrong_for_batches_of_long_rows")
"""`make test` takes these, one of a length and one of a pair; `make soak` takes all."""


class Served(InProcess):
    """Launches kernels at the sizes of their confirmation that a package could serve."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SPACE)
        self._gene = "KERNEL"
        self._proposals: dict[str, Proposal] = {}

    def served(self, kernel: str, made: Proposal | None = None) -> Verdict:
        """The verdict on the launches of a confirmation, or of another proposal."""
        verdict = Verdict()
        jobs = [job for job in (made or self.proposal(kernel)).cases if job.role == SERVED]
        subjects = [self._subject(job) for job in jobs]
        self.passed = launch_served(self._gate, self._problem, subjects, 0, verdict, limit_s=600.0)
        return verdict

    def proposal(self, kernel: str) -> Proposal:
        if kernel not in self._proposals:
            configuration = self._configuration(kernel)
            self._proposals[kernel] = self._planner.proposal(0, configuration, confirm=True)
        return self._proposals[kernel]

    def of_a_rule(self, kernel: str, *lengths: int) -> Proposal:
        """The launches for a region of a rule between cases of these lengths."""
        shape = {"batch": 1, "heads": 2, "seq_len_q": 1, "head_dim": 32}
        variant = {"causal": False}
        cases = [self._problem.case({**shape, "seq_len_k": n}, variant) for n in lengths]
        place = self._problem.place(cases[0])
        ranges = {name: (value, value) for name, value in place.ranged.items()}
        wanted = Region(place.fixed, {**ranges, "seq_len_k": (lengths[0], lengths[-1])}, len(cases))
        return self._planner.served_proposal(0, self._configuration(kernel), cases, [wanted])

    def _configuration(self, kernel: str) -> Configuration:
        return Configuration({**self._planner.bound.default(), "KERNEL": kernel})


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("served"))


@pytest.mark.soak
def test_a_right_kernel_passes_and_each_near_length_counts(kernels: Served) -> None:
    verdict = kernels.served("right")
    assert verdict.passed, verdict.reason
    made = kernels.proposal("right")
    cases = [("binary", case) for case in kernels.passed]
    cases += [("binary", job.case) for job in made.cases if job.role == TIMED]
    setup = load_setup(SPACES / SPACE, "cpu")
    assert isinstance(setup.planner, Planner)
    domain = checked_domain(setup.planner.problem, cases, setup.profile, made.lengths, ("binary",))
    (region,) = domain.regions
    assert region.executed is not None
    found = {each.name: each.ranges for each in region.executed}
    assert found == {"seq_len_q": ((1, 1),), "seq_len_k": ((900, 2200),)}


@pytest.mark.parametrize("kernel", swept(WRONG, SOON.__contains__))
def test_a_kernel_that_is_wrong_at_single_sizes_is_refused(kernels: Served, kernel: str) -> None:
    verdict = kernels.served(kernel)
    assert verdict.kind is OutcomeKind.WRONG_RESULT
    assert WRONG[kernel] in verdict.reason
    assert verdict.reason.endswith("(a size that a package could serve)")


@pytest.mark.soak
def test_between_the_cases_of_a_rule_a_wrong_length_is_met(kernels: Served) -> None:
    """2,047 keys are near neither case."""
    kernel = "wrong_at_2047_keys"
    verdict = kernels.served(kernel, kernels.of_a_rule(kernel, 1024, 4096))
    assert verdict.kind is OutcomeKind.WRONG_RESULT
    assert WRONG[kernel] in verdict.reason
    elsewhere = kernels.of_a_rule(kernel, 1024, 1800)
    assert kernels.served(kernel, elsewhere).passed
