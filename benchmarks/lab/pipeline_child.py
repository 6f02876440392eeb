"""A child of `pipeline.py`: sleeps as long as a compiler or a device would work, then answers."""

from __future__ import annotations

import hashlib
import math
import os
import random
import sys
import time
from collections.abc import Callable

from evotune.backends.base.launch import Binary
from evotune.trial import Check, Measurement, Outcome, OutcomeKind
from evotune.util.channel import BlockingChannel
from evotune.workers.messages import (
    COMPILE_WORKER,
    DEVICE_WORKER,
    Compile,
    FromCompileWorker,
    FromDeviceWorker,
    Hello,
    Opened,
    Prepared,
    ToCompileWorker,
    ToDeviceWorker,
    TrialDone,
    TrialRequest,
)

SPREAD = 0.4  # sigma of ln(time)
RESOURCES = {"registers": 128, "shared_bytes": 0, "spill_bytes": 0, "local_bytes": 0}
CHECKS = 24  # about as many as a trial of a real worker records
STATE = {
    "sm_mhz": 1980,
    "memory_mhz": 3201,
    "power_w": 412.7,
    "temperature_c": 48,
    "throttled_by": [],
}


def pretend(role: str, mean_s: float) -> None:
    """Answers messages as a worker of that role would, after as long a time."""
    rng = random.Random(os.getpid())

    def work() -> float:
        seconds = rng.lognormvariate(math.log(mean_s) - SPREAD**2 / 2, SPREAD)
        time.sleep(seconds)
        return seconds

    if role == "compile_worker":
        _compile(work)
    else:
        _measure(work, rng)


def _compile(work: Callable[[], float]) -> None:
    channel = BlockingChannel[ToCompileWorker, FromCompileWorker](
        os.dup(0), os.dup(1), COMPILE_WORKER.to_worker
    )
    while (told := channel.receive()) is not None:
        if isinstance(told, Compile):
            sha256 = hashlib.sha256(told.job.key.encode()).hexdigest()
            channel.send(Binary(sha256, "none", RESOURCES, work()))


def _measure(work: Callable[[], float], rng: random.Random) -> None:
    channel = BlockingChannel[ToDeviceWorker, FromDeviceWorker](
        os.dup(0), os.dup(1), DEVICE_WORKER.to_worker
    )
    while (told := channel.receive()) is not None:
        if isinstance(told, Hello):
            channel.send(Opened(token=told.token))
        elif isinstance(told, TrialRequest):
            channel.send(Prepared(token=told.token))
            seconds = work()
            channel.send(TrialDone(token=told.token, outcome=_outcome(told, rng, seconds)))


def _outcome(told: TrialRequest, rng: random.Random, seconds: float) -> Outcome:
    measurements = []
    for item in told.cases:
        if item.role == "timed":
            speedup = rng.lognormvariate(0.0, 0.3)
            figures = (speedup, speedup * 0.99, speedup * 1.01)
            times = (9.0 / speedup, 9.0 / speedup, "sdpa:cudnn", 9.0)
            measurements.append(
                Measurement(item.case.label, *times, *figures, samples=5, state=STATE)
            )
    checks = [
        Check(f"(1,{i},67,64) causal", "normal", "passed", 1e-3 * rng.random(), 3e-3, 1e-4, 3e-4)
        for i in range(CHECKS)
    ]
    fitness = sum(math.log(measured.speedup) for measured in measurements) / len(measurements)
    return Outcome(
        OutcomeKind.OK,
        fitness=fitness,
        measurements=tuple(measurements),
        checks=tuple(checks),
        stage_s={"prepare": 1e-4, "load": 1e-4, "verify": 1e-3, "measure": seconds},
        resources={"device": STATE},
    )


if __name__ == "__main__":
    pretend(sys.argv[1], float(sys.argv[2]))
