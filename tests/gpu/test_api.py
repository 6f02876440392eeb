"""`run.best.kernel()` on a GPU: on the caller's stream, device and thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import evotune

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = evotune.tune(
        "attention-mma",
        device="cuda:0",
        trials=4,
        champions=0,
        strategy="random",
        runs_dir=tmp_path_factory.mktemp("runs"),
    )
    return run.best.kernel()


def inputs(length: int = 512) -> list[torch.Tensor]:
    make = torch.Generator("cuda").manual_seed(length)
    shape = (1, 8, length, 64)
    return [
        torch.randn(shape, dtype=torch.float16, device="cuda", generator=make) for _ in range(3)
    ]


def agrees(found: torch.Tensor, tensors: list[torch.Tensor], causal: bool = False) -> bool:
    wanted = scaled_dot_product_attention(*(t.double() for t in tensors), is_causal=causal)
    return bool((found.double() - wanted).abs().max() < 2e-3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [512, 77])
def test_it_computes_on_the_callers_tensors(attention: Any, length: int, causal: bool) -> None:
    tensors = inputs(length)
    assert agrees(attention(*tensors, causal=causal), tensors, causal)


def test_it_runs_on_the_current_stream(attention: Any) -> None:
    stream = torch.cuda.Stream()
    tensors = inputs()
    attention(*tensors, causal=False)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = [tensor.clone() for tensor in tensors]
        found = attention(*late, causal=False)
        assert not stream.query()
    stream.synchronize()
    assert agrees(found, tensors)


def test_it_can_be_captured_in_a_graph(attention: Any) -> None:
    tensors = inputs()
    attention(*tensors, causal=False)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = attention(*tensors, causal=False)
    for tensor in tensors:
        tensor.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    assert agrees(found, tensors)


def test_a_new_thread_can_call_it(attention: Any) -> None:
    tensors, found = inputs(), []
    thread = threading.Thread(target=lambda: found.append(attention(*tensors, causal=False)))
    thread.start()
    thread.join()
    assert agrees(found[0], tensors)


def test_tensors_elsewhere_are_refused(attention: Any) -> None:
    with pytest.raises(
        ValueError, match="the tensors are on cpu: the kernel was compiled for NVIDIA"
    ):
        attention(*(tensor.cpu() for tensor in inputs()), causal=False)
    with pytest.raises(ValueError, match="q is float32, the kernel takes float16"):
        attention(*(tensor.float() for tensor in inputs()), causal=False)
