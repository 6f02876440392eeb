from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from report.runs import make_run

from evotune.backends.base.recorded import read_recorded_space
from evotune.runs.replay import PerformanceScale

from .conftest import ROOT, Invoke

RECORDING = ROOT / "tests" / "data" / "synthetic_recording.json.gz"


def test_a_mistake_leaves_the_lines_of_an_earlier_replay(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("earlier")
    words = ("--format", "jsonl", "-o", tmp_path / "lines")
    assert invoke("replay", RECORDING, "--strategy", "none", *words).exit_code == 2
    assert invoke("compile", "nowhere.yaml", *words).exit_code == 2
    assert (tmp_path / "lines").read_text() == "earlier"
    assert invoke("replay", RECORDING, "--max-evals", 3, *words).exit_code == 0
    assert len((tmp_path / "lines").read_text().splitlines()) == 3


def test_jsonl_has_one_line_an_evaluation_with_the_recorded_time(invoke: Invoke) -> None:
    words = ("--strategy", "random", "--max-evals", 40, "--repeats", 2, "--seed", 7)
    result = invoke("replay", RECORDING, *words, "--format", "jsonl")
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["repeat"], line["eval"]) for line in lines] == [
        (repeat, number) for repeat in (0, 1) for number in range(1, 41)
    ]
    recorded = read_recorded_space(RECORDING)
    times = {c.key: recorded.times_ms.get(c) for c in recorded.space.enumerate()}
    for line in lines:
        assert list(line) == ["repeat", "eval", "config", "time_ms"]
        assert line["time_ms"] == times[json.dumps(line["config"], separators=(",", ":"))]
    assert any(line["time_ms"] is None for line in lines)
    first, second = ([x["config"] for x in lines if x["repeat"] == i] for i in (0, 1))
    assert first != second
    again = invoke("replay", RECORDING, *words, "--format", "jsonl")
    assert again.stdout == result.stdout


def test_a_replay_is_sequential_unless_asked_otherwise(invoke: Invoke) -> None:
    words = ("replay", RECORDING, "--max-evals", 12, "--format", "jsonl")
    found = invoke(*words).stdout
    assert found == invoke(*words, "--lookahead", 0).stdout
    assert found != invoke(*words, "--lookahead", 16).stdout


def test_repeats_have_the_seeds_that_follow(invoke: Invoke) -> None:
    words = ("--strategy", "random", "--max-evals", 5, "--format", "jsonl")
    both = invoke("replay", RECORDING, *words, "--seed", 3, "--repeats", 2).stdout.splitlines()
    second = invoke("replay", RECORDING, *words, "--seed", 4).stdout.splitlines()
    assert [json.loads(x)["config"] for x in both[5:]] == [json.loads(x)["config"] for x in second]


def test_the_table_names_the_score_of_the_runs(invoke: Invoke) -> None:
    words = ("--strategy", "local", "--repeats", 3)
    table = invoke("replay", RECORDING, *words)
    assert table.exit_code == 0, table.stderr
    scale = PerformanceScale(read_recorded_space(RECORDING).times_ms.values())
    lines = invoke("replay", RECORDING, *words, "--format", "jsonl").stdout.splitlines()
    times = [json.loads(line)["time_ms"] for line in lines]
    assert len(times) == 3 * scale.budget
    scores = [scale.score(times[i * scale.budget : (i + 1) * scale.budget]) for i in range(3)]
    assert f"{sum(scores) / 3:.3f} ±" in table.stdout
    assert f"{scale.budget} evaluations" in table.stdout


def test_a_whole_space_can_be_replayed_and_no_more(invoke: Invoke, tmp_path: Path) -> None:
    cache = {
        "tune_params_keys": ["A"],
        "tune_params": {"A": [1, 2, 3]},
        "cache": {str(a): {"A": a, "time": float(a)} for a in (1, 2, 3)},
    }
    (tmp_path / "small.json").write_text(json.dumps(cache))
    result = invoke("replay", "small.json", "--max-evals", 50, "--format", "jsonl")
    assert result.exit_code == 0, result.stderr
    assert sorted(json.loads(x)["time_ms"] for x in result.stdout.splitlines()) == [1.0, 2.0, 3.0]
    table = invoke("replay", "small.json", "--max-evals", 10**30)
    assert table.exit_code == 0, table.stderr
    assert "1 repeats of 3 evaluations" in table.stdout


def test_the_report_of_a_run_is_a_recording(invoke: Invoke, tmp_path: Path) -> None:
    """A run of all configurations, exported, zipped and replayed: same times, same failures."""
    source = json.loads(gzip.decompress(RECORDING.read_bytes()))
    source["cache"] = dict(list(source["cache"].items())[:60])
    (tmp_path / "part.json").write_text(json.dumps(source))
    assert invoke("run", "part.json", "--strategy", "exhaustive").exit_code == 0
    report = invoke("report", "latest", "--format", "json")
    (tmp_path / "own.json.gz").write_bytes(gzip.compress(report.stdout.encode()))
    original = read_recorded_space(tmp_path / "part.json")
    own = read_recorded_space(tmp_path / "own.json.gz")
    assert {c.key: t for c, t in own.times_ms.items()} == pytest.approx(
        {c.key: t for c, t in original.times_ms.items()}
    )
    assert {c.key: own.outcome(c).kind for c in own.failures} == {
        c.key: original.outcome(c).kind for c in original.failures
    }
    assert invoke("report", "latest", "--format", "t4", "-o", "own.t4").exit_code == 0
    assert invoke("replay", "own.t4", "--max-evals", 20).exit_code == 0
    words = ("--max-evals", 20, "--format", "jsonl")
    replayed = invoke("replay", "own.json.gz", *words)
    assert replayed.exit_code == 0
    assert len(replayed.stdout.splitlines()) == 20
    (run,) = (tmp_path / "runs").iterdir()
    for name in ("latest", run.name[:12], run):
        assert invoke("replay", name, *words).stdout == replayed.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("replay", "absent.json"), "cannot read absent.json"),
        (("replay", "absent"), "no run 'absent' in runs"),
        (("replay", RECORDING, "--strategy", "magic"), "unknown search strategy 'magic'"),
        (("replay", "kernel.yaml"), "is not a recorded space"),
        (("replay", "no_time.json"), "nothing to score"),
        (("replay", "empty"), "run empty has no trials yet: there is nothing to replay"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    invoke: Invoke, tmp_path: Path, words: tuple[object, ...], message: str
) -> None:
    space = (ROOT / "search_spaces" / "attention_scalar_cpu.yaml").read_text()
    (tmp_path / "kernel.yaml").write_text(f"root: {ROOT}\n{space}")
    failed = {
        "tune_params_keys": ["A"],
        "tune_params": {"A": [1]},
        "cache": {"1": {"A": 1, "time": "InvalidConfig"}},
    }
    (tmp_path / "no_time.json").write_text(json.dumps(failed))
    make_run(tmp_path / "runs", [], name="empty")
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
