"""Waiting for many children."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from evotune.device.launch import CompileFailure, CompileJob
from evotune.execute.compile_pool import CompilePool
from evotune.execute.device_slot import DeviceSlot
from evotune.execute.local import LocalExecutor


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """New file descriptors are numbered from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("needs 2048 file descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < 1024:
        held.append(os.dup(held[0]))
    yield
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_large_numbers_of_file_descriptors_are_waited_for(tmp_path: Path) -> None:
    pool = CompilePool(tmp_path, tmp_path / "cache", processes=1, timeout_s=60)
    executor = LocalExecutor(pool, cast(Sequence[DeviceSlot], ()), exclusive=True)
    try:
        (tmp_path / "k.cpp").write_text("this is no C++\n")
        pool.submit(CompileJob("cpp", str(tmp_path), "k.cpp", (), (), "", ""))
        while not (results := pool.wait(5.0)):
            pass
        assert isinstance(results[0][1], CompileFailure)
        executor.wake()
        assert executor.poll(5.0) == []
    finally:
        executor.close()


def test_a_machine_of_very_many_cores_has_descriptors_for_all_its_compile_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has two, and 1024 is a usual limit."""
    pool = CompilePool(tmp_path, tmp_path / "cache", processes=768)
    monkeypatch.setattr(CompilePool, "_spawn", lambda _: FakeChild())
    pool.warm("cpp")
    assert len(pool._idle) == 256
    pool._idle.clear()
    pool.close()


class FakeChild:
    def send(self, message: object) -> None: ...
