"""Baselines are captured into CUDA graphs: their calls take nothing from the CPU, nor give it any.

A copy between a GPU and the CPU's memory, or a value that Python reads, ends a capture. Here all
memory is the CPU's, so the calls that would copy are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from evotune.problems import Case, create_problem
from evotune.problems.attention import Attention
from evotune.problems.problem import Tensors
from evotune.trial import Value

SHAPE: dict[str, Value] = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
LENGTHS: dict[str, Value] = {"seq_len_q": 5, "seq_len_k": 9}
FEATURES: dict[str, dict[str, Value]] = {
    "plain": {"causal": False},
    "causal": {"causal": True},
    "bottom right": {"causal": True, "alignment": "bottom_right"},
    "window": {"causal": True, "alignment": "bottom_right", "window_left": 3},
    "two windows": {"causal": False, "window_left": 2, "window_right": 1},
    "softcap": {"causal": False, "softcap": 5.0},
    "alibi": {"causal": True, "alibi": True},
    "sinks": {"causal": True, "alignment": "bottom_right", "sinks": True, "window_left": 4},
    "lse": {"causal": True, "lse": True, "softcap": 3.0, "alibi": True},
    "score_mod": {
        "causal": False,
        "score_mod": "score - 0.01 * abs(row - column) if head % 2 == 0 else min(score, 4)",
    },
    "score_mod of numbers": {"causal": True, "score_mod": "2 if true or score > 1 else 0.5"},
}
PACKED: dict[str, Value] = {
    **{"sequences": 4, "heads": 4, "kv_heads": 2, "tokens_q": 30, "tokens_k": 60},
    **{"longest_q": 17, "longest_k": 40, "head_dim": 16},
}
PAGES: dict[str, Value] = {
    **{"sequences": 3, "queries": 3, "heads": 4, "kv_heads": 2, "longest": 37, "page_size": 8},
    "head_dim": 16,
}
_FROM_CPU = ("tensor", "as_tensor", "asarray", "scalar_tensor", "from_numpy", "frombuffer")
_TO_PYTHON = ("item", "tolist", "numpy", "cpu", "cuda", "__bool__", "__int__", "__float__")
_OPERATIONS = ("lift_fresh", "_local_scalar_dense", "nonzero", "masked_select", "equal", "unique")


class Captured(TorchFunctionMode):
    """Refuses functions that make tensors of the CPU's data, move them or read their values."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        given = (*args, *(kwargs or {}).values())
        moved = name == "to" and any(isinstance(each, torch.device | str) for each in given)
        if name in _FROM_CPU or name in _TO_PYTHON or moved:
            raise AssertionError(f"{name} copies between the CPU and the GPU")
        return function(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    """Refuses the operations that do so below PyTorch's functions, as indexing by a mask does."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(each is not None and each.dtype == torch.bool for each in indices)
        if name in _OPERATIONS or by_mask:
            raise AssertionError(f"{name} copies between the CPU and the GPU")
        return function(*args, **(kwargs or {}))


def capture(call: Callable[[], Tensors], monkeypatch: pytest.MonkeyPatch) -> Tensors:
    def refuse(*args: object) -> torch.Tensor:
        raise AssertionError("from_numpy copies between the CPU and the GPU")

    with monkeypatch.context() as patch, Captured(), Dispatched():
        patch.setattr(torch, "from_numpy", refuse)  # no mode sees it
        return call()


def cases() -> list[Any]:
    found = []
    for name, told in FEATURES.items():
        variant = {"causal": told["causal"]}
        rest = {key: value for key, value in told.items() if key != "causal"}
        case = Attention("float32").case({**SHAPE, **LENGTHS, **rest}, variant)
        found.append(pytest.param("attention", case, id=name))
    for name, shape in (("attention_varlen", PACKED), ("attention_paged", PAGES)):
        for causal in (False, True):
            case = create_problem(name, "float32").case(shape, {"causal": causal})
            found.append(pytest.param(name, case, id=f"{name} {causal=}"))
    return found


@pytest.mark.parametrize(("name", "case"), cases())
def test_a_call_makes_nothing_of_the_cpus_data(
    name: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = create_problem(name, "float32")
    inputs = problem.make_inputs(case, "normal", 0)
    calls = problem.baselines(case, inputs)
    assert calls
    for each in calls:
        # The first call of all: nothing that it makes and keeps may come from the CPU either.
        fresh = problem.baselines(case, inputs)[each]
        found = capture(fresh, monkeypatch)
        torch.testing.assert_close(found["out"], calls[each]()["out"])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + torch.tensor([1.0, 2.0]),
        lambda x: x * torch.as_tensor(2.0, device=x.device),
        lambda x: x + torch.ones(2, device="cpu").to(x.device),
        lambda x: x[x > 0],
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x + x.tolist()[0],
        lambda x: x + torch.from_numpy(x.new_ones(2).cpu().numpy()),
    ],
)
def test_calls_that_would_copy_are_refused(
    call: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(2)
    with pytest.raises(AssertionError, match="copies between the CPU and the GPU"):
        capture(lambda: {"out": call(x)}, monkeypatch)
