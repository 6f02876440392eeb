"""A user's program: replays CUDA graphs of a compiled attention kernel and of SDPA in turn.

    python attention_cuda.py JOB ROW

It uses PyTorch, ctypes and the driver, and nothing of evotune. JOB is JSON: library (a cubin),
launches, baseline, symbols of the case, arguments and workspaces. Each side is a graph of ROW calls
that allocate their output. The graphs are replayed in turn and timed by events. Before each replay
the GPU pauses long enough for the CPU to enqueue it. Prints [ratio, kernel us, SDPA us], medians
over the turns. It cannot launch kernels that take tensor maps.
"""

import ctypes
import json
import statistics
import sys
from pathlib import Path

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

TURNS = 100
PAUSE_CYCLES = 200_000
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
TYPES = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}
BACKENDS = {
    "sdpa:flash": SDPBackend.FLASH_ATTENTION,
    "sdpa:cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa:efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa:math": SDPBackend.MATH,
}
driver = ctypes.CDLL("libcuda.so.1")


def main() -> None:
    job, row = json.loads(sys.argv[1]), int(sys.argv[2])
    sizes = job["symbols"]
    dtype = getattr(torch, sizes["dtype"])

    def made(heads, length):
        shape = (sizes["batch"], sizes[heads], sizes[length], sizes["head_dim"])
        return torch.randn(shape, device="cuda").to(dtype)

    q = made("heads", "seq_len_q")
    k, v = (made("kv_heads", "seq_len_k") for _ in range(2))
    scratch = {
        name: torch.zeros(size, dtype=torch.uint8, device="cuda")
        for name, size in job["workspaces"]
    }
    given = {"q": q, "k": k, "v": v, **scratch}
    functions = loaded(Path(job["library"]).read_bytes(), job["launches"])
    shared_heads = sizes["heads"] != sizes["kv_heads"]

    def ours():
        out = torch.empty_like(q)
        values = [
            TYPES[kind](value)
            if kind in TYPES
            else ctypes.c_void_p({**given, "out": out}[name].data_ptr())
            for kind, name, value in job["arguments"]
        ]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for function, (grid, block, shared_bytes, _) in zip(
            functions, job["launches"], strict=True
        ):
            extents = [*grid, *[1] * (3 - len(grid)), *block, *[1] * (3 - len(block))]
            check(driver.cuLaunchKernel(function, *extents, shared_bytes, stream, addresses, None))
        return out

    def sdpa():
        with sdpa_kernel(BACKENDS[job["baseline"]]):
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=sizes["causal"], enable_gqa=shared_heads
            )

    torch.testing.assert_close(ours().float(), sdpa().float(), atol=2e-2, rtol=2e-2)
    graphs = [graph_of(call, row) for call in (sdpa, ours)]
    found = [[time_us(graph, row) for graph in graphs] for _ in range(TURNS)]
    columns = ([theirs / mine for theirs, mine in found], *zip(*found, strict=True))
    ratio, theirs, mine = map(statistics.median, columns)
    print(json.dumps([ratio, mine, theirs]))


def loaded(cubin, launches):
    torch.zeros(1, device="cuda")  # makes the context
    module = ctypes.c_void_p()
    check(driver.cuModuleLoadData(ctypes.byref(module), cubin))
    functions = []
    for _, _, shared_bytes, entry in launches:
        function = ctypes.c_void_p()
        check(driver.cuModuleGetFunction(ctypes.byref(function), module, entry.encode()))
        if shared_bytes:
            limit = (function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
            driver.cuFuncSetAttribute(*limit)  # refused where the default is enough already
        functions.append(function)
    return functions


def graph_of(call, row):
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(row):
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def time_us(graph, row):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(PAUSE_CYCLES)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1000 * begin.elapsed_time(end) / row


def check(status):
    if status:
        raise RuntimeError(f"the driver says {status}")


main()
