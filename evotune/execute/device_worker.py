"""Child process that owns the device: verifies and measures one trial at a time."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from evotune.backends import registry
from evotune.device.profile import DeviceProfile
from evotune.device.protocol import Session
from evotune.errors import ProblemMistake
from evotune.execute.channel import BlockingChannel
from evotune.execute.entry import open_channel
from evotune.problems import Case, Problem, UserProblem, create_problem
from evotune.problems.examination import examine, mistake_of, tiny_case
from evotune.trial import Json
from evotune.user_code import trust

if TYPE_CHECKING:
    from evotune.execute.trial_runner import TrialRunner


def open_session(profile: DeviceProfile) -> Session:
    """The device of the profile, in this process."""
    return registry.named(profile.backend).open_device(profile)


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
    try:
        problem = create_problem(hello["problem"], hello["dtype"], Path(hello["root"]))
    except ProblemMistake as mistake:
        channel.send({"mistake": str(mistake)})
        return
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
    blaming = functools.partial(_blaming, problem, session)
    while (message := channel.receive()) is not None:
        token = {"token": message["token"]}
        try:
            if message["request"] == "time_baselines":
                cases = [Case(item["label"], item["symbols"]) for item in message["cases"]]
                with blaming():
                    _examine(problem, cases, session)
                    timings = runner.time_baselines(cases)
                answer = [timing.to_json() for timing in timings]
                channel.send({**token, "baselines": answer, "copy_gbps": runner.copy_gbps()})
            else:
                _run_trial(channel, runner, message, token, blaming)
        except _Mistaken as error:
            channel.send({**token, "mistake": str(error)})


class _Mistaken(Exception):
    """The problem's file is to blame: nothing of the request's candidate was loaded yet."""


@contextlib.contextmanager
def _blaming(problem: Problem, session: Session) -> Iterator[None]:
    """Around what calls the problem. The device's own errors are none of the problem's."""
    try:
        yield
    except (Exception, SystemExit) as error:
        mistake = mistake_of(problem, error)
        if mistake is None or (isinstance(error, RuntimeError) and session.fault(error)):
            raise
        raise _Mistaken(str(mistake)) from error


def _examine(problem: Problem, cases: Sequence[Case], session: Session) -> None:
    if isinstance(problem, UserProblem):
        examine(problem, tiny_case(problem, cases), session.torch_device)


def _run_trial(
    channel: BlockingChannel,
    runner: TrialRunner,
    message: Json,
    token: dict[str, str],
    blaming: Callable[[], AbstractContextManager[None]],
) -> None:
    started = time.monotonic()
    with blaming():
        runner.prepare(message)
    prepare_s = time.monotonic() - started
    channel.send({**token, "prepared": True})
    outcome = runner.run(message)
    outcome = msgspec.structs.replace(outcome, stage_s={"prepare": prepare_s, **outcome.stage_s})
    about = {"retire": runner.tainted, "doubtful": runner.doubtful}
    channel.send({**token, "outcome": outcome.to_json(), **about})


if __name__ == "__main__":
    main()
