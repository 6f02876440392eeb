"""Exported packages on a GPU: both launchers, streams, captured graphs, several GPUs."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from evotune.backends import registry
from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cuda.discovery import open_profile
from evotune.workers.compile_worker import compiler_for
from tests.export.runtime.packages import CASE, HEAD_DIM, description, imported, region, write

pytestmark = pytest.mark.gpu

Open = Callable[..., ModuleType]
NATIVE = [True, False]
GROUPED: dict[str, Any] = {"enable_gqa": True}
_numbers = itertools.count()
SOURCE = """
// A thread computes a row. The counter is zero between launches: the last block resets it. Blocks
// of two launches on one counter, or one that is not zero, give NaN.
extern "C" __global__ void attention(const float* q, const float* k, const float* v, float* out,
                                     float* scratch, int* counter, float scale, int heads,
                                     int kv_heads, int rows, int keys) {
  extern __shared__ float unused[];
  const int head = blockIdx.y, row = blockIdx.x * blockDim.x + threadIdx.x;
  const int group = head / heads * kv_heads + head % heads / (heads / kv_heads);
  __shared__ int ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(counter, 1);
  __syncthreads();
  const int blocks = gridDim.x * gridDim.y;
  if (row < rows) {
    const float* query = q + (long)(head * rows + row) * HEAD_DIM;
    float* result = out + (long)(head * rows + row) * HEAD_DIM;
    float* kept = scratch + (long)(head * rows + row) * HEAD_DIM;
    const int seen = CAUSAL ? min(keys, row + 1) : keys;
    float top = -1e30f, sum = 0;
    for (int d = 0; d < HEAD_DIM; ++d) kept[d] = 0;
    for (int j = 0; j < seen; ++j) {
      const long at = (long)(group * keys + j) * HEAD_DIM;
      float score = 0;
      for (int d = 0; d < HEAD_DIM; ++d) score += query[d] * k[at + d];
      score *= scale;
      const float higher = fmaxf(top, score);
      const float alpha = expf(top - higher), weight = expf(score - higher);
      sum = sum * alpha + weight;
      top = higher;
      for (int d = 0; d < HEAD_DIM; ++d) kept[d] = kept[d] * alpha + weight * v[at + d];
    }
    const float nan = __int_as_float(0x7fffffff);
    for (int d = 0; d < HEAD_DIM; ++d) result[d] = ticket < blocks ? kept[d] / sum : nan;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && ticket == blocks - 1) *counter = 0;
}
"""
PLAN: dict[str, Any] = {
    "entry": "attention",
    "arguments": [
        *({"type": "tensor", "name": name} for name in ("q", "k", "v", "out")),
        *({"type": "workspace", "name": name} for name in ("scratch", "counter")),
        {"type": "float32", "value": {"name": "softmax_scale"}},
        *(
            {"type": "int32", "value": {"name": name}}
            for name in ("heads", "kv_heads", "seq_len_q", "seq_len_k")
        ),
    ],
    "workspaces": [
        {
            "name": "scratch",
            "bytes": ["*", 4 * HEAD_DIM, ["*", {"name": "rows"}, {"name": "batch"}]],
            "init": "poison",
        },
        {"name": "counter", "bytes": 4, "init": "zero_once"},
    ],
    "launches": [
        {
            "entry": "attention",
            "grid": [
                ["ceil_div", {"name": "seq_len_q"}, 64],
                ["*", {"name": "batch"}, {"name": "heads"}],
            ],
            "block": [64],
            "shared_bytes": 60000,
        }
    ],
}


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, bytes]:
    folder = tmp_path_factory.mktemp("cubins")
    (folder / "k.cu").write_text(SOURCE)
    arch = open_profile("cuda:0", compile_only=False).arch
    found = {}
    for causal in (False, True):
        defines = (("HEAD_DIM", HEAD_DIM), ("CAUSAL", int(causal)))
        job = CompileJob("cuda", str(folder), "k.cu", defines, (), arch, "")
        built = compiler_for("cuda").compile(job, folder / "k.cubin", 60)
        assert not isinstance(built, CompileFailure), built
        found[causal] = (folder / "k.cubin").read_bytes()
    return found


@pytest.fixture
def opened(tmp_path: Path, cubins: dict[bool, bytes]) -> Iterator[Open]:
    profile = open_profile("cuda:0", compile_only=False)
    with ExitStack() as stack:

        def make(native: bool = True, **changes: Any) -> ModuleType:
            name = f"on_gpu_{next(_numbers)}"
            device = {
                "backend": "cuda",
                "name": profile.name,
                "multiprocessors": profile.attributes["multiprocessors"],
            }
            sizes = {**CASE, "seq_len_q": [1, 3000], "seq_len_k": [1, 3000]}
            served = [region(**CASE), region(causal=True, **CASE), region(near=True, **sizes)]
            dispatch = description(name, **{"device": device, "served": served, **changes})
            kernel = {**dispatch["kernels"][0], "plan": PLAN, "guards": []}
            files = {}
            for causal, content in cubins.items():
                file = f"binaries/{int(causal)}.cubin"
                files[file] = content
                kernel["binaries"].append(
                    {
                        "fixed": {"causal": causal},
                        "file": file,
                        "sha256": hashlib.sha256(content).hexdigest(),
                    }
                )
            dispatch["kernels"] = [kernel]
            if not native:
                given = registry.named("cuda").exported_files(name)
                files |= {n: b"" for n in given if n.startswith("_native_") and n.endswith(".so")}
            module = stack.enter_context(imported(write(tmp_path, name, dispatch, files)))
            assert module.info()["launcher"].startswith("native" if native else "ctypes")
            assert module.info()["device_matches"], module.info()["why_not"]
            return module

        yield make


def inputs(length: int = 40, seed: int = 0, device: str = "cuda") -> list[torch.Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    return [
        torch.randn(1, heads, length, HEAD_DIM, generator=generator, device=device)
        for heads in (4, 2, 2)
    ]


def expected(tensors: list[torch.Tensor], **options: Any) -> torch.Tensor:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch._C._nn.scaled_dot_product_attention(*tensors, **options, **GROUPED)


def agree(found: torch.Tensor, tensors: list[torch.Tensor], **options: Any) -> None:
    torch.testing.assert_close(found, expected(tensors, **options), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("native", NATIVE)
def test_calls_are_served(opened: Open, native: bool) -> None:
    module = opened(native)
    for causal in (False, True):
        agree(module.attention(*inputs(), is_causal=causal, **GROUPED), inputs(), is_causal=causal)
    agree(module.attention(*inputs(700), **GROUPED), inputs(700))
    with torch.inference_mode():
        agree(module.attention(*inputs(), **GROUPED), inputs())
    assert module.info()["calls"] == 4
    assert module.check()


@pytest.mark.parametrize("native", NATIVE)
def test_the_rest_gets_the_bits_of_sdpa(opened: Open, native: bool) -> None:
    module = opened(native)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tensors in (inputs(3001), [t.half() for t in inputs()], inputs(device="cpu")):
            with module.active():
                out = F.scaled_dot_product_attention(*tensors, **GROUPED)
            assert torch.equal(out, F.scaled_dot_product_attention(*tensors, **GROUPED))
    assert module.info()["calls"] == 0


@pytest.mark.parametrize("native", NATIVE)
def test_streams_run_side_by_side(opened: Open, native: bool) -> None:
    module = opened(native)
    tensors = [inputs(2000, seed) for seed in range(4)]
    streams = [torch.cuda.Stream() for _ in tensors]
    torch.cuda.synchronize()
    outs: list[torch.Tensor] = []
    for _ in range(20):
        for stream, given in zip(streams, tensors, strict=True):
            with torch.cuda.stream(stream):
                outs.append(module.attention(*given, **GROUPED))
    torch.cuda.synchronize()
    for number, out in enumerate(outs):
        agree(out, tensors[number % 4])


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("warm", [False, True])
def test_captured_graphs_run_beside_eager_calls(opened: Open, native: bool, warm: bool) -> None:
    module = opened(native)
    tensors = inputs(2000)
    if warm:
        module.attention(*tensors, **GROUPED)
    graphs, outs = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs.append(module.attention(*tensors, **GROUPED))
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    eager = []
    for _ in range(20):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        eager.append(module.attention(*tensors, **GROUPED))
    torch.cuda.synchronize()
    for out in (*outs, *eager):
        agree(out, tensors)
    tensors[0].mul_(-1)
    graphs[0].replay()
    agree(outs[0], tensors)


@pytest.mark.parametrize("native", NATIVE)
def test_a_thread_that_never_used_the_gpu_can_call(opened: Open, native: bool) -> None:
    module = opened(native)
    tensors = inputs()
    module.attention(*tensors, **GROUPED)
    outs: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: outs.append(module.attention(*tensors, **GROUPED)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(outs) == 4
    for out in outs:
        agree(out, tensors)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # of PyTorch's
@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_functions_are_served(opened: Open, native: bool, mode: str) -> None:
    module = opened(native)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True) * 2,
        fullgraph=True,
        mode=mode,
    )
    tensors = inputs()
    with warnings.catch_warnings(), torch.no_grad(), module.active():
        warnings.simplefilter("ignore")
        for _ in range(4):
            torch.testing.assert_close(
                compiled(*tensors), 2 * expected(tensors), atol=1e-3, rtol=1e-3
            )
    assert module.info()["calls"] >= 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of PyTorch's
@pytest.mark.parametrize("native", NATIVE)
def test_operators_keep_their_promises(opened: Open, native: bool) -> None:
    module = opened(native)
    operators = getattr(torch.ops, module.__name__)
    views = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tensors in (inputs(), inputs(3001), views):
            torch.library.opcheck(operators.attention.default, (*tensors, False, None, True))
            torch.library.opcheck(operators._served.default, (*tensors, True, 0.25, True))
        with_grad = [t.requires_grad_() for t in inputs()]
        torch.library.opcheck(operators.attention.default, (*with_grad, False, None, True))


@pytest.mark.parametrize("native", NATIVE)
def test_two_names_of_a_package_count_for_themselves(opened: Open, native: bool) -> None:
    module = opened(native)
    assert module.__file__
    again = Path(module.__file__).parent.with_name(f"{module.__name__}_again")
    again.symlink_to(module.__name__)
    with imported(again) as other:
        for each in (module, other, other):
            agree(each.attention(*inputs(), **GROUPED), inputs())
        assert (module.info()["calls"], other.info()["calls"]) == (1, 2)


class Attended(torch.utils.data.Dataset[torch.Tensor]):
    """Results of a package on a CPU, for the workers of a data loader."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> torch.Tensor:
        out: torch.Tensor = self._module.attention(*inputs(device="cpu"), **GROUPED)
        return out


