"""Masks and position biases of transformers' models, as a package with masks serves them.

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
from torch.nn import functional

from tests.export.runtime.packages import imported
from tests.export.runtime.registry import Registry

BATCH, HEADS, LENGTH, HEAD_DIM = 2, 4, 64, 32
ENCODER = SimpleNamespace(is_causal=False, num_key_value_groups=1)
DECODER = SimpleNamespace(is_causal=True, num_key_value_groups=2)
LOWEST = torch.finfo(torch.float32).min
PADDING = torch.arange(LENGTH) < torch.tensor([[LENGTH], [50]])


@pytest.fixture(scope="module")
def package(masks_cpu: Path) -> Iterator[ModuleType]:
    with imported(masks_cpu) as module:
        yield module


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


def bidirectional_mask_function(*_: Any) -> bool:
    """transformers' name of it."""
    return True


def tensors(module: SimpleNamespace) -> list[torch.Tensor]:
    """q, k and v as models hand them over."""
    generator = torch.Generator().manual_seed(0)
    heads = HEADS // module.num_key_value_groups
    shapes = [(BATCH, LENGTH, count, HEAD_DIM) for count in (HEADS, heads, heads)]
    return [torch.randn(shape, generator=generator).transpose(1, 2) for shape in shapes]


def bias_of_t5() -> torch.Tensor:
    """A bias of each head, (1, heads, rows, keys). Its heads lie side by side."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(LENGTH, LENGTH, HEADS, generator=generator).permute(2, 0, 1)[None]


def masks(registry: Registry) -> dict[str, torch.Tensor | None]:
    sizes: dict[str, Any] = {"batch_size": BATCH, "q_length": LENGTH, "kv_length": LENGTH}
    encoder = {"mask_function": bidirectional_mask_function, "allow_is_bidirectional_skip": True}
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return {
        "none": None,
        "padding of an encoder": registry.mask(**sizes, **encoder, attention_mask=PADDING),
        "padding of a decoder": registry.mask(**sizes, attention_mask=PADDING),
        "padding of keys": PADDING[:, None, None],
        "added": torch.where(causal & PADDING[:, None, None], 0.0, LOWEST),
    }


def right(module: SimpleNamespace, mask: torch.Tensor | None, bias: Any) -> torch.Tensor:
    """The output of a layer as transformers' `sdpa` has it."""
    q, k, v = tensors(module)
    if mask is None and module.is_causal:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, LOWEST)
    whole = (0.0 if mask is None else mask) + (0.0 if bias is None else bias)
    mask = whole.clamp(min=LOWEST) if isinstance(whole, torch.Tensor) else None
    out = functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    return out.transpose(1, 2)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("module", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_masks_of_models_are_served(
    registry: Registry,
    served: Callable[[], int],
    module: SimpleNamespace,
    has_bias: bool,
    is_compiled: bool,
) -> None:
    bias = bias_of_t5() if has_bias else None
    for name, mask in masks(registry).items():
        if mask is None and not has_bias:
            continue  # there is nothing to serve with a mask

        def layer(*given: torch.Tensor, mask: torch.Tensor | None = mask) -> torch.Tensor:
            others = {"position_bias": bias} if has_bias else {}
            return registry.forward(module, *given, mask, **others)[0]

        torch._dynamo.reset()
        called = torch.compile(layer, fullgraph=True, backend="eager") if is_compiled else layer
        found = called(*tensors(module))
        torch.testing.assert_close(found, right(module, mask, bias), rtol=1e-4, atol=1e-5)
        assert (served(), registry.left_to_sdpa) == (1, 0), name


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("padding of an encoder", (BATCH, 1, 1, LENGTH)),
        ("padding of a decoder", (BATCH, 1, LENGTH, LENGTH)),
    ],
)
def test_a_kernel_for_padding_gets_what_the_note_on_a_mask_says(
    package: ModuleType,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    shape: tuple[int, ...],
) -> None:
    """No kernel of the package has a causal mask and padding, so a decoder's mask is boolean."""
    kernels, seen = package._loaded._kernels, []  # type: ignore[attr-defined]
    serve = kernels.serve

    def noting(call: Any) -> Any:
        seen.append(tuple(call.mask.shape))
        return serve(call)

    monkeypatch.setattr(kernels, "serve", noting)
    module = DECODER if "decoder" in name else ENCODER
    registry.forward(module, *tensors(module), masks(registry)[name])
    assert seen == [shape]


@pytest.mark.parametrize(
    ("kind", "others"),
    [("dropout", {"dropout": 0.5}), ("weights", {"output_attentions": True}), ("grad", {})],
)
def test_calls_with_a_bias_that_no_kernel_serves_are_counted(
    package: ModuleType,
    registry: Registry,
    served: Callable[[], int],
    kind: str,
    others: dict[str, Any],
) -> None:
    before = package.info()["misses"].get(kind, {"count": 0})["count"]
    bias = bias_of_t5().requires_grad_(kind == "grad")
    with torch.set_grad_enabled(kind == "grad"):
        registry.forward(ENCODER, *tensors(ENCODER), None, position_bias=bias, **others)
    assert package.info()["misses"][kind]["count"] == before + 1
    assert (served(), registry.left_to_sdpa) == (0, 1)


@pytest.mark.parametrize("name", ["T5", "Bert", "Llama"])
def test_models_are_served(package: ModuleType, served: Callable[[], int], name: str) -> None:
    transformers = pytest.importorskip("transformers")
    package.register_transformers()
    width = HEADS * HEAD_DIM
    sizes = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    sizes |= {"hidden_size": width, "intermediate_size": 64}
    config = {
        "T5": lambda: transformers.T5Config(
            vocab_size=50, d_model=width, d_kv=HEAD_DIM, d_ff=64, num_layers=2, num_heads=HEADS
        ),
        "Bert": lambda: transformers.BertConfig(**sizes),
        "Llama": lambda: transformers.LlamaConfig(**sizes, num_key_value_heads=HEADS // 2),
    }
    kinds = {"T5": "T5EncoderModel", "Bert": "BertModel", "Llama": "LlamaModel"}
    models = []
    for implementation in (package.__name__, "eager"):
        torch.manual_seed(0)
        made = config[name]()
        made._attn_implementation = implementation
        models.append(getattr(transformers, kinds[name])(made).eval())
    ours, theirs = models
    tokens = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) % 50
    for padding in (PADDING.long(), None) if name == "T5" else (PADDING.long(),):
        out, wanted = (model(tokens, attention_mask=padding)[0] for model in (ours, theirs))
        real = PADDING if padding is not None else torch.ones_like(PADDING)
        torch.testing.assert_close(out[real], wanted[real], rtol=1e-4, atol=1e-4)
        assert served() == 2, package.info()["misses"]
