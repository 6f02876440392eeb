"""Models with random weights for `models.py`: own code, and configurations of transformers.

Each function takes whether the model is a tiny one, and returns the module, its inputs and its
inputs by name.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Attention(nn.Module):
    """Self or cross attention. `bias` is added to the scores."""

    def __init__(self, width: int, heads: int, context: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(context or width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        k, v = self.kv(x if context is None else context).chunk(2, dim=-1)
        q, k, v = (_in_heads(each, self.heads) for each in (self.q(x), k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(out.transpose(1, 2).flatten(2))


def _in_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, length, width) as (batch, heads, length, head)."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """A layer of a transformer, with cross attention if there is a context."""

    def __init__(self, width: int, heads: int, context: int = 0) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if context else 2))
        self.attention = Attention(width, heads)
        self.cross = Attention(width, heads, context) if context else None
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), context)
        return x + self.mlp(self.norms[1](x))


class Vision(nn.Module):
    """A vision transformer. With `pooled`, a query of its own attends to all tokens, as in SigLIP;
    else there is a class token."""

    def __init__(self, patch: int, tokens: int, sizes: tuple[int, int, int], pooled: bool) -> None:
        super().__init__()
        width, heads, layers = sizes
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, tokens, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.pool = PoolingAttention(width, heads) if pooled else None
        self.head = nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        token = self.token.expand(len(x), -1, -1)
        if self.pool is None:
            x = torch.cat([token, x], dim=1)
        x = x + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x if self.pool is None else self.pool(token, x))[:, 0]


class PoolingAttention(nn.Module):
    """One query that attends to all tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)

    def forward(self, query: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.attention(query, x)


def _vision(
    tiny: bool,
    batch: int,
    size: int,
    patch: int,
    sizes: tuple[int, int, int],
    *,
    pooled: bool = False,
) -> Made:
    """`sizes`: the width, and the numbers of heads and layers."""
    if tiny:
        batch, size, sizes = min(batch, 2), 4 * patch, (64, 2, 1)
    tokens = (size // patch) ** 2 + (not pooled)
    return Vision(patch, tokens, sizes, pooled), (torch.randn(batch, 3, size, size),), {}


def vit_b16(tiny: bool) -> Made:
    """32 images, 197 tokens."""
    return _vision(tiny, 32, 224, 16, (768, 12, 12))


def deit_s_384(tiny: bool) -> Made:
    """An image, 577 tokens."""
    return _vision(tiny, 1, 384, 16, (384, 6, 12))


def siglip_b(tiny: bool) -> Made:
    """16 images, 196 tokens, and a query that attends to them."""
    return _vision(tiny, 16, 224, 16, (768, 12, 12), pooled=True)


def clip_l(tiny: bool) -> Made:
    """An image, 257 tokens."""
    return _vision(tiny, 1, 224, 14, (1024, 16, 24))


class WindowBlock(nn.Module):
    """A layer of Swin: attention in windows with a bias by relative position; in every second layer
    the windows are shifted, and a mask keeps tokens of different parts apart."""

    def __init__(self, width: int, heads: int, side: int, window: int, shift: int) -> None:
        super().__init__()
        self.side, self.window, self.shift = side, window, shift
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(*2 * [torch.arange(window)], indexing="ij")).flatten(1)
        near = (at[:, :, None] - at[:, None]) + window - 1
        self.register_buffer("index", near[0] * (2 * window - 1) + near[1])
        parts = torch.zeros(1, side, side, 1)
        if shift:
            ends = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
            for number, (rows, columns) in enumerate((r, c) for r in ends for c in ends):
                parts[:, rows, columns] = number
        parts = self._windows(parts).squeeze(-1)
        self.register_buffer("mask", -100.0 * (parts[:, None] != parts[:, :, None]))

    def _windows(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, side, side, width) as (windows, tokens, width)."""
        count = self.side // self.window
        x = x.unflatten(2, (count, self.window)).unflatten(1, (count, self.window))
        return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def _whole(self, x: torch.Tensor, batch: int) -> torch.Tensor:
        count = self.side // self.window
        x = x.view(batch, count, count, self.window, self.window, -1).transpose(2, 3)
        return x.reshape(batch, self.side, self.side, -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, normal = len(x), self.norms[0](x)
        if self.shift:
            normal = normal.roll((-self.shift, -self.shift), (1, 2))
        windows = self._windows(normal)
        bias = self.table[self.index].permute(2, 0, 1).contiguous()[None]
        if self.shift:
            bias = (bias + self.mask[:, None]).repeat(batch, 1, 1, 1)
        out = self._whole(self.attention(windows, bias=bias), batch)
        if self.shift:
            out = out.roll((self.shift, self.shift), (1, 2))
        x = x + out
        return x + self.mlp(self.norms[1](x))


class Swin(nn.Module):
    """Four stages, whose windows have 7 × 7 tokens."""

    def __init__(self, side: int, window: int, width: int, heads: int, depths: list[int]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        stages: list[nn.Module] = []
        for number, depth in enumerate(depths):
            if number:
                stages.append(Merge(width))
                side, width, heads = side // 2, 2 * width, 2 * heads
            shifts = (0, window // 2) if side > window else (0, 0)
            stages += [WindowBlock(width, heads, side, window, shifts[n % 2]) for n in range(depth)]
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).permute(0, 2, 3, 1)
        return self.head(self.stages(x).mean((1, 2)))


class Merge(nn.Module):
    """Four neighbours become one token of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(4 * width, 2 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x[:, row::2, column::2] for row in range(2) for column in range(2)]
        return self.reduce(torch.cat(parts, dim=-1))


def swin_b(tiny: bool) -> Made:
    """8 images of 224 × 224."""
    if tiny:
        return Swin(8, 4, 32, 1, [2, 2]), (torch.randn(1, 3, 32, 32),), {}
    return Swin(56, 7, 128, 4, [2, 2, 18, 2]), (torch.randn(8, 3, 224, 224),), {}


class UNetBlock(nn.Module):
    """A block of a diffusion model: convolutions, then two transformer layers on the pixels with
    cross attention to a text."""

    def __init__(self, channels: int, heads: int, text: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *(nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1)),
            *(nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1)),
        )
        self.blocks = nn.ModuleList(Block(channels, heads, text) for _ in range(2))

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        x = x + self.convolutions(x)
        pixels = x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            pixels = block(pixels, text)
        return pixels.transpose(1, 2).unflatten(2, x.shape[2:])


