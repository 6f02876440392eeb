"""A kernel, its problem and its space in one script: `python examples/own_kernel.py [TRIALS]`.

The kernel adds the elements of each row. PARTS, how many sums it keeps at a time, is tuned.
"""

import sys

import torch

import evotune

SOURCE = """
extern "C" void row_sum(const float* x, float* out, int rows, int columns) {
  for (int row = 0; row < rows; ++row) {
    const float* values = x + static_cast<long>(row) * columns;
    float parts[PARTS] = {};
    int column = 0;
    for (; column + PARTS <= columns; column += PARTS)
      for (int i = 0; i < PARTS; ++i) parts[i] += values[column + i];
    float sum = 0;
    for (; column < columns; ++column) sum += values[column];
    for (int i = 0; i < PARTS; ++i) sum += parts[i];
    out[row] = sum;
  }
}
"""


class RowSum(evotune.Problem):
    sizes = ("rows", "columns")

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows,)}

    def operations(self, rows, columns):
        return rows * columns

    def compute(self, x):
        return {"out": x.sum(dim=-1)}


trials = int(sys.argv[1]) if len(sys.argv) > 1 else 6
run = evotune.tune(
    evotune.CppKernel(
        source_text=SOURCE, entry="row_sum", arguments=["x", "out", "rows", "columns"]
    ),
    parameters={"PARTS": evotune.powers_of_two(1, 32)},
    problem=RowSum,
    shapes=[{"rows": 16, "columns": 1000}],
    trials=trials,
    champions=1 if trials > 5 else 0,
)
print(run.best)
row_sum = run.best.kernel()
x = torch.randn(5, 300)
print("largest difference:", (row_sum(x) - x.sum(dim=-1)).abs().max().item())
