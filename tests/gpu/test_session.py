"""The CUDA session on a GPU: loading, launching, timing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evotune.backends.base.launch import Argument, CompileFailure, CompileJob, Launch, LaunchPlan
from evotune.backends.base.session import LaunchFailure
from evotune.backends.cuda.discovery import open_profile
from evotune.problems import create_problem
from evotune.verify.pool import InputPool
from evotune.workers.compile_worker import compiler_for
from evotune.workers.device_worker import open_session

pytestmark = pytest.mark.gpu

SOURCE = """
extern "C" __global__ void add(float* x, float amount, long long count) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < count) x[i] += amount;
}
extern "C" __global__ void add_through_shared(float* x, float amount, long long count) {
  extern __shared__ float last[];
  last[BYTES / 4 - 1 - threadIdx.x] = amount;
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < count) x[i] += last[BYTES / 4 - 1 - threadIdx.x];
}
extern "C" __global__ void add_through_both(float* x, float amount, long long count) {
  __shared__ float own[5 * 1024];
  extern __shared__ float last[];
  own[20 * threadIdx.x] = amount;
  __syncthreads();
  last[10 * 1024 - 1 - threadIdx.x] = own[20 * (255 - threadIdx.x)];
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < count) x[i] += last[10 * 1024 - 1 - threadIdx.x];
}
"""
PICKED = """
from evotune import Problem
from evotune.problems import Tensor
class Picked(Problem):
    sizes = ("rows",)
    def inputs(self, rows):
        return {"x": (rows,), "index": Tensor((rows,), "int32", range(5))}
    def outputs(self, rows):
        return {"out": (rows,)}
    def operations(self, rows):
        return rows
    def compute(self, x, index):
        return {"out": x * index}
"""
COUNT = 1000
ARGUMENTS = (
    Argument("tensor", "x"),
    Argument("float32", value=2.5),
    Argument("int64", value=COUNT),
)


def job(folder: Path, arch: str, shared_bytes: int) -> CompileJob:
    (folder / "add.cu").write_text(SOURCE)
    return CompileJob("cuda", str(folder), "add.cu", (("BYTES", shared_bytes),), (), arch, "")


def plan(*launches: Launch) -> LaunchPlan:
    return LaunchPlan("add", ARGUMENTS, (), launches)


def test_launches_run_in_order_with_all_the_shared_memory_of_the_device(tmp_path: Path) -> None:
    profile = open_profile("cuda:0", compile_only=False)
    largest = int(profile.attributes["shared_bytes_per_block"])
    session = open_session(profile)
    binary = tmp_path / "add.cubin"
    built = compiler_for("cuda").compile(job(tmp_path, profile.arch, largest), binary, 60)
    assert not isinstance(built, CompileFailure), built
    assert built["entries"]["add_through_both"]["static_shared_bytes"] == 20 << 10
    both = plan(
        Launch((4,), (256,), 0, "add"),
        Launch((4,), (256,), largest, "add_through_shared"),
        Launch((4,), (256,), 40 << 10, "add_through_both"),
    )
    x = torch.zeros(COUNT + 24, device=session.torch_device)
    launch = session.bind(session.load(binary, both), both, {"x": x.data_ptr()})
    launch()
    session.synchronize()
    assert x[:COUNT].eq(7.5).all()
    assert x[COUNT:].eq(0.0).all()

    sampler = session.sampler([launch] * 10)  # runs them once
    before = float(x[0])
    sampler.run()
    assert float(x[0]) - before == 75.0
    assert 1.0 < sampler.time_us() < 1000.0
    # A sample that begins before its graph is queued is taken again.
    assert float(x[0]) - before in {150.0, 225.0, 300.0, 375.0}

    too_much = plan(Launch((4,), (256,), largest + 4, "add_through_shared"))
    with pytest.raises(LaunchFailure, match="shared memory"):
        session.bind(session.load(binary, too_much), too_much, {"x": x.data_ptr()})
    missing = plan(Launch((4,), (256,), 0, "subtract"))
    with pytest.raises(LaunchFailure, match="subtract"):
        session.bind(session.load(binary, missing), missing, {"x": x.data_ptr()})
    (tmp_path / "broken.cubin").write_bytes(b"no machine code" * 100)
    with pytest.raises(LaunchFailure, match="cannot be loaded"):
        session.load(tmp_path / "broken.cubin", both)


def test_memory_goes_from_eager_calls_to_graphs_and_back_to_the_device() -> None:
    session = open_session(open_profile("cuda:0", compile_only=False))
    free_bytes, _ = torch.cuda.mem_get_info()
    count = free_bytes * 6 // 10

    def fill() -> object:
        return torch.ones(count, dtype=torch.uint8, device=session.torch_device)

    fill()
    session.synchronize()
    assert torch.cuda.memory_reserved() >= count  # kept for the next eager call
    sampler = session.sampler([fill])
    sampler.run()
    assert torch.cuda.memory_reserved() >= count  # held by the graph
    del sampler
    session.free()
    assert torch.cuda.memory_reserved() < count // 10


def test_the_copy_bandwidth_is_a_share_of_the_memorys() -> None:
    profile = open_profile("cuda:0", compile_only=False)
    copied = open_session(profile).copy_gbps()
    assert 0.5 * float(profile.attributes["memory_gbps"]) < copied
    assert copied < 1.02 * float(profile.attributes["memory_gbps"])


def test_changed_integers_lie_on_the_gpu_as_all_inputs_do(tmp_path: Path) -> None:
    """The checksum of a set is taken on the GPU."""
    (tmp_path / "problem.py").write_text(PICKED)
    problem = create_problem("problem.py:Picked", "float32", tmp_path)
    pool = InputPool(problem, "cuda:0")
    case = problem.case({"rows": 500}, {})
    sets = pool.changed(case, 0)
    devices = {each.values.device.type for one in sets for each in one.alterations}
    assert devices == {"cuda"}
    assert pool.intact()
    sets[0].inputs["index"][0] += 1
    assert not pool.intact()
