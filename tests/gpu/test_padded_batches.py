"""Padded batches of models on a GPU's kernels for packed sequences, in a captured graph too."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch
import yaml
from torch.nn import functional

from evotune.export.exporting import export_runs
from tests.export.making import ROOT, fabricated
from tests.export.runtime.packages import imported
from tests.export.runtime.registry import Registry

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*a call is not served:UserWarning"),
]
LENGTHS, LONGEST, HEADS, HEAD_DIM = (128, 64, 42, 32, 25, 21, 18, 16), 128, 12, 64
MODULE = SimpleNamespace(is_causal=False, num_key_value_groups=1)


def bidirectional_mask_function() -> None:
    """Named as transformers' own."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder, batch, runs = tmp_path_factory.mktemp("padded"), len(LENGTHS), []
    document = yaml.safe_load((ROOT / "search_spaces" / "attention_varlen.yaml").read_text())
    for sequences, tokens in ((batch, sum(LENGTHS)), (3 * batch, batch * LONGEST)):
        shape = {"sequences": sequences, "heads": HEADS, "head_dim": HEAD_DIM}
        shape |= {f"tokens_{side}": tokens for side in "qk"}
        shape |= {f"longest_{side}": LONGEST for side in "qk"}
        document["problem"] |= {"shapes": [shape], "variants": [{"causal": False}], "held_out": []}
        own = folder / str(sequences)
        own.mkdir()
        space = own / "space.yaml"
        space.write_text(yaml.safe_dump({**document, "root": str(ROOT)}, sort_keys=False))
        runs.append(fabricated(space, own, "cuda:0"))
    exported = export_runs(runs, folder / "pkg", "padded_on_gpu")
    with imported(folder / "pkg" / exported.name) as module:
        yield module


def forward(registry: Registry, exist: torch.Tensor, qkv: list[torch.Tensor]) -> torch.Tensor:
    mask = registry.mask(
        batch_size=len(LENGTHS),
        q_length=LONGEST,
        kv_length=LONGEST,
        attention_mask=exist,
        config=SimpleNamespace(model_type="bert"),
        mask_function=bidirectional_mask_function,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=True,
        device=exist.device,
    )
    for _ in range(2):  # layers
        out, _ = registry.forward(MODULE, *qkv, mask)
    return out


def agree(out: torch.Tensor, exist: torch.Tensor, qkv: list[torch.Tensor]) -> None:
    wide = [each.double() for each in qkv]
    expected = functional.scaled_dot_product_attention(*wide, exist[:, None, None])
    torch.testing.assert_close(
        out[exist].double(), expected.transpose(1, 2)[exist], rtol=2e-3, atol=2e-3
    )
    assert not out[~exist].any()


def test_padded_batches_are_served_and_a_graph_takes_other_lengths(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(monkeypatch)
    package.register_transformers()
    shape = (len(LENGTHS), LONGEST, HEADS, HEAD_DIM)
    qkv = [torch.randn(shape, device="cuda").half().transpose(1, 2) for _ in range(3)]
    place = torch.arange(LONGEST, device="cuda")
    exist = place < torch.tensor(LENGTHS, device="cuda")[:, None]
    with torch.no_grad():
        agree(forward(registry, exist, qkv), exist, qkv)
        assert package.info()["calls"] == 2
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = forward(registry, exist, qkv)
        assert (package.info()["calls"], registry.left_to_sdpa) == (4, 0)
        for lengths in (LENGTHS, (1, 128, 128, 128, 3, 128, 77, 128), LENGTHS[::-1]):
            given = torch.tensor(lengths, device="cuda")[:, None]
            exist.copy_(place >= LONGEST - given)  # padding on the left
            graph.replay()
            torch.cuda.synchronize()
            agree(out, exist, qkv)
