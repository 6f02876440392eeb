"""A portfolio from its searches to its rule: what is measured, kept, resumed and refused."""

from __future__ import annotations

import itertools
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from evotune.backends.cpu import CpuBackend
from evotune.errors import EvotuneError, RunLocked, StoreError, UsageError
from evotune.portfolios import building, case_searches
from evotune.portfolios.building import build_portfolio
from evotune.portfolios.matrix_store import locked_matrix, matrix_path, read_matrix, stored_request
from evotune.portfolios.portfolio_file import markdown, read_portfolio
from evotune.problems.problem import Case
from evotune.runs.confirmed_champions import Champion
from evotune.runs.folder import RunFolder, list_runs
from evotune.runs.reopening import ReopenedRun
from evotune.runs.starting import RunRequest
from evotune.space.reading.case_file import given_cases
from evotune.trial import Configuration, Value
from evotune.util.commands import command_line, run_command

from .pretended import (
    Killed,
    PretendedDevice,
    PretendedSearch,
    built,
    by_rows,
    silent,
    softmax_request,
    softmax_space,
)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return softmax_space(tmp_path_factory.mktemp("portfolio"))


@pytest.fixture(scope="module")
def done(space: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished portfolio."""
    folder = tmp_path_factory.mktemp("done")
    built(softmax_request(folder, space), PretendedSearch(space, by_rows),
          PretendedDevice(speedup))  # fmt: skip
    return folder / "runs"


@pytest.fixture
def finished(done: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(done, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture(scope="module", autouse=True)
def twelve_cases_are_enough() -> Iterator[None]:
    """To put some of them aside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "FEWEST_TO_JUDGE", 12)
        yield


@pytest.fixture(autouse=True)
def calls_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "exported_call_us", 0.0)


def speedup(configuration: Configuration, case: Case) -> float:
    few = int(case.symbols["rows"]) < 20
    return 1.5 if few == (configuration["CHUNK"] == 1) else 1.05


def of_the_list(device: PretendedDevice) -> list[tuple[str, str]]:
    """The measured cells of the portfolio's own cases; the others were drawn between them."""
    sizes = [(rows, columns) for rows in (4, 8, 64, 128) for columns in (32, 64, 100)]
    labels = {f"({rows},{columns})" for rows, columns in sizes}
    return [cell for cell in device.measured if cell[0] in labels]


def test_it_searches_measures_chooses_and_writes_the_rule(space: Path, tmp_path: Path) -> None:
    search, device = PretendedSearch(space, by_rows), PretendedDevice(speedup)
    said: list[str] = []
    found = built(softmax_request(tmp_path, space), search, device, said.append)
    assert [kernel.configuration["CHUNK"] for kernel in found.kernels] in ([1, 2], [2, 1])
    few = next(n for n, kernel in enumerate(found.kernels) if kernel.configuration["CHUNK"] == 1)
    regions = {region.kernel: region for region in found.rule}
    assert regions[few].ranges["rows"][1] < 64
    assert regions[1 - few].ranges["rows"][0] > 8
    assert sum(case.held_out for case in found.cases) == 2
    assert found.figures["held_out"].worst >= 1.0
    assert found.figures["seen"].of_best == pytest.approx(1.0)
    assert found.of_own == pytest.approx(1.0)
    # No search saw a held-out case, and every cell was measured once.
    held_out = {case.label for case in found.cases if case.held_out}
    searched = {case.label for case in found.cases if case.searched}
    assert len(searched) == len(search.requests) == 2
    assert not searched & held_out
    assert len(device.measured) == len(set(device.measured))
    assert len(of_the_list(device)) == 24
    assert sorted(device.timed) == sorted(set(device.timed))
    # The second search begins with the first one's configurations, and knows its own seed.
    assert search.requests[1].warm_start is not None
    assert [request.options["seed"] for request in search.requests] == [0, 1]
    text = markdown(found)
    assert "2 kernels for 12 cases" in text
    assert "| all others | PyTorch |" in text
    assert text.count("1.500 (1.485)") == 12
    again = read_portfolio(tmp_path / "runs")[0]
    assert again == found