def unet_block(tiny: bool) -> Made:
    """Two images of 64 × 64 with 640 channels (with and without guidance), a text of 77 tokens."""
    if tiny:
        return UNetBlock(64, 2, 48), (torch.randn(2, 64, 4, 4), torch.randn(2, 7, 48)), {}
    return UNetBlock(640, 10, 2048), (torch.randn(2, 640, 64, 64), torch.randn(2, 77, 2048)), {}


class Decoder(nn.Module):
    """A step for each token after a prompt: grouped heads, a cache of keys and values. The tokens
    are given, so that rounding cannot change them. Returns the logits of all steps."""

    def __init__(
        self, width: int, heads: tuple[int, int], layers: int, prompt: int, steps: int
    ) -> None:
        super().__init__()
        queries, keys = heads
        self.heads, self.kv_heads, self.steps, self.prompt = queries, keys, steps, prompt
        self.embedding = nn.Embedding(1000, width)
        size = (queries + 2 * keys) * (width // queries)
        self.qkv = nn.ModuleList(nn.Linear(width, size) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.register_buffer(
            "cache", torch.randn(layers, 2, 1, keys, prompt + steps, width // queries)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = []
        for end in range(self.prompt + 1, self.prompt + self.steps + 1):
            x = self.embedding(tokens[:, end - self.prompt - 1][:, None])
            for layer, (qkv, out, mlp) in enumerate(zip(self.qkv, self.out, self.mlp, strict=True)):
                normal = F.layer_norm(x, x.shape[-1:])
                heads = _in_heads(qkv(normal), self.heads + 2 * self.kv_heads)
                q, kv = heads.split([self.heads, 2 * self.kv_heads], dim=1)
                cache = self.cache[layer]
                cache[:, :, :, end - 1 : end] = torch.stack(kv.chunk(2, dim=1))
                k, v = cache[:, :, :, :end]
                found = F.scaled_dot_product_attention(
                    q, k, v, enable_gqa=self.heads != self.kv_heads
                )
                x = x + out(found.transpose(1, 2).flatten(2))
                x = x + mlp(F.layer_norm(x, x.shape[-1:]))
            logits.append(F.linear(x, self.embedding.weight))
        return torch.cat(logits, dim=1)


def decoder_loop(tiny: bool) -> Made:
    """64 tokens after 512: 8 layers with 32 heads of 64, 8 of keys."""
    if tiny:
        return Decoder(64, (2, 1), 1, 16, 4), (_tokens(1, 4),), {}
    return Decoder(2048, (32, 8), 8, 512, 64), (_tokens(1, 64),), {}


# Configurations of transformers, which calls SDPA for all of them.


def _tokens(batch: int, length: int) -> torch.Tensor:
    return (torch.arange(batch * length) * 7919 % 97).view(batch, length)


def t5_base(tiny: bool) -> Made:
    """The encoder, 8 sequences of 128 tokens; its bias by relative position is added to scores."""
    from transformers import T5Config, T5EncoderModel

    sizes: dict[str, Any] = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    if tiny:
        sizes = {"d_model": 64, "d_kv": 32, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    model = T5EncoderModel(T5Config(vocab_size=100, **sizes))
    return model, (), {"input_ids": _tokens(2, 16) if tiny else _tokens(8, 128)}


def bert_padded(tiny: bool) -> Made:
    """16 sequences of up to 512 tokens, padded."""
    from transformers import BertConfig, BertModel

    batch, length = (2, 16) if tiny else (16, 512)
    model = BertModel(BertConfig(vocab_size=100, **(_SMALL if tiny else {})))
    lengths = torch.linspace(length // 4, length, batch).long()
    mask = (torch.arange(length) < lengths[:, None]).long()
    return model, (), {"input_ids": _tokens(batch, length), "attention_mask": mask}


_SMALL = {
    **{"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2},
    "intermediate_size": 64,
}


def mistral_window(tiny: bool) -> Made:
    """4 layers of Mistral 7B with a window of 1,024, 3,000 tokens."""
    from transformers import MistralConfig, MistralModel

    sizes: dict[str, Any] = {"num_hidden_layers": 4, "sliding_window": 1024}
    if tiny:
        sizes = {**_SMALL, "num_key_value_heads": 1, "head_dim": 32, "sliding_window": 8}
    model = MistralModel(MistralConfig(vocab_size=100, **sizes))
    return model, (), {"input_ids": _tokens(1, 16 if tiny else 3000), "use_cache": False}


def qwen2(tiny: bool) -> Made:
    """12 layers of Qwen2 1.5B, 1,024 tokens."""
    from transformers import Qwen2Config, Qwen2Model

    sizes: dict[str, Any] = {
        **{"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 12},
        **{"num_attention_heads": 12, "num_key_value_heads": 2},
    }
    if tiny:
        sizes = {**_SMALL, "num_key_value_heads": 1}
    model = Qwen2Model(Qwen2Config(vocab_size=100, **sizes))
    return model, (), {"input_ids": _tokens(1, 16 if tiny else 1024), "use_cache": False}


def whisper(tiny: bool) -> Made:
    """The encoder of Whisper large, 1,500 positions."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    width, heads, layers, length = (64, 2, 1, 16) if tiny else (1280, 20, 32, 1500)
    config = WhisperConfig(
        d_model=width,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        max_source_positions=length,
    )
    return WhisperEncoder(config), (torch.randn(1, 80, 2 * length),), {}
