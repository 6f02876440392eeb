"""What a portfolio serves was executed: each length between its cases, by the rule's kernel."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from evotune.backends.cpu import CpuBackend
from evotune.export.exporting import export_portfolio
from evotune.portfolios import building
from evotune.portfolios.matrix_store import SIZES, PortfolioRequest, read_matrix
from evotune.portfolios.portfolio_file import Portfolio
from evotune.problems.attention import Attention
from evotune.problems.problem import Case
from evotune.runs import planning
from evotune.runs.starting import RunRequest
from evotune.space.reading.case_file import given_cases
from evotune.trial import Configuration, Value
from tests.export.dispatching import Dispatched
from tests.export.making import tiny_space

from .pretended import (
    Killed,
    PretendedDevice,
    PretendedSearch,
    built,
    by_rows,
    softmax_request,
    softmax_space,
)

PROBLEM = Attention("float32")
LENGTHS = (24, 40, 96, 300, 640)
LONG = 200
"""From this length on the second kernel is the faster one."""


@pytest.fixture(autouse=True)
def calls_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """And few random tests are planned, which takes most of the time."""
    monkeypatch.setattr(CpuBackend, "exported_call_us", 0.0)
    monkeypatch.setattr(planning, "_RANDOM_TESTS", 8)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_space("attention-cpu", tmp_path_factory.mktemp("attention") / "space")


def speedup(configuration: Configuration, case: Case) -> float:
    is_long = int(case.symbols["seq_len_q"]) >= LONG
    return 1.5 if is_long == (configuration["CHUNK"] == 2) else 0.8


def found(request: RunRequest) -> Mapping[str, Value]:
    return {"CHUNK": 2 if int(request.cases[0].shape["seq_len"]) >= LONG else 1}


def made(space: Path, folder: Path, device: PretendedDevice) -> Portfolio:
    cases = given_cases(
        [
            {"batch": batch, "heads": 2, "seq_len": length, "head_dim": 32}
            for length in LENGTHS
            for batch in (1, 2)
        ]
    )
    request = PortfolioRequest(str(space), cases, folder / "runs", 2, held_out=0.0, device="cpu")
    return built(request, PretendedSearch(space, found), device)


def chunks(package: Path) -> Callable[[int], object]:
    """Which kernel the package takes for a length, by its CHUNK; None for PyTorch."""
    folder = package / "attention_cpu"
    dispatch = Dispatched(json.loads((folder / "dispatch.json").read_text()))
    champions = json.loads((folder / "certificate.json").read_text())["champions"]

    def served(length: int) -> object:
        shape = {"batch": 1, "heads": 2, "seq_len": length, "head_dim": 32}
        symbols = dict(PROBLEM.case(shape, {"causal": False}).symbols)
        choice = dispatch.kernel_of(symbols)
        if choice is None:
            return None
        return champions[choice.kernel]["configuration"]["CHUNK"]

    return served


def lengths_of(package: Path) -> list[str]:
    certificate = json.loads((package / "attention_cpu" / "certificate.json").read_text())
    return [line for champion in certificate["champions"] for line in champion["lengths"]]


def test_all_lengths_of_the_rule_are_launched_and_served(space: Path, tmp_path: Path) -> None:
    device = PretendedDevice(speedup)
    rule = made(space, tmp_path, device).rule
    assert len(device.launched) == 2
    launched = {label for labels in device.launched for label in labels}
    assert {f"(1,1,{rows}x9,32) full" for rows in (24, 47, 95)} <= launched
    export_portfolio(tmp_path / "runs", tmp_path / "package")
    served = chunks(tmp_path / "package")
    assert [served(length) for length in (24, 47, 61, 96, 300, 499, 650)] == [1] * 4 + [2] * 3
    (short,) = (region for region in rule if region.ranges["seq_len_q"][0] < 100)
    low, high = short.ranges["seq_len_q"]
    assert any(line.startswith(f"seq_len_q {low} to {high} ") for line in lengths_of(
        tmp_path / "package"))  # fmt: skip


def test_a_kernel_that_is_wrong_at_one_length_between_the_cases_does_not_serve(
    space: Path, tmp_path: Path
) -> None:
    """No cell and no drawn case has the length."""

    def off(configuration: Configuration, case: Case) -> bool:
        return configuration["CHUNK"] == 1 and case.symbols["seq_len_k"] == 61

    device = PretendedDevice(speedup, wrong_at=off)
    portfolio = made(space, tmp_path, device)
    assert not any("x61" in label or ",61," in label for label, _ in device.measured)
    assert [kernel.configuration["CHUNK"] for kernel in portfolio.kernels] == [2]
    export_portfolio(tmp_path / "runs", tmp_path / "package")
    served = chunks(tmp_path / "package")
    assert [served(length) for length in (24, 61, 96, 300, 640)] == [None] * 3 + [2] * 2
    again = PretendedDevice(speedup)  # the refusal is kept
    assert made(space, tmp_path, again) == portfolio
    assert (again.launched, again.measured) == ([], [])


def test_a_killed_portfolio_launches_nothing_twice(space: Path, tmp_path: Path) -> None:
    killed = PretendedDevice(speedup, killed_at_launches=1)
    with pytest.raises(Killed):
        made(space, tmp_path, killed)
    assert len(killed.launched) == 1
    device = PretendedDevice(speedup)
    portfolio = made(space, tmp_path, device)
    assert len(device.launched) == 1
    assert device.launched != killed.launched
    assert device.measured == []
    again = PretendedDevice(speedup)
    assert made(space, tmp_path, again) == portfolio
    assert again.launched == []
    with read_matrix(tmp_path / "runs") as matrix:
        assert sum(cell.case.startswith(SIZES) for cell in matrix.cells) == 2


def test_without_time_for_all_lengths_only_launched_ones_and_listed_cases_are_served(
    space: Path, tmp_path: Path
) -> None:
    device = PretendedDevice(speedup, time_for=60)
    portfolio = made(space, tmp_path, device)
    assert [len(labels) for labels in device.launched] == [60, 60]
    export_portfolio(tmp_path / "runs", tmp_path / "package")
    served = chunks(tmp_path / "package")
    assert [served(length) for length in LENGTHS] == [1, 1, 1, 2, 2]
    launched = {label for labels in device.launched for label in labels}
    assert "(1,1,500x9,32) full" not in launched
    assert served(500) is None
    assert portfolio.figures["listed"].served == 10


def test_a_lost_worker_refuses_no_kernel_and_is_tried_anew(space: Path, tmp_path: Path) -> None:
    made(space, tmp_path, PretendedDevice(speedup, lost=True))
    device = PretendedDevice(speedup)
    portfolio = made(space, tmp_path, device)
    assert len(device.launched) == len(portfolio.kernels) == 2


@pytest.mark.soak
def test_an_older_portfolio_exports_as_before_and_says_so(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs and the portfolio are those of a version that executed no lengths."""
    with monkeypatch.context() as patch:
        patch.setattr(building, "rule_launches", lambda *given: iter(()))
        device = PretendedDevice(speedup)
        made(space, tmp_path, device)
    assert device.launched == []
    export_portfolio(tmp_path / "runs", tmp_path / "older")
    served = chunks(tmp_path / "older")
    assert [served(length) for length in (24, 61, 96, 300, 499, 650)] == [1] * 3 + [2] * 3
    assert lengths_of(tmp_path / "older") == ["lengths not executed"] * 2
    made(space, tmp_path, device)  # resumed today
    assert len(device.launched) == 2
    export_portfolio(tmp_path / "runs", tmp_path / "today")
    assert "lengths not executed" not in lengths_of(tmp_path / "today")


