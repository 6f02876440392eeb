"""Tiny models that call attention as real ones do, and searches that take no time."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from evotune.backends.cpu import CpuBackend
from evotune.portfolios import family_race
from evotune.runs.folder import RunFolder
from evotune.runs.observer import Observer
from evotune.runs.spaces import find_space
from evotune.runs.starting import RunRequest, RunResult
from tests.export.making import fabricated

WIDTH, HEADS = 64, 2


class SelfAttention(nn.Module):
    """Attention with `kv_heads` heads of keys, `calls` to SDPA with `options`."""

    def __init__(self, kv_heads: int = HEADS, **options: Any) -> None:
        super().__init__()
        self.size, self.kv_heads, self.options = WIDTH // HEADS, kv_heads, options
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(WIDTH, 2 * kv_heads * self.size)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, HEADS, self.size).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, self.kv_heads, self.size).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)
        return self.out(out.transpose(1, 2).flatten(2))


class ViT(nn.Module):
    """An image in 16 patches and a class token, two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.layers = nn.ModuleList(SelfAttention() for _ in range(2))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x[:, 0])


class Decoder(nn.Module):
    """Tokens, causal attention with one head of keys, logits in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.layer = SelfAttention(kv_heads=1, is_causal=True, enable_gqa=True)

    def forward(self, tokens: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        x = self.embedding(tokens)
        return {"logits": scale * (x + self.layer(x)) @ self.embedding.weight.T}


class Padded(nn.Module):
    """A layer with a padding mask, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SelfAttention(), SelfAttention()

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(x.shape[1]) < lengths[:, None, None, None]
        return self.second(self.first(x, mask))


@contextlib.contextmanager
def made_up_searches(
    speedup: float = 1.25, cases: Mapping[str, float] | None = None, interrupted: int = 0
) -> Iterator[list[RunRequest]]:
    """A search of a family compiles its space's default, and makes up its speedup, which `cases`
    may have of their own. Yields the requests; the first ones are `interrupted`. Tiny kernels gain
    less than a call of a package costs, which counts as nothing here."""
    requests: list[RunRequest] = []

    def start_run(request: RunRequest, observer: Observer) -> RunResult:
        requests.append(request)
        assert request.space is not None
        if len(requests) <= interrupted:
            raise KeyboardInterrupt
        scratch = request.runs_dir / "scratch"
        made = fabricated(
            find_space(request.space),
            scratch,
            request.device,
            speedup=speedup,
            cases=cases,
            given=request.cases,
            facts={**request.facts, "settings": _settings(request)},
        )
        run = RunFolder(request.runs_dir / made.id)
        shutil.move(made.path, run.path)
        shutil.rmtree(scratch)
        return RunResult(run, "trials", 1)

    def resume_run(run: RunFolder, observer: Observer, **totals: object) -> RunResult:
        return RunResult(run, "trials", 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family_race, "start_run", start_run)
        patch.setattr(family_race, "resume_run", resume_run)
        patch.setattr(CpuBackend, "exported_call_us", 0.0)
        yield requests


def _settings(request: RunRequest) -> Any:
    from evotune.run_options import RunOptions

    return RunOptions().replaced(request.options).to_json()
