"""A portfolio as a package: it serves what the rule says, and its README prints the rule."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from evotune.api.case_portfolio import CasePortfolio
from evotune.backends.cpu import CpuBackend
from evotune.errors import EvotuneError, StoreError, UsageError
from evotune.export.exporting import export_portfolio
from evotune.portfolios import building
from evotune.portfolios.matrix_store import PortfolioRequest
from evotune.portfolios.portfolio_file import Portfolio, read_portfolio
from evotune.problems.attention import Attention
from evotune.problems.problem import Case
from evotune.runs.starting import RunRequest
from evotune.space.reading.case_file import given_cases
from evotune.trial import Configuration, Value
from evotune.util.words import markdown_text
from tests.export.dispatching import Dispatched
from tests.export.making import tiny_space

from .pretended import PretendedDevice, PretendedSearch, built

PROBLEM = Attention("float32")
LENGTHS = (24, 40, 96, 160, 320)
CHECKED = """
import sys, torch, torch.nn.functional as F
import attention_cpu as package
assert "evotune" not in sys.modules
assert package.check(), "a served case differs"
for batch, length, causal in ((1, 24, False), (1, 30, True), (2, 400, False), (1, 9, False)):
    q, k, v = (torch.randn(batch, 2, length, 32) for _ in range(3))
    out = package.attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=causal))
assert {miss["kind"] for miss in package.misses()} <= {"not measured to win", "outside the domain"}
print(len(package.misses()), "missed")
"""


def found(request: RunRequest) -> Mapping[str, Value]:
    return {"CHUNK": 1 if int(request.cases[0].shape["seq_len"]) < 100 else 2}


def speedup(configuration: Configuration, case: Case) -> float:
    short = int(case.symbols["seq_len_q"]) < 100
    if case.symbols["causal"] and not short:
        return 0.9
    return 1.5 if short == (configuration["CHUNK"] == 1) else 1.05


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Portfolio, Path]:
    """The folder of a portfolio of attention, the portfolio, and its package."""
    folder = tmp_path_factory.mktemp("attention")
    cases = [
        {"batch": batch, "heads": 2, "seq_len": length, "head_dim": 32, "causal": causal}
        for length in LENGTHS
        for batch in (1, 2)
        for causal in (False, True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuBackend, "exported_call_us", 0.0)
        space = tiny_space("attention-cpu", folder / "space")
        request = PortfolioRequest(
            str(space), given_cases(cases), folder / "runs", 2, held_out=0.0, device="cpu"
        )
        portfolio = built(request, PretendedSearch(space, found), PretendedDevice(speedup))
    exported = export_portfolio(folder / "runs", folder / "package")
    assert exported.name == "attention_cpu"
    assert exported.call == "attention"
    assert exported.served == len(portfolio.rule)
    return folder / "runs", portfolio, folder / "package"


def test_single_cases_of_the_list_are_served_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lengths between the listed ones lose, so that regions are cut. Other rules are not
    learnt: those would have a region around each listed case."""

    def uneven(_: Configuration, case: Case) -> float:
        return 1.5 if int(case.symbols["seq_len_q"]) in LENGTHS else 0.8

    monkeypatch.setattr(CpuBackend, "exported_call_us", 0.0)
    monkeypatch.setattr(building, "_RULES", 1)
    cases = [
        {"batch": batch, "heads": 2, "seq_len": length, "head_dim": 32}
        for length in LENGTHS
        for batch in (1, 2)
    ]
    space = tiny_space("attention-cpu", tmp_path / "space")
    request = PortfolioRequest(
        str(space), given_cases(cases), tmp_path / "runs", 2, held_out=0.0, device="cpu"
    )
    search = PretendedSearch(space, found)
    portfolio = built(request, search, PretendedDevice(uneven), candidates=300)
    assert any(region.exact for region in portfolio.rule)
    assert portfolio.figures["listed"].of_best == pytest.approx(1.0)
    export_portfolio(tmp_path / "runs", tmp_path / "package")
    dispatch = Dispatched(dispatch_of(tmp_path / "package"))

    def is_served(length: int, batch: int) -> bool:
        shape = {"batch": batch, "heads": 2, "seq_len": length, "head_dim": 32}
        symbols = dict(PROBLEM.case(shape, {"causal": False}).symbols)
        return dispatch.kernel_of(symbols) is not None

    assert all(is_served(length, batch) for length in LENGTHS for batch in (1, 2))
    alone = [region for region in portfolio.rule if region.exact]
    lengths = [int(region.ranges["seq_len_q"][0]) for region in alone]
    assert not any(is_served(length + 1, 1) for length in lengths)
    readme = (tmp_path / "package" / "README.md").read_text()
    assert "- listed: 10 cases, 10 by kernels, mean 1.5" in readme


