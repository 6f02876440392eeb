"""Windows, soft caps, sinks and padding of transformers' models, as the package serves them.

The models themselves are tried where transformers is installed; else a stand-in for its registry
calls the package as they do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from evotune.problems.attention import Attention
from tests.export.runtime.packages import HEAD_DIM, imported, package_for_models
from tests.export.runtime.registry import Registry

SOFTCAP, WINDOW = 5.0, 6


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, binaries: Path) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("models")
    with imported(package_for_models(folder, binaries, "for_models")) as module:
        yield module


MODULE = SimpleNamespace(is_causal=True, num_key_value_groups=2)
CONFIG = SimpleNamespace(sliding_window=WINDOW)


def masked(registry: Registry, queries: int, keys: int, **named: Any) -> torch.Tensor | None:
    """The mask of the last `queries` of `keys` tokens."""
    sizes = {"batch_size": 1, "q_length": queries, "kv_length": keys, "q_offset": keys - queries}
    return registry.mask(**{**sizes, "kv_offset": 0, "config": CONFIG, **named})


def attend(
    registry: Registry, mask: torch.Tensor | None, queries: int, keys: int, **others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of a layer, and the right one. `others`: what models hand over."""
    told = {"softcap": others["softcap"]} if others.get("softcap") else {}
    if others.get("s_aux") is not None:
        told["sinks"] = True
    if others.get("sliding_window"):
        told["window_left"] = others["sliding_window"] - 1
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "head_dim": HEAD_DIM}
    sizes |= {"seq_len_q": queries, "seq_len_k": keys, "alignment": "bottom_right"}
    problem = Attention("float32")
    case = problem.case({**sizes, **told}, {"causal": True})
    inputs = problem.make_inputs(case, "normal", 0)
    if "sinks" in inputs:
        others["s_aux"] = inputs["sinks"]
    given = (inputs["q"], inputs["k"], inputs["v"], mask)
    scaling = float(case.symbols["softmax_scale"])
    with torch.no_grad():
        out, _ = registry.forward(MODULE, *given, scaling=scaling, **others)
    return out, problem.reference(case, inputs)["out"].transpose(1, 2).float()


LAYERS: list[dict[str, Any]] = [
    {"sliding_window": WINDOW},
    {"softcap": SOFTCAP},
    {"softcap": SOFTCAP, "sliding_window": WINDOW},
    {"s_aux": True},
    {"s_aux": True, "sliding_window": WINDOW},
]


@pytest.mark.parametrize("queries", [30, 7, 1])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_are_served(
    registry: Registry, served: Callable[[], int], layer: dict[str, Any], queries: int
) -> None:
    """A prompt, the next part of one, and a token after it."""
    mask = masked(registry, queries, 30, local_size=layer.get("sliding_window"))
    out, expected = attend(registry, mask, queries, 30, **layer)
    torch.testing.assert_close(out, expected)
    assert (served(), registry.left_to_sdpa) == (1, 0)


def test_a_mask_that_somebody_changed_counts(registry: Registry, served: Callable[[], int]) -> None:
    noted = masked(registry, 30, 30, local_size=WINDOW)
    assert noted is not None
    changed = noted & (torch.arange(30) != 3)
    out, _ = attend(registry, changed, 30, 30, sliding_window=WINDOW)
    wrong, expected = attend(registry, changed, 30, 30, softcap=SOFTCAP, sliding_window=WINDOW)
    assert not torch.allclose(wrong, expected)
    assert torch.isfinite(out).all()
    assert (served(), registry.left_to_sdpa) == (0, 1)


def test_a_mask_that_somebody_wrote_into_counts(
    registry: Registry, served: Callable[[], int]
) -> None:
    """The output is that of a copy without a note."""
    noted = masked(registry, 30, 30, local_size=WINDOW)
    assert noted is not None
    before, _ = attend(registry, noted, 30, 30, sliding_window=WINDOW)
    assert served() == 1
    noted[..., 3] = False
    out, _ = attend(registry, noted, 30, 30, sliding_window=WINDOW)
    copied, _ = attend(registry, noted.clone(), 30, 30, sliding_window=WINDOW)
    torch.testing.assert_close(out, copied, equal_nan=True)
    assert not torch.allclose(out[:, 4:], before[:, 4:])
    assert (served(), registry.left_to_sdpa) == (0, 2)


def test_masks_of_inference_mode_are_trusted(registry: Registry, served: Callable[[], int]) -> None:
    """PyTorch counts no writes into them."""
    with torch.inference_mode():
        noted = masked(registry, 30, 30, local_size=WINDOW)
        out, expected = attend(registry, noted, 30, 30, sliding_window=WINDOW)
    torch.testing.assert_close(out, expected)
    assert served() == 1


