"""Links from page to page lead somewhere, as GitHub reads them: files, and headings in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import PAGES, ROOT

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.M):
        bare = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", bare).replace(" ", "-")
        seen = found.get(name, 0)
        names.add(f"{name}-{seen}" if seen else name)
        found[name] = seen + 1
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    lost = []
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            lost.append(link)
    assert not lost


def test_every_page_of_docs_can_be_reached_from_its_first_page() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    for folder in (ROOT / "docs", ROOT / "docs" / "lab"):
        index = (folder / "README.md").read_text()
        for page in folder.glob("*.md"):
            place = page.relative_to(ROOT / "docs")
            assert page.name == "README.md" or f"({page.name})" in index, f"{folder}: {page.name}"
            assert f": {place}\n" in site, f"mkdocs.yml: {place}"
