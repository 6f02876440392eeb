"""`evotune list`, `rm` and `cache`: shipped spaces, stored runs and compiled kernels."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import click
import pytest
from report.runs import make_run, ok

from evotune.runs.folder import RunFolder, list_runs
from evotune.runs.spaces import shipped_spaces
from evotune.workers.build_cache import BuildCache

from .conftest import Invoke


def test_every_shipped_space_is_listed_with_what_it_needs(invoke: Invoke) -> None:
    rows = {row["name"]: row for row in json.loads(invoke("list", "--format", "json").stdout)}
    assert rows.keys() == shipped_spaces().keys()
    assert rows["softmax-cpu"]["needs"] == "a C++ compiler"
    assert rows["attention-wgmma"]["needs"].startswith("an NVIDIA GPU, sm_90")
    assert all(row["about"] for row in rows.values())
    table = invoke("list").stdout
    assert all(name in table for name in rows)


@pytest.fixture
def runs(tmp_path: Path) -> list[RunFolder]:
    for name in ("a", "b"):
        make_run(tmp_path / "runs", [ok(1.0)], name=name)
    return list_runs(tmp_path / "runs")


def test_runs_are_deleted_when_somebody_says_yes(
    invoke: Invoke, runs: list[RunFolder], tmp_path: Path
) -> None:
    assert invoke("rm", "a").exit_code == 1  # nobody answers
    assert len(list_runs(tmp_path / "runs")) == 2
    result = invoke("rm", "a", "-y")
    assert (result.exit_code, result.stdout) == (0, "")
    assert [run.id for run in list_runs(tmp_path / "runs")] == ["b"]
    assert invoke("rm", "b", "nothing", "-y").exit_code == 2
    assert len(list_runs(tmp_path / "runs")) == 1


def test_a_run_is_deleted_by_a_link_and_from_within(
    invoke: Invoke, runs: list[RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "link").symlink_to(runs[0].path)
    result = invoke("rm", "link", "a", "-y")
    assert (result.exit_code, result.stderr) == (0, "deleted a\n")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["b"]
    runs[1].sources.mkdir(exist_ok=True)
    monkeypatch.chdir(runs[1].sources)
    result = invoke("rm", "..", "-y")
    assert (result.exit_code, result.stderr) == (0, "deleted b\n")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_run_that_is_worked_on_stays(invoke: Invoke, runs: list[RunFolder]) -> None:
    with runs[0].locked():
        result = invoke("rm", "a", "b", "-y")
    assert result.exit_code == 5
    assert f"run a is being worked on by process {os.getpid()}" in result.stderr
    assert all(run.path.exists() for run in runs)


def test_a_run_that_is_resumed_while_the_user_is_asked_stays(
    invoke: Invoke, runs: list[RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        monkeypatch.setattr(
            click, "confirm", lambda *_, **__: stack.enter_context(runs[0].locked())
        )
        assert invoke("rm", "a").exit_code == 5
    assert runs[0].path.exists()


def test_files_of_the_cache_may_go_meanwhile(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another `cache --clear`, or a compiler that renames its result."""
    cache = BuildCache(tmp_path / "cache")
    cache.put("key", b"x" * 3000, {}, 1.0)
    cache.put("other", b"y" * 3000, {}, 1.0)
    (gone,) = (p for p in (tmp_path / "cache").rglob("*.bin") if b"y" in p.read_bytes())
    found = Path.stat

    def going(self: Path, **options: bool) -> os.stat_result:
        about = found(self, **options)
        if self == gone:
            gone.unlink()
        return about

    monkeypatch.setattr(Path, "stat", going)
    result = invoke("cache", "--older-than", 0.0001)
    assert (result.exit_code, result.stderr) == (0, "")


def test_the_cache_tells_what_it_holds_and_is_cleared(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    BuildCache(folder).put("key", b"x" * 3000, {}, 1.0)
    (folder / "notes.txt").write_text("mine")
    assert f"in {folder}: 1 compiled kernel, 0.0 MiB" in invoke("cache").stdout
    assert ": 0 compiled kernels" in invoke("cache", "--older-than", 1, "--clear").stdout
    assert f"deleted from {folder}: 1 compiled kernel" in invoke("cache", "--clear").stdout
    assert ": 0 compiled kernels" in invoke("cache").stdout
    assert (folder / "notes.txt").exists()


@pytest.mark.parametrize("days", ["nan", "inf", "-1", "a"])
def test_an_age_that_is_no_number_of_days_is_refused(invoke: Invoke, days: str) -> None:
    result = invoke("cache", "--older-than", days, "--clear")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Invalid value for '--older-than'" in result.stderr
