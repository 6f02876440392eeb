"""Models with random weights and a decode loop, for the features that exported packages serve.

`ITEMS` has them by name, with the cases of attention that a package must have been tuned for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from exported import device_of, dtype_of
from feature_cases import Bert, Decode, GptOss, Mistral, bert_of, decode_of, gpt_oss_of, mistral_of
from transformers import AttentionInterface, AttentionMaskInterface

ATTENTION, VARLEN, PAGED = "attention", "attention_varlen", "attention_paged"
Call = Callable[[], torch.Tensor]
Compile = Callable[[Any], Any]
"""torch.compile with some options: takes a module or a function."""


@dataclass(frozen=True)
class Built:
    """An item on a device.

    - sides: a call by each way to compute attention; `package` is one of them.
    - compiled: the call of a side whose model, or whole loop, is compiled at its first call.
    - limit: the side whose error limits that of the package.
    - reference: the right output in a wider type.
    - attention_calls: the calls of attention in one call.
    """

    sides: Mapping[str, Call]
    compiled: Callable[[str, Compile], Call]
    limit: str
    reference: Call
    attention_calls: int


@dataclass(frozen=True)
class Item:
    """- problem: of the package that it needs."""

    problem: str
    build: Callable[[ModuleType, bool], Built]


_NONE = "no_attention"
_namespace: Any = torch.library.Library("evotune_models", "DEF")
_namespace.define("no_attention(Tensor q, Tensor k, Tensor v) -> Tensor")


def _no_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The output's memory, as (batch, length, heads, head_dim), with any values."""
    batch, heads, rows, _ = q.shape
    return q.new_empty(batch, rows, heads, v.shape[3])


_namespace.impl("no_attention", _no_attention, "CompositeExplicitAutograd")
_namespace._register_fake("no_attention", _no_attention)


def _register_none() -> None:
    """Makes _NONE a value of attn_implementation in transformers."""

    def none(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        **named: Any,
    ) -> tuple[torch.Tensor, None]:
        return torch.ops.evotune_models.no_attention(query, key, value), None

    AttentionInterface.register(_NONE, none)
    AttentionMaskInterface.register(_NONE, lambda *_, **__: None)


def _with_attention(model: Any, implementation: str) -> Any:
    """A copy of the model with the same weights, and another way to compute attention."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, shared)
    copied.set_attn_implementation(implementation)
    return copied


_FLEX, _ONE_EXPERT = "flex_attention", "one_expert"
_OTHERS = ("sdpa", _FLEX, "eager")


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float32 else torch.float32


def _built(
    module: ModuleType,
    model: torch.nn.Module,
    implementations: tuple[str, ...],
    call: Callable[[Any], torch.Tensor],
) -> Built:
    """A model, and copies of it with these implementations, with none and with the package's.
    transformers' FlexAttention has no sinks on a CPU."""
    _register_none()
    module.register_transformers()
    if device_of(module).type == "cpu":
        implementations = tuple(name for name in implementations if name != _FLEX)
    model = model.to(device_of(module), dtype_of(module)).eval().requires_grad_(False)
    ways = {name: name for name in implementations} | {"none": _NONE}
    ways["package"] = module.__name__
    copies = {side: _with_attention(model, way) for side, way in ways.items()}

    def called(side: str) -> Call:
        return lambda: call(copies[side])

    def compiled(side: str, compile_: Compile) -> Call:
        model = compile_(copies[side])
        return lambda: call(model)

    def reference() -> torch.Tensor:
        return call(copy.deepcopy(copies["eager"]).to(_wider(dtype_of(module))))

    layers = int(model.config.num_hidden_layers)  # type: ignore[union-attr, arg-type]
    return Built({side: called(side) for side in ways}, compiled, "eager", reference, layers)


def _tokens(batch: int, length: int, device: torch.device) -> torch.Tensor:
    return torch.arange(batch * length, device=device).view(batch, length) * 7919 % 97


