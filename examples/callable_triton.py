"""Tunes a Triton kernel with a launcher of its own: `python examples/callable_triton.py [TRIALS]`.

The launcher is a function of Python: it chooses the grid, and may launch several kernels. Needs
Triton and a CUDA GPU.
"""

import importlib.util
import sys

import torch

import evotune

SOURCE = """
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, out, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    inside = places < columns
    values = tl.load(x + row * stride + places, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * stride + places, powers / tl.sum(powers, 0), mask=inside)


def make(configuration, case):
    block = triton.next_power_of_2(case["columns"])

    def softmax(x, out):
        rows, columns = x.shape
        softmax_rows[(rows,)](
            x,
            out,
            columns,
            x.stride(0),
            BLOCK=block,
            num_warps=configuration["WARPS"],
            num_stages=configuration["STAGES"],
        )

    return softmax
"""


class Softmax(evotune.Problem):
    sizes = ("rows", "columns")

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def operations(self, rows, columns):
        return 5 * rows * columns

    def compute(self, x):
        return {"out": x.softmax(dim=-1)}


if not (torch.cuda.is_available() and importlib.util.find_spec("triton")):
    sys.exit("this example needs Triton and a CUDA GPU")
trials = int(sys.argv[1]) if len(sys.argv) > 1 else 12
run = evotune.tune(
    evotune.Callable(source_text=SOURCE, entry="make"),
    parameters={"WARPS": evotune.powers_of_two(1, 16), "STAGES": [1, 2, 3, 4]},
    problem=Softmax,
    shapes=[{"rows": 4096, "columns": 4096}],
    device="cuda:0",
    trials=trials,
    champions=1 if trials > 5 else 0,
)
print(run.best)
softmax = run.best.kernel()
x = torch.randn(100, 4096, device="cuda")
print("largest difference:", (softmax(x) - x.softmax(dim=-1)).abs().max().item())
