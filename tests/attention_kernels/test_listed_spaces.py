"""The tests of GPUs list configurations of shipped spaces, which change; no GPU is needed here."""

from __future__ import annotations

from pathlib import Path

import yaml

from evotune.engine.setup import load_setup
from tests.gpu import searching, test_varlen, test_wgmma, test_wgmma_features


def test_listed_configurations_form_a_space_that_loads(tmp_path: Path) -> None:
    spaces = {
        "plain": (test_wgmma.SPACE, [test_wgmma.SMALLEST]),
        "features": (test_wgmma_features.SPACE, test_wgmma_features.one_part_after_the_other()),
        "packed": (
            searching.shipped("attention_varlen_wgmma"),
            test_varlen.one_part_after_the_other(),
        ),
    }
    for name, (space, configurations) in spaces.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(searching.listed(space, configurations)))
        setup = load_setup(path, "h200", compile_only=True)
        assert setup.space.size().valid == len(configurations), name
