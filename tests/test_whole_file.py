from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from evotune.util.files import growing_file, whole_file
from tests.patience import PATIENCE_S


def test_a_file_appears_whole_and_with_the_usual_mode(tmp_path: Path) -> None:
    path, usual = tmp_path / "new", tmp_path / "usual"
    usual.touch()
    with whole_file(path) as file:
        file.write(b"first half")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"first half"
    assert path.stat().st_mode == usual.stat().st_mode


def test_an_exception_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as file:
        _write_half(file)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def _write_half(file: BinaryIO) -> None:
    file.write(b"half")
    raise KeyboardInterrupt


def test_a_link_and_a_mode_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    target.write_bytes(b"old and longer")
    target.chmod(0o640)
    link.symlink_to(target)
    with whole_file(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with whole_file(tmp_path / "pipe") as file:
        file.write(b"through")
    reader.join(PATIENCE_S)
    assert read == [b"through"]


@pytest.mark.parametrize("name", [".", "no/such", "x" * 300])
def test_what_cannot_be_written_is_an_oserror(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError), whole_file(tmp_path / name) as file:
        file.write(b"text")
    assert list(tmp_path.iterdir()) == []


def test_a_growing_file_keeps_the_earlier_lines_until_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"earlier\n" * 9)
    with pytest.raises(KeyboardInterrupt), growing_file(path):
        raise KeyboardInterrupt
    assert path.read_bytes() == b"earlier\n" * 9
    with growing_file(path) as write:
        write(b"one\n")
        write(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    with growing_file(path):
        pass
    assert path.read_bytes() == b""


@pytest.mark.parametrize("deleted", [False, True])
def test_a_redirected_output_gets_all_that_is_written(tmp_path: Path, deleted: bool) -> None:
    """Whoever redirected it holds the file, not its name."""
    path = tmp_path / "redirected"
    with path.open("w+b") as held:
        if deleted:
            path.unlink()
        with whole_file(Path(f"/proc/self/fd/{held.fileno()}")) as file:
            file.write(b"whole")
        assert held.read() == b"whole"
    assert [each.name for each in tmp_path.iterdir()] == ([] if deleted else ["redirected"])


def test_a_file_that_cannot_be_replaced_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBUSY, "a mount point")

    path = tmp_path / "mounted"
    path.write_bytes(b"old and longer")
    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(os, "fchmod", refuse)
    with whole_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
