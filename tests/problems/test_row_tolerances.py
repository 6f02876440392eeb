"""Tolerances of changed inputs: those of a whole estimate, from fewer rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from evotune.problems import UserProblem
from evotune.problems.row_tolerances import tolerances_after, tolerances_by_blocks
from evotune.verify.pool import InputPool


class Rows(UserProblem):
    sizes = ("rows", "columns")

    def inputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"x": (rows, columns), "weight": (columns,)}

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"out": (rows, columns)}

    def operations(self, rows: int, columns: int) -> int:
        return rows * columns

    def compute(self, x: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": x.softmax(-1) * weight}


class ByPlace(Rows):
    """A row's result depends on its number."""

    def compute(self, x: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        place = torch.arange(len(x), dtype=x.dtype)[:, None]
        return {"out": x * weight + place}


class Centred(Rows):
    """All rows depend on each other."""

    def compute(self, x: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": (x - x.mean(0)) * weight}


class AllRows(Rows):
    """Some rows alone have another shape."""

    def compute(self, x: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": x.view(64, 64) * weight}


def _after(problem: UserProblem, change: Callable[[dict[str, Any]], None]) -> tuple[Any, ...]:
    case = problem.case({"rows": 64, "columns": 64}, {})
    inputs = problem.make_inputs(case, "normal", 0)
    before = problem.reference(case, inputs)
    known = problem.tolerances(case, inputs, before)
    changed = {name: value.clone() for name, value in inputs.items()}
    change(changed)
    reference = problem.reference(case, changed)
    whole = problem.tolerances(case, changed, reference)
    found = tolerances_after(problem, case, changed, reference, (before, known))
    return known["out"], whole["out"], found["out"]


def _row(inputs: dict[str, Any]) -> None:
    inputs["x"][3] = 100.0 * torch.arange(64)


def test_only_the_rows_that_changed_get_other_tolerances() -> None:
    known, whole, found = _after(Rows("float32"), _row)
    others = torch.arange(64) != 3
    torch.testing.assert_close(found[others], known[others], rtol=1e-12, atol=0.0)
    ratio = (found[3] / whole[3]).log()
    assert abs(float(ratio.mean())) < 0.5


def test_rows_are_computed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a problem that allows it, which is why it is done."""
    problem = Rows("float32")
    counts: list[int] = []
    own = problem.tolerances
    monkeypatch.setattr(
        problem, "tolerances", lambda c, i, r: counts.append(len(r["out"])) or own(c, i, r)
    )
    _after(problem, _row)
    assert counts[:2] == [64, 64]
    assert set(counts[2:]) == {1}


@pytest.mark.parametrize("kind", [ByPlace, Centred, AllRows])
def test_rows_that_cannot_be_computed_alone_are_computed_with_all(kind: type[Rows]) -> None:
    _, whole, found = _after(kind("float32"), _row)
    assert torch.equal(found, whole)


def test_a_change_of_all_rows_is_computed_as_a_whole() -> None:
    def weight(inputs: dict[str, Any]) -> None:
        inputs["weight"][5] = 3.0

    _, whole, found = _after(Rows("float32"), weight)
    assert torch.equal(found, whole)


def test_making_changed_sets_leaves_the_normal_set_as_it_is() -> None:
    problem = Rows("float32")
    case = problem.case({"rows": 64, "columns": 64}, {})
    pool = InputPool(problem)
    first = pool.get(case, "normal", 0).expected["out"].clone()
    for changed in pool.changed(case, 0):
        reference = problem.reference(case, dict(changed.inputs))
        whole = problem.tolerances(case, dict(changed.inputs), reference)["out"]
        ratio = changed.expected["out"][1].reciprocal() / whole
        assert float(ratio.min()) > 0.1
        assert float(ratio.max()) < 10.0
    assert torch.equal(pool.get(case, "normal", 0).expected["out"], first)
    assert pool.intact()


def _large(problem: UserProblem) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    case = problem.case({"rows": 64, "columns": 8192}, {})
    inputs = problem.make_inputs(case, "normal", 0)
    reference = problem.reference(case, inputs)
    counts: list[int] = []
    own = problem.tolerances
    problem.tolerances = lambda c, i, r: counts.append(len(r["out"])) or own(c, i, r)  # type: ignore[method-assign, func-returns-value]
    found = tolerances_by_blocks(problem, case, inputs, reference)["out"]
    return own(case, inputs, reference)["out"], found, counts


def test_large_outputs_have_their_tolerances_by_blocks_of_rows() -> None:
    whole, found, counts = _large(Rows("float32"))
    assert counts == [16] * 4
    ratio = (found / whole).log()
    assert abs(float(ratio.mean())) < 0.02
    assert float(ratio.amax()) < 2.0


@pytest.mark.parametrize("kind", [ByPlace, Centred])
def test_rows_that_depend_on_each_other_have_theirs_at_once(kind: type[Rows]) -> None:
    whole, found, _ = _large(kind("float32"))
    assert torch.equal(found, whole)