@pytest.mark.filterwarnings("ignore")  # of the miss, and of fork
@pytest.mark.parametrize("native", NATIVE)
def test_a_data_loader_may_fork_beside_a_package(opened: Open, native: bool) -> None:
    module = opened(native)
    module.attention(*inputs(), **GROUPED)
    loader = torch.utils.data.DataLoader(
        Attended(module), num_workers=2, batch_size=None, multiprocessing_context="fork", timeout=60
    )
    for out in loader:
        agree(out, inputs(device="cpu"))
        agree(module.attention(*inputs(), **GROUPED), inputs())
    assert module.info()["calls"] == 5


@pytest.mark.filterwarnings("ignore")  # of misses, and of PyTorch's kinds of tensors
@pytest.mark.parametrize("native", NATIVE)
def test_random_calls_are_right(
    opened: Open, benchmark_module: Callable[[str], ModuleType], native: bool
) -> None:
    script = benchmark_module("export_random_calls")
    package = opened(native).__file__
    assert package
    # In processes of their own: PyTorch's SDPA ends some of them.
    options = argparse.Namespace(
        package=Path(package).parent, seed=0, processes=2, minutes=float("inf")
    )
    record = script.campaign(options, range(200))
    assert record["findings"] == record["crashes"] == []
    assert record["verdicts"]["hook"]["within the limit of float64"] > 20


