"""CUDA candidates without a GPU: outcomes of compiling, and limits found after compiling."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evotune.backends.base.launch import Binary, CompileFailure, CompileJob
from evotune.backends.cuda import gpu_profiles
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.trial import Configuration, Outcome, OutcomeKind, Value
from evotune.workers.compile_pool import CompilePool
from evotune.workers.local import LocalExecutor, open_local_executor
from tests.patience import PATIENCE_S, assert_cut_short, limited_compiler

from .faulty import ROOT

SPACE = ROOT / "tests" / "data" / "cuda" / "cuda.yaml"


@pytest.fixture(scope="module")
def planner() -> Planner:
    made = load_setup(SPACE, "l4", compile_only=True).planner
    assert made is not None
    return made


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory, planner: Planner) -> Iterator[LocalExecutor]:
    folder = tmp_path_factory.mktemp("cuda")
    made = open_local_executor(
        folder=folder / "logs",
        cache=folder / "cache",
        profiles=[gpu_profiles.named("l4")],
        problem="attention",
        dtype="float16",
        deterministic=True,
        rules=planner.rules,
    )
    yield made
    made.close()


def configuration(**values: Value) -> Configuration:
    return Configuration({"FAULT": "none", "SPLIT": 1, "THREADS": 128, "SHARED_KIB": 0, **values})


def outcome(executor: LocalExecutor, planner: Planner, **values: Value) -> Outcome:
    """The outcome of a trial that ends before it needs the device."""
    executor.submit(planner.proposal(3, configuration(**values)))
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for number, found in executor.poll(0.5):
            assert number == 3
            return found
    raise AssertionError("no outcome")


def test_after_compile_ends_a_trial_before_the_launch(
    executor: LocalExecutor, planner: Planner
) -> None:
    found = outcome(executor, planner, FAULT="spills")
    assert found.kind is OutcomeKind.RESOURCE_LIMIT
    assert found.reason.startswith(
        "after_compile: spill_bytes == 0 or THREADS > 128 (spilled registers go through memory); "
        "found spill_bytes = "
    )
    assert found.resources["spill_bytes"] == (
        found.resources["spill_store_bytes"] + found.resources["spill_load_bytes"]
    )
    assert found.resources["registers"] == 64
    assert found.resources["occupancy"] == pytest.approx(32 / 48)
    assert found.resources["blocks_resident"] == 8
    assert "entries" not in found.resources
    assert found.stage_s["compile"] > 0
    assert found.binary == ""


def test_what_fits_no_multiprocessor_ends_before_the_launch(
    executor: LocalExecutor, planner: Planner
) -> None:
    found = outcome(executor, planner, FAULT="static_shared", SHARED_KIB=64)
    assert found.kind is OutcomeKind.RESOURCE_LIMIT
    assert found.reason == (
        "(1,8,512,64) full: 105536 bytes of shared memory (40000 of them static), "
        "but a block may have 101376"
    )
    assert found.resources["occupancy"] == 0


def test_a_kernel_that_does_not_compile_is_a_compile_error(
    executor: LocalExecutor, planner: Planner
) -> None:
    found = outcome(executor, planner, FAULT="compile_error")
    assert found.kind is OutcomeKind.COMPILE_ERROR
    assert found.reason.endswith("#error directive: this kernel does not compile")


def test_what_the_device_cannot_launch_is_rejected(
    executor: LocalExecutor, planner: Planner
) -> None:
    assert outcome(executor, planner, THREADS=2048).kind is OutcomeKind.REJECTED


def job(planner: Planner, fault: str) -> CompileJob:
    return planner.compile_jobs(configuration(FAULT=fault))[0]


def finished(pool: CompilePool, count: int) -> dict[str, Binary | CompileFailure]:
    """The first `count` results by job key."""
    results: dict[str, Binary | CompileFailure] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(results) < count and time.monotonic() < deadline:
        results.update({done.key: result for done, result in pool.wait(0.5)})
    return results


@pytest.mark.soak
def test_an_endless_compilation_is_killed_and_the_next_one_works(
    tmp_path: Path, planner: Planner
) -> None:
    pool = CompilePool(tmp_path, tmp_path / "cache", processes=1, timeout_s=PATIENCE_S)
    try:
        endless, sound = job(planner, "endless"), job(planner, "none")
        pool.submit(endless)
        with limited_compiler(pool, 1.0):
            found = finished(pool, 1)
        pool.submit(sound)
        found |= finished(pool, 1)
    finally:
        pool.close()
    late, binary = found[endless.key], found[sound.key]
    assert isinstance(late, CompileFailure)
    assert_cut_short(late, OutcomeKind.COMPILE_TIMEOUT, "ran longer than 1 s")
    assert isinstance(binary, Binary)


def test_a_cubin_comes_from_the_cache_the_second_time(tmp_path: Path, planner: Planner) -> None:
    pool = CompilePool(tmp_path, tmp_path / "cache", processes=1)
    try:
        results = []
        for _ in range(2):
            pool.submit(job(planner, "none"))
            results += finished(pool, 1).values()
    finally:
        pool.close()
    fresh, again = results
    assert isinstance(fresh, Binary)
    assert isinstance(again, Binary)
    assert (fresh.cached, again.cached) == (False, True)
    assert fresh.sha256 == again.sha256
    assert fresh.resources == again.resources
