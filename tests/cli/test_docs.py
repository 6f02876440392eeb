"""The documentation of the commands and of the space file agrees with the code."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from evotune.cli.main import application
from evotune.runs.spaces import shipped_spaces
from evotune.search.catalog import STRATEGY_NAMES
from evotune.space.reading.schema import schema_text
from evotune.trial import OutcomeKind

from .conftest import ROOT, Invoke, _python_path

DOCS = ROOT / "docs"
CONTEXT = click.Context(application)
COMMANDS = {
    name: application.get_command(CONTEXT, name) for name in application.list_commands(CONTEXT)
}

spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
assert spec is not None
assert spec.loader is not None
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)


@pytest.mark.parametrize("page", generate.PAGES)
def test_a_generated_page_is_what_the_code_says(page: str) -> None:
    written = (DOCS / page).read_text()
    assert written == generate.PAGES[page](), "run: python docs/generate.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_explained_with_an_example(name: str) -> None:
    command = COMMANDS[name]
    assert command is not None
    assert command.help
    assert f"evotune {name}" in (command.epilog or "")
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.opts
    overview = (DOCS / "README.md").read_text()
    assert re.search(rf"^\|.*`{name}\b", overview, re.MULTILINE), f"docs/README.md lacks {name}"


@pytest.mark.parametrize("command", ["run", "replay"])
def test_help_names_every_strategy(command: str) -> None:
    (option,) = (p for p in COMMANDS[command].params if p.name == "strategy")
    assert set(re.findall(r"\w+", option.help)) >= set(STRATEGY_NAMES)


def test_every_key_of_a_space_file_is_explained() -> None:
    schema = json.loads(schema_text())
    models = {"the file": schema, **schema["$defs"]}
    silent = [
        f"{model}.{key}"
        for model, found in models.items()
        for key, field in found["properties"].items()
        if not field.get("description")
    ]
    assert silent == []


def test_every_outcome_is_explained() -> None:
    runs = (DOCS / "runs.md").read_text()
    assert [kind for kind in OutcomeKind if f"`{kind.value}`" not in runs] == []


@functools.cache
def _schema() -> Any:
    """Checking the schema itself takes longer than a space."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(schema_text())
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


@pytest.mark.parametrize("path", shipped_spaces().values(), ids=lambda path: path.stem)
def test_every_shipped_space_names_its_schema_and_fits_it(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    text = path.read_text()
    head = "# yaml-language-server: $schema="
    first = text.splitlines()[0]
    assert first.startswith(head)
    schema = path.parent / first.removeprefix(head)
    if path.parent == (ROOT / "search_spaces"):  # an installed wheel has another layout
        assert schema.resolve() == ROOT / "evotune" / "space" / "space.schema.json"
    _schema().validate(yaml.safe_load(text))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_completion_script(invoke: Invoke, shell: str) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0
    assert f"_EVOTUNE_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("evotune re", {"record", "resume", "report", "replay"}),
        ("evotune check softmax", {"softmax", "softmax-cpu"}),
        ("evotune top lat", {"latest"}),
        ("evotune report x --format par", {"parquet"}),
        ("evotune run --tri", {"--trials"}),
        ("evotune compare lat", {"latest"}),
        ("evotune replay lat", {"latest"}),
        ("evotune export lat", {"latest"}),
        ("evotune export latest lat", {"latest"}),
        ("evotune export latest --na", {"--name"}),
        ("evotune run --warm-start lat", {"latest"}),
        ("evotune run --strategy ev", {"evolution"}),
        ("evotune compile --device rtx4", {"rtx4090"}),
    ],
)
def test_completion_knows_commands_options_runs_and_spaces(
    words: str, expected: set[str], tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": _python_path(),
        "_EVOTUNE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", "from evotune.cli.main import main; main()"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {
        line.partition(",")[2] for line in done.stdout.splitlines() if line.startswith("plain")
    }
    assert found == expected