def test_the_same_command_again_measures_nothing_and_finds_the_same(
    space: Path, finished: Path, tmp_path: Path
) -> None:
    first = read_portfolio(finished)[0]
    content = (tmp_path / "runs" / "portfolio.json").read_bytes()
    search, device = PretendedSearch(space, by_rows), PretendedDevice(speedup)
    assert built(softmax_request(tmp_path, space), search, device) == first
    assert (search.requests, device.measured, device.timed) == ([], [], [])
    assert (tmp_path / "runs" / "portfolio.json").read_bytes() == content
    one = built(softmax_request(tmp_path, space, most_kernels=1), search, device)
    assert (len(one.kernels), search.requests, of_the_list(device)) == (1, [], [])
    device.measured.clear()
    again = built(stored_request(tmp_path / "runs", most_kernels=2), search, device)
    assert again.rule == first.rule


@pytest.mark.parametrize("cells", [pytest.param(0, marks=pytest.mark.soak), 7])
def test_a_killed_portfolio_measures_no_cell_twice(space: Path, tmp_path: Path, cells: int) -> None:
    killed = PretendedDevice(speedup, killed_after=cells)
    with pytest.raises(Killed):
        built(softmax_request(tmp_path, space), PretendedSearch(space, by_rows), killed)
    with pytest.raises(UsageError, match="is not finished: give the same command again"):
        read_portfolio(tmp_path / "runs")
    search, device = PretendedSearch(space, by_rows), PretendedDevice(speedup)
    found = built(stored_request(tmp_path / "runs"), search, device)
    assert search.requests == []
    assert len(killed.measured) == cells
    assert len(of_the_list(device)) == 24 - cells
    assert not set(killed.measured) & set(device.measured)
    assert len(found.rule) == 2


