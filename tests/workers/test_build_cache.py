from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evotune.backends.base.launch import Binary
from evotune.errors import EnvironmentProblem, UsageError
from evotune.util.files import default_cache_dir
from evotune.workers import build_cache
from evotune.workers.build_cache import BuildCache

from .faulty import SPACE, compile_job

KEY = "ab" * 32


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path)


def _job_file(folder: Path) -> Path:
    (path,) = (folder / "jobs").rglob("*.json")
    return path


def test_what_was_put_is_got_and_nothing_else(tmp_path: Path, cache: BuildCache) -> None:
    assert cache.get(KEY) is None
    put = cache.put(KEY, b"machine code", {"registers": 32}, 0.5)
    got = cache.get(KEY)
    assert got == Binary(put.sha256, put.path, {"registers": 32}, 0.5, cached=True)
    assert Path(got.path).read_bytes() == b"machine code"
    assert cache.get("cd" * 32) is None


def test_equal_machine_code_is_kept_once(tmp_path: Path, cache: BuildCache) -> None:
    first = cache.put(KEY, b"same", {}, 0.1)
    second = cache.put("cd" * 32, b"same", {}, 0.2)
    assert first.path == second.path
    assert len(list((tmp_path / "objects").rglob("*.bin"))) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data + b"\0",
    ],
    ids=["flipped bit", "truncated", "emptied", "longer"],
)
def test_machine_code_that_changed_is_a_miss_and_can_be_put_again(
    cache: BuildCache, damage: Callable[[bytes], bytes]
) -> None:
    path = Path(cache.put(KEY, b"machine code", {}, 0.1).path)
    path.write_bytes(damage(b"machine code"))
    assert cache.get(KEY) is None
    cache.put(KEY, b"machine code", {}, 0.1)
    assert cache.get(KEY) is not None


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '{"sha256": 7, "resources": {}, "seconds": 1}',
        '{"resources": {}, "seconds": 1}',
        '{"sha256": "SHA", "resources": [], "seconds": 1}',
        '{"sha256": "SHA", "resources": {}, "seconds": "x"}',
        '{"sha256": "SHA", "resources": {}, "seconds": null}',
        "[" * 100_000,
    ],
)
def test_a_garbage_entry_is_a_miss(tmp_path: Path, cache: BuildCache, entry: str) -> None:
    binary = cache.put(KEY, b"machine code", {}, 0.1)
    _job_file(tmp_path).write_text(entry.replace("SHA", binary.sha256))
    assert cache.get(KEY) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sha256", "OTHER"),
        ("resources", {"registers": 16}),
        ("seconds", 0.0),
        ("checksum", "0" * 64),
        ("checksum", None),
    ],
)
def test_an_entry_that_was_changed_is_a_miss(
    tmp_path: Path, cache: BuildCache, name: str, value: object
) -> None:
    """The entry could name another job's machine code, which is undamaged itself."""
    cache.put(KEY, b"machine code", {"registers": 32}, 0.1)
    entry = json.loads(_job_file(tmp_path).read_text())
    other = cache.put("cd" * 32, b"other code", {}, 0.1)
    (tmp_path / "jobs" / "ab" / f"{KEY}.json").write_text(
        json.dumps({**entry, name: other.sha256 if value == "OTHER" else value})
    )
    assert cache.get(KEY) is None
    cache.put(KEY, b"machine code", {"registers": 32}, 0.1)
    assert cache.get(KEY) is not None


def test_the_entry_of_another_job_is_a_miss(tmp_path: Path, cache: BuildCache) -> None:
    cache.put(KEY, b"machine code", {}, 0.1)
    entry = _job_file(tmp_path).read_bytes()
    cache.put("cd" * 32, b"other code", {}, 0.1)
    (tmp_path / "jobs" / "cd" / f"{'cd' * 32}.json").write_bytes(entry)
    assert cache.get("cd" * 32) is None


def test_what_a_killed_writer_left_is_removed_later(tmp_path: Path, cache: BuildCache) -> None:
    path = Path(cache.put(KEY, b"machine code", {}, 0.1).path)
    old, new = path.parent / ".writing-old", path.parent / ".writing-new"
    for left in (old, new):
        left.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.put(KEY, b"machine code", {}, 0.1)
    assert not old.exists()
    assert new.exists(), "another process may be writing it"


