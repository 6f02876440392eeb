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


def test_layers_share_the_decision(
    package: ModuleType, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the kernels forget it, or a call has other facts."""
    kernels = package._loaded._own_kernels
    asked: list[None] = []
    decided = kernels.decided
    monkeypatch.setattr(kernels, "decided", lambda *a: (asked.append(None), decided(*a))[1])
    exist = padding()
    exist[0, 3] = False  # so that tokens are packed
    exist[1, 15] = True
    mask = masked(registry, exist, False)
    for _ in range(3):
        attend(registry, mask)
    assert len(asked) == 1
    attend(registry, mask, [each.clone() for each in tensors()])
    attend(registry, mask, [each.contiguous() for each in tensors()])
    assert (len(asked), package.info()["calls"]) == (2, 5)
    scaled = attend(registry, mask, scaling=0.1)
    expected = functional.scaled_dot_product_attention(*tensors(), mask, scale=0.1)
    torch.testing.assert_close(scaled[exist], expected.transpose(1, 2)[exist])
    attend(registry, masked(registry, exist, False))  # another mask
    assert (len(asked), registry.left_to_sdpa) == (4, 0)
    written = masked(registry, exist, False)
    attend(registry, written)
    written[0, 0, :, 0] = False
    torch.testing.assert_close(attend(registry, written), right(tensors(), written))
    assert (len(asked), registry.left_to_sdpa) == (5, 1)
    refused = sys.modules[f"{package.__name__}._loaded_kernels"].Refused("version", "another one")
    monkeypatch.setattr(kernels.kernels, "refused", lambda *_: refused)
    kernels.forget()
    for number in range(1, 4):
        attend(registry, mask)
        assert registry.left_to_sdpa == 1 + number
    assert len(asked) == 6
    assert package.info()["misses"]["version"]["count"] == 3


def test_what_is_no_fact_of_tensors_is_asked_at_each_call(
    package: ModuleType, registry: Registry
) -> None:
    mask = masked(registry, padding(), False)
    attend(registry, mask)
    attend(registry, mask, dropout=0.5)
    given = [each.requires_grad_() for each in tensors()]
    registry.forward(MODULE, *given, mask)[0].sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        attend(registry, mask)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        attend(registry, mask)
    finally:
        torch.set_num_threads(threads)
    assert registry.left_to_sdpa == 4
    assert package.info()["misses"].keys() == {"dropout", "grad", "dtype", "device"}


@pytest.mark.parametrize("left", [False, True])
def test_tokens_on_one_side_stay(
    package: ModuleType, registry: Registry, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    """Where kernels won both cases; here not on the causal one."""
    exist = padding(left=left)
    models = sys.modules[f"{package.__name__}._padded_models"]
    copied: list[None] = []
    with monkeypatch.context() as patch:
        patch.setattr(models, "in_place", lambda _: None)
        expected = attend(registry, masked(registry, exist, False))
    with monkeypatch.context() as patch:
        select = torch.Tensor.index_select
        patch.setattr(torch.Tensor, "index_select", lambda *a: (copied.append(None), select(*a))[1])
        assert torch.equal(attend(registry, masked(registry, exist, False)), expected)
        assert not copied
        attend(registry, masked(registry, exist, True))
        assert len(copied) == 3
        given = [torch.cat([each, each], 3)[..., :HEAD_DIM] for each in tensors()]
        assert torch.equal(attend(registry, masked(registry, exist, False), given), expected)
        memory = torch.empty(tensors()[0].numel() + 1)[1:]  # not where kernels take it
        moved = memory.view(len(exist), LONGEST, HEADS, HEAD_DIM).transpose(1, 2)
        given = [moved.copy_(tensors()[0]), *tensors()[1:]]
        mask = masked(registry, exist, False)
        for each in (tensors(), given, tensors()):
            assert torch.equal(attend(registry, mask, each), expected)
        assert len(copied) == 9
    assert (package.info()["calls"], registry.left_to_sdpa) == (7, 0)


def test_where_sequences_stay(package: ModuleType) -> None:
    in_place = sys.modules[f"{package.__name__}._padded_models"].in_place
    rows, keys = in_place(torch.tensor([[1, 1, 0], [0, 0, 1], [1, 1, 1], [0, 0, 0]]).bool())
    assert rows.boundaries.diff().view(4, 3).tolist() == [
        [2, 1, 0],
        [2, 0, 1],
        [3, 0, 0],
        [3, 0, 0],
    ]
    assert keys.boundaries.diff().view(4, 3).tolist() == [
        [2, 0, 1],
        [0, 2, 1],
        [3, 0, 0],
        [0, 3, 0],
    ]
    assert rows.places is keys.places is None
    for other in ([0, 1, 0], [1, 0, 1]):
        assert in_place(torch.tensor([[1, 1, 1], other]).bool()) is None


@pytest.mark.parametrize("layout", ["rows first", "heads first", "parts of one", "gaps", "one"])
def test_any_memory_is_packed(package: ModuleType, layout: str) -> None:
    places = sys.modules[f"{package.__name__}._padded_models"]
    rows = tensors()[0].transpose(1, 2)
    given = {
        "rows first": lambda: rows,
        "heads first": lambda: rows.transpose(1, 2).contiguous().transpose(1, 2),
        "parts of one": lambda: torch.cat([rows, rows + 1, rows], 3)[..., HEAD_DIM : 2 * HEAD_DIM],
        "gaps": lambda: functional.pad(rows, (0, 0, 0, 0, 1, 2))[:, 1:-2],
        "one": lambda: rows[:, :1].expand(-1, LONGEST, -1, -1),
    }[layout]()
    exist = padding()
    side = places.packing(exist, LONGEST, True, is_exact=True).rows
    flat = given.transpose(1, 2)
    found = places.packed(flat, side, places.flattening(flat))
    assert torch.equal(found, given[exist])
    back = places.unpacked(found, side, *given.shape[:2]).transpose(1, 2)
    assert torch.equal(back[exist], found)
    assert not back[~exist].any()


def test_a_captured_graph_packs_all_places(
    package: ModuleType, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads a tensor there, and the boundaries are such as kernels were checked on."""
    exist = padding()
    for name in ("_transformers_hook", "_padded_models"):
        module = sys.modules[f"{package.__name__}.{name}"]
        monkeypatch.setattr(module, "is_capturing", lambda tensor: True)
    mask = masked(registry, exist, False)
    places = sys.modules[f"{package.__name__}._padded_models"]
    with monkeypatch.context() as patch:
        for read in ("tolist", "item", "__bool__", "__int__", "nonzero"):
            patch.setattr(torch.Tensor, read, lambda *_: pytest.fail("it was read"))
        made = places.packing(exist, LONGEST, True, is_exact=False)
    for side in made:
        lengths = side.boundaries.diff()
        assert (side.boundaries[0], side.boundaries[-1]) == (0, side.tokens)
        assert side.tokens == len(LENGTHS) * LONGEST
        assert 0 <= lengths.min() <= lengths.max() <= side.longest
    with monkeypatch.context() as patch:  # nothing is left to be zeroed
        patch.setattr(torch.Tensor, "new_zeros", lambda *_: pytest.fail("zeros were written"))
        out = attend(registry, mask)
    torch.testing.assert_close(out[exist], right(tensors(), mask)[exist])
    assert not out[~exist].any()
    assert package.info()["calls"] == 1


@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_keeps_the_padding_that_it_was_made_of(registry: Registry, causal: bool) -> None:
    exist = padding()
    mask = masked(registry, exist, causal)
    before = exist.clone()
    exist.copy_(exist.flip(1))
    out = attend(registry, mask)
    torch.testing.assert_close(out[before], right(tensors(), mask)[before])


def test_a_graph_reads_a_mask_that_is_older_than_it(
    package: ModuleType, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of earlier calls would keep their lengths in each replay."""
    mask = masked(registry, padding(), False)
    attend(registry, mask)
    models = sys.modules[f"{package.__name__}._padded_models"]
    monkeypatch.setattr(models, "is_capturing", lambda tensor: True)
    exact: list[bool] = []
    packing = models.packing
    monkeypatch.setattr(
        models, "packing", lambda *a, is_exact: (exact.append(is_exact), packing(*a, is_exact))[1]
    )
    for _ in range(2):
        attend(registry, mask)
    assert exact == [False, False]


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
    places = sys.modules[f"{package.__name__}._padded_models"]
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
    assert package.info()["misses"].keys() == {"mask", "dropout", "grad", "dtype"}


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


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("mask", {"mask": None}),
        ("mask", {"mask": torch.ones(5, 1, LONGEST, LONGEST, dtype=torch.bool).tril()}),
        ("dropout", {"dropout": 0.1}),
        ("features", {"softcap": 5.0}),
        ("bias", {"position_bias": torch.zeros(5, HEADS, LONGEST, LONGEST)}),
        ("weights", {"output_attentions": True}),
    ],
)
def test_each_call_that_is_not_packed_is_counted(
    package: ModuleType, registry: Registry, kind: str, others: dict[str, Any]
) -> None:
    given = {"mask": masked(registry, padding(), False), **others}
    attend(registry, given.pop("mask"), **given)
    found = package.info()
    assert found["calls"] == 0
    assert {each: told["count"] for each, told in found["misses"].items()} == {kind: 1}


def test_a_call_that_a_compiler_traces_is_counted(package: ModuleType, registry: Registry) -> None:
    mask = masked(registry, padding(), False)

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return registry.forward(MODULE, q, k, v, mask)[0]

    with torch.no_grad():
        torch.compile(layer, backend="eager")(*tensors())
    assert package.info()["misses"]["graph"]["count"] == 1
