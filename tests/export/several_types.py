"""A problem with tensors of five types, on the CPU, and a run of it."""

from __future__ import annotations

from pathlib import Path

from evotune.runs.folder import RunFolder

from .making import fabricated

PROBLEM = """
from evotune.problems import Tensor, UserProblem


class PickedLoss(UserProblem):
    '''loss = cross-entropy of logits + bias, in floats of 8 bits scaled for each row too; rank =
    how many logits are greater than the target's.'''

    sizes = ("rows", "classes")

    def inputs(self, rows, classes):
        return {
            "target": Tensor((rows,), "int64", range(classes)),
            "logits": (rows, classes),
            "bias": Tensor((classes,), "float8_e5m2"),
            "weight": Tensor((rows,), "float32", (0.5, 2.0)),
            "kind": Tensor((rows,), "uint8", range(256)),
        }

    def outputs(self, rows, classes):
        return {
            "loss": (rows,),
            "rank": Tensor((rows,), "int32"),
            "power": Tensor((rows,), "float8_e5m2"),
        }

    def operations(self, rows, classes):
        return 3 * rows * classes

    def compute(self, target, logits, bias, weight, kind):
        import torch
        import torch.nn.functional as F

        values = logits + bias
        own = values.gather(1, target.clamp(min=0)[:, None])
        power = values.abs().amax(-1).clamp(1.0, 1024.0).log2().floor().exp2()
        loss = F.cross_entropy(values, target, reduction="none") * weight + kind
        return {"loss": loss, "rank": (values > own).sum(-1).to(torch.int32), "power": power}
"""
SPACE = """
name: picked-loss
root: .
problem:
  name: problem.py:PickedLoss
  dtype: float32
  shapes: [{rows: 8, classes: 64}]
  held_out: [{rows: 16, classes: 32}]
kernels:
  picked:
    source: picked.cpp
    entry: picked
    arguments: [target, logits, bias, weight, kind, loss, rank, power, rows, classes]
parameters: {UNROLL: [1, 2]}
baseline: torch:best
"""
KERNEL = """
#include <cmath>
#include <cstdint>
static float widened(uint8_t bits) {  // e5m2: five bits of exponent
  const int exponent = bits >> 2 & 31, fraction = bits & 3;
  const float size =
      exponent ? std::ldexp(4.0f + fraction, exponent - 17) : std::ldexp(float(fraction), -16);
  return bits & 128 ? -size : size;
}
extern "C" void picked(const long long* target, const float* logits, const uint8_t* bias,
                       const float* weight, const uint8_t* kind, float* loss, int* rank,
                       uint8_t* power, int rows, int classes) {
  for (int r = 0; r < rows; ++r) {
    const float* row = logits + static_cast<long>(r) * classes;
    const float own = row[target[r]] + widened(bias[target[r]]);
    double sum = 0;
    float top = 1.0f;
    rank[r] = 0;
    for (int i = 0; i < classes; ++i) {
      const float value = row[i] + widened(bias[i]);
      sum += std::exp(static_cast<double>(value) - own);
      rank[r] += value > own;
      top = std::fmax(top, std::fabs(value));
    }
    loss[r] = static_cast<float>(std::log(sum)) * weight[r] + kind[r];
    power[r] = static_cast<uint8_t>(std::ilogb(std::fmin(top, 1024.0f)) + 15 << 2);
  }
}
"""


def picked_loss(folder: Path, problem: str = PROBLEM) -> RunFolder:
    """A confirmed run, made up but for its machine code."""
    (folder / "problem.py").write_text(problem)
    (folder / "space.yaml").write_text(SPACE)
    (folder / "picked.cpp").write_text(KERNEL)
    return fabricated(folder / "space.yaml", folder)
