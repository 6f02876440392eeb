"""`benchmarks/lab/attention_power.py`: champions on a cool device and at its power limit."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evotune.backends.base.session import Session
from evotune.trial import Json
from evotune.workers.device_worker import open_session

SHAPE = {"batch": 1, "heads": 2, "seq_len": 64, "head_dim": 64}
MISSION: dict[str, Any] = {
    "shapes": [{"batch": 1, "heads": 8, "seq_len": 512, "head_dim": 64}],
    "variants": [{"causal": False}],
}
ON_AN_H200: dict[str, Any] = {"baseline": "sdpa:cudnn", "device": "h200", "compile_only": True}


@pytest.fixture
def benchmark(
    benchmark_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    module = benchmark_module("attention_power")
    monkeypatch.setattr(module, "HEAT_S", 0.0)
    monkeypatch.setattr(module, "ROUNDS", 2)
    monkeypatch.setattr(module, "FIRST_REST_S", 0.001)
    return module


@pytest.fixture(scope="module")
def paths(
    benchmark_module: Callable[[str], ModuleType], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The code that `measured` times, compiled once for all tests."""
    module = benchmark_module("attention_power")
    return module.build_all([row_of(module)], tmp_path_factory.mktemp("built"))


def row_of(benchmark: ModuleType) -> Any:
    problem = {"dtype": "float32", "shapes": [SHAPE], "variants": [{"causal": True}]}
    return benchmark.row_of("attention_cpu", problem, {}, baseline="sdpa:math", device="cpu")


def measured(
    benchmark: ModuleType,
    paths: dict[str, Path],
    libraries: tuple[str, ...],
    see: Callable[[Session], None],
) -> tuple[Any, dict[str, Any], int]:
    row = row_of(benchmark)
    session = open_session(row.profile)
    see(session)
    heated = []
    bench = benchmark.Bench(session, row.problem, lambda: heated.append(1))
    return row, bench.measure(row, paths, libraries), len(heated)


def test_a_champion_is_timed_hot_and_cool_against_each_rival(
    benchmark: ModuleType, paths: dict[str, Path]
) -> None:
    row, found, heated = measured(benchmark, paths, ("fa4",), lambda session: None)
    assert [(each["against"], each["manner"]) for each in found["pairs"]] == [
        ("sdpa:math", "hot"),
        ("sdpa:math", "cool"),
        ("blhd", "hot"),
        ("blhd", "cool"),
    ]
    assert heated == 2 * benchmark.ROUNDS * 4, "before each of four samples of a round"
    assert all(each["low"] <= each["ratio"] <= each["high"] for each in found["pairs"])
    assert "fa4" in found["left_out"]
    data = {"device": row.profile.name, "date": "then", "rows": [found]}
    text = "\n".join(benchmark.table(data))
    assert "| (1,2,64,64) causal | blhd |" in text
    assert "sdpa, cool: " in text


def test_the_memory_of_launches_is_kept_while_they_are_timed(
    benchmark: ModuleType, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch has addresses alone: freed memory would go to others."""
    buffers: list[weakref.ref[Any]] = []
    place, timed = benchmark.CaseTimer.place, benchmark.measure_paired

    def placed(*given: Any) -> Any:
        found = place(*given)
        buffers.append(weakref.ref(found.buffers))
        return found

    def measure_paired(*given: Any, **named: Any) -> Any:
        assert len(buffers) == 2
        assert all(each() is not None for each in buffers)
        return timed(*given, **named)

    monkeypatch.setattr(benchmark.CaseTimer, "place", placed)
    monkeypatch.setattr(benchmark, "measure_paired", measure_paired)
    _, found, _ = measured(benchmark, paths, (), lambda session: None)
    assert len(found["pairs"]) == 4


def test_a_device_at_its_power_limit_rests_longer(
    benchmark: ModuleType, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "MOST_REST_S", 0.01)

    def limited(session: Session) -> None:
        def state() -> Mapping[str, Json]:
            return {"sm_mhz": 1500, "power_w": 700.0, "throttled_by": ["sw_power_cap"]}

        monkeypatch.setattr(session, "state", state)

    row, found, _ = measured(benchmark, paths, (), limited)
    rests_ms = [each["rest_ms"] for each in found["pairs"] if each["manner"] == "cool"]
    assert rests_ms == pytest.approx([9.0, 9.0])
    data = {"device": row.profile.name, "date": "then", "rows": [found]}
    assert "1500 MHz, 700 W, power limit" in "\n".join(benchmark.table(data))


def test_a_kernel_with_wrong_results_is_not_timed(
    benchmark: ModuleType, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(session: Session) -> None:
        monkeypatch.setattr(session, "bind", lambda *_: lambda: None)

    with pytest.raises(ValueError, match=r"\(1,2,64,64\) causal: "):
        measured(benchmark, paths, (), broken)


def test_each_row_of_the_results_has_both_layouts_where_the_kernel_takes_them(
    benchmark: ModuleType,
) -> None:
    row = benchmark.row_of("attention_mma", MISSION, {}, **ON_AN_H200)
    assert [job.case.label for job in row.jobs] == ["(1,8,512,64) full", "(1,8,512,64,blhd) full"]
    scalar = benchmark.row_of("attention_scalar", MISSION, {}, **ON_AN_H200)
    assert [job.case.label for job in scalar.jobs] == ["(1,8,512,64) full"]


def test_tensors_of_the_other_layout_may_have_a_champion_of_their_own(
    benchmark: ModuleType,
) -> None:
    own = {"STAGES": 3}
    row = benchmark.row_of("attention_mma", MISSION, {"STAGES": 2}, of_views=own, **ON_AN_H200)
    assert (row.configuration["STAGES"], row.of_views["STAGES"]) == (2, 3)
    assert [dict(job.compile.defines)["STAGES"] for job in row.jobs] == [2, 3]


def test_a_job_of_the_ladder_may_be_tuned_on_views(
    benchmark_module: Callable[[str], ModuleType],
) -> None:
    ladder = benchmark_module("attention_cuda")
    job = replace(ladder.JOBS_BY_NAME["mission full"], layout="blhd")
    assert job.problem()["variants"] == [{"causal": False, "layout": "blhd"}]
