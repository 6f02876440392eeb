"""The configurations that a GPU test lists are valid in their space. That needs no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from evotune.runs.setup import load_kernel_setup
from evotune.trial import Configuration
from tests.gpu.searching import shipped
from tests.gpu.test_varlen import PACKED, one_part_after_the_other


@pytest.mark.parametrize("head_dim", [64, 128])
def test_each_part_of_packed_attention_fits_a_hopper_gpu(head_dim: int, tmp_path: Path) -> None:
    space = shipped("attention_varlen_wgmma")
    shape = {**PACKED, "heads": 4, "kv_heads": 2, "head_dim": head_dim}
    space["problem"] |= {"shapes": [shape], "held_out": [], "variants": [{"causal": False}]}
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    known = load_kernel_setup(path, "h100", compile_only=True).space
    for listed in one_part_after_the_other():
        configuration = Configuration({**known.default(), **listed})
        assert not list(known.violations(configuration)), listed
