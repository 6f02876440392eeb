"""Every command line that a page shows is one that evotune takes, with the options it has now."""

from __future__ import annotations

import textwrap
from pathlib import Path

import click
import pytest

from evotune.cli.main import application

from .pages import GUIDES, PAGES, ROOT, blocks, evotune_commands


def _parsed(words: list[str]) -> click.Context:
    """The command with its options, as click reads them; nothing runs."""
    above = click.Context(application, info_name="evotune")
    command = application.get_command(above, words[0])
    assert command is not None, words[0]
    return command.make_context(words[0], list(words[1:]), parent=above)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_evotune_takes_every_command_line_of_a_page(page: Path) -> None:
    for words in evotune_commands(page):
        _parsed(words)


def test_a_wrong_option_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        _parsed(["run", "--trails", "3"])


def test_guides_have_commands_and_python_that_parses() -> None:
    for name in GUIDES:
        found = blocks(ROOT / "docs" / name)
        assert any(block.language in ("sh", "python") for block in found), name
    for page in PAGES:
        for block in blocks(page):
            if block.language in ("py", "python"):
                compile(textwrap.dedent(block.text), page.name, "exec")
