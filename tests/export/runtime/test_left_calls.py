"""Each call of a model of transformers is served, or counted with a reason."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from .packages import HEAD_DIM, strided_kernel, strided_region
from .registry import Registry

MODULE = SimpleNamespace(is_causal=True, num_key_value_groups=1)
PADDED = torch.ones(1, 1, 20, 20, dtype=torch.bool).tril() & (torch.arange(20) > 3)


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def package(opened: Callable[..., ModuleType]) -> ModuleType:
    regions = [strided_region(), strided_region(causal=True)]
    return opened(served=regions, kernels=[strided_kernel()])


def tensors(rows: int = 20) -> list[torch.Tensor]:
    return [torch.randn(1, 4, length, HEAD_DIM) for length in (rows, 20, 20)]


LEFT: list[tuple[str, dict[str, Any]]] = [
    ("mask", {"attention_mask": PADDED}),
    ("mask", {"attention_mask": torch.zeros(1, 4, 20, 20)}),
    ("mask", {"rows": 7}),
    ("bias", {"position_bias": torch.zeros(1, 4, 20, 20)}),
    ("bias", {"position_bias": torch.zeros(1, 4, 20, 20), "attention_mask": PADDED}),
    ("weights", {"output_attentions": True}),
    ("dropout", {"dropout": 0.5}),
]


@pytest.mark.parametrize(("kind", "given"), LEFT)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_call_that_is_left_to_transformers_is_counted(
    package: ModuleType, registry: Registry, kind: str, given: dict[str, Any], is_compiled: bool
) -> None:
    others = dict(given)
    q, k, v = tensors(others.pop("rows", 20))
    mask = others.pop("attention_mask", None)

    def layer(q: torch.Tensor) -> torch.Tensor:
        return registry.forward(MODULE, q, k, v, mask, **others)[0]

    torch._dynamo.reset()
    called = torch.compile(layer, backend="eager") if is_compiled else layer
    with torch.no_grad():
        called(q)
    found = package.info()
    assert found["calls"] == 0
    assert {each: told["count"] for each, told in found["misses"].items()} == {kind: 1}
    assert found["misses"][kind]["first"]


def test_served_calls_are_no_misses(package: ModuleType, registry: Registry) -> None:
    with torch.no_grad():
        registry.forward(MODULE, *tensors(), None)
    found = package.info()
    assert (found["calls"], found["misses"]) == (1, {})
