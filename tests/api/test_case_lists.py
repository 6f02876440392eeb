"""Lists of cases from Python: `tune(cases=…)` and `portfolio(…)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import evotune
from evotune.api.case_portfolio import CasePortfolio
from evotune.backends.cpu import CpuBackend
from evotune.errors import UsageError
from evotune.portfolios import building
from evotune.runs import starting
from evotune.runs.folder import RunFolder
from evotune.runs.given_cases import GIVEN_CASES
from evotune.runs.starting import RunResult
from evotune.store import RunStore
from tests.portfolios.pretended import (
    PretendedDevice,
    PretendedSearch,
    pretending,
    softmax_space,
)

CASES = [{"rows": rows, "columns": 32, "count": rows} for rows in (4, 8, 16)]


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return softmax_space(tmp_path_factory.mktemp("space"))


def test_tune_takes_cases_and_warns_of_those_that_it_skips(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_searched(run: RunFolder, *rest: object, **named: object) -> RunResult:
        return RunResult(run, "trials", 0)

    monkeypatch.setattr(starting, "_finish", not_searched)
    given = [*CASES, {"rows": 4, "columns": 64, "dtype": "bfloat16"}]
    with pytest.warns(UserWarning, match="1 of 4 cases is skipped: 1 for dtype bfloat16"):
        run = evotune.tune(space, cases=given, runs_dir=tmp_path / "runs")
    with RunStore.open_for_reading(run.folder.store) as store:
        assert [case["count"] for case in store.meta(GIVEN_CASES)] == [4, 8, 16]
    assert run.skipped_cases.startswith("1 of 4 cases")
    file = tmp_path / "cases.yaml"
    file.write_text("- {rows: 4, columns: 32}\n")
    assert evotune.tune(space, cases=file, runs_dir=tmp_path / "runs").skipped_cases == ""
    with pytest.raises(evotune.EvotuneError, match=r"^cases\[1\]: expected a case"):
        evotune.tune(space, cases=[CASES[0], 3], runs_dir=tmp_path)  # type: ignore[list-item]


def test_a_portfolio_in_python(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = PretendedDevice(lambda configuration, case: 1.5)
    monkeypatch.setattr(CpuBackend, "exported_call_us", 0.0)
    monkeypatch.setitem(building.build_portfolio.__kwdefaults__, "open_executor", device.opened)
    said: list[str] = []
    with pretending(PretendedSearch(space, lambda request: {})):
        found = evotune.portfolio(
            space, CASES, runs_dir=tmp_path / "runs", kernels=1, device="cpu", say=said.append
        )
    assert said[0].startswith("search 1: ")
    assert found.rule == [("rows 4 to 17, columns 29 to 35", 0)]
    (run,) = found.runs
    assert run.best.confirmed
    (case,) = run.best.measurements
    assert case.case in {f"({rows},32)" for rows in (4, 8, 16)}
    assert "1 kernel for 3 cases" in found.markdown()
    package = found.export(tmp_path / "package", name="mine")
    assert (package / "mine" / "dispatch.json").is_file()
    assert repr(found) == f"<portfolio {tmp_path / 'runs'}: 1 kernel>"


def test_a_portfolio_is_found_after_a_change_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CasePortfolio(Path("runs"), None)  # type: ignore[arg-type]
    monkeypatch.chdir("/")
    assert found.folder == tmp_path / "runs"


@pytest.mark.parametrize("wanted", [{"kernels": 0}, {"trials": 0}, {"minutes": -1.0}])
def test_a_portfolio_of_nothing_is_refused(tmp_path: Path, wanted: dict[str, Any]) -> None:
    (name,) = wanted
    with pytest.raises(UsageError, match=f"{name}: expected more than 0"):
        evotune.portfolio("softmax-cpu", CASES, runs_dir=tmp_path / "made", **wanted)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["kernels", "trials"])
def test_half_a_kernel_or_trial_is_refused(tmp_path: Path, name: str) -> None:
    wanted: dict[str, Any] = {name: 2.5}
    with pytest.raises(UsageError, match=rf"{name}: expected an integer, got 2\.5"):
        evotune.portfolio("softmax-cpu", CASES, runs_dir=tmp_path / "made", **wanted)
    assert not (tmp_path / "made").exists()