def test_a_search_that_was_killed_before_its_run_began_is_begun_again(
    space: Path, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        built(
            softmax_request(tmp_path, space),
            PretendedSearch(space, by_rows, stopped_at=1),
            PretendedDevice(speedup),
        )
    assert len(list_runs(tmp_path / "runs")) == 1
    search = PretendedSearch(space, by_rows)
    built(stored_request(tmp_path / "runs"), search, PretendedDevice(speedup))
    assert len(search.requests) == 1


def test_a_search_that_the_user_ends_ends_the_portfolio(space: Path, tmp_path: Path) -> None:
    search = PretendedSearch(space, by_rows, reason="interrupted")
    with pytest.raises(KeyboardInterrupt):
        built(softmax_request(tmp_path, space), search, PretendedDevice(speedup))
    assert len(search.requests) == 1
    assert RunFolder(tmp_path / "runs" / "portfolio").holder() is None


def test_a_case_that_is_served_badly_is_searched_while_there_is_budget(
    space: Path, tmp_path: Path
) -> None:
    def slow_on_one(configuration: Configuration, case: Case) -> float:
        odd = (case.symbols["rows"], case.symbols["columns"]) == (128, 100)
        if odd:
            return 1.5 if configuration["CHUNK"] == 8 else 1.01
        return speedup(configuration, case)

    def found(request: RunRequest) -> Mapping[str, Value]:
        odd = request.cases[0].shape == {"rows": 128, "columns": 100}
        return {"CHUNK": 8} if odd else by_rows(request)

    said: list[str] = []
    search = PretendedSearch(space, found)
    request = softmax_request(tmp_path, space, most_kernels=3, held_out=0.0, seed=5)
    first = built(request, search, PretendedDevice(slow_on_one), said.append)
    labels = [case.label for case in first.cases if case.searched]
    assert "searching for (128,100), which all champions serve badly" in said
    assert len(search.requests) == len(labels) == 4
    assert "(128,100)" in labels
    assert first.figures["seen"].of_best > 0.99


def test_a_kernel_that_the_gate_refuses_on_a_case_is_not_served_there(
    space: Path, tmp_path: Path
) -> None:
    def wrong_on_long_rows(configuration: Configuration, case: Case) -> float:
        wrong = configuration["CHUNK"] == 1 and case.symbols["columns"] == 100
        return 0.0 if wrong else speedup(configuration, case)

    found = built(
        softmax_request(tmp_path, space, held_out=0.0),
        PretendedSearch(space, by_rows),
        PretendedDevice(wrong_on_long_rows),
    )
    refused = [cell for cell in found.cells if cell.outcome == "wrong_result"]
    assert {cell.case for cell in refused} == {f"({rows},100)" for rows in (4, 8, 64, 128)}
    assert all(cell.speedup is None and cell.reason for cell in refused)
    few = next(n for n, kernel in enumerate(found.kernels) if kernel.configuration["CHUNK"] == 1)
    served = {label for region in found.rule if region.kernel == few for label in region.cases}
    assert served
    assert not any(label.endswith(",100)") for label in served)
    assert all(region.ranges["columns"][1] < 100 for region in found.rule if region.kernel == few)


def test_a_cell_whose_worker_was_lost_is_measured_the_next_time(
    space: Path, tmp_path: Path
) -> None:
    def lost(configuration: Configuration, case: Case) -> float:
        return math.inf if case.label == "(64,64)" else speedup(configuration, case)

    said: list[str] = []
    request = softmax_request(tmp_path, space, held_out=0.0)
    found = built(request, PretendedSearch(space, by_rows), PretendedDevice(lost), said.append)
    assert found.unmeasured == 2
    assert "2 cells could not be measured: nothing is served there" in said
    assert not any("(64,64)" in region.cases for region in found.rule)
    device = PretendedDevice(speedup)
    again = built(request, PretendedSearch(space, by_rows), device)
    assert {label for label, _ in of_the_list(device)} == {"(64,64)"}
    assert again.unmeasured == 0


def test_a_held_out_case_that_was_not_measured_judges_nothing(
    space: Path, tmp_path: Path, done: Path
) -> None:
    held_out = [case.label for case in read_portfolio(done)[0].cases if case.held_out]

    def lost(configuration: Configuration, case: Case) -> float:
        return math.inf if case.label == held_out[0] else speedup(configuration, case)

    found = built(
        softmax_request(tmp_path, space), PretendedSearch(space, by_rows), PretendedDevice(lost)
    )
    assert (found.figures["held_out"].cases, found.cuts) == (1, ())
    assert [case.label for case in found.cases if case.held_out] == held_out
    assert found.unmeasured == 2


def test_no_time_left_ends_the_work_and_more_minutes_go_on(space: Path, tmp_path: Path) -> None:
    request = softmax_request(tmp_path, space, minutes=1e-9)
    said: list[str] = []
    with pytest.raises(EvotuneError, match="no search has a confirmed champion") as caught:
        built(request, PretendedSearch(space, by_rows), PretendedDevice(speedup), said.append)
    assert caught.value.exit_code == 1
    assert said == ["no time is left for further searches"]
    more = stored_request(tmp_path / "runs", minutes=60.0)
    assert built(more, PretendedSearch(space, by_rows), PretendedDevice(speedup)).rule


def test_of_few_cases_none_is_put_aside(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "FEWEST_TO_JUDGE", 20)
    request = softmax_request(tmp_path, space)
    found = built(request, PretendedSearch(space, by_rows), PretendedDevice(speedup))
    assert [case.label for case in found.cases if case.held_out] == []
    assert found.figures["held_out"].cases == 0
    assert (found.figures["listed"].cases, found.figures["listed"].served) == (12, 12)


def test_each_case_of_the_list_is_measured_though_time_is_over(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is over once the last search has ended."""
    search, device = PretendedSearch(space, by_rows), PretendedDevice(speedup)
    monkeypatch.setattr(building.PortfolioWork, "_left_s", lambda _: 1.0 - len(search.requests))
    said: list[str] = []
    found = built(softmax_request(tmp_path, space), search, device, said.append)
    assert len(search.requests) == 2
    assert "time is over: measuring 12 cases of the list once" in said
    assert len(device.measured) == len({label for label, _ in device.measured}) == 12
    assert found.figures["listed"].served == 12
    assert sum(case.held_out for case in found.cases) == 2


def unconfirmed(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """The `first` runs have no confirmed champion."""
    genuine, asked = case_searches.champions_of, itertools.count()

    def found(run: ReopenedRun) -> list[Champion]:
        if next(asked) < first:
            raise EvotuneError("no confirmed champion")
        return genuine(run)

    monkeypatch.setattr(case_searches, "champions_of", found)


def test_without_a_champion_a_further_case_is_searched(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unconfirmed(monkeypatch, 2)
    search, said = PretendedSearch(space, by_rows), list[str]()
    request = softmax_request(tmp_path, space, held_out=0.0)
    assert built(request, search, PretendedDevice(speedup), said.append).rule
    assert len(search.requests) == 3
    assert any(line.endswith(", as no search has a champion") for line in said)


@pytest.mark.soak
def test_the_advice_on_searches_without_a_champion_works(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unconfirmed(monkeypatch, 3)
    search, device = PretendedSearch(space, by_rows), PretendedDevice(speedup)
    advice = "resume with a greater -k, and with more --trials or --minutes"
    with pytest.raises(EvotuneError, match=f"no search has a confirmed champion: {advice}"):
        built(softmax_request(tmp_path, space, held_out=0.0), search, device)
    assert len(search.requests) == 3
    unconfirmed(monkeypatch, 3)
    more = stored_request(tmp_path / "runs", most_kernels=3)
    assert built(more, search, device).rule


def test_where_every_case_was_searched_a_search_goes_on(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unconfirmed(monkeypatch, 1)
    cases = given_cases([{"rows": 4, "columns": 32}])
    request = softmax_request(tmp_path, space, cases=cases)
    with pytest.raises(EvotuneError, match="no search has a confirmed champion") as caught:
        built(request, PretendedSearch(space, by_rows), PretendedDevice(speedup))
    (run,) = list_runs(tmp_path / "runs")
    line = run_command("resume", run.path, "--trials", 2)
    assert str(caught.value).endswith(f"give one more trials, then resume: {line}")


def test_a_folder_of_another_portfolio_is_refused(
    space: Path, finished: Path, tmp_path: Path
) -> None:
    search, device = PretendedSearch(space, by_rows), PretendedDevice(speedup)
    cases = given_cases([{"rows": 4, "columns": 32}])
    other = tmp_path / "other.yaml"
    other.write_text(space.read_text().replace("CHUNK: 8", "CHUNK: 4"))
    for given, words in (
        ({"seed": 1}, "another seed"),
        ({"held_out": 0.5}, "another held-out share"),
        ({"cases": cases}, "other cases"),
        ({"space": str(other)}, "another space, or of other files of it"),
    ):
        with pytest.raises(UsageError, match=f"holds a portfolio of {words}: name another folder"):
            built(softmax_request(tmp_path, space, **given), search, device)
    with pytest.raises(UsageError, match="the held-out share must be"):
        built(softmax_request(tmp_path, space, held_out=1.0), search, device)
    with pytest.raises(UsageError, match="holds no portfolio"):
        stored_request(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_one_process_works_on_a_portfolio(space: Path, finished: Path, tmp_path: Path) -> None:
    with locked_matrix(tmp_path / "runs", None), pytest.raises(RunLocked):
        build_portfolio(softmax_request(tmp_path, space), observing=silent)


def test_damage_is_refused(finished: Path) -> None:
    runs = finished
    file = runs / "portfolio.json"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"1.5", b"2.5", 1))
    with pytest.raises(StoreError, match="was changed since it was written"):
        read_portfolio(runs)
    file.write_bytes(content)
    matrix = matrix_path(runs)
    stored = matrix.read_bytes()
    matrix.write_bytes(stored.replace(b'"speedup":1.5', b'"speedup":9.5', 1))
    with pytest.raises(StoreError, match="is damaged"), read_matrix(runs):
        pass
    matrix.write_bytes(stored)
    run = list_runs(runs)[0]
    run.store.write_bytes(run.store.read_bytes()[:9000])
    with pytest.raises(StoreError):
        build_portfolio(stored_request(runs), observing=silent)


def test_a_case_that_was_searched_is_not_held_out(
    space: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_portfolio(finished)[0].cases
    monkeypatch.setattr(
        building, "held_out_labels", lambda *given: {case.label for case in before[1:]}
    )
    found = built(stored_request(finished), PretendedSearch(space, by_rows),
                  PretendedDevice(speedup))  # fmt: skip
    assert all(case.held_out != bool(case.searched) for case in found.cases[1:])


def test_the_hint_on_a_changed_file_can_be_pasted(done: Path, tmp_path: Path) -> None:
    runs = tmp_path / "my runs"
    shutil.copytree(done, runs)
    (runs / "portfolio.json").write_bytes(b"{}")
    line = command_line("portfolio", "--resume", runs)
    with pytest.raises(StoreError, match=f"`{re.escape(line)}` writes it anew"):
        read_portfolio(runs)


def test_skipped_cases_are_said_and_kept(space: Path, tmp_path: Path) -> None:
    cases = given_cases(
        [{"rows": rows, "columns": 32} for rows in (4, 8)]
        + [{"rows": 4, "columns": 64, "dtype": "float16"}]
    )
    said: list[str] = []
    request = softmax_request(tmp_path, space, cases=cases)
    found = built(request, PretendedSearch(space, by_rows), PretendedDevice(speedup), said.append)
    words = "1 of 3 cases is skipped: 1 for dtype float16, where the space has float32"
    assert words in said
    assert found.skipped == words
    assert words in markdown(found)
    again = built(stored_request(tmp_path / "runs"), PretendedSearch(space, by_rows),
                  PretendedDevice(speedup))  # fmt: skip
    assert again == found


@pytest.mark.parametrize("name", ["space.yaml", "./space.yaml"])
def test_a_portfolio_goes_on_from_another_folder(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(space.parent)
    request = softmax_request(tmp_path, space, space=name)
    with pytest.raises(Killed):
        built(request, PretendedSearch(space, by_rows, stopped_at=0), PretendedDevice(speedup))
    monkeypatch.chdir(tmp_path)
    assert stored_request(tmp_path / "runs").space == str(space)


def test_a_shipped_space_keeps_its_name(tmp_path: Path) -> None:
    request = softmax_request(tmp_path, Path("softmax-cpu"))
    with pytest.raises(Killed):
        built(request, PretendedSearch(tmp_path, by_rows, stopped_at=0), PretendedDevice(speedup))
    assert stored_request(tmp_path / "runs").space == "softmax-cpu"


def test_few_trials_make_few_searches(space: Path, tmp_path: Path) -> None:
    search = PretendedSearch(space, by_rows)
    request = softmax_request(tmp_path, space, trials=2, most_kernels=4)
    built(request, search, PretendedDevice(speedup))
    assert len(search.requests) == 2


def test_of_a_long_list_the_heaviest_cases_are_taken(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "MOST_CASES", 2)
    cases = given_cases(
        [{"rows": rows, "columns": 32, "count": count} for rows, count in ((4, 1), (5, 3), (6, 2))]
    )
    request = softmax_request(tmp_path, space, cases=cases, most_kernels=1, held_out=0.0)
    said: list[str] = []
    found = built(request, PretendedSearch(space, by_rows), PretendedDevice(speedup), said.append)
    assert [case.label for case in found.cases] == ["(5,32)", "(6,32)"]
    assert "1 of 3 cases are left out: those of least weight" in said
    assert found.skipped in said


def test_a_portfolio_that_wins_nothing_has_an_empty_rule(space: Path, tmp_path: Path) -> None:
    found = built(
        softmax_request(tmp_path, space),
        PretendedSearch(space, by_rows),
        PretendedDevice(lambda configuration, case: 0.9),
    )
    assert (found.rule, found.kernels) == ((), ())
    assert found.figures["held_out"].mean == 1.0
    assert msgspec.json.decode((tmp_path / "runs" / "portfolio.json").read_bytes())["rule"] == []
    assert RunFolder(tmp_path / "runs" / "portfolio").holder() is None
