"""Calls a kernel or a baseline while `perf stat` counts: a program for perf.

It runs as `python -m evotune.backends.cpu.counted_run KIND JOB CONTROL ACKNOWLEDGE`; KIND is
`kernel` (JOB has a SanitizedCase) or `baseline` (a BaselineRequest). Through the pipe CONTROL it
starts and stops perf's counting. It prints the number of counted calls and their time as one line
of JSON.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec.msgpack import Decoder

from evotune.backends.base.backend import SanitizedCase
from evotune.backends.base.evidence import BaselineRequest, normal_values
from evotune.backends.base.session import c_value
from evotune.backends.cpu import cpu_profile
from evotune.errors import EvotuneError
from evotune.problems.problem import ELEMENT_BYTES
from evotune.util.channel import UnreadableMessage, decode
from evotune.util.processes import end_without_hooks

LIMIT_S = 90.0
KERNEL, BASELINE = "kernel", "baseline"
_CASE: Decoder[SanitizedCase] = Decoder(SanitizedCase)
_BASELINE: Decoder[BaselineRequest] = Decoder(BaselineRequest)
_CALLS_BEFORE = 3
_COUNTED_S = 0.3
_ALIGNMENT = 64


def kernel_call(case: SanitizedCase) -> Callable[[], object]:
    """A function that calls the case's kernel on newly made buffers. Inputs are normal values.
    Exits if the case lacks its lengths or indices, because invented ones would mean other work, or
    lie out of bounds."""
    function = getattr(ctypes.CDLL(case.binary), case.plan.entry)
    buffers: dict[str, np.ndarray] = {}
    for spec in case.tensors:
        buffers[spec.name] = _aligned(spec.span * ELEMENT_BYTES[spec.dtype])
        if spec.is_index and spec.name not in case.indices:
            sys.exit(f"only the problem knows the values of {spec.name}, lengths or places")
        if spec.is_index:
            buffers[spec.name][:] = np.frombuffer(case.indices[spec.name], np.uint8)
        elif spec.is_input:
            buffers[spec.name][:] = normal_values(spec.span, spec.dtype).view(np.uint8)
    for workspace in case.plan.workspaces:
        buffers[workspace.name] = _aligned(workspace.bytes)
    arguments = [
        ctypes.c_void_p(buffers[argument.name].ctypes.data)
        if argument.type in ("tensor", "workspace")
        else c_value(argument)
        for argument in case.plan.arguments
    ]

    def call() -> object:
        return function(*arguments)

    call.keeps = buffers  # type: ignore[attr-defined]
    return call


def _aligned(size: int) -> np.ndarray:
    """`size` bytes of zeros, aligned as torch aligns them."""
    memory = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


def baseline_call(request: BaselineRequest) -> Callable[[], object]:
    """A function that calls the baseline on normal inputs. Exits if the baseline does not run."""
    from evotune.problems.loading import create_problem
    from evotune.user_code import trust

    warnings.simplefilter("ignore")
    if request.sha256:
        trust.agree(request.sha256)  # the parent has the user's agreement
    problem = create_problem(request.problem, request.dtype, Path(request.root))
    inputs = problem.make_inputs(request.case, "normal", 0)
    calls = problem.baselines(request.case, inputs, request.baseline)
    if request.baseline not in calls:
        sys.exit(f"the baseline {request.baseline} does not run here")
    return calls[request.baseline]


def count(call: Callable[[], object], control: Callable[[str], None]) -> dict[str, float]:
    """Calls the function while perf counts. Returns the number of calls, and the time of one in
    µs."""
    for _ in range(_CALLS_BEFORE):
        call()
    began = time.perf_counter()
    call()
    calls = max(1, min(100_000, round(_COUNTED_S / max(1e-6, time.perf_counter() - began))))
    control("enable")
    began = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - began
    control("disable")
    return {"calls": calls, "time_us": seconds / calls * 1e6}


def _tell(control: int, acknowledge: int, word: str) -> None:
    """Tells perf a word, and waits until it has obeyed."""
    os.write(control, f"{word}\n".encode())
    os.read(acknowledge, 64)


def main() -> None:
    signal.alarm(round(LIMIT_S))
    kind, job = sys.argv[1], Path(sys.argv[2])
    count_threads = cpu_profile.threads()
    os.sched_setaffinity(0, cpu_profile.cpus_of_cores(count_threads))
    os.environ["OMP_NUM_THREADS"] = str(count_threads)  # before OpenMP's runtime is loaded
    try:
        if kind == KERNEL:
            call = kernel_call(decode(_CASE, job.read_bytes()))
        else:
            call = baseline_call(decode(_BASELINE, job.read_bytes()))
    except (UnreadableMessage, EvotuneError, OSError) as error:
        sys.exit(str(error))
    pipes = os.open(sys.argv[3], os.O_WRONLY), os.open(sys.argv[4], os.O_RDONLY)
    print(json.dumps(count(call, functools.partial(_tell, *pipes))), flush=True)


if __name__ == "__main__":
    end_without_hooks(main)
