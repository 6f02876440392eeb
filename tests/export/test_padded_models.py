"""Padded batches of transformers' models on a package for packed sequences.

The models themselves are tried where transformers is installed; else a stand-in for its registry
calls the package as they do.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from evotune.export.exporting import export_runs
from tests.export.runtime.packages import imported
from tests.export.runtime.registry import Registry

from .making import fabricated, tiny_space

LENGTHS, LONGEST, HEADS, HEAD_DIM = (30, 15, 10, 8, 7), 30, 4, 32
MODULE = SimpleNamespace(is_causal=True, num_key_value_groups=1)
BERT = SimpleNamespace(model_type="bert")


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package for the batch of these lengths, also as all places of one that a graph captures."""
    folder, batch, runs = tmp_path_factory.mktemp("padded"), len(LENGTHS), []
    cases = {True: [(batch, sum(LENGTHS))], False: []}
    cases[False] = [*cases[True], (3 * batch, batch * LONGEST)]
    for causal, sizes in cases.items():
        for sequences, tokens in sizes:
            own = folder / f"{sequences}_{causal}"
            space = tiny_space("attention-varlen-cpu", own)
            shape = f"sequences: {sequences}, heads: {HEADS}, kv_heads: {HEADS}, "
            shape += "".join(f"tokens_{side}: {tokens}, longest_{side}: 30, " for side in "qk")
            text = re.sub(
                r"shapes: .*", f"shapes: [{{{shape}head_dim: {HEAD_DIM}}}]", space.read_text()
            )
            text = re.sub(r"variants: .*", f"variants: [{{causal: {str(causal).lower()}}}]", text)
            space.write_text(text)
            runs.append(fabricated(space, own, speedup=1000.0))  # more than a call costs
    exported = export_runs(runs, folder / "pkg", "padded_package")
    return folder / "pkg" / exported.name


@pytest.fixture
def package(folder: Path) -> Iterator[ModuleType]:
    with imported(folder) as module:
        yield module


@pytest.fixture
def registry(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry(monkeypatch)
    package.register_transformers()
    return made


def bidirectional_mask_function() -> None:
    """Named as transformers' own."""


def padding(lengths: Sequence[int] = LENGTHS, *, left: bool = False) -> torch.Tensor:
    rows = torch.arange(LONGEST).expand(len(lengths), -1)
    ends = torch.tensor(lengths)[:, None]
    return rows >= LONGEST - ends if left else rows < ends


def masked(registry: Registry, exist: torch.Tensor, causal: bool, **named: Any) -> torch.Tensor:
    sizes = {"batch_size": len(exist), "q_length": LONGEST, "kv_length": LONGEST}
    if not causal:
        named["mask_function"] = bidirectional_mask_function
        named |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True}
    mask = registry.mask(**{**sizes, "attention_mask": exist, "config": BERT, **named})
    assert mask is not None
    return mask


