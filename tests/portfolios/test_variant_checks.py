"""A rule gives a kernel cases of another mask only after a confirmation with that mask."""

from __future__ import annotations

from pathlib import Path

import pytest

from evotune.backends.cpu import CpuBackend
from evotune.portfolios.matrix_store import VARIANT, PortfolioRequest, read_matrix
from evotune.portfolios.portfolio_file import Portfolio, read_portfolio
from evotune.runs.folder import RunFolder
from evotune.runs.reopening import ReopenedRun
from evotune.space.reading.case_file import given_cases
from evotune.workers.executor import TIMED
from tests.export.making import tiny_space

from .pretended import PretendedDevice, PretendedSearch, built

LENGTHS = (24, 40, 96)


@pytest.fixture(autouse=True)
def calls_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "exported_call_us", 0.0)


@pytest.fixture
def request_(tmp_path: Path) -> PortfolioRequest:
    """One kernel for cases with both masks."""
    cases = given_cases(
        [
            {"batch": 1, "heads": 2, "seq_len": length, "head_dim": 32, "causal": causal}
            for length in LENGTHS
            for causal in (False, True)
        ]
    )
    space = tiny_space("attention-cpu", tmp_path / "space")
    return PortfolioRequest(str(space), cases, tmp_path / "runs", 1, held_out=0.0, device="cpu")


def make(request: PortfolioRequest, device: PretendedDevice, said: list[str]) -> Portfolio:
    search = PretendedSearch(Path(request.space), lambda request: {})
    return built(request, search, device, said.append)


def tuned_mask(request: PortfolioRequest, found: Portfolio) -> bool:
    run = ReopenedRun.load(RunFolder(request.runs_dir / found.kernels[0].run), anywhere=True)
    (case,) = run.setup.cases[TIMED]
    return bool(case.symbols["causal"])


def test_the_other_mask_is_confirmed_once_and_served(request_: PortfolioRequest) -> None:
    device, said = PretendedDevice(lambda configuration, case: 1.5), list[str]()
    found = make(request_, device, said)
    tuned = tuned_mask(request_, found)
    assert {region.fixed["causal"] for region in found.rule} == {False, True}
    (label,) = device.confirmed
    assert label == f"(1,2,96,32) {'full' if tuned else 'causal'}"  # the largest case
    assert any(text.endswith(f"on {label}") and "confirming trial 0" in text for text in said)
    assert [cell for cell in found.cells if cell.case.startswith(VARIANT)] == []
    with read_matrix(request_.runs_dir) as matrix:
        (cell,) = (cell for cell in matrix.cells if cell.case.startswith(VARIANT))
        domain = matrix.cells[cell].domain
    assert domain is not None
    again = PretendedDevice(lambda configuration, case: 1.5)
    assert make(request_, again, said) == found
    assert (again.confirmed, again.measured) == ([], [])


def test_a_mask_on_which_the_kernel_fails_is_not_served(request_: PortfolioRequest) -> None:
    device, said = PretendedDevice(lambda configuration, case: 1.5, confirms=False), list[str]()
    found = make(request_, device, said)
    tuned = tuned_mask(request_, found)
    assert {region.fixed["causal"] for region in found.rule} == {tuned}
    assert sum(text.startswith("search ") for text in said) == 2  # then one for the other mask
    assert any("is not confirmed on" in text and "random test 7" in text for text in said)
    assert read_portfolio(request_.runs_dir)[0] == found
    again = PretendedDevice(lambda configuration, case: 1.5)  # the outcome is kept
    assert make(request_, again, said) == found
    assert again.confirmed == []
