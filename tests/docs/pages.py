"""The pages that people read, and the code blocks in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = (
    "first-run.md",
    "your-kernel.md",
    "from-python.md",
    "python-callables.md",
    "judge.md",
    "formats.md",
    "model.md",
    "export.md",
    "reading-a-report.md",
    "trusting-a-result.md",
    "search.md",
)
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(ROOT / "examples").glob("*.md"),
        *(ROOT / "kernels").rglob("*.md"),
    ]
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_IS_DRAWN = re.compile(r"──|\[OPTIONS\]")  # a picture of processes, a usage line


@dataclass(frozen=True)
class Block:
    """A fenced block. `sh` and `python` of a guide are run by a test, `bash` and `py` are not: they
    need a network, a GPU or what the reader has."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _FENCE.findall(page.read_text(encoding="utf-8"))]


def shell_lines(block: Block) -> Iterator[str]:
    """The commands of a block, without comments."""
    for line in block.text.splitlines():
        command = re.sub(r"\s+#.*", "", line).strip()
        if command and not command.startswith("#"):
            yield command


def evotune_commands(page: Path) -> Iterator[list[str]]:
    """The words after `evotune` of each command line in a block of the page."""
    for block in blocks(page):
        if block.language in ("", "sh", "bash"):
            for line in shell_lines(block):
                if line.startswith("evotune ") and not _IS_DRAWN.search(line):
                    yield shlex.split(re.split(" >>? ", line)[0])[1:]
