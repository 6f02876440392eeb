"""A model whose attention a tuned package serves: `python examples/serve_attention.py [TRIALS]`.

Tunes attention on the CPU at the model's shape, exports the winner, and times the model with and
without the package. Where nothing was surely faster, the export says so and the script ends.
"""

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import evotune

HEADS, LENGTH, HEAD_DIM = 8, 512, 64
WIDTH = HEADS * HEAD_DIM


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2).contiguous()
            for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(-2))


def milliseconds(model, x):
    times = []
    for _ in range(9):
        start = time.perf_counter()
        model(x)
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times)[len(times) // 2]


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("trials", nargs="?", type=int, default=30)
trials = parser.parse_args().trials
run = evotune.tune("attention-cpu", trials=trials, champions=1, device="cpu")
print(run.best)
try:
    folder = run.export("tuned_attention_package", name="tuned_attention")
except evotune.EvotuneError as error:
    sys.exit(f"nothing to use: {error}")
sys.path.insert(0, str(folder))  # or: pip install --no-deps ./tuned_attention_package
import tuned_attention  # noqa: E402

model, x = nn.Sequential(*(Block() for _ in range(4))).eval(), torch.randn(1, LENGTH, WIDTH)
with torch.inference_mode():
    plain = model(x)
    before_ms = milliseconds(model, x)
    with tuned_attention.active():
        served = model(x)
        after_ms = milliseconds(model, x)
print("largest difference:", (served - plain).abs().max().item())
print(f"calls served: {tuned_attention.info()['calls']}; the rest: {tuned_attention.misses()}")
print(f"the model takes {after_ms:.1f} ms instead of {before_ms:.1f}")
