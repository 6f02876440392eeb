"""`evotune verify` on a run of the faulty test kernel: compiled, loaded and checked for real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from report.runs import make_run, recorded
from workers.faulty import SPACE, run_of

from evotune.cli.main import application
from evotune.cli.verify_command import configuration_of
from evotune.runs.folder import list_runs
from evotune.store import RunStore
from evotune.trial import Configuration
from tests.runs.runs import brief_confirmations

from .conftest import Invoke, _python_path

Verify = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of one trial, FAULT=none, whose baselines are known."""
    folder = tmp_path_factory.mktemp("verify")
    run_of(SPACE, folder / "runs", {"FAULT": "none"})
    return folder


@pytest.fixture
def verify(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Verify:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("PYTHONPATH", _python_path())
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: object) -> Result:
        words = ["verify", "latest", "--runs-dir", folder / "runs", *arguments]
        return CliRunner().invoke(application, [str(word) for word in words])

    return run


def stored(folder: Path) -> tuple[str, list[str], list[str]]:
    (run,) = list_runs(folder / "runs")
    with RunStore.open_for_reading(run.store) as store:
        outcomes = [*(trial.outcome for trial in store.trials()), *store.confirmations().values()]
        files = sorted(path.name for path in (run.path / "logs").iterdir())
        return store.history_digest(), [json.dumps(o.to_json()) for o in outcomes], files


def test_the_leader_is_verified_with_every_check_and_the_run_stays_as_it_is(
    verify: Verify, folder: Path
) -> None:
    before = stored(folder)
    with brief_confirmations():
        result = verify()
    assert result.exit_code == 0, result.stderr
    listed, _, domain = result.stdout.partition("domain: ")
    first, second, *lines = listed.splitlines()
    assert first == "trial 0: FAULT=none"
    assert second.startswith("ok: ")
    assert second.endswith(" passed, 3 skipped")
    heading = lines[0].split()
    assert heading[:3] == ["case", "inputs", "status"]
    rows = [line for line in lines[2:-3] if line]
    assert lines[-3].startswith("skipped: edge shapes, compute-sanitizer memcheck: ")
    words = [" ".join(row.split()) for row in rows]
    assert any(row.startswith("(1,2,64,32) causal needle ") for row in words)
    assert any(row.startswith("(3,9/3,63,32) full ramp ") for row in words)
    assert any(row.startswith("10 random tests all ") for row in words)
    about, _, *table = domain.splitlines()
    assert about.startswith("on ")
    assert about.endswith(", contiguous tensors")
    regions = [row.split() for row in table if row.startswith("float32")]
    assert [row[:3] for row in regions] == [["float32", "32", "true"], ["float32", "32", "false"]]
    assert any("replayed normal" in row for row in rows)
    skipped = [row for row in rows if " skipped " in row]
    assert ["compute-sanitizer memcheck" in row for row in skipped] == [True, False, False]
    assert all("passed" in row for row in rows if row not in skipped)
    assert "1 of 1: passed" in result.stderr
    assert stored(folder) == before


@pytest.mark.soak
def test_a_configuration_that_fails_ends_with_1_and_says_where(verify: Verify) -> None:
    result = verify("--config", '{"FAULT": "wrong_without_mask"}', "--format", "json")
    assert result.exit_code == 1
    (record,) = json.loads(result.stdout)
    assert (record["number"], record["passed"]) == (None, False)
    assert record["configuration"] == {"FAULT": "wrong_without_mask"}
    assert record["outcome"] == "wrong_result"
    (failed,) = [check for check in record["checks"] if check["status"] == "failed"]
    assert failed["case"].endswith(" full")
    assert failed["max_error"] > failed["max_limit"]
    assert failed["detail"] in record["reason"]
    assert record["domain"] is None


def test_a_configuration_that_does_not_compile_has_no_checks(verify: Verify) -> None:
    result = verify("--config", '{"FAULT": "compile_error"}', "--format", "jsonl")
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    record = json.loads(line)
    assert (record["outcome"], record["checks"]) == ("compile_error", [])
    assert "this kernel does not compile" in record["reason"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("{", "--config is not JSON"),
        ("[1]", "--config: expected {"),
        ('{"FAUL": "none"}', "unknown parameter 'FAUL'; did you mean 'FAULT'?"),
        ('{"FAULT": 1}', "1 is not a value of FAULT"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_a_usage_error(
    verify: Verify, config: str, why: str
) -> None:
    result = verify("--config", config)
    assert (result.exit_code, result.stdout) == (2, "")
    assert why in result.stderr


def test_parameters_that_config_leaves_out_are_those_of_the_first_row() -> None:
    row = SimpleNamespace(configuration=Configuration({"M": 64, "STAGES": 3}))
    opened: Any = SimpleNamespace(leaderboard=lambda rows: [row][:rows])
    assert configuration_of(opened, '{"STAGES": 2}') == {"M": 64, "STAGES": 2}
    without: Any = SimpleNamespace(leaderboard=lambda rows: [])
    assert configuration_of(without, '{"STAGES": 2}') == {"STAGES": 2}


def test_config_and_top_exclude_each_other(verify: Verify) -> None:
    result = verify("--config", "{}", "--top", 2)
    assert result.exit_code == 2
    assert "--config and --top exclude each other" in result.stderr


def test_a_recorded_run_has_nothing_to_verify(invoke: Invoke, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    make_run(tmp_path / "runs", [recorded(1.0)], meta={"kind": "recorded"})
    result = invoke("verify", "latest")
    assert result.exit_code == 2
    assert "replays a recording: there is no kernel in it" in result.stderr


def test_a_run_that_ended_before_its_first_trial_has_nothing_to_verify(
    invoke: Invoke, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "runs", [], meta={"baselines": None})
    result = invoke("verify", "latest", "--config", "{}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"run {run.id} ended before its first trial: nothing was tried" in result.stderr


def test_a_configuration_that_the_constraints_forbid_is_named_with_them(
    folder: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own copy of the space gets a constraint afterwards that forbids FAULT=nan."""
    (run,) = list_runs(folder / "runs")
    copy = next(run.sources.rglob("faulty.yaml"))
    text = copy.read_text()
    copy.write_text(text + "constraints: [FAULT != nan]\n")
    try:
        result = verify("--config", '{"FAULT": "nan"}')
    finally:
        copy.write_text(text)
    assert result.exit_code == 2
    assert "not valid for faulty: FAULT != nan" in result.stderr