def tensors(batch: int = len(LENGTHS)) -> list[torch.Tensor]:
    """q, k and v as models hand them over: heads and places change places."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, LONGEST, HEADS, HEAD_DIM)
    return [torch.randn(shape, generator=generator).transpose(1, 2) for _ in range(3)]


def right(given: list[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(*given, mask).transpose(1, 2)


def attend(registry: Registry, mask: Any, given: Any = None, **others: Any) -> torch.Tensor:
    with torch.no_grad():
        out, _ = registry.forward(MODULE, *(given or tensors()), mask, **others)
    return out


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_padded_batches_are_packed(
    package: ModuleType, registry: Registry, causal: bool, left: bool
) -> None:
    exist = padding(left=left)
    mask = masked(registry, exist, causal)
    for _ in range(2):  # two layers
        out = attend(registry, mask)
        assert out.is_contiguous()
        torch.testing.assert_close(out[exist], right(tensors(), mask)[exist])
        assert not out[~exist].any()
    assert package.info()["calls"] == 2
    assert registry.left_to_sdpa == 0


def test_padding_may_lie_anywhere(package: ModuleType, registry: Registry) -> None:
    exist = padding()
    exist[0, 3], exist[2, 20] = False, True
    for causal in (False, True):
        mask = masked(registry, exist, causal)
        out = attend(registry, mask)
        torch.testing.assert_close(out[exist], right(tensors(), mask)[exist])
    assert package.info()["calls"] == 2


def test_layers_of_a_model_share_the_packing(
    package: ModuleType, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = sys.modules[f"{package.__name__}._padded_models"]
    made: list[None] = []
    packing = models.packing
    monkeypatch.setattr(models, "packing", lambda *a, **n: (made.append(None), packing(*a, **n))[1])
    mask = masked(registry, padding(), False)
    for _ in range(3):
        attend(registry, mask)
    assert len(made) == 1
    attend(registry, mask.clone())  # of which nobody knows who writes into it, and when
    attend(registry, mask[:, :, :1])
    attend(registry, mask[:, :, :1])
    assert len(made) == 3


def test_a_captured_graph_packs_all_places(
    package: ModuleType, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads a tensor there, and the boundaries are such as kernels were checked on."""
    exist = padding()
    for name in ("_transformers_hook", "_padded_models"):
        module = sys.modules[f"{package.__name__}.{name}"]
        monkeypatch.setattr(module, "is_capturing", lambda tensor: True)
    mask = masked(registry, exist, False)
    places = sys.modules[f"{package.__name__}._padded_places"]
    with monkeypatch.context() as patch:
        for read in ("tolist", "item", "__bool__", "__int__", "nonzero"):
            patch.setattr(torch.Tensor, read, lambda *_: pytest.fail("it was read"))
        made = places.packing(exist, LONGEST, True, is_exact=False)
    for side in made:
        lengths = side.boundaries.diff()
        assert (side.boundaries[0], side.boundaries[-1]) == (0, side.tokens)
        assert side.tokens == len(LENGTHS) * LONGEST
        assert 0 <= lengths.min() <= lengths.max() <= side.longest
    out = attend(registry, mask)
    torch.testing.assert_close(out[exist], right(tensors(), mask)[exist])
    assert not out[~exist].any()
    assert package.info()["calls"] == 1


def test_rows_of_other_models_all_exist(package: ModuleType, registry: Registry) -> None:
    """They may be tokens of another sequence, of which this padding tells nothing."""
    for config in (
        SimpleNamespace(model_type="lightglue"),
        SimpleNamespace(model_type="bert", add_cross_attention=True),
    ):
        mask = masked(registry, padding(), False, config=config)
        torch.testing.assert_close(attend(registry, mask), right(tensors(), mask))
    assert registry.left_to_sdpa == 2  # such a case was not measured
    assert package.info()["misses"]["not measured to win"]["count"] == 2
    places = sys.modules[f"{package.__name__}._padded_places"]
    for exact in (False, True):
        rows, keys = places.packing(padding(), 3, False, is_exact=exact)
        assert rows.places is None
        assert rows.boundaries[:6].tolist() == [0, 3, 6, 9, 12, 15]
        assert len(rows.boundaries) == len(keys.boundaries)


@pytest.mark.parametrize("added", [None, torch.float32])
def test_masks_of_others_say_which_keys_exist(
    package: ModuleType, registry: Registry, added: torch.dtype | None
) -> None:
    models = sys.modules[f"{package.__name__}._padded_models"]
    exist = padding()[:, None, None]
    mask: torch.Tensor = exist
    if added is not None:
        mask = torch.zeros(exist.shape).masked_fill(~exist, torch.finfo(added).min)
    said = models._looked_at(mask)
    assert torch.equal(said.padding, padding())
    assert (said.is_causal, said.rows_are_keys) == (False, False)
    assert models._looked_at(mask.expand(-1, -1, LONGEST, -1)) is not None
    assert models._looked_at(mask.expand(-1, HEADS, -1, -1)) is None
    assert models._looked_at(mask.expand(-1, -1, LONGEST, -1).contiguous()) is None
    if added is not None:
        mask[0, 0, 0, 0] = -1.0  # a bias
        assert models._looked_at(mask) is None
    attend(registry, mask)
    assert registry.left_to_sdpa == 1


