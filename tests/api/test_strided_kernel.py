"""`run.best.kernel()` on views: attention takes any strides; a kernel that is told none says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml

import evotune
from evotune.runs.spaces import find_space

BATCH, HEADS, KV_HEADS, LENGTH, DIM = 2, 4, 2, 37, 32
SMALL = {"batch": 1, "heads": 2, "seq_len": 33, "head_dim": DIM}

CONTIGUOUS = """
#include <algorithm>
#include <cmath>
#include <vector>
extern "C" void contiguous(const float* q, const float* k, const float* v, float* out, float scale,
                           int batch, int heads, int kv_heads, int rows, int keys) {
  constexpr int D = HEAD_DIM;
  std::vector<double> weights(keys);
  for (int row = 0; row < batch * heads * rows; ++row, q += D, out += D) {
    const int head = row / rows, of_batch = head / heads, group = heads / kv_heads;
    const int first = (of_batch * kv_heads + head % heads / group) * keys;
    const int seen = std::min(keys, row % rows + 1);
    double top = -1e30, sum = 0;
    for (int j = 0; j < seen; ++j) {
      weights[j] = 0;
      for (int d = 0; d < D; ++d) weights[j] += double(q[d]) * k[(first + j) * D + d] * scale;
      top = std::max(top, weights[j]);
    }
    for (int j = 0; j < seen; ++j) sum += weights[j] = std::exp(weights[j] - top);
    for (int d = 0; d < D; ++d) {
      double mean = 0;
      for (int j = 0; j < seen; ++j) mean += weights[j] / sum * v[(first + j) * D + d];
      out[d] = float(mean);
    }
  }
}
"""


def attention(folder: Path, *, told_strides: bool) -> Any:
    shipped = find_space("attention-scalar-cpu")
    space = yaml.safe_load(shipped.read_text())
    space["root"] = str(shipped.parents[1])
    space["problem"] |= {"shapes": [SMALL], "variants": [{"causal": True}]}
    if not told_strides:
        (kernel,) = space["kernels"].values()
        (folder / "contiguous.cpp").write_text(CONTIGUOUS)
        arguments = ["q", "k", "v", "out", "softmax_scale", "batch", "heads", "kv_heads"]
        arguments += ["seq_len_q", "seq_len_k"]
        kernel |= {"source": "contiguous.cpp", "entry": "contiguous", "arguments": arguments}
        space |= {"root": str(folder)}
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    run = evotune.tune(path, trials=1, champions=0, runs_dir=folder / "runs")
    return run.best.kernel()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return attention(tmp_path_factory.mktemp("strided"), told_strides=True)


def views(layout: str) -> tuple[torch.Tensor, ...]:
    """q, k and v, as programs have them."""
    if layout == "packed_qkv":
        packed = torch.randn(BATCH, LENGTH, HEADS + 2 * KV_HEADS, DIM).transpose(1, 2)
        return packed.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    if layout == "blhd":
        heads = (HEADS, KV_HEADS, KV_HEADS)
        return tuple(torch.randn(BATCH, LENGTH, n, DIM).transpose(1, 2) for n in heads)
    q = torch.randn(HEADS, BATCH, LENGTH, DIM + 8)[..., :DIM].transpose(0, 1)
    k = torch.randn(BATCH, KV_HEADS, LENGTH, DIM)
    v = torch.randn(LENGTH, KV_HEADS, BATCH, 2 * DIM)[..., DIM:].permute(2, 1, 0, 3)
    return q, k, v


@pytest.mark.parametrize("layout", ["blhd", "packed_qkv", "of its own each"])
def test_views_are_taken_as_they_lie(kernel: Any, layout: str) -> None:
    q, k, v = views(layout)
    assert not q.is_contiguous()
    before = [tensor.clone() for tensor in (q, k, v)]
    out = kernel(q, k, v)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, expected)
    assert out.stride() == torch.empty_like(q).stride()  # it lies like q, as SDPA's may
    copies = (tensor.contiguous() for tensor in (q, k, v))
    assert torch.equal(kernel(*copies), out)
    assert all(map(torch.equal, before, (q, k, v)))


def test_what_no_kernel_takes_is_one_line(kernel: Any) -> None:
    q, k, v = views("blhd")
    wide = torch.randn(BATCH, HEADS, LENGTH, 2 * DIM)[..., ::2]
    with pytest.raises(ValueError, match=r"q is not contiguous in its last dimension: call it"):
        kernel(wide, k, v)
    odd = torch.randn(BATCH, HEADS, LENGTH, DIM + 1)[..., :DIM]
    with pytest.raises(ValueError, match=r"q has a stride that is no multiple of 16 bytes"):
        kernel(odd, k, v)
    assert kernel(q, k, v).shape == q.shape


@pytest.mark.soak
def test_a_kernel_without_strides_takes_contiguous_tensors_only(tmp_path: Path) -> None:
    kernel = attention(tmp_path, told_strides=False)
    with pytest.raises(ValueError, match=r"q is not contiguous: call it with q\.contiguous\(\)"):
        kernel(*views("blhd"))