def _mistral(module: ModuleType, tiny: bool) -> Built:
    """Layers of Mistral 7B v0.1 on a prompt that is longer than the window."""
    size: Mistral = mistral_of(tiny)
    config = transformers.MistralConfig(
        hidden_size=size.heads * size.head_dim,
        intermediate_size=64 if tiny else 14336,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        vocab_size=100 if tiny else 32000,
        sliding_window=size.window,
    )
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(config)
    call = _prompt(size.length, config, device_of(module), dtype_of(module))
    return _built(module, model, _OTHERS, call)


def _gpt_oss(module: ModuleType, tiny: bool) -> Built:
    """Layers of GPT-OSS with and without a window, all with sinks. There is one expert: which one
    of several is chosen may change with a rounding. transformers' `sdpa` refuses the model.

    transformers sorts tokens by experts with copies to the CPU, which no graph can capture:
    torch.histc of one expert has one, and torch.nn.functional.grouped_mm in all types but bfloat16.
    With one expert there is nothing to sort, and all sides share a plain product."""
    size: GptOss = gpt_oss_of(tiny)
    config = transformers.GptOssConfig(
        hidden_size=64 if tiny else 2880,
        intermediate_size=64 if tiny else 2880,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        vocab_size=100 if tiny else 32000,
        sliding_window=size.window,
        num_local_experts=1,
        num_experts_per_tok=1,
    )
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    transformers.integrations.moe.ExpertsInterface.register(_ONE_EXPERT, _one_expert)
    model.set_experts_implementation(_ONE_EXPERT)
    call = _prompt(size.length, config, device_of(module), dtype_of(module))
    return _built(module, model, _OTHERS[1:], call)