def test_files_that_cannot_be_removed_do_no_harm(
    tmp_path: Path, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several users share the folder."""
    path = Path(cache.put(KEY, b"machine code", {}, 0.1).path)
    path.write_bytes(b"changed")
    left = path.with_name(".writing-0")
    left.write_bytes(b"")
    os.utime(left, (0, 0))

    def unlink(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", unlink)
    assert cache.get(KEY) is None
    assert cache.put(KEY, b"machine code", {}, 0.1).sha256
    assert cache.get(KEY) is not None


def test_an_entry_cannot_make_the_cache_touch_files_outside_it(tmp_path: Path) -> None:
    outside = tmp_path / "precious.bin"
    outside.write_text("keep me")
    cache = BuildCache(tmp_path / "cache")
    cache.put(KEY, b"machine code", {}, 0.1)
    entry = {"sha256": "../../precious", "resources": {}, "seconds": 0.1}
    _job_file(tmp_path / "cache").write_text(json.dumps(entry))
    assert cache.get(KEY) is None
    assert outside.read_text() == "keep me"


def test_two_processes_may_write_the_same_entry_at_once(tmp_path: Path, cache: BuildCache) -> None:
    script = (
        "import sys; from pathlib import Path; from evotune.workers.build_cache import BuildCache\n"
        "cache = BuildCache(Path(sys.argv[1]))\n"
        f"for _ in range(300): cache.put('{KEY}', b'x' * 200_000, {{'n': 1}}, 0.1)"
    )
    cache.put(KEY, b"x" * 200_000, {"n": 1}, 0.1)
    writers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(2)]
    reads = 0
    while any(writer.poll() is None for writer in writers):
        assert cache.get(KEY) is not None, "a reader must never see half a file"
        reads += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert reads > 0
    assert not list(tmp_path.rglob(".writing-*"))


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", "/somewhere")
    assert default_cache_dir() == Path("/somewhere")
    monkeypatch.delenv("EVOTUNE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_dir() == Path("/xdg/evotune")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the XDG specification
    assert default_cache_dir() == Path("/home/me/.cache/evotune")


@pytest.mark.parametrize(
    ("folder", "words"),
    [("~/.cache", "no home folder"), (os.fsdecode(b"/tmp/caf\xe9"), "is not UTF-8")],
)
def test_a_cache_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, folder: str, words: str
) -> None:
    monkeypatch.setattr(build_cache, "default_cache_dir", lambda: Path(folder))
    with pytest.raises((EnvironmentProblem, UsageError), match=words):
        build_cache.writable_cache_dir()


def test_a_cache_whose_files_may_not_be_executed_is_refused_for_code_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOTUNE_CACHE_DIR", str(tmp_path))
    assert build_cache.writable_cache_dir(executable=True) == tmp_path

    def on_a_noexec_mount(*_: object, prot: int) -> None:
        assert prot & mmap.PROT_EXEC
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(build_cache.mmap, "mmap", on_a_noexec_mount)
    assert build_cache.writable_cache_dir() == tmp_path
    with pytest.raises(EnvironmentProblem, match=r"noexec.*EVOTUNE_CACHE_DIR"):
        build_cache.writable_cache_dir(executable=True)


# --- the contents of a job's key -------------------------------------------------------------


@pytest.fixture
def space(tmp_path: Path) -> Path:
    copy = shutil.copytree(SPACE.parent, tmp_path / "one")
    source = copy / "kernels" / "faulty_attention.cpp"
    source.write_text('#include "extra.h"\n' + source.read_text())
    (copy / "kernels" / "extra.h").write_text("// one\n")
    return copy / "faulty.yaml"


def test_a_job_has_the_same_key_in_every_folder(space: Path, tmp_path: Path) -> None:
    other = shutil.copytree(space.parent, tmp_path / "two")
    assert compile_job("none", space).key == compile_job("none", other / "faulty.yaml").key


def test_a_define_an_option_a_source_or_an_include_makes_another_key(space: Path) -> None:
    keys = [compile_job("none", space).key, compile_job("nan", space).key]
    text = space.read_text()
    space.write_text(text.replace("-O1", "-O2"))
    keys.append(compile_job("none", space).key)
    space.write_text(text.replace("head_dim: 32", "head_dim: 64"))
    keys.append(compile_job("none", space).key)
    space.write_text(text)
    header = space.parent / "kernels" / "extra.h"
    header.write_text("// two\n")
    keys.append(compile_job("none", space).key)
    header.write_text("// one\n")
    source = space.parent / "kernels" / "faulty_attention.cpp"
    source.write_text(source.read_text() + "\n")
    keys.append(compile_job("none", space).key)
    assert len(set(keys)) == len(keys)
