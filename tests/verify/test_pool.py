"""Changed input sets: their expected outputs are those of the whole case, computed anew."""

from __future__ import annotations

import pytest
import torch

from evotune.problems import UserProblem
from evotune.problems.attention import Attention
from evotune.problems.problem import HasParts
from evotune.verify import pool as pools
from evotune.verify.accuracy import LIMITS, errors_against
from evotune.verify.pool import InputPool

SHAPES = (
    {"batch": 2, "heads": 6, "kv_heads": 3, "seq_len_q": 40, "seq_len_k": 72, "head_dim": 16},
    {"batch": 3, "heads": 4, "seq_len": 24, "head_dim": 8, "scale": 0.7},
)


class Whole(InputPool):
    """Computes every set as a whole."""

    def _wanted_after(self, case, inputs, alterations, seed):  # type: ignore[no-untyped-def]
        return self._wanted(case, inputs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_changed_set_expects_what_the_whole_case_gives(
    shape: dict[str, int], causal: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_LONGEST_ROW", 500)  # of many heads, a change touches few
    problem = Attention(dtype)
    case = problem.case(shape, {"causal": causal})
    computed: list[int] = []
    reference = problem.reference

    def counted(of, inputs):  # type: ignore[no-untyped-def]
        computed.append(of.symbols["batch"] * of.symbols["kv_heads"])
        return reference(of, inputs)

    monkeypatch.setattr(problem, "reference", counted)
    found = InputPool(problem, secret="a").changed(case, 5)
    first, *others = computed
    assert max(others) <= first / 2, "each change touches few heads"
    for mine, whole in zip(found, Whole(problem, secret="a").changed(case, 5), strict=True):
        assert mine.rounded == whole.rounded
        expected, of_whole = mine.expected["out"], whole.expected["out"]
        torch.testing.assert_close(expected, of_whole, rtol=2e-4, atol=1e-3)


def test_a_change_of_many_heads_is_that_of_the_whole_case() -> None:
    problem = Attention("float16")
    assert isinstance(problem, HasParts)
    case = problem.case(SHAPES[1], {})
    assert problem.parts(case, [("q", 0, 24 * 8 * 7)]) is None
    few = problem.parts(case, [("q", 24 * 8 - 1, 2), ("v", 24 * 8, 1)])
    assert few is not None
    assert few.regions["k"] == [(0, slice(0, 1)), (0, slice(1, 2))]


def test_heads_with_features_are_no_parts() -> None:
    problem = Attention("float16")
    case = problem.case({**SHAPES[1], "softcap": 20.0}, {})
    assert problem.parts(case, [("q", 0, 1)]) is None


def test_far_values_of_several_inputs_have_results_that_their_type_holds() -> None:
    """One input's far value may be 300, another one's -300."""

    class Ratio(UserProblem):
        sizes = ("count",)

        def inputs(self, count: int) -> dict[str, tuple[int, ...]]:
            return {"x": (count,), "y": (count,)}

        def outputs(self, count: int) -> dict[str, tuple[int, ...]]:
            return {"out": (count,)}

        def operations(self, count: int) -> int:
            return count

        def compute(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": (x - y).exp()}

    problem = Ratio("float32")
    case = problem.case({"count": 100}, {})
    for seed in range(40):
        *_, single = InputPool(problem).changed(case, seed)
        assert len(single.alterations) == 2
        out = problem.compute(**single.inputs)["out"]
        assert LIMITS.hold(errors_against(out, single.expected["out"]))
