"""Models of transformers with random weights, made from configurations: nothing is downloaded.

`MODELS` has them by name, `sides` copies one with each way to compute attention.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from transformers import AttentionInterface, AttentionMaskInterface

UNMASKED, NONE = "without_mask", "no_attention"
_TINY_HEADS, _TINY_HEAD_DIM, _TINY_LENGTH, _TINY_LAYERS = 2, 32, 64, 2
_namespace: Any = torch.library.Library("evotune_models", "DEF")
_namespace.define("no_attention(Tensor q, Tensor k, Tensor v) -> Tensor")


def _no_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The output's memory, as (batch, length, heads, head_dim), with any values."""
    batch, heads, rows, _ = q.shape
    return q.new_empty(batch, rows, heads, v.shape[3])


_namespace.impl("no_attention", _no_attention, "CompositeExplicitAutograd")
_namespace._register_fake("no_attention", _no_attention)


@dataclass(frozen=True)
class Model:
    """A model and the call of it that is timed.

    - make: the module, given whether it is a tiny one.
    - call: given that, the device and the dtype, a function of the module that gives its output.
    """

    make: Callable[[bool], torch.nn.Module]
    call: Callable[..., Callable[[Any], torch.Tensor]]


def _encoder(kind: type, base: int) -> Callable[[bool], torch.nn.Module]:
    """BERT with 12 heads (base) or 16 (large)."""

    def make(tiny: bool) -> torch.nn.Module:
        heads, layers = (_TINY_HEADS, _TINY_LAYERS) if tiny else (base, 12 if base == 12 else 24)
        width = heads * (_TINY_HEAD_DIM if tiny else 64)
        config = transformers.BertConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            **({"vocab_size": 100, "max_position_embeddings": _TINY_LENGTH} if tiny else {}),
        )
        return kind(config)

    return make


def _gpt2(tiny: bool) -> torch.nn.Module:
    heads = _TINY_HEADS if tiny else 12
    config = transformers.GPT2Config(
        n_embd=heads * (_TINY_HEAD_DIM if tiny else 64),
        n_layer=_TINY_LAYERS if tiny else 12,
        n_head=heads,
        **({"vocab_size": 100, "n_positions": _TINY_LENGTH} if tiny else {}),
    )
    return transformers.GPT2LMHeadModel(config)


def _vit(tiny: bool) -> torch.nn.Module:
    """ViT-L/16 on 512 x 512 pixels: 1,025 tokens. The tiny one has 65."""
    heads = _TINY_HEADS if tiny else 16
    width = heads * (_TINY_HEAD_DIM if tiny else 64)
    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=_TINY_LAYERS if tiny else 24,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=32 if tiny else 512,
        patch_size=4 if tiny else 16,
    )
    return transformers.ViTModel(config)


def _whisper(tiny: bool) -> torch.nn.Module:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    heads = _TINY_HEADS if tiny else 20
    width = heads * (_TINY_HEAD_DIM if tiny else 64)
    config = transformers.WhisperConfig(
        d_model=width,
        encoder_layers=_TINY_LAYERS if tiny else 32,
        encoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        max_source_positions=_TINY_LENGTH if tiny else 1500,
    )
    return WhisperEncoder(config)


