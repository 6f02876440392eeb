"""Launches one case twice, the second time under a profiler: a program for Nsight Compute.

It runs as `python -m evotune.backends.cuda.profiled_launch JOB`. The first launch brings the inputs
into the L2 cache, as timed launches find them.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from evotune.backends.cuda.nsight import LIMIT_S
from evotune.backends.cuda.sanitized_launch import buffers, open_device
from evotune.backends.cuda.tool_messages import PROFILED_LAUNCH
from evotune.util.channel import UnreadableMessage, decode


def main() -> None:
    signal.alarm(round(LIMIT_S))
    from cupy.cuda import profiler

    from evotune.backends.cuda.cuda_kernel import CudaKernel, bind

    try:
        case = decode(PROFILED_LAUNCH, Path(sys.argv[1]).read_bytes())
    except UnreadableMessage as error:
        sys.exit(f"the job cannot be read: {error}")
    runtime = open_device()
    kernel = CudaKernel(Path(case.binary))
    with buffers(runtime, case, poison=False) as pointers:
        launch = bind(kernel, case.plan, pointers, lambda: 0)
        launch()
        runtime.deviceSynchronize()
        profiler.start()
        launch()
        runtime.deviceSynchronize()
        profiler.stop()


if __name__ == "__main__":
    main()
