"""A portfolio of the family `attention`: the spaces race for each case that is searched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evotune.backends.cpu import CpuBackend
from evotune.errors import UsageError
from evotune.export.exporting import export_portfolio
from evotune.portfolios import family_race
from evotune.portfolios.building import build_portfolio
from evotune.portfolios.matrix_store import PortfolioRequest, read_matrix, stored_request
from evotune.portfolios.portfolio_file import read_portfolio
from evotune.problems.problem import Case
from evotune.runs.folder import RunFolder, find_family, list_runs
from evotune.runs.observer import Observer
from evotune.runs.spaces import shipped_spaces
from evotune.runs.starting import RunRequest, RunResult
from evotune.space.reading.case_file import given_cases
from evotune.store import RunStore
from evotune.trial import Configuration, Value
from tests.export.making import fabricated

from .pretended import Killed, PretendedDevice, PretendedSearch, pretending, silent

TINY: dict[str, Value] = {"batch": 1, "heads": 2, "seq_len": 64, "head_dim": 32}
CASES = [
    {**TINY, "count": 5},
    {**TINY, "head_dim": 48},
    {**TINY, "dtype": "bfloat16"},
    {**TINY, "dtype": "float16"},
]
FAST = {"attention-cpu": 1.5, "attention-features-simd-cpu": 1.4}


@dataclass
class FabricatedRuns:
    """Takes the place of `start_run` and `resume_run` in races: each run has one trial."""

    folder: Path
    killed_at: int = 10**9
    started: list[tuple[str, str]] = field(default_factory=list)

    def start(self, request: RunRequest, observer: Observer) -> RunResult:
        if len(self.started) == self.killed_at:
            self.killed_at = 10**9
            raise Killed
        assert request.space is not None
        (case,) = request.cases
        self.started.append((request.space, str(case.shape["head_dim"])))
        made = fabricated(
            shipped_spaces()[request.space],
            self.folder,
            speedup=FAST.get(request.space, 0.5),
            given=request.cases,
            facts=request.facts,
        )
        run = RunFolder(request.runs_dir / made.id)
        made.path.rename(run.path)
        self._ask(run, dict(request.options))
        return RunResult(run, "trials", 1)

    def resume(self, run: RunFolder, observer: Observer, **given: object) -> RunResult:
        self._ask(run, given)
        return RunResult(run, "trials", 1)

    def _ask(self, run: RunFolder, given: dict[str, object]) -> None:
        with RunStore.open_for_writing(run.store) as store:
            known = {name: value for name, value in given.items() if value is not None}
            store.set_facts({"settings": {**store.meta("settings"), **known}})  # type: ignore[dict-item]


@contextlib.contextmanager
def fabricating(runs: FabricatedRuns) -> Iterator[None]:
    with pretending(PretendedSearch(Path(), lambda request: {})), pytest.MonkeyPatch.context() as p:
        p.setattr(CpuBackend, "exported_call_us", 0.0)
        p.setattr(family_race, "start_run", runs.start)
        p.setattr(family_race, "resume_run", runs.resume)
        yield


def speedup(configuration: Configuration, case: Case) -> float:
    return 1.5


def request(folder: Path) -> PortfolioRequest:
    return PortfolioRequest("attention", given_cases(CASES), folder, 2, trials=24, device="cpu")


def test_the_spaces_race_for_each_case_that_is_searched(tmp_path: Path) -> None:
    runs_dir, said = tmp_path / "runs", list[str]()
    runs = FabricatedRuns(tmp_path)
    with fabricating(runs):
        for killed_at in (1, 3, 10**9):
            runs.killed_at = killed_at
            with contextlib.suppress(Killed):
                device = PretendedDevice(speedup).opened
                build_portfolio(
                    request(runs_dir), observing=silent, say=said.append, open_executor=device
                )
        found, *_ = read_portfolio(runs_dir)
        assert (found.space, found.dtype) == ("attention", "float32")
        assert sorted(runs.started) == [
            ("attention-cpu", "32"),
            ("attention-features-simd-cpu", "48"),
            ("attention-scalar-cpu", "32"),
            ("attention-scalar-cpu", "48"),
        ]
        winners = {kernel.run.partition("attention")[2] for kernel in found.kernels}
        assert winners == {"-cpu", "-features-simd-cpu"}
        assert any("no bfloat16 attention: make another one" in line for line in said)
        assert any("(1,2,64,32) full float16: " in line for line in said)
        assert "found dtype = float16" in found.skipped
        stored = stored_request(runs_dir)
        assert {entry.dtype for entry in stored.cases} == {"float32"}
        build_portfolio(stored, observing=silent, open_executor=PretendedDevice(speedup).opened)
        assert len(list_runs(runs_dir)) == len(runs.started) == 4
        package = export_portfolio(runs_dir, tmp_path / "package")
        assert package.name == "attention"
        assert len(package.champions) == 2
    assert find_family("latest", runs_dir) is None


def test_other_cases_are_another_portfolio(tmp_path: Path) -> None:
    runs = FabricatedRuns(tmp_path)
    with fabricating(runs):
        device = PretendedDevice(speedup).opened
        build_portfolio(request(tmp_path / "runs"), observing=silent, open_executor=device)
        other = PortfolioRequest(
            "attention", given_cases(CASES[1:2]), tmp_path / "runs", 2, trials=24, device="cpu"
        )
        with pytest.raises(UsageError, match=r"holds a portfolio of .*other cases"):
            build_portfolio(other, observing=silent, open_executor=device)
    with read_matrix(tmp_path / "runs") as matrix:
        assert matrix.store.meta("request")["space"] == "attention"
