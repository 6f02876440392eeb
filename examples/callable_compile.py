"""Tunes options of torch.compile for an MLP block: `python examples/callable_compile.py [TRIALS]`.

The options are Inductor's, for its C++ code: the width of vectors, whether what follows a matrix
product is fused into one loop, and how much work a thread gets at least.
"""

import sys

import torch

import evotune

SOURCE = """
import torch


def block(x, up, gate, down):
    return (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down


def make(configuration, case):
    options = {
        "cpp.simdlen": configuration["SIMD"],
        "epilogue_fusion": configuration["FUSE"],
        "cpp.min_chunk_size": configuration["CHUNK"],
    }
    compiled = torch.compile(block, dynamic=False, fullgraph=True, options=options)

    @torch.no_grad()
    def call(x, up, gate, down):
        return compiled(x, up, gate, down)

    return call
"""


class GatedMlp(evotune.Problem):
    sizes = ("rows", "width", "hidden")

    def inputs(self, rows, width, hidden):
        wide = (width, hidden)
        return {"x": (rows, width), "up": wide, "gate": wide, "down": (hidden, width)}

    def outputs(self, rows, width, hidden):
        return {"out": (rows, width)}

    def operations(self, rows, width, hidden):
        return 6 * rows * width * hidden

    def compute(self, x, up, gate, down):
        return {"out": (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down}


trials = int(sys.argv[1]) if len(sys.argv) > 1 else 12
run = evotune.tune(
    evotune.Callable(source_text=SOURCE, entry="make"),
    parameters={
        "SIMD": [256, 512, 1],
        "FUSE": [True, False],
        "CHUNK": evotune.powers_of_two(512, 8192),
    },
    problem=GatedMlp,
    shapes=[{"rows": 32, "width": 128, "hidden": 384}],
    timeouts={"compile_s": 300},
    trials=trials,
    champions=1 if trials > 5 else 0,
)
print(run.best)
mlp = run.best.kernel()
x, up, gate, down = (torch.randn(*shape) for shape in ((4, 8), (8, 16), (8, 16), (16, 8)))
expected = (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down
print("largest difference:", (mlp(x, up, gate, down) - expected).abs().max().item())
