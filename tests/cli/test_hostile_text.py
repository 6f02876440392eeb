"""Text of a recording that came from elsewhere: no terminal, spreadsheet or page obeys it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from .conftest import Invoke

HOSTILE = (
    "\x1b[2J\x1b]0;pwned\x07",
    '=HYPERLINK("http://x")',
    "@SUM(1)",
    "+1+cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "| a | b |\n|---|---|",
    "[link](javascript:alert(1))",
    "\u202edetrevni\u2028line\u0085\x9b31m",
    "../../etc/passwd",
    "$(touch pwned)`touch pwned`",
)


@pytest.fixture
def run(invoke: Invoke, tmp_path: Path) -> None:
    """A run whose every text is hostile: device, kernel, parameters' values and failures."""
    values = list(HOSTILE)
    recording = {
        "device_name": "".join(HOSTILE),
        "kernel_name": "".join(HOSTILE),
        "tune_params_keys": ["A", "B"],
        "tune_params": {"A": values, "B": [1, 2]},
        "cache": {
            f"{a},{b}": {"A": value, "B": b, "time": value if b == 2 else 1.0 + a}
            for a, value in enumerate(values)
            for b in (1, 2)
        },
    }
    (tmp_path / "hostile.json").write_text(json.dumps(recording))
    result = invoke("run", "hostile.json", "--trials", "20")
    assert result.exit_code == 0, result.output
    _check_harmless(result.stdout + result.stderr)


def _check_harmless(text: str) -> None:
    bad = {char for char in text if not char.isprintable()} - {"\n"}
    assert not bad, bad


@pytest.mark.parametrize(
    "command",
    [
        ("status", "latest"),
        ("status", "latest", "--format", "json"),
        ("top", "latest"),
        ("top", "latest", "--color", "never", "-n", "20"),
        *(("top", "latest", "--format", style) for style in ("json", "jsonl", "csv", "md")),
        *(("report", "latest", "--format", style) for style in ("json", "jsonl", "csv", "md")),
    ],
)
@pytest.mark.usefixtures("run")
def test_no_terminal_spreadsheet_or_page_obeys_a_recordings_text(
    invoke: Invoke, tmp_path: Path, command: tuple[str, ...]
) -> None:
    result = invoke(*command)
    assert result.exit_code == 0
    _check_harmless(result.stdout.replace("\r\n", "\n"))
    if "csv" in command:
        rows = list(csv.reader(io.StringIO(result.stdout)))
        assert not [cell for row in rows for cell in row if cell.lstrip().startswith(("=", "@"))]
        assert not [cell for row in rows for cell in row if cell.startswith("+")]
    elif "md" in command:
        assert "<script" not in result.stdout
        assert not re.search(r"(?<!\\)\]\(javascript", result.stdout)
    elif "json" in command:
        json.loads(result.stdout)
    assert not list(tmp_path.rglob("pwned"))
