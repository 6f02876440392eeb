"""PyTorch and the kernels beside it share one OpenMP runtime and one pool of threads."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import torch

from evotune.backends.base.launch import Argument, CompileFailure, CompileJob, LaunchPlan
from evotune.backends.cpu import native_runtime
from evotune.backends.cpu.cpp_compiler import CpuCompiler
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.backends.cpu.native_runtime import file_of
from tests.patience import PATIENCE_S

KERNEL = """
#include <omp.h>
extern "C" void kernel(void** found) {
    found[0] = reinterpret_cast<void*>(&omp_get_max_threads);
}
"""
PLAN = LaunchPlan("kernel", (Argument("tensor", "x"),), (), ())


def test_a_kernel_calls_the_runtime_that_pytorch_calls(tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_text(KERNEL)
    job = CompileJob("cpp", str(tmp_path), "k.cpp", (), (), "native", "")
    made = CpuCompiler().compile(job, tmp_path / "k.so", PATIENCE_S)
    assert not isinstance(made, CompileFailure), made.log
    session = CpuSession()
    found = (ctypes.c_void_p * 1)()
    session.bind(session.load(tmp_path / "k.so", PLAN), PLAN, {"x": ctypes.addressof(found)})()
    own = native_runtime.share()
    assert own
    address = ctypes.CFUNCTYPE(ctypes.c_int)(found[0])
    assert os.path.realpath(file_of(address)) == os.path.realpath(own)


def test_the_pool_has_a_thread_for_each_core_but_this_one_and_ends_when_told() -> None:
    torch.ones(1 << 20).add_(1)
    native_runtime.wake()
    pool = native_runtime.threads()
    assert len(pool) == torch.get_num_threads() - 1
    tasks = {int(name) for name in os.listdir("/proc/self/task")}
    assert pool <= tasks
    native_runtime.rest()
    deadline = time.monotonic() + PATIENCE_S
    while pool & {int(name) for name in os.listdir("/proc/self/task")}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(native_runtime.threads()) == len(pool)