@pytest.mark.filterwarnings("ignore")  # of misses
@pytest.mark.parametrize("native", NATIVE)
def test_streams_threads_and_graphs_give_the_bits_of_one_thread(
    opened: Open, benchmark_module: Callable[[str], ModuleType], native: bool
) -> None:
    script = benchmark_module("export_streams")
    options = argparse.Namespace(minutes=0.05, threads=4, streams=2, seed=0)
    with torch.no_grad():
        record = script.campaign(opened(native), options)
    assert (record["wrong"], record["errors"], record["not_served"]) == ({}, [], 0)
    assert record["calls"].keys() == {"attention", "hook", "operator", "graph"}


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one(opened: Open, native: bool) -> None:
    module = opened(native)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        out = module.attention(*inputs(device=device), **GROUPED)
        assert str(out.device) == device
        agree(out, inputs(device=device))
    assert module.info()["calls"] == 3


@pytest.mark.filterwarnings("ignore")  # of the miss
@pytest.mark.parametrize("native", NATIVE)
def test_calls_are_served_and_counted_under_a_default_device(opened: Open, native: bool) -> None:
    module = opened(native)
    tensors, halves = inputs(), [tensor.half() for tensor in inputs()]
    with module.active(), torch.device("cuda"), torch.no_grad():
        for _ in range(3):
            agree(F.scaled_dot_product_attention(*tensors, **GROUPED), tensors)
            F.scaled_dot_product_attention(*halves, **GROUPED)
    assert module.info()["calls"] == 3
    assert module.info()["misses"]["dtype"]["count"] == 3


@pytest.mark.filterwarnings("ignore")  # of misses
def test_the_benchmark_times_each_state_of_pytorch(
    opened: Open, benchmark_module: Callable[[str], ModuleType]
) -> None:
    module = opened(served=[region(**CASE)])  # so that other lengths are misses
    with torch.no_grad():
        record = benchmark_module("export_call").measured(module, 0, calls=2, rounds=2, modes=True)
    assert sum("extra_us" in row for row in record["paths"]) == 15