@pytest.mark.parametrize("layer", LAYERS)
def test_padding_is_left_to_pytorch(
    registry: Registry, served: Callable[[], int], layer: dict[str, Any]
) -> None:
    padding = torch.ones(1, 30, dtype=torch.bool)
    whole = masked(registry, 30, 30, local_size=layer.get("sliding_window"), attention_mask=padding)
    out, expected = attend(registry, whole, 30, 30, **layer)
    torch.testing.assert_close(out, expected)
    assert served() == 1  # nothing is padding
    padding[0, 29] = False
    part = masked(registry, 30, 30, local_size=layer.get("sliding_window"), attention_mask=padding)
    out, expected = attend(registry, part, 30, 30, **layer)
    torch.testing.assert_close(out[:, :29], expected[:, :29])  # which do not see the last token
    assert not torch.allclose(out[:, 29], expected[:, 29])
    assert (served(), registry.left_to_sdpa) == (0, int(layer == {"sliding_window": WINDOW}))


@pytest.mark.parametrize(
    "named",
    [
        {"allow_is_causal_skip": False},  # another mask is joined to it
        {"use_vmap": True},
        {"allow_is_bidirectional_skip": True},
        {"local_size": WINDOW + 1},  # chunks, or another window than the model's
        {"config": SimpleNamespace(sliding_window=WINDOW, attention_chunk_size=WINDOW)},
        {"kv_length": 40},  # a cache with places that are not filled yet
        {"q_offset": torch.tensor(0)},
        {"attention_mask": torch.ones(1, 1, 30, 30, dtype=torch.bool)},
    ],
)
def test_a_mask_that_may_say_more_is_used(registry: Registry, named: dict[str, Any]) -> None:
    mask = masked(registry, 30, 30, **{"local_size": WINDOW, **named})
    assert mask is not None
    assert not vars(mask)


def test_a_compiler_sees_that_a_last_row_needs_no_mask(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers makes one where a compiler traces, and no kernel serves a mask there."""
    assert masked(registry, 1, 30) is not None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert masked(registry, 1, 30) is None
    assert masked(registry, 1, 30, kv_offset=3, q_offset=32) is None
    for named in (
        {"kv_length": 40},  # a cache with places that are not filled yet
        {"q_offset": torch.tensor(29)},
        {"local_size": WINDOW},
        {"allow_is_causal_skip": False},
        {"attention_mask": torch.ones(1, 30, dtype=torch.bool)},
    ):
        assert masked(registry, 1, 30, **named) is not None
    assert masked(registry, 2, 30) is not None


@pytest.mark.parametrize("others", [{"softcap": SOFTCAP}, {"s_aux": True}])
def test_a_call_with_a_cap_or_sinks_that_asks_for_weights_is_right(
    registry: Registry, others: dict[str, Any]
) -> None:
    mask = masked(registry, 8, 8)
    out, expected = attend(registry, mask, 8, 8, output_attentions=True, **others)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def test_autocast_reaches_windows(registry: Registry, served: Callable[[], int]) -> None:
    mask = masked(registry, 30, 30, local_size=WINDOW)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = attend(registry, mask, 30, 30, sliding_window=WINDOW)
    assert out.dtype == torch.bfloat16  # which SDPA serves, and no kernel for float32
    assert (served(), registry.left_to_sdpa) == (0, 1)


def test_dropout_of_weights_is_pytorchs(registry: Registry, served: Callable[[], int]) -> None:
    out, expected = attend(registry, None, 30, 30, softcap=SOFTCAP, dropout=0.5)
    assert not torch.allclose(out, expected)
    assert served() == 0


# --- Models -----------------------------------------------------------------------------------

SMALL = {
    "hidden_size": 4 * HEAD_DIM,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "head_dim": HEAD_DIM,
    "sliding_window": WINDOW,
    "max_position_embeddings": 128,
}


def config_of(transformers: Any, name: str) -> Any:
    if name == "Mistral":
        return transformers.MistralConfig(**SMALL)
    if name == "Gemma2":
        return transformers.Gemma2Config(**SMALL, attn_logit_softcapping=SOFTCAP)
    return transformers.GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1)


@pytest.mark.parametrize("name", ["Mistral", "Gemma2", "GptOss"])
def test_models_are_served(package: ModuleType, served: Callable[[], int], name: str) -> None:
    transformers = pytest.importorskip("transformers")
    package.register_transformers()
    models = []
    for implementation in (package.__name__, "eager"):
        config = config_of(transformers, name)
        torch.manual_seed(0)
        made = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=implementation
        ).eval()
        for layer in made.model.layers:
            if hasattr(layer.self_attn, "sinks"):
                torch.nn.init.normal_(layer.self_attn.sinks)
        models.append(made)
    ours, theirs = models
    tokens = torch.arange(2 * 20).view(2, 20) % 50
    padding = torch.ones_like(tokens)
    padding[1, :5] = 0
    with torch.no_grad():
        out = ours(tokens).logits
        torch.testing.assert_close(out, theirs(tokens).logits)
        assert served() == 2, package.info()["misses"]
        out, expected = (model(tokens, attention_mask=padding).logits for model in models)
        torch.testing.assert_close(out[0], expected[0])
        torch.testing.assert_close(out[1, 5:], expected[1, 5:])
        assert served() == 0
        options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
        found, wanted = (model.generate(tokens[:1] + 1, **options) for model in models)
    assert torch.equal(found, wanted)
    assert served() > 2
