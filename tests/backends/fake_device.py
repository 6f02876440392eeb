"""A GPU of files: its memory is shared memory, a handle is a file's name, a graph calls again.

`python -m tests.backends.fake_device` is a zygote whose hosts use it. So the whole protocol of
callables on a GPU runs without one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from evotune.backends.python import host
from evotune.backends.python.device_memory import DriverError
from evotune.backends.python.host_device import DeviceHost

_MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s+(/.*/fake-gpu-\S+)")
_FOLDER = Path("/dev/shm")


class FakeDriver:
    """See `Driver` of `evotune/backends/python/device_memory.py`."""

    def __init__(self) -> None:
        self._mapped: dict[int, mmap.mmap] = {}

    def allocate(self, nbytes: int) -> int:
        descriptor, name = tempfile.mkstemp(prefix="fake-gpu-", dir=_FOLDER)
        os.ftruncate(descriptor, nbytes)
        os.close(descriptor)
        return self.open(name.encode())

    def free(self, address: int) -> None:
        Path(self.export(address).decode()).unlink()
        self._mapped.pop(address)  # tensors may still have it

    def export(self, address: int) -> bytes:
        first, _, name = self._mapping(address)
        if first != address:
            raise DriverError("CUDA driver error: not the first byte of an allocation")
        return name.encode()

    def open(self, handle: bytes) -> int:
        try:
            with open(handle, "r+b") as file:
                mapped = mmap.mmap(file.fileno(), 0)
        except OSError as error:
            raise DriverError(f"CUDA driver error: {error}") from error
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self._mapped[address] = mapped
        return address

    def close(self, address: int) -> None:
        self._mapped.pop(address)

    def allocation(self, address: int) -> tuple[int, int]:
        first, nbytes, _ = self._mapping(address)
        return first, nbytes

    def _mapping(self, address: int) -> tuple[int, int, str]:
        for found in map(_MAPPED.match, Path("/proc/self/maps").read_text().splitlines()):
            if found is not None:
                first, end = int(found[1], 16), int(found[2], 16)
                if first <= address < end:
                    return first, end - first, found[3]
        raise DriverError("CUDA driver error: invalid argument")

    def read(self, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    def synchronize(self) -> None:
        pass

    def tensor(self, address: int, nbytes: int, at_end: Callable[[], object] = int) -> torch.Tensor:
        memory = (ctypes.c_char * nbytes).from_address(address)
        weakref.finalize(memory, at_end).atexit = False
        return torch.frombuffer(memory, dtype=torch.uint8)


def again(calls: list[Callable[[], object]]) -> Callable[[], object]:
    """A graph of the calls: here it calls them again, and their results stay where they are."""
    if os.environ.get("FAKE_GPU_CAPTURES") == "0":
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    for call in calls:
        call()

    def replay() -> None:
        for call in calls:
            bound = getattr(call, "__self__", None)
            before = list(getattr(bound, "results", ()))
            call()
            for old, new in zip(before, getattr(bound, "results", ()), strict=True):
                old.copy_(new)
            if bound is not None:
                bound.results = before

    return replay


def opened(share: float) -> DeviceHost:
    assert 0.0 < share <= 1.0
    return DeviceHost(FakeDriver(), again, "cpu")


@contextmanager
def no_files_left() -> Iterator[None]:
    """Removes what a killed test leaves."""
    before = set(_FOLDER.glob("fake-gpu-*"))
    try:
        yield
    finally:
        for path in set(_FOLDER.glob("fake-gpu-*")) - before:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    host.open_gpu = opened
    host.main()
