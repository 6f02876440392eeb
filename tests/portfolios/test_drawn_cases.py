"""A rule is tried between the measured cases before it is written."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import re
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evotune.backends.cpu import CpuBackend
from evotune.errors import EvotuneError
from evotune.portfolios import building
from evotune.portfolios.drawn_cases import DrawnCases, predicted_lows
from evotune.portfolios.matrix_store import Point, Score, locked_matrix, point_of, stored_request
from evotune.portfolios.portfolio_file import Portfolio, markdown
from evotune.portfolios.rule import Leaf, regions_of
from evotune.problems import Tensor, UserProblem
from evotune.problems.problem import Case, Problem
from evotune.problems.ragged_attention import VarlenAttention
from evotune.space.specs import GivenCase
from evotune.store import RunStore
from evotune.trial import Configuration, Json, Region, Value

from .made_up import PROBLEM, domain, point, scored
from .pretended import (
    Killed,
    PretendedDevice,
    PretendedSearch,
    built,
    by_rows,
    served_losses,
    softmax_request,
    softmax_space,
)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return softmax_space(tmp_path_factory.mktemp("portfolio"))


@pytest.fixture(autouse=True)
def calls_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuBackend, "exported_call_us", 0.0)


def lost_between(configuration: Configuration, case: Case) -> float:
    """Both kernels win every listed case. For many rows the kernel loses where the number of rows
    is no multiple of 4."""
    rows = int(case.symbols["rows"])
    few = configuration["CHUNK"] == 1
    if rows >= 20 and rows % 4:
        return 0.9
    return 1.5 if few == (rows < 20) else 1.05


@dataclasses.dataclass
class Whole:
    """A portfolio that was made in one go, and how."""

    runs: Path
    portfolio: Portfolio
    said: list[str]


@pytest.fixture(scope="module")
def whole(space: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder, said = tmp_path_factory.mktemp("whole"), list[str]()
    request = softmax_request(folder, space, held_out=0.0, minutes=60.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuBackend, "exported_call_us", 0.0)
        search, device = PretendedSearch(space, by_rows), PretendedDevice(lost_between)
        return Whole(request.runs_dir, built(request, search, device, said.append), said)


SMS = 132
LISTED = [(b, n) for b in (1, 2, 4, 8) for n in (128, 384, 777, 1024, 1700, 2048, 4000, 5000, 8192)]


def of_tiles(case: Point) -> float:
    """The speedup of a kernel with tiles of 192 rows over one with tiles of 128."""

    def time_us(rows: int) -> float:
        tiles = case.features["batch_heads"] * math.ceil(case.features["seq_len_q"] / rows)
        return rows * (tiles / SMS + math.ceil(tiles / SMS)) / 2 + 40

    return 1.2 * time_us(128) / time_us(192)


def drawn_round(
    speedup: Callable[[Point], float], more: Sequence[Point] = (), *, can_run: bool = True
) -> list[tuple[int, Case]]:
    """One round of draws in a region around all listed cases, which a kernel won."""
    shapes = [{"batch": b, "heads": 16, "seq_len": n, "head_dim": 64} for b, n in LISTED]
    cases = [PROBLEM.case(shape, {"causal": False}) for shape in shapes]
    given = {c.label: GivenCase(s, {"causal": False}) for c, s in zip(cases, shapes, strict=True)}
    listed = scored([point_of(PROBLEM, case) for case in cases], speedup)
    won = [point for point in listed if point.gain(0) > 0.0]
    regions = regions_of([Leaf(0, tuple(won))], {0: [domain()]})
    draws = DrawnCases(PROBLEM, given, 0, SMS)
    found = draws.drawn(regions, [*listed, *more], lambda kernel, case: can_run)
    assert all(regions[0].holds(point_of(PROBLEM, case)) for _, case in found)
    assert not {case.label for _, case in found} & {*given, *(point.label for point in more)}
    assert all(PROBLEM.flops(case) <= max(map(PROBLEM.flops, cases)) for _, case in found)
    assert all(kernel == 0 and case.symbols["heads"] == 16 for kernel, case in found)
    return found


@pytest.mark.soak
def test_the_model_finds_losses_that_few_places_of_a_region_have() -> None:
    more: list[Point] = []
    for _ in range(6):
        found = [point_of(PROBLEM, case) for _, case in drawn_round(of_tiles, more)]
        assert len(found) <= 3
        more += scored(found, of_tiles)
    lost = [each for each in more if of_tiles(each) < 1.0]
    rng = random.Random(5)
    anywhere = [
        point(rng.randint(128, 8192), batch=rng.randint(1, 8), heads=16) for _ in range(500)
    ]
    by_chance = sum(of_tiles(p) < 1.0 for p in anywhere) / len(anywhere)
    assert by_chance < 0.25
    assert len(lost) > 0.5 * len(more) > 0.0


def always(speedup: float) -> Callable[[Point], float]:
    return lambda _: speedup


@pytest.mark.parametrize(
    ("speedup", "most"), [(1.5, 3), pytest.param(1.03, 18, marks=pytest.mark.soak)]
)
def test_few_cases_are_drawn_where_the_model_is_sure(speedup: float, most: int) -> None:
    more: list[Point] = []
    for _ in range(6):
        found = [point_of(PROBLEM, case) for _, case in drawn_round(always(speedup), more)]
        more += scored(found, always(speedup))
    assert len(more) == most


def test_draws_are_those_of_their_own_generator_and_can_run() -> None:
    assert not drawn_round(always(1.03), can_run=False)
    found = drawn_round(always(1.03))
    random.seed(7)
    assert drawn_round(always(1.03)) == found


def test_a_predicted_speedup_is_near_the_measured_one() -> None:
    """The model learns how well tiles and waves are filled, not the sizes alone."""
    rng = random.Random(3)
    made = [point(rng.randint(128, 8192), batch=rng.randint(1, 8), heads=16) for _ in range(120)]
    known, asked = scored(made[:80], of_tiles), made[80:]
    errors = predicted_lows(known, 0, asked, SMS) - [math.log(of_tiles(p)) for p in asked]
    assert statistics.stdev(errors) < 0.6 * statistics.stdev(math.log(of_tiles(p)) for p in asked)


def test_no_drawn_case_that_a_kernel_loses_is_served_by_it(whole: Whole) -> None:
    found = whole.portfolio
    lines = whole.said
    assert any(re.search(r"^\d+ of \d+ drawn cases lost: learning", line) for line in lines)
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
    assert all(label in listed for region in found.rule for label in region.cases)
    assert "drawn between them" in markdown(found)


def test_a_drawn_case_that_still_loses_is_cut_out(space: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "_RULES", 1)
        found = built(
            softmax_request(tmp_path, space, held_out=0.0),
            PretendedSearch(space, by_rows),
            PretendedDevice(lost_between),
        )
    cuts = [cut for cut in found.cuts if not cut.predicted]
    assert cuts
    assert all(cut.drawn and "drawn, has 0.900x" in cut.words for cut in cuts)
    assert found.figures["drawn_before"].worst == pytest.approx(0.9)
    assert found.figures["drawn"].worst == 1.0


def without_elapsed(store: RunStore, name: str, value: Json) -> None:
    if name != building.ELAPSED:
        store.set_facts({name: value})


@pytest.mark.parametrize(
    "killed",
    [
        "between searches",
        pytest.param("in a search", marks=pytest.mark.soak),
        "while measuring",
    ],
)
def test_the_minutes_of_a_part_that_was_killed_count(
    space: Path, tmp_path: Path, killed: str
) -> None:
    request = softmax_request(tmp_path, space, minutes=60.0)
    searches = 1 if killed == "between searches" else 9
    with pytest.MonkeyPatch.context() as patch:
        # A process that is killed writes nothing at its end.
        patch.setattr(RunStore, "set_meta", without_elapsed)
        with pytest.raises(Killed):
            built(
                request,
                PretendedSearch(space, by_rows, stopped_at=searches),
                PretendedDevice(lost_between, killed_after=5),
            )
    with locked_matrix(request.runs_dir, None) as matrix:
        assert matrix.store.meta("elapsed_s", 0.0) > 0.0
        # As if it had taken longer than an hour.
        if killed == "between searches":
            matrix.store.set_meta("elapsed_s", 3700.0)
        elif killed == "in a search":
            label = str(matrix.store.meta("first")[-1])
            matrix.store.set_meta("search", [label, 3700.0])
        else:
            cell, outcome = next(iter(matrix.cells.items()))
            matrix.add(cell._replace(case="(5,5)"), outcome, 3700.0)
    said: list[str] = []
    device = PretendedDevice(lost_between)
    with contextlib.suppress(EvotuneError):
        built(
            stored_request(request.runs_dir), PretendedSearch(space, by_rows), device, said.append
        )
    measured = [label for label, _ in device.measured]
    assert len(measured) == len(set(measured))  # no more than one cell for each case
    assert set(measured) <= {f"({rows},{columns})" for rows in (4, 8, 64, 128)
                             for columns in (32, 64, 100)}  # fmt: skip
    with locked_matrix(request.runs_dir, None) as matrix:
        assert matrix.store.meta("elapsed_s", 0.0) >= 3700.0


def drawn(
    problem: Problem,
    shapes: Sequence[Mapping[str, Value]],
    can_run: Callable[[Case], bool] = lambda case: True,
) -> list[Case]:
    """The cases drawn around these in some rounds, which one kernel won by little."""
    cases = [problem.case(shape, {}) for shape in shapes]
    given = {c.label: GivenCase(shape, {}) for c, shape in zip(cases, shapes, strict=True)}
    points = [point_of(problem, c).with_scores([Score(1.05, 1.05, won=True)]) for c in cases]
    first = points[0].place
    ranges = {name: (0, 1 << 60) for name in first.ranged if name != "length_ratio"}
    regions = regions_of([Leaf(0, tuple(points))], {0: [Region(first.fixed, ranges, 1)]})
    found: list[Case] = []
    draws = DrawnCases(problem, given, 0, 4)
    for _ in range(6):
        new = draws.drawn(regions, points, lambda _, case: can_run(case))
        found += [case for _, case in new]
        points += [point_of(problem, c).with_scores([Score(1.0, 1.0, won=True)]) for _, c in new]
    assert all(any(r.holds(point_of(problem, case)) for r in regions) for case in found)
    return found


HEADS = {"heads": 16, "kv_heads": 16, "head_dim": 64}


def test_a_region_of_one_batch_is_tried_too() -> None:
    lengths = (256, 512, 1024, 2048, 4096)
    found = drawn(PROBLEM, [{**HEADS, "batch": 8, "seq_len": n} for n in lengths])
    assert len(found) == 18
    assert {case.symbols["batch"] for case in found} == {8}


@pytest.mark.parametrize("first", ["seq_len_q", "seq_len_k"])
def test_decoding_is_tried_with_other_numbers_of_keys(first: str) -> None:
    shapes = []
    for keys in (512, 4096, 16384):
        sizes = {"seq_len_q": 1, "seq_len_k": keys}
        order = {first: sizes[first], **sizes}
        shapes.append({**HEADS, "batch": 4, **order})
    found = drawn(PROBLEM, shapes)
    assert len(found) >= 10
    assert {case.symbols["seq_len_q"] for case in found} == {1}
    assert any(int(case.symbols["seq_len_k"]) % 64 == 1 for case in found)


def test_packed_sequences_keep_as_many_keys_as_queries() -> None:
    shapes = [
        {**HEADS, "sequences": number, "tokens_q": number * length, "tokens_k": number * length,
         "longest_q": length, "longest_k": length}
        for number in (4, 16) for length in (256, 1024)
    ]  # fmt: skip
    found = drawn(VarlenAttention("float16"), shapes)
    assert len(found) >= 12
    for size in ("tokens", "longest"):
        assert all(case.symbols[f"{size}_q"] == case.symbols[f"{size}_k"] for case in found)


class Scaled(UserProblem):
    """A product of matrices, scaled."""

    sizes = ("m", "n", "k")
    constants: ClassVar[Mapping[str, float]] = {"alpha": 1.0}
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"alpha": (0.1, 10.0)}

    def inputs(self, m: int, n: int, k: int) -> dict[str, tuple[int, ...] | Tensor]:
        return {"x": (m, k), "weight": (n, k)}

    def outputs(self, m: int, n: int, k: int) -> dict[str, tuple[int, ...] | Tensor]:
        return {"out": (m, n)}

    def operations(self, m: int, n: int, k: int) -> int:
        return 2 * m * n * k

    def compute(self, **inputs: Any) -> Any:
        raise NotImplementedError


def test_a_constant_stays_and_a_kernel_of_multiples_of_8_is_tried() -> None:
    shapes = [{"m": m, "n": 4096, "k": 4096, "alpha": 0.5} for m in (64, 512, 4096)]
    shapes += [{"m": 512, "n": n, "k": 1024, "alpha": 0.5} for n in (1024, 4096)]
    found = drawn(Scaled("float16"), shapes, lambda case: int(case.symbols["k"]) % 8 == 0)
    assert len(found) >= 16
    assert {case.symbols["alpha"] for case in found} == {0.5}
    assert len({case.symbols["k"] for case in found}) > 3


class Rows(UserProblem):
    """A function of each row."""

    sizes = ("rows",)

    def inputs(self, rows: int) -> dict[str, tuple[int, ...] | Tensor]:
        return {"x": (rows, 64)}

    def outputs(self, rows: int) -> dict[str, tuple[int, ...] | Tensor]:
        return {"out": (rows, 64)}

    def operations(self, rows: int) -> int:
        return 64 * rows

    def compute(self, **inputs: Any) -> Any:
        raise NotImplementedError


def test_a_region_of_many_cases_is_tried_with_all_kinds_of_sizes() -> None:
    shapes = [{"rows": 24 * number} for number in range(20, 420)]
    found = drawn(Rows("float16"), shapes, lambda case: int(case.symbols["rows"]) % 8 == 0)
    assert len(found) >= 3


@pytest.mark.parametrize("killed_after", [90, pytest.param(None, marks=pytest.mark.soak)])
def test_the_same_draws_are_made_again(
    space: Path, whole: Whole, tmp_path: Path, killed_after: int | None
) -> None:
    """After an end, or where a part was killed while it measured them."""
    request = softmax_request(tmp_path / "parts", space, held_out=0.0)
    first = PretendedDevice(lost_between, killed_after=killed_after or 10**9)
    with contextlib.suppress(Killed):
        built(request, PretendedSearch(space, by_rows), first)
    second = PretendedDevice(lost_between)
    found = built(stored_request(request.runs_dir), PretendedSearch(space, by_rows), second)
    assert bool(second.measured) == (killed_after is not None)
    assert not set(first.measured) & set(second.measured)
    rules = [[(r.words, r.kernel) for r in each.rule] for each in (found, whole.portfolio)]
    assert rules[0] == rules[1]
    assert len(found.cells) == len(whole.portfolio.cells)


@pytest.mark.parametrize(
    "change", [pytest.param("other kernels", marks=pytest.mark.soak), "no time is left"]
)
def test_no_loss_that_an_earlier_part_measured_is_served(
    space: Path, whole: Whole, tmp_path: Path, change: str
) -> None:
    assert not served_losses(whole.portfolio)
    runs = shutil.copytree(whole.runs, tmp_path / "runs")
    for kernels in (1, 3) if change == "other kernels" else (2,):
        if change == "no time is left":
            with locked_matrix(runs, None) as matrix:
                matrix.store.set_meta("elapsed_s", 3700.0)
        again = stored_request(runs, most_kernels=kernels)
        found = built(again, PretendedSearch(space, by_rows), PretendedDevice(lost_between))
        assert not served_losses(found)


def test_a_rule_that_no_time_is_left_to_try_is_said(space: Path, tmp_path: Path) -> None:
    request = softmax_request(tmp_path, space, held_out=0.0, minutes=60.0)
    said: list[str] = []
    device = PretendedDevice(lost_between)
    with pytest.MonkeyPatch.context() as patch:
        # Time is over once the listed cases are measured.
        patch.setattr(
            "evotune.portfolios.building.PortfolioWork._out_of_time",
            lambda work: len(device.measured) >= 24,
        )
        built(request, PretendedSearch(space, by_rows), device, said.append)
    assert any("between the measured ones could not be tried" in line for line in said)
