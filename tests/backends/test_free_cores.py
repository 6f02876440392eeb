"""A run gets as many threads as cores are free when it is created, and keeps them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from evotune.backends import registry
from evotune.backends.base import cpu_cores
from evotune.backends.cpu import cpu_profile
from evotune.backends.registry import in_part

CPU = registry.named("cpu")


@pytest.fixture(autouse=True)
def no_wish(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cpu_profile.profile.cache_clear()
    yield
    cpu_profile.profile.cache_clear()


@pytest.mark.parametrize(
    ("cores", "busy", "limit", "free"),
    [
        (8, 0.0, math.inf, 8),
        (8, 0.4, math.inf, 8),  # what a desktop does anyway
        (8, 0.9, math.inf, 7),
        (8, 3.1, math.inf, 5),
        (2, 2.0, math.inf, 1),  # never none
        (64, 0.0, 2.5, 2),  # a container
        (64, 0.0, 0.5, 1),
        (4, 3.0, 2.0, 1),
    ],
)
def test_the_cores_left_over(cores: int, busy: float, limit: float, free: int) -> None:
    assert cpu_profile.left_over(cores, busy, limit) == free


def test_free_cores_are_what_other_processes_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of work in one of the looks takes no core away."""
    cpus = sorted(os.sched_getaffinity(0))
    looks = iter([dict.fromkeys(cpus, 1.0), *[dict.fromkeys(cpus, 0.0)] * 4])
    monkeypatch.setattr(cpu_profile, "busy_shares", lambda look_s: next(looks))
    monkeypatch.setattr(cpu_profile, "quota", lambda: math.inf)
    assert cpu_profile.free_cores() == cpu_profile.threads()
    monkeypatch.setattr(cpu_profile, "busy_shares", lambda look_s: dict.fromkeys(cpus, 1.0))
    assert cpu_profile.free_cores() == 1


def test_a_control_group_limits_the_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own limit and those of the groups around it hold; `max` is none."""
    own = tmp_path / "pod" / "container"
    own.mkdir(parents=True)
    (own / "cpu.max").write_text("max 100000\n")
    (own.parent / "cpu.max").write_text("250000 100000\n")
    first = tmp_path / "cpu"
    first.mkdir()
    (first / "cpu.cfs_quota_us").write_text("-1\n")
    (first / "cpu.cfs_period_us").write_text("100000\n")
    groups = tmp_path / "groups"
    groups.write_text("1:cpu,cpuacct:/\n0::/pod/container\n")
    monkeypatch.setattr(cpu_profile, "_GROUPS", tmp_path)
    monkeypatch.setattr(cpu_profile, "_OWN_GROUPS", groups)
    assert cpu_profile.quota() == 2.5
    (first / "cpu.cfs_quota_us").write_text("100000\n")
    assert cpu_profile.quota() == 1.0
    groups.unlink()
    assert cpu_profile.quota() == math.inf


def test_ticks_at_work_are_told_by_logical_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  1 2 3 4\n")
    monkeypatch.setattr(cpu_cores, "_STAT", stat)
    line = "cpu{} {} 0 0 {} 0 0 0 0 0 0\n"

    def sleep(seconds: float) -> None:
        stat.write_text("cpu  0 0\n" + line.format(0, 100, 0) + line.format(3, 50, 50))

    monkeypatch.setattr(cpu_cores.time, "sleep", sleep)
    stat.write_text("cpu  0 0\n" + line.format(0, 0, 0) + line.format(3, 0, 0))
    clock = iter([0.0, 100 / os.sysconf("SC_CLK_TCK")])
    monkeypatch.setattr(cpu_cores.time, "monotonic", lambda: next(clock))
    assert cpu_cores.busy_shares(1.0) == pytest.approx({0: 1.0, 3: 0.5})


def test_a_new_run_asks_for_the_free_cores_and_a_resumed_one_for_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_profile, "free_cores", lambda: 1)
    request = CPU.left_free("auto")
    assert request == "cpu:1"
    profile = CPU.profile(request)
    assert profile.attributes["threads"] == 1
    assert CPU.worker_environment(profile) == {"OMP_NUM_THREADS": "1"}
    assert CPU.profile(CPU.same_device(profile)) == profile
    assert registry.asked_for(request) is CPU
    assert CPU.left_free("cpu:2") == "cpu:2"


def test_what_the_user_wishes_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_profile, "free_cores", lambda: 7)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert CPU.left_free("auto") == "auto"


@pytest.mark.parametrize("request_", ["cpu:", "cpu:0", "cpu:x", "cpux"])
def test_another_request_is_not_understood(request_: str) -> None:
    assert not CPU.understands(request_)


def test_a_run_on_a_part_of_the_cores_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1000, 1001, 1002})
    one = CPU.profile("cpu:1")
    assert in_part(one) == (
        "candidates and baselines run on 1 of 3 cores, with as many threads, throughout this run"
    )
    assert not in_part(CPU.profile("cpu:3"))


def test_a_worker_takes_the_cores_that_others_use_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1000, 1001, 1002})
    shares: Mapping[int, float] = {1000: 0.97, 1001: 0.02, 1002: 0.0}
    monkeypatch.setattr(cpu_profile, "busy_shares", lambda look_s: shares)
    assert cpu_profile.cpus_of_cores(1) == {1001}, "of equal ones the first"
    assert cpu_profile.cpus_of_cores(2) == {1001, 1002}
    assert cpu_profile.cpus_of_cores(3) == {1000, 1001, 1002}
