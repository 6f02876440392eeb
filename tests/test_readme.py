"""README.md is short, and the space and commands of the first pages are valid."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from evotune.cli.main import application
from evotune.space.bound import bind
from evotune.space.document import parse_space
from evotune.trial import Value

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
OVERVIEW = (ROOT / "docs" / "README.md").read_text()
SPACES = (ROOT / "docs" / "spaces.md").read_text()


def test_the_example_space_is_valid() -> None:
    _, example = re.findall(r"```yaml\n(# yaml-language-server.*?)```", SPACES, re.S)
    document = parse_space(example, Path("my.yaml"))
    symbols: dict[str, Value] = {
        "batch": 1,
        "heads": 8,
        "seq_len": 512,
        "head_dim": 64,
        "softmax_scale": 0.125,
    }
    symbols |= {"causal": True, "dtype": "float32"}
    space = bind(document, [symbols], {"threads": 2, "l2_bytes": 1 << 20})
    assert space.size().exact


def test_every_command_of_the_overview_exists_with_the_options_it_shows() -> None:
    commands = re.findall(r"^\| `(.+?)` \|", OVERVIEW, re.M)
    shown = [part.split() for cell in commands for part in re.split(r"`, `", cell)]
    assert len(shown) >= 9
    for name, *words in shown:
        usage = CliRunner().invoke(application, [name, "--help"])
        assert usage.exit_code == 0, name
        for option in re.findall(r"--[a-z-]+", " ".join(words)):
            assert option in usage.output, f"{name} {option}"


def test_no_figure_is_left_to_be_filled_in() -> None:
    assert "@@" not in README


def test_readme_takes_five_minutes_and_leads_on() -> None:
    words = len(re.sub(r"\(\S+\)|`[^`]*`", "", README).split())
    assert words < 1000  # at 200 words a minute
    assert README.count("![") == 1
    for page in ("first-run", "your-kernel", "export", "from-python", "errors"):
        assert f"docs/{page}.md" in README
    assert re.findall(r"^make (\w+)", README, re.M) == ["run", "test"]
