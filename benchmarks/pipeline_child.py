"""A child of `pipeline.py`: sleeps for as long as a compiler or a device works, then answers."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import sys
import time

from evotune.device.launch import Binary
from evotune.execute.channel import BlockingChannel
from evotune.trial import Check, Json, Measurement, Outcome, OutcomeKind

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
    """The child's side: says what a worker of that role would say, after as long."""
    channel = BlockingChannel(os.dup(0), os.dup(1))
    rng = random.Random(os.getpid())

    def work() -> float:
        seconds = rng.lognormvariate(math.log(mean_s) - SPREAD**2 / 2, SPREAD)
        time.sleep(seconds)
        return seconds

    while (message := channel.receive()) is not None:
        if role == "compile_worker":
            if "job" in message:
                sha256 = hashlib.sha256(json.dumps(message["job"]).encode()).hexdigest()
                channel.send({"binary": Binary(sha256, "none", RESOURCES, work()).to_json()})
        elif "token" not in message:
            channel.send({"ready": True, "state": {}})
        else:
            token = {"token": message["token"]}
            channel.send({**token, "prepared": True})
            seconds = work()
            outcome = _outcome(message, rng, seconds)
            channel.send({**token, "outcome": outcome.to_json(), "retire": False})


def _outcome(message: Json, rng: random.Random, seconds: float) -> Outcome:
    measurements = []
    for case in message["cases"]:
        if case["role"] == "timed":
            speedup = rng.lognormvariate(0.0, 0.3)
            figures = (speedup, speedup * 0.99, speedup * 1.01)
            label = str(case["label"])
            times = (9.0 / speedup, 9.0 / speedup, "sdpa:cudnn", 9.0)
            measurements.append(Measurement(label, *times, *figures, samples=5, state=STATE))
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
