"""A kernel that is read as an example is short, and so is each part of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = sorted(ROOT.glob("kernels/*/*.cu*"))
MOST = 400
OTHERS = [path for path in KERNELS if path.parent.name != "attention"]
EXAMPLES = {path: 250 for path in OTHERS if path.suffix == ".cu"}
SHORT_RUNG = {ROOT / "kernels" / "attention" / "4_tma.cu": 300}
LIMITS = {**dict.fromkeys(KERNELS, MOST), **EXAMPLES, **SHORT_RUNG}


@pytest.mark.parametrize("path", LIMITS, ids=lambda path: path.name)
def test_a_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LIMITS[path]