def dispatch_of(package: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((package / "attention_cpu/dispatch.json").read_text())
    return found


def test_the_package_serves_what_the_rule_says(made: tuple[Path, Portfolio, Path]) -> None:
    _, portfolio, package = made
    dispatch = Dispatched(dispatch_of(package))
    kernels = {kernel.configuration["CHUNK"]: n for n, kernel in enumerate(portfolio.kernels)}
    assert set(kernels) == {1, 2}
    for length, batch, causal, wanted in (
        (24, 1, False, 1),
        (30, 2, True, 1),
        (96, 2, True, 1),
        (160, 1, False, 2),
        (300, 2, False, 2),
        (160, 1, True, None),  # measured and lost
        (320, 3, False, None),  # more heads than were measured
        (1000, 1, False, None),
    ):
        shape = {"batch": batch, "heads": 2, "seq_len": length, "head_dim": 32}
        symbols = dict(PROBLEM.case(shape, {"causal": causal}).symbols)
        choice = dispatch.kernel_of(symbols)
        if wanted is None:
            assert choice is None, (length, batch, causal)
        else:
            assert choice is not None, (length, batch, causal)
            assert choice.kernel == kernels[wanted]
            assert dict(choice.binary["fixed"])["causal"] == causal
    timed = dispatch.exact_cases()
    assert len(timed) == len(LENGTHS) * 4 - 4
    assert all(dispatch.kernel_of(each) is not None for each in timed)


def test_readme_and_certificate_have_the_rule(made: tuple[Path, Portfolio, Path]) -> None:
    _, portfolio, package = made
    readme = (package / "README.md").read_text()
    for number, region in enumerate(portfolio.rule, 1):
        words = markdown_text(region.words)
        assert f"\n{number}. {words}: kernel {region.kernel} (at least 1." in readme
    assert f"\n{len(portfolio.rule) + 1}. all others: PyTorch\n" in readme
    assert "- seen: 20 cases, 16 by kernels, mean " in readme
    certificate = json.loads((package / "attention_cpu/certificate.json").read_text())
    assert len(certificate["champions"]) == 2
    figures = [each["case"] for each in certificate["champions"][0]["figures"]]
    assert len(figures) == len(set(figures))
    assert len(certificate["portfolio"]["rule"]) == len(portfolio.rule)


def test_the_package_runs_without_evotune(made: tuple[Path, Portfolio, Path]) -> None:
    command = [sys.executable, "-c", CHECKED]
    done = subprocess.run(command, cwd=made[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("2 missed\n")


def test_the_same_portfolio_gives_the_same_bytes(
    made: tuple[Path, Portfolio, Path], tmp_path: Path
) -> None:
    folder, portfolio, package = made
    assert CasePortfolio(folder, portfolio).export(tmp_path / "again") == tmp_path / "again"
    for path in package.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":  # an import makes byte code
            other = tmp_path / "again" / path.relative_to(package)
            assert other.read_bytes() == path.read_bytes(), path


def test_what_cannot_be_exported_is_one_line(
    made: tuple[Path, Portfolio, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(made[0], folder)
    with pytest.raises(UsageError, match="is not empty: name a new folder"):
        export_portfolio(folder, made[2])
    run = folder / read_portfolio(folder)[0].kernels[0].run
    run.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is missing: the portfolio names its trial 0"):
        export_portfolio(folder, tmp_path / "none")
    (tmp_path / "elsewhere").rename(run)
    (folder / "portfolio.json").unlink()
    with pytest.raises(UsageError, match="is not finished"):
        export_portfolio(folder, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_portfolio_that_wins_nothing_is_no_package(
    made: tuple[Path, Portfolio, Path], tmp_path: Path
) -> None:
    space = tiny_space("attention-cpu", tmp_path / "space")
    cases = given_cases([{"batch": 1, "heads": 2, "seq_len": 24, "head_dim": 32}])
    request = PortfolioRequest(str(space), cases, tmp_path / "runs", 1, device="cpu")
    slower = PretendedDevice(lambda configuration, case: 0.8)
    built(request, PretendedSearch(space, found), slower)
    with pytest.raises(EvotuneError, match="a package would serve no call") as caught:
        export_portfolio(tmp_path / "runs", tmp_path / "none")
    assert caught.value.exit_code == 1
