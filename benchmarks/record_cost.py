"""Times what recording costs a program: whole models with a recording open and without, in turn.

    python benchmarks/record_cost.py [--rounds 40] [-o FILE]

The models are small, so that calls of attention are frequent: an encoder of nn.MultiheadAttention
(4 layers, width 256, 4 x 128 tokens), the same compiled, SDPA with a padding mask (4 layers), and
decoding of 64 tokens with a cache that grows. Recording and not take turns, a run each; `ratio` is
the median of the pairs' ratios, with its quartiles. `call_us` is what a call of SDPA on
(1, 1, 1, 8) costs on top with a recording open. Times are the process's own (CPU time of one
thread), which other work on the machine disturbs little. Results are compared bit by bit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import evotune
from evotune.runs.given_cases import profile_of

_WIDTH, _HEADS, _LAYERS = 256, 4, 4


class Layer(torch.nn.Module):
    """Attention with grouped heads and a cache, or a mask, and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = torch.nn.Linear(_WIDTH, _WIDTH)
        self.wide = torch.nn.Linear(_WIDTH, 4 * _WIDTH)
        self.narrow = torch.nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None, cache: list[torch.Tensor] | None
    ) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = (torch.cat([old, new], dim=2) for old, new in zip(cache, (k, v), strict=True))
            cache[:] = k, v
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, -1))
        return x + self.narrow(F.gelu(self.wide(x)))


def encoder() -> Callable[[], torch.Tensor]:
    layer = torch.nn.TransformerEncoderLayer(_WIDTH, _HEADS, 4 * _WIDTH, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False).eval()
    for each in model.layers:
        each.self_attn.batch_first = True
    x = torch.randn(4, 128, _WIDTH)
    return lambda: model(x)


def compiled() -> Callable[[], torch.Tensor]:
    layers, x = [Layer().eval() for _ in range(_LAYERS)], torch.randn(4, 128, _WIDTH)

    @torch.compile
    def model(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x, None, None)
        return x

    return lambda: model(x)


def padded() -> Callable[[], torch.Tensor]:
    layers, x = [Layer().eval() for _ in range(_LAYERS)], torch.randn(4, 128, _WIDTH)
    mask = torch.ones(4, 1, 1, 128, dtype=torch.bool)
    mask[0, :, :, 100:] = False

    def model() -> torch.Tensor:
        found = x
        for layer in layers:
            found = layer(found, mask, None)
        return found

    return model


def decoding() -> Callable[[], torch.Tensor]:
    layers = [Layer().eval() for _ in range(_LAYERS)]
    start = torch.randn(1, 1, _WIDTH)

    def model() -> torch.Tensor:
        empty = (1, _HEADS, 0, _WIDTH // _HEADS)
        caches = [[torch.empty(empty), torch.empty(empty)] for _ in layers]
        x = start
        for _ in range(64):
            for layer, cache in zip(layers, caches, strict=True):
                x = layer(x, None, cache)
        return x

    return model


def measured(run: Callable[[], torch.Tensor], rounds: int) -> dict[str, Any]:
    """The ratio of the times with a recording open and without, in turn."""
    plain = run()
    with evotune.recording() as calls:
        same = torch.equal(run(), plain)
    run()
    ratios, times = [], []
    for number in range(rounds):
        pair = {}
        for recorded in (number % 2 == 0, number % 2 == 1):
            if recorded:
                with evotune.recording():
                    run()  # takes what entering costs
                    pair[recorded] = _time_us(run)
            else:
                run()
                pair[recorded] = _time_us(run)
        ratios.append(pair[True] / pair[False])
        times.append(pair[False])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "ratio": round(middle, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "run_us": round(statistics.median(times), 1),
        "calls": calls.count,
        "bit_identical": same,
    }


def _time_us(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return (time.process_time() - begin) * 1e6


def call_us(rounds: int) -> float:
    """How many µs an open recording adds to a call of SDPA: the median over the rounds."""
    q = torch.randn(1, 1, 1, 8)

    def calls() -> None:
        for _ in range(1000):
            F.scaled_dot_product_attention(q, q, q)

    differences = []
    for _ in range(rounds):
        plain = _time_us(calls)
        with evotune.recording():
            differences.append((_time_us(calls) - plain) / 1000)
    return round(statistics.median(differences), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = {"encoder": encoder, "compiled": compiled, "padded": padded, "decoding": decoding}
    with torch.no_grad():
        rows = {name: measured(make(), options.rounds) for name, make in models.items()}
        found = {
            "command": ["python", "benchmarks/record_cost.py", "--rounds", str(options.rounds)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "torch": torch.__version__,
            "processor": profile_of("cpu").name,
            "rounds": options.rounds,
            "call_us": call_us(options.rounds),
            "models": rows,
        }
    text = json.dumps(found, indent=2)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
