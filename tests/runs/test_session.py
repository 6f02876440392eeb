"""Starting and resuming runs: requests that are refused, and runs killed before they began."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from evotune.backends.base.sources import fingerprint
from evotune.errors import EnvironmentProblem, SpaceError, StoreError, UsageError
from evotune.runs.folder import create_folder, find_run, list_runs
from evotune.runs.observer import SilentObserver
from evotune.runs.setup import load_kernel_setup, load_setup
from evotune.runs.spaces import snapshot
from evotune.runs.starting import RunRequest, resume_run, start_run
from evotune.store import RunStore

from .runs import RECORDING, history, recorded_space, run_here
from .test_cpu_run import NOTHING_DONE, SPACE


def test_latest_is_the_run_that_was_started_last(tmp_path: Path) -> None:
    names = [create_folder(tmp_path, name).id for name in ("zzz", "aaa", "mmm")]
    assert names == sorted(names)


def test_latest_is_no_run_that_somebody_renamed(tmp_path: Path) -> None:
    new = create_folder(tmp_path, "new")
    RunStore.create(new.store).close()
    for name in ("yesterday", "20250101", "3rd", "Best"):
        shutil.copytree(new.path, tmp_path / name)
    assert find_run("latest", tmp_path).path == new.path
    assert [run.id for run in list_runs(tmp_path)][-1] == new.id
    assert find_run("yesterday", tmp_path).id == "yesterday"


def test_a_run_that_was_killed_before_it_had_a_store_says_so(tmp_path: Path) -> None:
    run = create_folder(tmp_path / "runs", "early")
    (run.path / ".store.sqlite.unfinished").write_bytes(b"half")
    with pytest.raises(UsageError, match="was killed before it began; start it again"):
        find_run(run.id, tmp_path / "runs")
    assert list_runs(tmp_path / "runs") == []


def test_a_run_made_in_another_environment_is_resumed_only_on_request(tmp_path: Path) -> None:
    run = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=30)
    environment = json.loads(run.environment.read_text())
    environment["device"]["name"] = "Another GPU"
    run.environment.write_text(json.dumps(environment))
    with pytest.raises(StoreError, match=r"environment\.json is damaged"):
        resume_run(run, SilentObserver(), trials=40)
    with RunStore.open_for_writing(run.store) as store:
        store.set_meta("environment", environment)
    with pytest.raises(EnvironmentProblem, match="device: Another GPU then, Synthetic GPU now"):
        resume_run(run, SilentObserver(), trials=40)
    resume_run(run, SilentObserver(), trials=40, allow_mixed=True)
    assert len(history(run)) == 40


def test_a_device_for_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it runs on no device"):
        start_run(RunRequest(str(RECORDING), "cpu", tmp_path), SilentObserver())
    assert list(tmp_path.iterdir()) == [], "refused before it has a folder"


def test_a_missing_compiler_is_refused_before_the_run_has_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    space = tmp_path / "tiny.yaml"
    space.write_text(SPACE)
    with pytest.raises(EnvironmentProblem, match="set CXX"):
        start_run(RunRequest(str(space), runs_dir=tmp_path / "runs"), SilentObserver())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("parameter", "macro"),
    [
        ("HEAD_DIM: [1, 2]", "HEAD_DIM"),
        ("DTYPE: [1, 2]", "DTYPE"),
        ("DTYPE_FLOAT32: [1, 2]", "DTYPE_FLOAT32"),
        ("MODE: {choices: [foo, FOO]}", "MODE_FOO"),
        ("SCHEDULE_STATIC: [1, 2]", "SCHEDULE_STATIC"),
    ],
)
def test_two_things_that_would_be_one_macro_are_refused(
    tmp_path: Path, parameter: str, macro: str
) -> None:
    space = tmp_path / "tiny.yaml"
    space.write_text(SPACE.replace("  CHUNK:", f"  {parameter}\n  CHUNK:"))
    with pytest.raises(SpaceError, match=rf"tiny\.yaml:\d+:\d+: .* macro {macro}\b"):
        load_setup(space, "cpu")


@pytest.mark.parametrize(
    "option", ["-fplugin=evil.so", "-o/tmp/x", "-fprofile-use=x", "-include/etc/passwd"]
)
def test_only_known_compiler_options_are_taken(tmp_path: Path, option: str) -> None:
    space = tmp_path / "tiny.yaml"
    space.write_text(SPACE.replace("    entry:", f'    options: ["{option}"]\n    entry:'))
    with pytest.raises(SpaceError, match=r"tiny\.yaml:\d+:\d+: option .* is not allowed"):
        load_setup(space, "cpu")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("content", ["", '{"device": {', "[]", "{}", '{"device": 7}'])
def test_a_run_that_lost_its_environment_is_resumed_only_on_request(
    tmp_path: Path, content: str
) -> None:
    run = run_here(recorded_space(tmp_path / "space"), tmp_path / "runs", trials=30)
    run.environment.write_text(content)
    with pytest.raises(StoreError, match=r"environment\.json is damaged.* --allow-mixed"):
        resume_run(run, SilentObserver(), trials=40)
    resume_run(run, SilentObserver(), trials=40, allow_mixed=True)
    assert len(history(run)) == 40


@pytest.mark.parametrize("place", ["space", "runs"])
@pytest.mark.parametrize(
    ("name", "words"), [(b"two\nlines", "has a line break"), (b"caf\xe9", "is not UTF-8")]
)
def test_a_folder_that_a_compiler_cannot_be_told_is_refused(
    tmp_path: Path, place: str, name: bytes, words: str
) -> None:
    odd = tmp_path / os.fsdecode(name)
    folder = odd if place == "space" else tmp_path / "plain"
    runs_dir = odd if place == "runs" else tmp_path / "runs"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "empty.cpp").write_text('extern "C" void attention_forward() {}\n')
    (folder / "space.yaml").write_text(NOTHING_DONE)
    request = RunRequest(str(folder / "space.yaml"), device="cpu", runs_dir=runs_dir)
    with pytest.raises(UsageError, match=f"the name of the folder .* {words}"):
        start_run(request, SilentObserver())
    assert not list(runs_dir.glob("*"))


def test_a_run_keeps_the_files_that_were_read_though_they_change_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    kernel = tmp_path / "kernels" / "empty.cpp"
    kernel.write_text('extern "C" void attention_forward() {}\n')
    space = tmp_path / "space.yaml"
    space.write_text(NOTHING_DONE)
    setup = load_kernel_setup(space, "cpu")
    before = kernel.read_bytes(), space.read_bytes()
    kernel.write_text("changed")
    space.write_text("changed")
    run = create_folder(tmp_path / "runs", setup.name)
    snapshot(run, setup.files)
    assert (run.sources / "kernels/empty.cpp").read_bytes() == before[0]
    assert (run.sources / setup.space_file).read_bytes() == before[1]
    # Compilers read the copies, and get the hash of the bytes that were read.
    theirs, own = setup.planner, setup.at(run.sources).planner
    default = setup.space.default()
    (job,), (copied,) = theirs.compile_jobs(default), own.compile_jobs(default)
    assert (job.root, copied.root) == (str(tmp_path), str(run.sources))
    assert (
        copied.sources_sha256 == job.sources_sha256 == fingerprint({"kernels/empty.cpp": before[0]})
    )
