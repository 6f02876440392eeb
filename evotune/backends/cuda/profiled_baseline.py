"""Calls a baseline a few times, the last time under a profiler: a program for Nsight Compute.

It runs as `python -m evotune.backends.cuda.profiled_baseline JOB`. The first calls compile, choose
algorithms and bring the inputs into the L2 cache.
"""

from __future__ import annotations

import signal
import sys
import warnings
from pathlib import Path

from evotune.backends.cuda.nsight import LIMIT_S
from evotune.backends.cuda.tool_messages import PROFILED_BASELINE
from evotune.errors import EvotuneError
from evotune.problems.loading import create_problem
from evotune.user_code import trust
from evotune.util.channel import UnreadableMessage, decode

_CALLS_BEFORE = 3


def main() -> None:
    signal.alarm(round(LIMIT_S))
    warnings.simplefilter("ignore")
    import torch
    from cupy.cuda import profiler

    try:
        request = decode(PROFILED_BASELINE, Path(sys.argv[1]).read_bytes())
        if request.sha256:
            trust.agree(request.sha256)  # the parent has the user's agreement
        problem = create_problem(request.problem, request.dtype, Path(request.root))
    except (UnreadableMessage, EvotuneError) as error:
        sys.exit(str(error))
    inputs = problem.make_inputs(request.case, "normal", 0, "cuda")
    calls = problem.baselines(request.case, inputs, request.baseline)
    if request.baseline not in calls:
        sys.exit(f"the baseline {request.baseline} does not run here")
    for _ in range(_CALLS_BEFORE):
        calls[request.baseline]()
    torch.cuda.synchronize()
    profiler.start()
    calls[request.baseline]()
    torch.cuda.synchronize()
    profiler.stop()


if __name__ == "__main__":
    main()
