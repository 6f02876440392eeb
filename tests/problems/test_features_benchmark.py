"""`benchmarks/lab/attention_features.py --pair` on the CPU: a feature's champion is timed in turn
with that of plain attention, and the feature's record keeps the ratio."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from evotune.backends.cpu.cpu_session import CpuSession
from evotune.timing.paired import TimingSettings

BenchmarkModule = Callable[[str], ModuleType]

SHAPE = {"batch": 1, "heads": 2, "seq_len": 48, "head_dim": 32}
CHOSEN = {"BLOCK_N": 64, "UNROLL": 8, "SCHEDULE": "dynamic", "CHUNK": 16}
OTHER = {"BLOCK_N": 32, "UNROLL": 4, "SCHEDULE": "static", "CHUNK": 1}


def record(name: str, configuration: dict[str, Any]) -> dict[str, Any]:
    warm = {"cache": "warm", "baseline": "flex", "baseline_us": 30.0, "time_us": 20.0}
    warm |= {"speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6}
    about = {"rung": "wgmma", "name": name, "dtype": "float32"}
    return {**about, "configuration": configuration, "measurements": [warm]}


@pytest.fixture
def module(benchmark_module: BenchmarkModule, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark with small jobs, of a space for the CPU."""
    found = benchmark_module("attention_features")
    jobs = (
        found.Job("plain", {"causal": True}, SHAPE, plain=""),
        found.Job("sinks", {"causal": True, "sinks": True, "lse": True}, SHAPE, plain="plain"),
        found.Job("window", {"causal": True, "window_left": 3}, SHAPE, plain="plain"),
    )
    monkeypatch.setattr(found, "JOBS", jobs)
    monkeypatch.setattr(found, "JOBS_BY_NAME", {job.name: job for job in jobs})
    monkeypatch.setattr(found, "space_of", lambda rung: "attention_features_cpu")
    brief = TimingSettings(min_rounds=3, max_rounds=3, sample_us=50.0, graphs=2)
    monkeypatch.setattr(TimingSettings, "thorough", lambda: brief)
    return found


