"""`evotune.check`, `compile` and `replay`."""

from __future__ import annotations

from typing import Any

import pytest

import evotune
from evotune.errors import UsageError
from evotune.runs.compiling import CompileRow
from tests.api.small import kernel, keywords
from tests.runs.runs import RECORDING


def test_check_counts_a_space() -> None:
    found = evotune.check(kernel(), **keywords(constraints=["UNUSED < 2"]))
    assert (found.size.valid, found.size.cartesian) == (1, 2)
    assert found.cases == ("(8,64)",)
    with pytest.raises(evotune.EvotuneError, match=r"Space.shapes\[0\]: the shape lacks rows"):
        evotune.check(kernel(), **keywords(shapes=[{"columns": 3}]))


def test_compile_counts_what_compiles() -> None:
    rows: list[CompileRow] = []
    found = evotune.compile(
        kernel(), sample=None, on_row=lambda row, counts: rows.append(row), **keywords()
    )
    assert (found.tried, found.compiled, found.all_compile) == (2, 2, True)
    assert sorted(row.configuration["UNUSED"] for row in rows) == [1, 2]
    broken = evotune.compile(kernel("no C++"), **keywords())
    assert (broken.compiled, broken.all_compile) == (0, False)


def test_replay_scores_a_strategy() -> None:
    found = evotune.replay(RECORDING, strategy="random", evaluations=30, repeats=2)
    assert [len(repeat.times_ms) for repeat in found.repeats] == [30, 30]
    assert found.score is not None
    assert found.repeats[0].times_ms != found.repeats[1].times_ms


class First:
    def __init__(self, space: Any, settings: Any) -> None:
        self._all = space.enumerate()

    def ask(self, number: int, pending: Any) -> Any:
        return next(self._all)

    def tell(self, trial: Any) -> None: ...


@pytest.mark.parametrize("wanted", [{"repeats": 0}, {"evaluations": 0}, {"evaluations": -1}])
def test_replay_makes_at_least_one_evaluation(wanted: dict[str, int]) -> None:
    (name,) = wanted
    with pytest.raises(UsageError, match=f"{name}: expected 1 or more"):
        evotune.replay(RECORDING, **wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpus", ["some", "²", 0, -1, "9" * 5000])
def test_a_number_of_gpus_that_is_none_is_a_usage_error(gpus: int | str) -> None:
    with pytest.raises(UsageError, match="expected all or a number of GPUs"):
        evotune.tune("softmax-cpu", gpus=gpus)


def test_replay_takes_a_strategy_of_ones_own() -> None:
    found = evotune.replay(RECORDING, strategy=First, evaluations=5)
    listed = found.recording.space.enumerate()
    assert found.repeats[0].times_ms == [
        found.recording.times_ms.get(next(listed)) for _ in range(5)
    ]
