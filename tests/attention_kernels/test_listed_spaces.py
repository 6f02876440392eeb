"""The tests of GPUs list configurations of shipped spaces, which change; no GPU is needed here."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from evotune.runs.setup import load_kernel_setup, load_setup
from tests.gpu import (
    searching,
    test_masks,
    test_varlen,
    test_wgmma,
    test_wgmma_features,
    test_wgmma_masks,
)


def test_listed_configurations_form_a_space_that_loads(tmp_path: Path) -> None:
    spaces = {
        "plain": (test_wgmma.SPACE, [test_wgmma.SMALLEST]),
        "features": (test_wgmma_features.SPACE, test_wgmma_features.one_part_after_the_other()),
        "masks": (test_wgmma_masks.SPACE, test_wgmma_masks.one_part_after_the_other()),
        "packed": (
            searching.shipped("attention_varlen_wgmma"),
            test_varlen.one_part_after_the_other(),
        ),
        "merging": (test_masks.space_of_merging("bias in float32"), test_masks.merging()),
    }
    for name, (space, configurations) in spaces.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(searching.listed(space, configurations)))
        setup = load_setup(path, "h200", compile_only=True)
        assert setup.space.size().valid == len(configurations), name


@pytest.mark.parametrize(
    ("space", "variant"),
    [
        ("attention_wgmma", {"causal": True}),
        ("attention_wgmma_features", {"causal": True, "window_left": 99}),
        ("attention_wgmma_features", {"softcap": 30.0, "lse": True}),
        ("attention_wgmma_features", {"alibi": True}),
        ("attention_wgmma_masks", {"mask": "padding", "causal": True}),
        ("attention_wgmma_masks", {"mask": "bias", "mask_dtype": "float32"}),
    ],
)
@pytest.mark.parametrize("head_dim", [32, 96, 128, 192, 256])
def test_configurations_to_try_first_exist_for_every_head_size(
    space: str, variant: dict[str, object], head_dim: int, tmp_path: Path
) -> None:
    told = searching.shipped(space)
    shapes = [{"batch": 2, "heads": 4, "seq_len": 500, "head_dim": head_dim}]
    told["problem"] |= {"shapes": shapes, "held_out": [], "variants": [variant]}
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(told))
    bound = load_kernel_setup(path, "h200", compile_only=True).space
    assert len(bound.starts()) == 1 + len(told["try_first"])