@pytest.fixture
def paired(module: ModuleType, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Writes records, pairs those of these names, and gives the records of the file."""
    path = tmp_path / "features.json"

    def made(records: list[dict[str, Any]], *names: str, again: bool = False) -> Any:
        path.write_text(json.dumps({"note": "one H100", "jobs": records}))
        options = argparse.Namespace(
            rung="wgmma", dtype="float32", device="cpu", minutes=math.inf, again=again
        )
        wanted = [job for job in module.JOBS if job.name in names]
        module.pair(module.RecordFile(path, 0), options, wanted)
        data = json.loads(path.read_text())
        assert data["note"] == "one H100"
        return data["jobs"]

    return made


@pytest.mark.soak
def test_a_feature_is_timed_in_turn_with_plain_attention(
    module: ModuleType,
    paired: Callable[..., list[dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    other_space = {**CHOSEN, "UNROLL": 3}
    before = [record("sinks", CHOSEN), record("plain", OTHER), record("window", other_space)]
    found = paired(before, "plain", "sinks", "window")
    assert "wgmma, window, float32: " in capsys.readouterr().err
    assert [each["name"] for each in found] == ["sinks", "plain", "window"]
    of_plain = found[0].pop("of_plain")
    assert found == before
    assert 0 < of_plain["low"] <= of_plain["ratio"] <= of_plain["high"]
    assert of_plain["plain_configuration"] == OTHER
    assert of_plain["configuration"] == CHOSEN
    assert "sinks" in of_plain["case"]
    assert "sinks" not in of_plain["plain_case"]

    found[0]["of_plain"] = {**of_plain, "ratio": 1.0512, "low": 1.0433, "high": 1.0601}
    cells = [[cell.strip() for cell in line.split("|")] for line in module.table(found)[2:]]
    assert [row[5] for row in cells] == ["1.051 [1.043, 1.060]", "", "1.00"]


def test_a_pair_is_timed_again_only_where_plain_attention_has_another_champion(
    module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {**record("sinks", CHOSEN), "of_plain": {"plain_configuration": OTHER}}
    wanted = [("wgmma", name, "float32") for name in ("plain", "sinks", "window")]

    def left(*records: dict[str, Any], again: bool = False) -> list[str]:
        found = module.left_to_pair(records, wanted, again=again)
        return [each["name"] for each, _ in found]

    assert left(known, record("plain", OTHER)) == []
    assert "window, float32: no record of window" in capsys.readouterr().err
    assert left(known, record("plain", OTHER), again=True) == ["sinks"]
    assert left(known, record("plain", CHOSEN)) == ["sinks"]
    assert left(known, record("window", CHOSEN)) == []
    assert "sinks, float32: no record of plain" in capsys.readouterr().err


def test_both_sides_have_the_same_inputs_and_each_its_own_case(
    module: ModuleType, benchmark_module: BenchmarkModule, tmp_path: Path
) -> None:
    pairs = benchmark_module("feature_pairs")
    records = [record("plain", OTHER), record("sinks", CHOSEN)]
    ((_, pair),) = module.left_to_pair(records, [("wgmma", "sinks", "float32")], again=False)
    subjects = pair.subjects("cpu")
    paths = [tmp_path / f"{number}.so" for number in range(2)]
    for subject, path in zip(subjects, paths, strict=True):
        pairs.build(subject.timed.compile, path)
    plain, feature = pairs.sides(CpuSession(), subjects, paths, TimingSettings.thorough())
    assert set(feature.inputs) == {"q", "k", "v", "sinks"}
    assert set(plain.inputs) == {"q", "k", "v"}
    for name, values in plain.inputs.items():
        assert torch.equal(values, feature.inputs[name])
    for side, subject in zip((plain, feature), subjects, strict=True):
        wanted = subject.problem.reference(subject.timed.case, side.inputs)
        outputs = side.buffers.outputs()
        assert outputs.keys() == wanted.keys()
        for name, values in outputs.items():
            torch.testing.assert_close(values[0], wanted[name].float())
    assert not torch.allclose(plain.buffers.outputs()["out"], feature.buffers.outputs()["out"])


def test_each_side_has_the_clocks_after_its_own_samples(
    benchmark_module: BenchmarkModule,
) -> None:
    class Device:
        clocks = iter([1200, 1980, 1965, 1755])

        def state(self) -> dict[str, Any]:
            return {"sm_mhz": next(self.clocks), "throttled_by": ["sw_power_cap"]}

    class Sampler:
        def run(self) -> None: ...

        def time_us(self) -> float:
            return 7.0

    side = benchmark_module("feature_pairs").Clocked(Sampler(), Device())
    assert [side.time_us() for _ in range(4)] == [7.0] * 4
    assert side.clock(3) == {"sm_mhz": 1965, "throttled_by": ["sw_power_cap"]}
    silent = benchmark_module("feature_pairs").Clocked(Sampler(), Device())
    assert silent.clock(3) == {}


def test_a_rested_sample_follows_a_pause_and_an_untimed_run(
    benchmark_module: BenchmarkModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    class Sampler:
        def run(self) -> None:
            done.append("run")

        def time_us(self) -> float:
            done.append("timed")
            return 7.0

    class Device:
        def state(self) -> dict[str, Any]:
            return {}

    module = benchmark_module("feature_pairs")
    monkeypatch.setattr(module.time, "sleep", done.append)
    assert module.Clocked(Sampler(), Device(), 0.04).time_us() == 7.0
    assert module.Clocked(Sampler(), Device()).time_us() == 7.0
    assert done == [0.04, "run", "timed", "timed"]


def test_repeats_have_the_median_and_the_outermost_bounds(
    benchmark_module: BenchmarkModule,
) -> None:
    def repeat(ratio: float, low: float, high: float) -> dict[str, Any]:
        return {"ratio": ratio, "low": low, "high": high, "time_us": 100 * ratio}

    found = [repeat(0.31, 0.29, 0.315), repeat(0.29, 0.285, 0.33), repeat(0.30, 0.299, 0.301)]
    assert benchmark_module("feature_pairs").median_of(found) == {
        "ratio": 0.30,
        "low": 0.285,
        "high": 0.33,
        "time_us": 30.0,
        "ratios": [[0.29, 0.285, 0.33], [0.30, 0.299, 0.301], [0.31, 0.29, 0.315]],
    }


def test_a_pair_with_another_rest_is_another_record(
    benchmark_module: BenchmarkModule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = benchmark_module("feature_pairs")
    pair = module.Pair("window", "", {}, {}, {}, {})
    ratios = iter([0.30, 0.29, 0.28])

    def in_turn(*_: object, **__: object) -> Any:
        yield pair, {"ratio": next(ratios), "low": 0.2, "high": 0.4, "configuration": {"STAGES": 4}}

    monkeypatch.setattr(module, "measured_in_turn", in_turn)
    file = tmp_path / "pairs.json"
    for rest_s in (0.0, 0.04, 0.0):
        module.keep_measured([pair], file, "cuda:0", "", dtype="float16", rest_s=rest_s)
    kept = [(each.get("rest_ms"), each["ratio"]) for each in json.loads(file.read_text())["pairs"]]
    assert kept == [(40.0, 0.29), (None, 0.28)]


def test_each_repeat_has_memory_of_its_own(
    benchmark_module: BenchmarkModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    ratios = iter([0.31, 0.29, 0.30])

    class Device:
        def free(self) -> None:
            done.append("free")

    class Known(SimpleNamespace):
        def subjects(self, device: str) -> tuple[SimpleNamespace, SimpleNamespace]:
            job = SimpleNamespace(compile=SimpleNamespace(key=device))
            return (SimpleNamespace(timed=job, profile=None),) * 2

    def measured(*_: object) -> dict[str, Any]:
        done.append("measured")
        ratio = next(ratios)
        return {"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01}

    module = benchmark_module("feature_pairs")
    monkeypatch.setattr(module, "_builders", lambda: nullcontext(ThreadPoolExecutor()))
    monkeypatch.setattr(module, "build", lambda job, path: None)
    monkeypatch.setattr(module, "open_session", lambda profile: Device())
    monkeypatch.setattr(module, "measured", measured)
    ((_, found),) = module.measured_in_turn([Known()], "cuda:0", repeats=3)
    assert done == ["measured", "free"] * 3
    assert (found["ratio"], len(found["ratios"])) == (0.30, 3)
