"""`tune_model` on a GPU: graphs of calls and of a whole model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import evotune
from evotune.api.model_timing import OF_CALLS, timed_pair
from tests.api.tiny_models import ViT

pytestmark = pytest.mark.gpu


def test_calls_are_timed_in_graphs_and_eagerly() -> None:
    x = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
    for graph in (True, False):
        gain = timed_pair(lambda: x @ x @ x, lambda: x @ x, OF_CALLS, graph=graph, on_gpu=True)
        assert 1.5 < gain.speedup < 2.5
        assert gain.low > 1


def test_a_model_on_a_gpu_is_tuned_and_timed_in_three_ways(tmp_path: Path) -> None:
    model = ViT().cuda().half().eval()
    x = torch.randn(64, 3, 16, 16, device="cuda", dtype=torch.float16)
    with torch.inference_mode():
        package = evotune.tune_model(model, x, trials=8, folder=tmp_path / "vit_on_gpu")
        assert [call.dtype for call in package.calls] == ["float16"]
        assert package.fault == ""
        if package:
            assert set(package.gains) == {"eager", "compiled", "graph"}, package.skipped
            with package.active():
                model(x)
