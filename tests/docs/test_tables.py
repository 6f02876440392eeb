"""Tables and code blocks of the pages keep their lines: rewrapping a page must not join them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import PAGES, ROOT, blocks

_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")


def tables(text: str) -> list[list[str]]:
    """The rows of each table, without its fenced blocks."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return [found.splitlines() for found in re.findall(r"(?:^\|.*\n?)+", prose, flags=re.M)]


def cells(row: str) -> int:
    outside_code = re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", ""), row.strip())
    return len(_BETWEEN_CELLS.findall(outside_code)) - 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_row_has_as_many_cells_as_the_head_of_its_table(page: Path) -> None:
    for head, *rows in tables(page.read_text(encoding="utf-8")):
        assert [row for row in rows if cells(row) != cells(head)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_line_of_a_block_has_one_command(page: Path) -> None:
    shown = [line for block in blocks(page) if block.language in ("", "sh", "bash")
             for line in block.text.splitlines()]  # fmt: skip
    assert [
        line for line in shown if re.search(r"\S.*#.*\bevotune [a-z]+ (latest|\S+ --)", line)
    ] == []