def test_kernels_of_a_users_problem_serve_what_was_executed_of_their_domain(
    tmp_path: Path,
) -> None:
    space = softmax_space(tmp_path)
    device = PretendedDevice(lambda configuration, case: 1.5)
    built(softmax_request(tmp_path, space, most_kernels=1), PretendedSearch(space, by_rows), device)
    assert {"(1,47)", "(99,1)"} <= set(device.launched[0])
    export_portfolio(tmp_path / "runs", tmp_path / "package")
    (domain,) = json.loads((tmp_path / "package/softmax_cpu/dispatch.json").read_text())["domain"]
    executed = domain["lengths"]
    assert executed == {"rows": [[1, 140]], "columns": [[1, 110]]}


RAGGED = {"sequences": 4, "heads": 4, "kv_heads": 2, "head_dim": 32, "causal": True}
OTHER_ATTENTION: Mapping[str, list[dict[str, Value]]] = {
    "attention-varlen-cpu": [
        {**RAGGED, "tokens_q": 4 * n, "tokens_k": 4 * n, "longest_q": n, "longest_k": n}
        for n in (20, 40, 90)
    ],
    "attention-paged-cpu": [
        {**RAGGED, "queries": 1, "longest": n, "page_size": 16} for n in (48, 80, 160)
    ],
    "attention-features-cpu": [
        {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len": n, "head_dim": 32, "value_dim": 16,
         "causal": True, "window_left": 16}
        for n in (48, 80, 160)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_ATTENTION)
def test_a_right_kernel_of_other_attention_loses_no_served_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    space = tiny_space(name, tmp_path / "space")
    cases = given_cases(OTHER_ATTENTION[name])

    def rule(folder: Path) -> list[str]:
        request = PortfolioRequest(str(space), cases, folder, 1, held_out=0.0, device="cpu")
        device = PretendedDevice(lambda configuration, case: 1.5)
        found = built(request, PretendedSearch(space, lambda _: {}), device)
        launched.append(len(device.launched))
        return [region.words for region in found.rule]

    launched: list[int] = []
    today = rule(tmp_path / "today" / "runs")
    monkeypatch.setattr(building, "rule_launches", lambda *given: iter(()))
    assert rule(tmp_path / "before" / "runs") == today
    assert launched == [1, 0]
