"""Child process that owns the device: verifies and measures one trial at a time."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from evotune.device.cpu import CpuSession
from evotune.device.profile import DeviceProfile
from evotune.device.protocol import Session
from evotune.execute.channel import BlockingChannel
from evotune.execute.entry import open_channel
from evotune.problems import Case, create_problem
from evotune.trial import Json
from evotune.user_code import trust

if TYPE_CHECKING:
    from evotune.execute.trial_runner import TrialRunner


def open_session(profile: DeviceProfile) -> Session:
    if profile.backend == "cpu":
        return CpuSession()
    if profile.backend == "cuda":
        from evotune.device.cuda.session import CudaSession

        return CudaSession(profile)
    raise ValueError(f"no session for backend {profile.backend}")


def main() -> None:
    channel = open_channel(owns_processes=False)
    # Only now: PyTorch takes seconds to import, and the parent may die meanwhile.
    from evotune.execute.trial_runner import TrialRunner

    warnings.simplefilter("ignore")  # PyTorch explains refused backends at length
    hello = channel.receive()
    if hello is None:
        return
    if hello["cores"]:
        os.sched_setaffinity(0, hello["cores"])
    profile = DeviceProfile.from_json(hello["profile"])
    if hello["problem_sha256"]:
        trust.agree(hello["problem_sha256"])  # somebody agreed to it in the parent
    problem = create_problem(hello["problem"], hello["dtype"], Path(hello["root"]))
    session = open_session(profile)
    runner = TrialRunner(
        session,
        profile,
        problem,
        deterministic=hello["deterministic"],
        secret=hello["gate"]["secret"],
        without=frozenset(hello["gate"]["without"]),
    )
    channel.send({"ready": True, "state": dict(session.state())})
    while (message := channel.receive()) is not None:
        _serve(channel, runner, message)


def _serve(channel: BlockingChannel, runner: TrialRunner, message: Json) -> None:
    token = {"token": message["token"]}
    if message["request"] == "time_baselines":
        cases = [Case(item["label"], item["symbols"]) for item in message["cases"]]
        timings = runner.time_baselines(cases)
        answer = [timing.to_json() for timing in timings]
        channel.send({**token, "baselines": answer, "copy_gbps": runner.copy_gbps()})
    else:
        started = time.monotonic()
        runner.prepare(message)
        prepare_s = time.monotonic() - started
        channel.send({**token, "prepared": True})
        outcome = runner.run(message)
        outcome = msgspec.structs.replace(
            outcome, stage_s={"prepare": prepare_s, **outcome.stage_s}
        )
        about = {"retire": runner.tainted, "doubtful": runner.doubtful}
        channel.send({**token, "outcome": outcome.to_json(), **about})


if __name__ == "__main__":
    main()
