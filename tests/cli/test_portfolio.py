"""`evotune portfolio`: what it prints, its mistakes with their exit codes, and its package."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from evotune.backends.cpu import CpuBackend
from evotune.portfolios import building
from evotune.runs.starting import RunRequest
from evotune.trial import Configuration, Value
from tests.portfolios.pretended import (
    PretendedDevice,
    PretendedSearch,
    pretending,
    softmax_space,
)
from tests.runs.runs import RECORDING

from .conftest import Invoke

CASES = [{"rows": rows, "columns": columns} for rows in (4, 64) for columns in (32, 48, 64)]


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return softmax_space(tmp_path_factory.mktemp("space"))


def found(request: RunRequest) -> Mapping[str, Value]:
    return {"CHUNK": 1 if request.cases[0].shape["rows"] == 4 else 2}


def speedup(configuration: Configuration, case: object) -> float:
    return 1.5 if configuration["CHUNK"] == 1 else 1.2


@pytest.fixture(autouse=True)
def nothing_is_measured(space: Path) -> Iterator[None]:
    """Runs are fabricated, cells have made-up times."""
    device = PretendedDevice(speedup)
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(CpuBackend, "exported_call_us", 0.0)
        patch.setitem(building.build_portfolio.__kwdefaults__, "open_executor", device.opened)
        stack.enter_context(pretending(PretendedSearch(space, found)))
        yield


def test_it_prints_the_rule_and_the_package_follows(
    invoke: Invoke, space: Path, tmp_path: Path
) -> None:
    (tmp_path / "cases.yaml").write_text(json.dumps(CASES))
    done = invoke("portfolio", space, "--cases", "cases.yaml", "-k", 2, "-o", "mine", "--trust")
    assert done.exit_code == 0, done.output
    assert "the first line that holds a case decides" in done.stdout
    assert "all others" in done.stdout
    assert "seen by the rule" in done.stdout
    assert "search 1: " in done.stderr
    assert "portfolio: mine/portfolio.json\n" in done.stderr
    line = next(text for text in done.stderr.splitlines() if text.startswith("export: "))
    assert line.endswith("export mine -o softmax_cpu_package")
    text = (tmp_path / "mine" / "portfolio.md").read_text()
    assert text.startswith("# softmax-cpu: 1 kernel for 6 cases\n")
    done = invoke("export", "mine", "-o", "package", "--trust")
    assert done.exit_code == 0, done.output
    assert "## Rule" in (tmp_path / "package" / "README.md").read_text()
    done = invoke("export", "mine/portfolio.json", "-o", "package2", "--format", "json", "--trust")
    assert json.loads(done.stdout)["kernels"][0]["trial"] == 0
    again = invoke("portfolio", "--resume", "mine", "--format", "md", "--trust")
    assert (again.exit_code, again.stdout) == (0, text), again.output
    for arguments, words in (
        ("export mine latest -o other", "error: mine is a portfolio: export it alone"),
        (
            "portfolio --resume mine --seed 1 -o x",
            "error: leave out -o, --seed: --resume takes such settings",
        ),
    ):
        done = invoke(*arguments.split(), "--trust")
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert words in done.stderr
    as_json = invoke("portfolio", "--resume", "mine", "-k", 1, "--format", "json", "--trust")
    assert json.loads(as_json.stdout)["most_kernels"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("portfolio", "error: name SPACE, --cases FILE, -o RUNS; or --resume RUNS"),
        ("portfolio SPACE -o mine", "error: name --cases FILE; or"),
        ("portfolio SPACE --cases none.yaml -o mine", "error: none.yaml: cannot read it"),
        ("portfolio SPACE --cases bad.yaml -o mine", "error: bad.yaml:2:10: expected rows to be"),
        ("portfolio RECORDING --cases good.yaml -o mine", "there is no kernel in it"),
        ("portfolio SPACE --cases good.yaml -o file/in", "error: cannot create file/in/portfolio"),
        ("portfolio --resume nothing", "error: nothing holds no portfolio"),
        ("portfolio SPACE --cases good.yaml -o mine -k 0", "0 is not in the range"),
        ("portfolio SPACE --cases good.yaml -o mine --held-out 1", "is not in the range"),
        ("run SPACE --cases bad.yaml", "error: bad.yaml:2:10: expected rows to be an integer"),
        ("run RECORDING --cases good.yaml", "is a recorded space"),
    ],
)
def test_a_mistake_is_said_and_leaves_nothing(
    invoke: Invoke, space: Path, tmp_path: Path, arguments: str, words: str
) -> None:
    (tmp_path / "good.yaml").write_text("- {rows: 4, columns: 32}\n")
    (tmp_path / "bad.yaml").write_text("- {rows: 4, columns: 32}\n- {rows: 0, columns: 32}\n")
    (tmp_path / "file").write_text("")
    given = arguments.replace("SPACE", str(space)).replace("RECORDING", str(RECORDING))
    done = invoke(*given.split(), "--trust")
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    if "error: " in words:
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "mine").exists()


def test_an_interrupted_portfolio_ends_with_130_and_goes_on(
    invoke: Invoke, space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cases.json").write_text(json.dumps(CASES))
    command = ("portfolio", space, "--cases", "cases.json", "-k", 2, "-o", "mine", "--trust")

    def interrupted(configuration: Configuration, case: object) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        device = PretendedDevice(interrupted)
        patch.setitem(building.build_portfolio.__kwdefaults__, "open_executor", device.opened)
        done = invoke(*command)
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (130, "interrupted"), done.output
    shutil.copy(tmp_path / "cases.json", tmp_path / "same.json")
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    assert "search 1" not in done.stderr
