"""A user's program: calls a compiled attention kernel and SDPA in turn, on the CPU.

    python attention_cpu.py JOB ROW

It uses PyTorch and ctypes, and nothing of evotune. JOB is JSON: library, entry, symbols of the
case, arguments and workspaces. Each side is called ROW times before it is the other one's turn, and
allocates its output. Prints [ratio, kernel us, SDPA us], medians over the turns.
"""

import ctypes
import json
import statistics
import sys
import time

import torch
from torch.nn import functional

TURNS = 80
TYPES = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


def main() -> None:
    job, row = json.loads(sys.argv[1]), int(sys.argv[2])
    sizes = job["symbols"]
    dtype = getattr(torch, sizes["dtype"])
    q = torch.randn(sizes["batch"], sizes["heads"], sizes["seq_len_q"], sizes["head_dim"]).to(dtype)
    keys = (sizes["batch"], sizes["kv_heads"], sizes["seq_len_k"], sizes["head_dim"])
    k, v = torch.randn(keys).to(dtype), torch.randn(keys).to(dtype)
    scratch = {name: torch.zeros(size, dtype=torch.uint8) for name, size in job["workspaces"]}
    given = {"q": q, "k": k, "v": v, **scratch}
    arguments = [
        TYPES[kind](value)
        if kind in TYPES
        else ctypes.c_void_p(given[name].data_ptr() if name in given else None)
        for kind, name, value in job["arguments"]
    ]
    place = [name for _, name, _ in job["arguments"]].index("out")
    kernel = getattr(ctypes.CDLL(job["library"]), job["entry"])
    shared_heads = sizes["heads"] != sizes["kv_heads"]

    def ours():
        out = torch.empty_like(q)
        arguments[place] = ctypes.c_void_p(out.data_ptr())
        kernel(*arguments)
        return out

    def sdpa():
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=sizes["causal"], enable_gqa=shared_heads
        )

    torch.testing.assert_close(ours().float(), sdpa().float(), atol=2e-2, rtol=2e-2)
    time_us(sdpa, 3)
    time_us(ours, 3)
    found = [(time_us(sdpa, row), time_us(ours, row)) for _ in range(TURNS)]
    columns = ([theirs / mine for theirs, mine in found], *zip(*found, strict=True))
    ratio, theirs, mine = map(statistics.median, columns)
    print(json.dumps([ratio, mine, theirs]))


def time_us(call, count):
    started = time.perf_counter()
    for _ in range(count):
        call()
    return 1e6 * (time.perf_counter() - started) / count


main()