def test_other_calls_go_to_sdpa(package: ModuleType, registry: Registry) -> None:
    exist = padding()
    noted = masked(registry, exist, True)
    window = SimpleNamespace(model_type="bert", sliding_window=6)
    local = masked(registry, exist, True, local_size=6, config=window)
    vmap = masked(registry, exist, False, use_vmap=True)
    for mask in (None, noted & noted, local, vmap):
        out = attend(registry, mask)
        expected = right(tensors(), mask) if mask is not None else None
        if expected is not None:
            torch.testing.assert_close(out, expected)
    attend(registry, noted, dropout=0.5)
    few = [tensors()[0][:, :, -2:], *tensors()[1:]]
    attend(registry, masked(registry, exist, True, q_length=2, q_offset=28), few)
    attend(registry, noted, [each.double() for each in tensors()])
    given = [each.requires_grad_() for each in tensors()]
    registry.forward(MODULE, *given, noted)[0].sum().backward()
    assert given[0].grad is not None
    assert registry.left_to_sdpa == 8
    assert package.info()["calls"] == 0
    assert package.info()["misses"].keys() == {"grad", "dtype"}


def test_a_wide_window_hides_nothing(package: ModuleType, registry: Registry) -> None:
    config = SimpleNamespace(model_type="mistral", sliding_window=LONGEST)
    attend(registry, masked(registry, padding(), True, local_size=LONGEST, config=config))
    assert package.info()["calls"] == 1


def test_sinks_and_caps_are_computed(package: ModuleType, registry: Registry) -> None:
    """transformers' own function lacks them."""
    mask = masked(registry, padding(), True)
    q, k, v = tensors()
    scores = q @ k.transpose(-1, -2) / HEAD_DIM**0.5
    capped = (torch.tanh(scores / 5.0) * 5.0).masked_fill(~mask, -torch.inf)
    expected = (torch.softmax(capped, -1) @ v).transpose(1, 2)
    torch.testing.assert_close(attend(registry, mask, softcap=5.0), expected)
    sinks = torch.full((HEADS,), 1.0)
    column = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    whole = torch.cat([scores.masked_fill(~mask, -torch.inf), column], -1)
    expected = (torch.softmax(whole, -1)[..., :-1] @ v).transpose(1, 2)
    torch.testing.assert_close(attend(registry, mask, s_aux=sinks), expected)
    assert (package.info()["calls"], registry.left_to_sdpa) == (0, 0)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", ["Bert", "Llama"])
def test_models_are_served(package: ModuleType, name: str, left: bool) -> None:
    transformers = pytest.importorskip("transformers")
    package.register_transformers()
    sizes = {"hidden_size": HEADS * HEAD_DIM, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    sizes |= {"intermediate_size": 32, "vocab_size": 50, "max_position_embeddings": 64}
    exist = padding(left=left)
    tokens = torch.arange(exist.numel()).view(exist.shape) % 50
    outputs = []
    for implementation in (package.__name__, "eager"):
        config = getattr(transformers, f"{name}Config")(**sizes)
        make = getattr(transformers, f"AutoModelFor{'MaskedLM' if name == 'Bert' else 'CausalLM'}")
        torch.manual_seed(0)
        model = make.from_config(config, attn_implementation=implementation).eval()
        with torch.no_grad():
            outputs.append(model(tokens, attention_mask=exist.long()).logits)
    torch.testing.assert_close(outputs[0][exist], outputs[1][exist])
    assert package.info()["calls"] == 2, package.info()["misses"]
