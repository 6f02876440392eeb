"""`attn_implementation` of the package in models of transformers, where that is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.export.runtime.packages import HEAD_DIM, strided_kernel, strided_region

Open = Callable[..., ModuleType]


@pytest.fixture(autouse=True)
def transformers() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip("transformers")


@pytest.fixture
def module(opened: Open) -> ModuleType:
    regions = [strided_region(), strided_region(causal=True)]
    made = opened(served=regions, kernels=[strided_kernel()])
    made.register_transformers()
    return made


def models(transformers: Any, module: ModuleType) -> tuple[Any, Any]:
    """The same small decoder with the package's attention, and with SDPA's."""
    found = []
    for name in (module.__name__, "sdpa"):
        config = transformers.LlamaConfig(
            hidden_size=4 * HEAD_DIM,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=50,
            head_dim=HEAD_DIM,
        )
        torch.manual_seed(0)
        made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=name)
        found.append(made.eval())
    return found[0], found[1]


def test_a_decoder_is_served(transformers: Any, module: ModuleType) -> None:
    ours, theirs = models(transformers, module)
    tokens = torch.arange(40)[None] % 50
    with torch.no_grad():
        for arguments in ({}, {"attention_mask": torch.ones_like(tokens)}):
            out = ours(tokens, use_cache=False, **arguments).logits
            torch.testing.assert_close(out, theirs(tokens, use_cache=False, **arguments).logits)
    assert module.info()["calls"] == 4


def test_padding_is_left_to_sdpa(transformers: Any, module: ModuleType) -> None:
    ours, theirs = models(transformers, module)
    tokens = torch.arange(80).view(2, 40) % 50
    mask = torch.ones_like(tokens)
    mask[1, :7] = 0
    with torch.no_grad():
        out = ours(tokens, attention_mask=mask).logits
        assert torch.equal(out, theirs(tokens, attention_mask=mask).logits)
    assert module.info()["calls"] == 0


def test_generation_gives_the_same_tokens(transformers: Any, module: ModuleType) -> None:
    ours, theirs = models(transformers, module)
    tokens = 1 + torch.arange(20)[None]
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(ours.generate(tokens, **options), theirs.generate(tokens, **options))
    assert module.info()["calls"] > 0


def test_training_is_sdpas(transformers: Any, module: ModuleType) -> None:
    ours, theirs = models(transformers, module)
    tokens = torch.arange(40)[None] % 50
    for model in (ours, theirs):
        model.train()
        model(tokens, labels=tokens).loss.backward()
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


def test_a_compiled_decoder_is_served(transformers: Any, module: ModuleType) -> None:
    """With a cache, since transformers looks for packed sequences otherwise, which needs a mask."""
    ours, theirs = models(transformers, module)
    tokens = torch.arange(40)[None] % 50
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        out = compiled(tokens).logits
        torch.testing.assert_close(out, theirs(tokens).logits)
    assert module.info()["calls"] == 2


def test_each_call_of_models_with_masks_is_counted(transformers: Any, module: ModuleType) -> None:
    """T5 adds a position bias to the scores, and padding makes a mask."""
    sizes = {"vocab_size": 50, "attn_implementation": module.__name__}
    t5 = transformers.T5Config(d_model=64, d_kv=16, d_ff=64, num_layers=2, num_heads=4, **sizes)
    bert = transformers.DistilBertConfig(dim=64, hidden_dim=64, n_layers=2, n_heads=4, **sizes)
    tokens = torch.arange(80).view(2, 40) % 50
    mask = torch.ones_like(tokens)
    mask[1, 30:] = 0
    for config, named, layers in (
        (bert, {}, 2),
        (t5, {"decoder_input_ids": tokens}, 6),  # two of an encoder, two of a decoder, two across
    ):
        model = transformers.AutoModel.from_config(config).eval()
        before = counted(module)
        with torch.no_grad():
            model(tokens, attention_mask=mask, **named)
        assert counted(module) - before == layers, config.model_type


def counted(module: ModuleType) -> int:
    found = module.info()
    return int(found["calls"] + sum(each["count"] for each in found["misses"].values()))
