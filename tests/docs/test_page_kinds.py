"""A page is a guide, a reference or an entry of the lab book, and never two of these."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import DOCS, GUIDES, ROOT

MOST_LINES = 125
"""Of a guide, without its code."""
FIGURES = [path.name for path in (ROOT / "benchmarks" / "results").iterdir()]
PAGES = sorted(DOCS.glob("*.md"))
ENTRIES = sorted(set((DOCS / "lab").glob("*.md")) - {DOCS / "lab" / "README.md"})


@pytest.mark.parametrize("name", [*GUIDES, "explaining.md", "many-gpus.md", "portfolio.md"])
def test_a_guide_is_short(name: str) -> None:
    text = re.sub(r"^```.*?^```", "", (DOCS / name).read_text(), flags=re.M | re.S)
    assert len([line for line in text.splitlines() if line]) <= MOST_LINES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_figures_are_named_in_the_lab_book_alone(page: Path) -> None:
    text = page.read_text()
    assert [name for name in FIGURES if name in text] == []


@pytest.mark.parametrize("page", ENTRIES, ids=lambda page: page.name)
def test_a_page_of_the_lab_book_has_dates(page: Path) -> None:
    assert re.search(r"20\d\d-\d\d-\d\d", page.read_text())
