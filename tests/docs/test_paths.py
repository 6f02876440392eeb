"""Files that the documentation names are there."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PAGES = [*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md"), *(_ROOT / "kernels").rglob("*.md")]
_NAMED = re.compile(r"`((?:[\w.]+/)*\w+\.(?:py|cu|cuh|cpp|hpp|yaml))`")
_EXAMPLES = {
    "kernel.cpp",
    "kernel.cu",
    "kernel.py",
    "problem.py",
    "space.yaml",
    "mine.py",
    "wrapper.cu",
    "my.yaml",
    "cases.yaml",
    "evaluate.py",  # of ShinkaEvolve
    "NAME/_problem_compute.py",  # of a package
}


@functools.cache
def _known() -> list[str]:
    return [
        f"/{path.relative_to(_ROOT)}" for path in _ROOT.rglob("*.*") if ".venv" not in path.parts
    ]


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_a_named_file_exists(page: Path) -> None:
    known = _known()
    named = set(_NAMED.findall(page.read_text(encoding="utf-8"))) - _EXAMPLES
    lost = [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in known)]
    assert not lost
