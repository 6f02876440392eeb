"""`evotune explain`: measured for real on a small CPU kernel, and read again without measuring."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from explain.planted import planted_run
from report.runs import make_run, ok
from workers.faulty import run_of, space_text

from evotune.api.run import open_run
from evotune.cli.main import application
from evotune.runs.folder import RunFolder

from .conftest import Invoke, _python_path

Explain = Callable[..., Result]
SPACE = space_text(
    "two-faults",
    """
parameters:
  FAULT: {choices: [none, compile_error]}
  UNUSED: [1, 2, 4]
constraints:
  - UNUSED != 4
default: {FAULT: none, UNUSED: 1}
""",
)
CHAMPION = {"FAULT": "none", "UNUSED": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("explain")
    space = folder / "space.yaml"
    space.write_text(SPACE)
    return run_of(space, folder / "runs", CHAMPION)


@pytest.fixture
def explain(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Explain:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(run.path / "cache"))
    monkeypatch.setenv("PYTHONPATH", _python_path())

    def invoke(*arguments: object) -> Result:
        words = ["explain", "latest", "--runs-dir", run.path.parent, *arguments]
        return CliRunner().invoke(application, [str(word) for word in words])

    return invoke


@pytest.mark.usefixtures("nobody_agreed")
def test_code_from_elsewhere_is_not_measured_before_somebody_agreed(explain: Explain) -> None:
    for wish in ("--measure", "--try"):
        refused = explain(wish)
        assert refused.exit_code == 2, refused.stderr
        assert refused.stderr.endswith("read it, then add --trust\n")
    unasked = explain()
    assert unasked.exit_code == 0
    assert "add --trust" in unasked.stdout


@pytest.mark.soak
def test_what_is_missing_is_measured_and_kept(explain: Explain, run: RunFolder) -> None:
    result = explain("--format", "json")
    assert result.exit_code == 0, result.stderr
    assert "measuring 2 changes of trial 0 in alternation with it, about" in result.stderr
    found = json.loads(result.stdout)
    effects = {(e["parameter"], e["from"]): e for e in found["effects"]}
    assert effects["UNUSED", 2]["basis"] == "paired"
    assert effects["UNUSED", 2]["same_code"]
    assert effects["FAULT", "compile_error"]["worth"] is None
    assert found["roofline"]["operations"] > 0
    hopeless = [value["text"] for value in found["over_space"]["hopeless"]]
    assert (
        "UNUSED=4: put into the one tried configuration it breaks a constraint, `UNUSED != 4`"
    ) in hopeless
    assert not any(text.startswith("ceilings") for text in found["missing"])  # they have no doubts

    again = explain("--format", "json", "--no-measure")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["effects"] == found["effects"]
    assert "measuring" not in again.stderr

    text = str(open_run("latest", run.path.parent).explain(measure=False))
    assert text.splitlines()[0].startswith("two-faults, run ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trial", 7), "has no trial 7"),
        (("--against", "9"), "has no trial 9"),
        (("--against", "other:3"), "no run 'other'"),
    ],
)
def test_mistakes_are_one_line(
    explain: Explain, arguments: tuple[object, ...], message: str
) -> None:
    result = explain("--no-measure", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_no_such_run_is_a_usage_error(invoke: Invoke) -> None:
    result = invoke("explain", "nothing")
    assert result.exit_code == 2
    assert "no run" in result.stderr


def test_a_default_that_the_run_does_not_know_is_no_side(invoke: Invoke, tmp_path: Path) -> None:
    make_run(tmp_path / "runs", [ok(1.5)])
    result = invoke("explain", "latest", "--no-measure", "--against", "default")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "does not record its space's default configuration" in result.stderr


def test_a_run_of_another_machine_is_explained_and_cannot_be_measured(
    invoke: Invoke, tmp_path: Path
) -> None:
    made = planted_run(tmp_path / "runs")
    result = invoke("explain", made.path)
    assert result.exit_code == 0, result.stderr
    assert "over false" in result.stdout
    assert "Missing" in result.stdout
    page = invoke("explain", made.path, "--format", "html", "-o", tmp_path / "why.html")
    assert page.exit_code == 0
    assert (tmp_path / "why.html").read_text().startswith("<!doctype html>")
    refused = invoke("explain", made.path, "--measure")
    assert refused.exit_code == 3


def test_text_is_as_wide_as_the_screen(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = planted_run(tmp_path / "runs")
    widths = {}
    for columns in (60, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        result = invoke("explain", made.path, "--no-measure")
        assert result.exit_code == 0, result.stderr
        widths[columns] = max(map(len, result.stdout.splitlines()))
    assert widths[60] <= 80 < widths[160] <= 160
