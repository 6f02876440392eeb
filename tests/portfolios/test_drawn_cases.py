"""A rule is tried between the measured cases before it is written."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from evotune.backends.cpu import CpuBackend
from evotune.portfolios import _portfolio_work
from evotune.portfolios._drawn_cases import drawn_cases
from evotune.portfolios._rule_tree import Leaf
from evotune.portfolios.building import stored_request
from evotune.portfolios.matrix_store import locked_matrix
from evotune.portfolios.points import point_of
from evotune.portfolios.portfolio_text import markdown
from evotune.portfolios.rule import regions_of
from evotune.problems.problem import Case
from evotune.space.specs import GivenCase
from evotune.trial import Configuration

from .made_up import PROBLEM, domain, point, scored
from .pretended import (
    Killed,
    PretendedDevice,
    PretendedSearch,
    built,
    softmax_request,
    softmax_space,
)

FEW_ROWS, MANY_ROWS = {"CHUNK": 1}, {"CHUNK": 2}


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return softmax_space(tmp_path_factory.mktemp("portfolio"))


@pytest.fixture(autouse=True)
def calls_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "exported_call_us", 0.0)


def by_rows(request: object) -> dict[str, int]:
    return FEW_ROWS if int(request.cases[0].shape["rows"]) < 20 else MANY_ROWS  # type: ignore[attr-defined]


def lost_between(configuration: Configuration, case: Case) -> float:
    """Both kernels win every listed case. For many rows the kernel loses where the number of rows
    is no multiple of 4."""
    rows = int(case.symbols["rows"])
    few = configuration["CHUNK"] == 1
    if rows >= 20 and rows % 4:
        return 0.9
    return 1.5 if few == (rows < 20) else 1.05


def test_they_lie_in_the_regions_and_many_fill_one_row_of_a_tile() -> None:
    sizes = [(batch, length) for batch in (1, 8) for length in (128, 512, 2048)]
    shapes = [{"batch": b, "heads": 8, "seq_len": n, "head_dim": 64} for b, n in sizes]
    cases = [PROBLEM.case(shape, {"causal": False}) for shape in shapes]
    given = {c.label: GivenCase(s, {"causal": False}) for c, s in zip(cases, shapes, strict=True)}
    made = [point(length, batch=batch) for batch, length in sizes]

    def draws(speedup: float, *, can_run: bool = True) -> list[tuple[int, Case]]:
        points = scored(made, lambda p: speedup)
        regions = regions_of([Leaf(0, tuple(points))], {0: [domain()]})
        found = drawn_cases(PROBLEM, regions, points, given, lambda kernel, case: can_run, 0)
        assert all(regions[0].holds(point_of(PROBLEM, case)) for _, case in found)
        return found

    found = draws(1.05)
    assert len(found) == 24
    assert len({case.label for _, case in found} | set(given)) == 30
    lengths = [int(case.symbols["seq_len_q"]) for _, case in found]
    assert sum(length % 64 == 1 for length in lengths) >= 8
    for kernel, case in found:
        assert kernel == 0
        assert case.symbols["heads"] == 8
        assert PROBLEM.flops(case) <= max(map(PROBLEM.flops, cases))
    random.seed(7)  # the draws have their own generator
    assert draws(1.05) == found
    # A large win is tried less.
    assert len(draws(1.15)) == 12
    assert len(draws(1.5)) == 6
    assert not draws(1.05, can_run=False)


def test_no_drawn_case_that_a_kernel_loses_is_served_by_it(space: Path, tmp_path: Path) -> None:
    said: list[str] = []
    device = PretendedDevice(lost_between)
    found = built(
        softmax_request(tmp_path, space, held_out=0.0),
        PretendedSearch(space, by_rows),
        device,
        said.append,
    )
    assert any(re.search(r"^\d+ of \d+ drawn cases are lost: learning", line) for line in said)
    assert found.figures["drawn"].worst >= 1.0
    # Drawn cases bound the rule and do not count: the listed ones are served as well as can be.
    assert found.figures["seen"].cases == 12
    assert found.figures["seen"].of_best > 0.95
    # A drawn case is measured with the kernel of its region; one that loses, with all of the rule.
    listed = {case.label for case in found.cases}
    by_case: dict[str, list[float]] = {}
    for cell in found.cells:
        if cell.case not in listed:
            by_case.setdefault(cell.case, []).append(cell.speedup or 0.0)
    assert len(by_case) >= 10
    assert {len(speedups) for speedups in by_case.values() if min(speedups) > 1.0} == {1}
    assert any(len(speedups) == 2 for speedups in by_case.values())
    assert "drawn between them" in markdown(found)


def test_a_drawn_case_that_still_loses_is_cut_out(space: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_portfolio_work, "_RULES", 1)
        found = built(
            softmax_request(tmp_path, space, held_out=0.0),
            PretendedSearch(space, by_rows),
            PretendedDevice(lost_between),
        )
    assert found.cuts
    assert all(cut.drawn and "drawn, has 0.900x" in cut.words for cut in found.cuts)
    assert found.figures["drawn_before"].worst == pytest.approx(0.9)
    assert found.figures["drawn"].worst == 1.0


def test_the_minutes_of_a_part_that_was_killed_count(space: Path, tmp_path: Path) -> None:
    request = softmax_request(tmp_path, space, minutes=60.0)
    search = PretendedSearch(space, by_rows, stopped_at=1)
    with pytest.MonkeyPatch.context() as patch:
        # A process that is killed writes nothing at its end.
        patch.setattr("evotune.portfolios.building.ELAPSED", "nothing")
        with pytest.raises(Killed):
            built(request, search, PretendedDevice(lost_between))
    with locked_matrix(request.runs_dir, None) as matrix:
        assert matrix.store.meta("elapsed_s", 0.0) > 0.0
    assert stored_request(request.runs_dir).minutes == 60.0