def _llama(tiny: bool) -> torch.nn.Module:
    """8 layers of Llama 3 8B."""
    heads, head_dim = (_TINY_HEADS, _TINY_HEAD_DIM) if tiny else (32, 128)
    config = transformers.LlamaConfig(
        hidden_size=heads * head_dim,
        intermediate_size=128 if tiny else 14336,
        num_hidden_layers=_TINY_LAYERS if tiny else 8,
        num_attention_heads=heads,
        num_key_value_heads=heads if tiny else 8,
        head_dim=head_dim,
        vocab_size=100 if tiny else 128256,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    return transformers.LlamaForCausalLM(config)


def _tokens(length: int, device: torch.device) -> torch.Tensor:
    return (torch.arange(length, device=device) * 7919 % 97)[None]


def _of_tokens(length: int, **named: Any) -> Callable[..., Callable[[Any], torch.Tensor]]:
    def made(tiny: bool, device: torch.device, dtype: torch.dtype) -> Callable[[Any], torch.Tensor]:
        tokens = _tokens(_TINY_LENGTH if tiny else length, device)

        def call(model: Any) -> torch.Tensor:
            out: torch.Tensor = model(tokens, return_dict=True, **named)[0]
            return out

        return call

    return made


def _of_values(
    shape: tuple[int, ...], tiny_shape: tuple[int, ...]
) -> Callable[..., Callable[[Any], torch.Tensor]]:
    def made(tiny: bool, device: torch.device, dtype: torch.dtype) -> Callable[[Any], torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(tiny_shape if tiny else shape, generator=generator).to(device, dtype)

        def call(model: Any) -> torch.Tensor:
            given = values.to(next(model.parameters()).dtype)  # nothing for all but the reference
            out: torch.Tensor = model(given)[0]
            return out

        return call

    return made


def _decode(tiny: bool, device: torch.device, dtype: torch.dtype) -> Callable[[Any], torch.Tensor]:
    """One token after 4,095. Each model has a cache of its own, whose keys and values are put back
    after each call."""
    length = _TINY_LENGTH if tiny else 4096
    caches: dict[int, tuple[Any, list[Any]]] = {}
    token = _tokens(length, device)[:, -1:]
    position = torch.full((1, 1), length - 1, device=device)

    def call(model: Any) -> torch.Tensor:
        inner = getattr(model, "_orig_mod", model)
        if id(inner) not in caches:
            caches[id(inner)] = _filled_cache(inner, length - 1, device)
        cache, kept = caches[id(inner)]
        out: torch.Tensor = model(token, past_key_values=cache, position_ids=position)[0]
        for layer, (keys, values) in zip(cache.layers, kept, strict=True):
            layer.keys, layer.values = keys, values
        return out

    return call


def _filled_cache(model: Any, length: int, device: torch.device) -> tuple[Any, list[Any]]:
    """A cache of random keys and values of `length` tokens, and these; the same for all models."""
    config, dtype = model.config, next(model.parameters()).dtype
    generator = torch.Generator().manual_seed(1)
    cache, kept = transformers.DynamicCache(config=config), []
    shape = (1, config.num_key_value_heads, length, config.head_dim)
    for number in range(config.num_hidden_layers):
        pair = [torch.randn(shape, generator=generator).half().to(device, dtype) for _ in range(2)]
        cache.update(*pair, number)
        kept.append((cache.layers[number].keys, cache.layers[number].values))
    return cache, kept


# The causal models make a cache, as in the first step of `generate`, and as their configurations
# say. Without one, transformers looks for several sequences in the position ids. It cannot look
# while a graph is captured, and so makes a mask.
_ONE = {"logits_to_keep": 1}
MODELS = {
    "bert-base": Model(_encoder(transformers.BertModel, 12), _of_tokens(512)),
    "bert-large": Model(_encoder(transformers.BertModel, 16), _of_tokens(512)),
    "gpt2": Model(_gpt2, _of_tokens(1024)),
    "vit-large": Model(_vit, _of_values((1, 3, 512, 512), (1, 3, 32, 32))),
    "whisper-large": Model(_whisper, _of_values((1, 80, 3000), (1, 80, 2 * _TINY_LENGTH))),
    "llama-2048": Model(_llama, _of_tokens(2048, **_ONE)),
    "llama-8192": Model(_llama, _of_tokens(8192, **_ONE)),
    "llama-decode": Model(_llama, _decode),
}


def register() -> None:
    """Makes UNMASKED and NONE values of attn_implementation."""

    def unmasked(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        **named: Any,
    ) -> tuple[torch.Tensor, None]:
        causal = named.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=bool(causal) and query.shape[2] > 1,
            scale=named.get("scaling"),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return out.transpose(1, 2).contiguous(), None

    def none(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        **named: Any,
    ) -> tuple[torch.Tensor, None]:
        return torch.ops.evotune_models.no_attention(query, key, value), None

    for name, function in ((UNMASKED, unmasked), (NONE, none)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, lambda *_, **__: None)


def made(name: str, tiny: bool, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    """The model, with the same random weights each time."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device(device):
            model = MODELS[name].make(tiny)
    finally:
        torch.set_default_dtype(before)
    return model.to(dtype).eval().requires_grad_(False)


def with_attention(model: Any, implementation: str) -> Any:
    """A copy of the model with the same weights, and another way to compute attention."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, shared)
    copied.set_attn_implementation(implementation)
    return copied
