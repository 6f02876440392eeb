"""Tunes an RMSNorm written in numba, on the CPU: `python examples/callable_numba.py [TRIALS]`.

PARTS is the number of sums that the kernel keeps at a time. FASTMATH lets LLVM reorder additions.
"""

import sys

import torch

import evotune

SOURCE = """
import numba
import numpy


def make(configuration, case):
    parts = configuration["PARTS"]
    one = numpy.float32(1.0)

    @numba.njit(fastmath=configuration["FASTMATH"])
    def normalize(x, w, out):
        columns = x.shape[1]
        whole = columns - columns % parts
        for row in range(x.shape[0]):
            sums = numpy.zeros(parts, numpy.float32)
            for first in range(0, whole, parts):
                for part in range(parts):
                    value = x[row, first + part]
                    sums[part] += value * value
            total = numpy.float32(0.0)
            for part in range(parts):
                total += sums[part]
            for column in range(whole, columns):
                total += x[row, column] * x[row, column]
            scale = one / numpy.sqrt(total / numpy.float32(columns) + numpy.float32(1e-6))
            for column in range(columns):
                out[row, column] = x[row, column] * scale * w[column]

    return lambda x, w, out: normalize(x.numpy(), w.numpy(), out.numpy())
"""


class RmsNorm(evotune.Problem):
    sizes = ("rows", "columns")

    def inputs(self, rows, columns):
        return {"x": (rows, columns), "w": (columns,)}

    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def operations(self, rows, columns):
        return 4 * rows * columns

    def compute(self, x, w):
        return {"out": x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w}


trials = int(sys.argv[1]) if len(sys.argv) > 1 else 10
run = evotune.tune(
    evotune.Callable(source_text=SOURCE, entry="make"),
    parameters={"PARTS": evotune.powers_of_two(1, 16), "FASTMATH": [False, True]},
    problem=RmsNorm,
    shapes=[{"rows": 128, "columns": 1000}],
    trials=trials,
    champions=1 if trials > 5 else 0,
)
print(run.best)
normalize = run.best.kernel()
x, w = torch.randn(5, 300), torch.randn(300)
expected = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
print("largest difference:", (normalize(x, w) - expected).abs().max().item())