def _one_expert(
    experts: Any, tokens: torch.Tensor, _: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The output of GPT-OSS's experts where there is one."""
    gates = torch.addmm(experts.gate_up_proj_bias[0], tokens, experts.gate_up_proj[0])
    out = torch.addmm(experts.down_proj_bias[0], experts._apply_gate(gates), experts.down_proj[0])
    return (out * weights).to(tokens.dtype)


def _prompt(
    length: int, config: transformers.PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> Callable[[Any], torch.Tensor]:
    """A prompt with a cache, as in the first step of `generate`. Without one, transformers makes a
    mask while a graph is captured, which no kernel serves."""
    tokens = _tokens(1, length, device)
    empty = _emptied(config, device, dtype)

    def call(model: Any) -> torch.Tensor:
        cache = empty if model.dtype == dtype else _emptied(config, device, model.dtype)
        out: torch.Tensor = model(
            tokens, past_key_values=cache(), logits_to_keep=min(length, 128)
        ).logits
        return out

    return call


def _emptied(
    config: transformers.PretrainedConfig, device: torch.device, dtype: torch.dtype
) -> Callable[[], transformers.DynamicCache]:
    """A cache that is empty again at each call. A new one copies an empty tensor from the CPU at
    its first use, which no graph can capture."""
    cache = transformers.DynamicCache(config=config)
    heads, size = config.num_key_value_heads, config.head_dim
    nothing = torch.empty(1, heads, 0, size, device=device, dtype=dtype)
    for layer in cache.layers:
        layer.lazy_initialization(nothing, nothing)
    states = [dict(vars(layer)) for layer in cache.layers]

    def empty() -> transformers.DynamicCache:
        for layer, state in zip(cache.layers, states, strict=True):
            vars(layer).update(state)
        return cache

    return empty


def _bert(module: ModuleType, tiny: bool) -> Built:
    """bert-base on a batch of which the n-th sequence has 1 / n of the longest one's tokens. The
    output is that of real tokens."""
    size: Bert = bert_of(tiny)
    width = size.heads * size.head_dim
    config = transformers.BertConfig(
        hidden_size=width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * width,
        initializer_range=0.05,  # so that attention to padding would be far beyond the limit
        **({"vocab_size": 100} if tiny else {}),
    )
    torch.manual_seed(0)
    device, longest = device_of(module), size.lengths[0]
    lengths = torch.tensor(size.lengths, device=device)
    exist = torch.arange(longest, device=device) < lengths[:, None]
    real = exist.flatten().nonzero().flatten()
    tokens, mask = _tokens(len(size.lengths), longest, device), exist.long()

    def call(model: Any) -> torch.Tensor:
        out: torch.Tensor = model(tokens, attention_mask=mask, return_dict=True)[0]
        return out.flatten(0, 1).index_select(0, real)

    return _built(module, transformers.BertModel(config), ("sdpa", "eager"), call)


class _Cache:
    """Keys in pages, and the rows of some steps that are to come. All are values of the type
    `drawn_in`, which `dtype` has too."""

    def __init__(
        self, size: Decode, device: torch.device, dtype: torch.dtype, drawn_in: torch.dtype
    ) -> None:
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(drawn_in).to(device, dtype)

        self.size = size
        most_pages = -(-size.longest // size.page_size)
        count = len(size.lengths) * most_pages
        table = torch.randperm(count, generator=generator).view(len(size.lengths), most_pages)
        self.table = table.to(device, torch.int32)
        self.start = torch.tensor(size.lengths, dtype=torch.int32, device=device)
        self.lengths = self.start.clone()
        self.sequences = torch.arange(len(size.lengths), device=device)
        pool = (count, size.page_size, size.kv_heads, size.head_dim)
        self.k_pages, self.v_pages = drawn(*pool), drawn(*pool)
        step = (size.steps, len(size.lengths))
        self.q = drawn(*step, 1, size.heads, size.head_dim)
        self.k, self.v = (drawn(*step, size.kv_heads, size.head_dim) for _ in range(2))

    def looped(self, attend: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """(steps, sequences, 1, heads, head_dim): each step writes a key of each sequence, then its
        row attends to all. A loop leaves what it found."""
        self.lengths.copy_(self.start)
        outputs = []
        for step in range(self.size.steps):
            at = self.lengths.long()
            page = self.table[self.sequences, at // self.size.page_size].long()
            inside = at % self.size.page_size
            self.k_pages[page, inside] = self.k[step]
            self.v_pages[page, inside] = self.v[step]
            self.lengths.add_(1)
            outputs.append(attend(self.q[step]))
        return torch.stack(outputs)

    def gathered(self, q: torch.Tensor) -> torch.Tensor:
        """SDPA on keys that are gathered from their pages, with a mask of the lengths."""
        pages = self.table.long()
        keys, values = (
            each[pages].flatten(1, 2)[:, : self.size.longest].transpose(1, 2)
            for each in (self.k_pages, self.v_pages)
        )
        seen = torch.arange(self.size.longest, device=q.device) < self.lengths[:, None]
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, seen[:, None, None], enable_gqa=True
        )
        return out.transpose(1, 2)


def _decode(module: ModuleType, tiny: bool) -> Built:
    size: Decode = decode_of(tiny)
    device, dtype = device_of(module), dtype_of(module)
    cache = _Cache(size, device, dtype, dtype)

    def paged(q: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = module.attention_paged(
            *(q, cache.k_pages, cache.v_pages, cache.lengths, cache.table),
            max_seqlen_k=size.longest,
            causal=True,
        )
        return out

    def reference() -> torch.Tensor:
        wide = _Cache(size, device, _wider(dtype), dtype)
        return wide.looped(wide.gathered)

    sides: dict[str, Call] = {
        "sdpa": lambda: cache.looped(cache.gathered),
        "none": lambda: cache.looped(torch.empty_like),
        "package": lambda: cache.looped(paged),
    }
    return Built(sides, lambda side, compile_: compile_(sides[side]), "sdpa", reference, size.steps)


ITEMS = {
    "mistral-window": Item(ATTENTION, _mistral),
    "gpt-oss-sinks": Item(ATTENTION, _gpt_oss),
    "bert-padded": Item(VARLEN, _bert),
    "decode-paged": Item(PAGED, _decode),
}
