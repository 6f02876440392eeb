"""The child process that owns the device. It verifies and measures one trial at a time."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile
from evotune.backends.base.session import Session
from evotune.errors import ProblemMistake
from evotune.problems import Case, Problem, UserProblem, create_problem
from evotune.problems.examination import examine, mistake_of, ordinary_case, tiny_case
from evotune.user_code import trust
from evotune.util.channel import BlockingChannel
from evotune.util.processes import adopt_orphans, end_without_hooks
from evotune.workers.entry import lasting_imports, open_channel, write_to
from evotune.workers.executor import BaselineReport
from evotune.workers.messages import (
    DEVICE_WORKER,
    BaselineFailed,
    BaselinesRequest,
    BaselinesTimed,
    FromDeviceWorker,
    Hello,
    Mistaken,
    Opened,
    Preload,
    Preloaded,
    Prepared,
    PrepareRequest,
    Step,
    ToDeviceWorker,
    TrialDone,
    TrialRequest,
    WriteTo,
)

if TYPE_CHECKING:
    from evotune.workers.trial_runner import TrialRunner

Channel: TypeAlias = BlockingChannel[ToDeviceWorker, FromDeviceWorker]


def open_session(profile: DeviceProfile) -> Session:
    """Opens the profile's device in this process."""
    return registry.named(profile.backend).open_device(profile)


def main() -> None:
    with open_channel(DEVICE_WORKER, owns_processes=False) as channel:
        adopt_orphans()  # a candidate's process must not hide by the death of its parent
        # PyTorch takes seconds to import. `open_channel` comes first, so that this process dies
        # with its parent meanwhile; a spare worker has imported it by the time it is needed.
        with lasting_imports():
            import numpy.ma  # noqa: F401  (NumPy's percentiles import it at their first call)

            import evotune.workers.trial_runner  # noqa: F401

        message = channel.receive()
        if isinstance(message, Preload):
            backend = registry.named(message.backend)
            backend.preload()
            channel.send(Preloaded(devices=backend.devices_here() if message.looks else ()))
            message = channel.receive()
        if isinstance(message, WriteTo):
            write_to(message.log)
            message = channel.receive()
        if isinstance(message, Hello):
            _serve(channel, message)


def _serve(channel: Channel, hello: Hello) -> None:
    from evotune.workers.trial_runner import TrialRunner
    from evotune.workers.trial_timer import FailedBaseline

    warnings.simplefilter("ignore")  # PyTorch explains refused backends at length
    if hello.cores:
        os.sched_setaffinity(0, hello.cores)
    told = hello.problem
    if told.sha256:
        trust.agree(told.sha256)  # the parent has the user's agreement
    try:
        problem = create_problem(told.name, told.dtype, Path(told.root))
    except ProblemMistake as mistake:
        channel.send(Mistaken(token=hello.token, mistake=str(mistake)))
        return
    session = open_session(hello.profile)
    runner = TrialRunner(
        session,
        hello.profile,
        problem,
        deterministic=hello.deterministic,
        secret=hello.gate.secret,
        without=hello.gate.without,
    )
    warm_up(runner, session, hello.warm)
    channel.send(Opened(token=hello.token))
    blaming = functools.partial(_blaming, problem, session)
    while (request := channel.receive()) is not None:
        try:
            if isinstance(request, BaselinesRequest):
                with blaming():
                    found = _examine(problem, request.cases, session)
                    timings = runner.time_baselines(
                        request.cases, request.libraries, request.failed
                    )
                report = BaselineReport(tuple(timings), runner.copy_gbps(), found)
                channel.send(BaselinesTimed(token=request.token, report=report))
            elif isinstance(request, PrepareRequest):
                _prepare_ahead(runner, request)
            elif isinstance(request, TrialRequest):
                _run_trial(channel, runner, request, blaming)
        except FailedBaseline as failed:
            channel.send(BaselineFailed(token=request.token, timing=failed.timing))
        except _ProblemMistaken as error:
            channel.send(Mistaken(token=request.token, mistake=str(error)))


class _ProblemMistaken(Exception):
    """The problem's file is to blame: nothing of the request's candidate was loaded yet."""


@contextlib.contextmanager
def _blaming(problem: Problem, session: Session) -> Iterator[None]:
    """Raises _ProblemMistaken for an error in the problem's own code. Other errors pass through,
    and so do the device's."""
    try:
        yield
    except (Exception, SystemExit) as error:
        mistake = mistake_of(problem, error)
        if mistake is None or (isinstance(error, RuntimeError) and session.fault(error)):
            raise
        raise _ProblemMistaken(str(mistake)) from error


def _examine(problem: Problem, cases: Sequence[Case], session: Session) -> tuple[str, ...]:
    if not isinstance(problem, UserProblem):
        return ()
    tiny, ordinary = tiny_case(problem, cases), ordinary_case(problem, cases)
    return examine(problem, tiny, session.torch_device, ordinary=ordinary)


def warm_up(runner: TrialRunner, session: Session, warm: Sequence[Case]) -> None:
    """Makes inputs of the smallest of the cases `warm`. Does not report a mistake in the problem,
    because the first trial reports it. A fault of the device ends this worker, so that another one
    takes its place."""
    try:
        runner.warm_up(warm)
    except (Exception, SystemExit) as error:  # the user's code raises what it likes
        if isinstance(error, RuntimeError) and session.fault(error):
            raise
        print(f"warming up failed: {error!r}", file=sys.stderr)


def _prepare_ahead(runner: TrialRunner, request: PrepareRequest) -> None:
    """A failure is not reported here: the trial makes the same inputs, and reports it."""
    try:
        runner.prepare_ahead(request)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (a problem's code raises what it likes)
        print(f"preparing a champion failed: {error!r}", file=sys.stderr)


def _run_trial(
    channel: Channel,
    runner: TrialRunner,
    request: TrialRequest,
    blaming: Callable[[], AbstractContextManager[None]],
) -> None:
    def tell(step: str) -> None:
        if request.thorough:
            channel.send(Step(token=request.token, text=step))

    started = time.monotonic()
    tell("making inputs and references")
    with runner.beside(request) as beside:
        with blaming():
            runner.prepare(request)
        prepare_s = time.monotonic() - started
        channel.send(Prepared(token=request.token))
        outcome = runner.run(request, beside, tell)
    outcome = msgspec.structs.replace(outcome, stage_s={"prepare": prepare_s, **outcome.stage_s})
    channel.send(
        TrialDone(
            token=request.token, outcome=outcome, retire=runner.tainted, doubtful=runner.doubtful
        )
    )


if __name__ == "__main__":
    end_without_hooks(main)
