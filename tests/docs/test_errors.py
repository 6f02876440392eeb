"""The messages that docs/errors.md quotes are those of the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from evotune.trial import OutcomeKind

from .test_tables import tables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text()
_CODE = re.compile(r"(?<!\\)`((?:[^`\\]|\\.)+)(?<!\\)`")
_REASON = "words of its reason"
_NO_MESSAGES = {kind.value for kind in OutcomeKind} | {"evotune resume latest"}


def messages() -> list[str]:
    """The quoted messages: the code of each row's first cell, or of its words of a reason."""
    found = []
    for head, _, *rows in tables(PAGE):
        column = _cells(head).index(_REASON) if _REASON in _cells(head) else 0
        found += [text for row in rows for text in _CODE.findall(_cells(row)[column])]
    return [text.replace("\\`", "`") for text in found if text not in _NO_MESSAGES]


def _cells(row: str) -> list[str]:
    return re.split(r"(?<!\\) \| ", row.removeprefix("| ").removesuffix(" |"))


def _texts(tree: ast.AST) -> Iterator[str]:
    """Every text of a module; the fixed parts of an f-string are joined by `…`."""
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in inside:
            yield str(node.value)


@pytest.fixture(scope="module")
def sources() -> str:
    files = [f for f in (ROOT / "evotune").rglob("*.py") if "templates" not in f.parts]
    return "\n".join(text for file in files for text in _texts(ast.parse(file.read_text())))


def test_the_page_quotes_many_messages() -> None:
    assert len(messages()) > 60


@pytest.mark.parametrize("message", messages())
def test_the_fixed_words_are_in_the_sources(sources: str, message: str) -> None:
    parts = [part.strip(" :;,()'") for part in message.split("…")]
    lost = [part for part in parts if part and part not in sources]
    assert not lost


def test_every_kind_of_failure_is_there() -> None:
    missing = [
        kind.value for kind in OutcomeKind if kind.value != "ok" and f"`{kind.value}`" not in PAGE
    ]
    assert not missing
