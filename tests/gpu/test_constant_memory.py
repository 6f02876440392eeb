"""Constant memory on a GPU: each call sees the tensor's current values, in a graph too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evotune.backends.base.launch import (
    Argument,
    CompileFailure,
    CompileJob,
    ConstantMemory,
    Launch,
    LaunchPlan,
)
from evotune.backends.base.session import LaunchFailure
from evotune.backends.cuda.discovery import open_profile
from evotune.workers.compile_worker import compiler_for
from evotune.workers.device_worker import open_session

pytestmark = pytest.mark.gpu

SOURCE = """
__constant__ float c_weights[64];
extern "C" __global__ void weigh(float* out) { out[threadIdx.x] = 2.0f * c_weights[threadIdx.x]; }
"""


def test_each_call_copies_the_tensor(tmp_path: Path) -> None:
    profile = open_profile("cuda:0", compile_only=False)
    session = open_session(profile)
    (tmp_path / "weigh.cu").write_text(SOURCE)
    job = CompileJob("cuda", str(tmp_path), "weigh.cu", (), (), profile.arch, "")
    binary = tmp_path / "weigh.cubin"
    built = compiler_for("cuda").compile(job, binary, 60)
    assert not isinstance(built, CompileFailure), built

    def plan(symbol: str, size: int) -> LaunchPlan:
        launches = (Launch((1,), (32,), 0, "weigh"),)
        constants = (ConstantMemory(symbol, "weights", size),)
        return LaunchPlan("weigh", (Argument("tensor", "out"),), (), launches, constants)

    weights = torch.arange(32.0, device=session.torch_device)
    out = torch.zeros(32, device=session.torch_device)
    pointers = {"weights": weights.data_ptr(), "out": out.data_ptr()}
    right = plan("c_weights", 128)
    launch = session.bind(session.load(binary, right), right, pointers)
    launch()
    session.synchronize()
    assert out.eq(2 * weights).all()
    sampler = session.sampler([launch])
    weights += 1
    sampler.run()
    session.synchronize()
    assert out.eq(2 * weights).all()

    for wrong, words in (
        (plan("c_weigths", 128), "no variable c_weigths"),
        (plan("c_weights", 260), "has 256 bytes, but the tensor weights has 260"),
    ):
        with pytest.raises(LaunchFailure, match=words):
            session.bind(session.load(binary, wrong), wrong, pointers)
