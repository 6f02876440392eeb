"""A space of Python objects that is tuned in a second or two: its kernel scales rows."""

from __future__ import annotations

from typing import Any

import torch

import evotune

SOURCE = """
extern "C" void scale_rows(const float* x, const float* y, float* out, float* sums, float* scratch,
                           float factor, int rows, int columns) {
  for (int row = 0; row < rows; ++row) {
    scratch[0] = 0.0f;
    for (int column = 0; column < columns; column += 1) {
      const float value = factor * x[row * columns + column] + y[column];
      out[row * columns + column] = value;
      scratch[0] += value;
    }
    sums[row] = scratch[0];
  }
}
"""


class ScaleRows(evotune.Problem):
    """out = factor * x + y, and the sum of each row."""

    sizes = ("rows", "columns")
    constants = {"factor": 2.0}  # noqa: RUF012
    ranges = {"factor": (0.5, 4.0)}  # noqa: RUF012

    def inputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"x": (rows, columns), "y": (columns,)}

    def outputs(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {"out": (rows, columns), "sums": (rows,)}

    def operations(self, rows: int, columns: int) -> int:
        return 3 * rows * columns

    def compute(self, x: torch.Tensor, y: torch.Tensor, factor: float) -> dict[str, torch.Tensor]:
        out = factor * x + y
        return {"out": out, "sums": out.sum(dim=1)}


class FewRows(ScaleRows):
    """ScaleRows of small sizes only, so that a champion's random tests take a second."""

    def check(self, rows: int, columns: int) -> None:
        if rows * columns > 4096:
            raise ValueError("more than 4096 elements")


def kernel(source: str = SOURCE) -> evotune.CppKernel:
    return evotune.CppKernel(
        source_text=source,
        entry="scale_rows",
        arguments=["x", "y", "out", "sums", "scratch", "factor", "rows", "columns"],
        workspace={"scratch": evotune.Workspace(bytes=64)},
    )


def keywords(**given: Any) -> dict[str, Any]:
    return {
        "problem": ScaleRows,
        "shapes": [{"rows": 8, "columns": 64}],
        "parameters": {"UNUSED": [1, 2]},
        **given,
    }
