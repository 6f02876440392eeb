"""Filling `__constant__` variables, with the driver's part played by this file."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from evotune.backends.base.launch import Argument, ConstantMemory, Launch, LaunchPlan
from evotune.backends.base.session import LaunchFailure
from evotune.backends.cuda import cuda_kernel, gpu_profiles
from evotune.backends.cuda import cuda_kernel as kernel_module
from evotune.backends.cuda.cuda_kernel import CudaKernel, bind

pytest.importorskip("cupy")

MODULE, FUNCTION, STREAM = 1, 7, 3
ADDRESS, ROOM = 4096, 64
_NOT_FOUND = 500


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The driver's calls in order; it has one variable, `c_filter`."""
    from cupy.cuda import driver, runtime

    made: list[tuple[Any, ...]] = []

    def find(address: Any, size: Any, module: int, name: bytes) -> int:
        assert module == MODULE
        if name != b"c_filter":
            return _NOT_FOUND
        ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64))[0] = ADDRESS
        ctypes.cast(size, ctypes.POINTER(ctypes.c_size_t))[0] = ROOM
        return 0

    monkeypatch.setattr(kernel_module, "_finder", lambda: find)
    monkeypatch.setattr(runtime, "memcpyAsync", lambda *words: made.append(("copy", *words)))
    monkeypatch.setattr(driver, "launchKernel", lambda *words: made.append(("launch", words[0])))
    return made


def kernel() -> CudaKernel:
    class Driver:
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1

        class CUDADriverError(RuntimeError):
            pass

        def moduleUnload(self, module: int) -> None: ...

        def moduleGetFunction(self, module: int, entry: str) -> int:
            return FUNCTION

        def funcGetAttribute(self, attribute: int, function: int) -> int:
            return 0

    made = CudaKernel.__new__(CudaKernel)
    made._driver, made._module = Driver(), MODULE
    made._functions, made._shared_bytes = {}, {}
    return made


def plan(symbol: str, size: int) -> LaunchPlan:
    return LaunchPlan(
        "f",
        (Argument("tensor", "x"),),
        (),
        (Launch((1,), (32,), 0, "f"),) * 2,
        (ConstantMemory(symbol, "weights", size),),
    )


@pytest.mark.parametrize("size", [ROOM, ROOM - 4])
def test_it_is_filled_before_the_launches_of_every_call(
    size: int, calls: list[tuple[Any, ...]]
) -> None:
    from cupy.cuda import runtime

    pointers = {"x": 100, "weights": 200}
    run = bind(kernel(), plan("c_filter", size), pointers, lambda: STREAM)
    assert calls == []
    run()
    run()
    copy = ("copy", ADDRESS, 200, size, runtime.memcpyDeviceToDevice, STREAM)
    assert calls == [copy, ("launch", FUNCTION), ("launch", FUNCTION)] * 2


@pytest.mark.parametrize(
    ("symbol", "size", "words"),
    [
        ("c_filters", 4, "the kernel has no variable c_filters in constant memory"),
        ("c_filter", 68, "constant memory c_filter has 64 bytes, but the tensor weights has 68"),
    ],
)
def test_what_does_not_fit_is_a_launch_failure(
    symbol: str, size: int, words: str, calls: list[tuple[Any, ...]]
) -> None:
    with pytest.raises(LaunchFailure) as caught:
        bind(kernel(), plan(symbol, size), {"x": 100, "weights": 200}, lambda: STREAM)
    assert str(caught.value) == words


def test_each_stream_of_a_caller_has_constant_memory_of_its_own(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one module a call would fill the memory that a kernel on another stream still reads."""
    loaded: list[CudaKernel] = []
    stream = STREAM

    def load(binary: Path) -> CudaKernel:
        loaded.append(kernel())
        return loaded[-1]

    monkeypatch.setattr(cuda_kernel, "CudaKernel", load)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=stream))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    call = cuda_kernel.CudaCaller(gpu_profiles.named("h200")).load(Path("k.cubin"))
    filling, pointers = plan("c_filter", ROOM), {"x": torch.ones(1), "weights": torch.ones(1)}
    for stream, modules in ((3, 1), (4, 2), (3, 2), (4, 2)):
        call(filling, pointers)
        assert calls[-3][-1] == stream
        assert len(loaded) == modules
    for stream in (3, 4, 5):  # noqa: B007  `current_stream` gives it
        call(msgspec.structs.replace(filling, constant_memory=()), pointers)
    assert len(loaded) == 3
