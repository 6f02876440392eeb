"""Every message between evotune's processes, grouped by the processes that exchange it.

Device, compile and problem workers of one machine each have a channel (a `Wire`). A task of a Dask
cluster takes one message and returns one. Short-lived processes read one from a file. A message of
an unexpected type is unreadable (`util/channel.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec
from msgspec.msgpack import Decoder

from evotune.backends.base.launch import (
    Binary,
    CompileFailure,
    CompileJob,
    DeviceProfile,
    LaunchPlan,
)
from evotune.problems.executed_sizes import LengthPlan
from evotune.problems.problem import Case
from evotune.space.specs import GivenCase
from evotune.trial import Calibration, Check, Outcome, Value
from evotune.util.channel import Wire
from evotune.workers.executor import SERVED_S, BaselineReport, BaselineTiming


class ProblemToLoad(msgspec.Struct, frozen=True):
    """A problem's name and dtype. For a problem from a file also:

    - `root`: the folder that the file's path starts from.
    - `sha256`: the hash of the bytes that the user agreed to; the worker runs no other bytes.
    """

    name: str
    dtype: str
    root: str
    sha256: str = ""


# --- the device worker ----------------------------------------------------------------------------


class _OfDevice(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Each message has a token, which its answers repeat. Native code in the worker may write to
    the worker's pipe, but it does not know the token."""

    token: str = ""


class GateSettings(msgspec.Struct, frozen=True):
    """Settings of the gate. It draws its inputs and places from `secret`, and leaves out the checks
    `without`."""

    secret: str = ""
    without: frozenset[str] = frozenset()


class Preload(_OfDevice, frozen=True, tag=True, kw_only=True):
    """The first message to a worker. It makes the worker import the libraries of this backend and,
    with `looks`, say which devices they can use."""

    backend: str
    looks: bool = False


class Preloaded(_OfDevice, frozen=True, tag=True, kw_only=True):
    """The worker has imported its libraries."""

    devices: tuple[DeviceProfile, ...] = ()


class WriteTo(_OfDevice, frozen=True, tag=True, kw_only=True):
    """Makes the worker append its output to this file from now on. The message has no answer."""

    log: str


class Hello(_OfDevice, frozen=True, tag=True, kw_only=True):
    """Makes the worker open its device and load the problem.

    - `cores`: the CPU cores that it is bound to; empty for all.
    - `warm`: the worker makes inputs of the smallest of these cases before it answers. A GPU loads
      the code of an operation at its first use, so later requests need not wait for that.
    """

    profile: DeviceProfile
    problem: ProblemToLoad
    deterministic: bool
    cores: tuple[int, ...]
    gate: GateSettings
    warm: tuple[Case, ...] = ()


class BaselinesRequest(_OfDevice, frozen=True, tag=True, kw_only=True):
    """Requests the times of all baselines on these cases, and of those of the named optional
    `libraries`, except baselines that `failed` in earlier workers.
    """

    cases: tuple[Case, ...]
    libraries: tuple[str, ...] = ()
    failed: tuple[BaselineTiming, ...] = ()


class TrialCase(msgspec.Struct, frozen=True):
    """One case of a trial as its worker needs it: compiled, and ready to be launched.

    - `mbarriers`: 1 if the binary uses mbarriers, else 0; None if an older evotune compiled it.
    - `compile`: the job of a champion's binary, which is rebuilt so that it disturbs itself.
    """

    case: Case
    role: str
    plan: LaunchPlan
    flops: int
    binary: str
    mbarriers: int | None = None
    compile: CompileJob | None = None


class PrepareRequest(_OfDevice, frozen=True, tag=True, kw_only=True):
    """Announces a champion's trial, so that the worker makes its inputs and references while
    compilers work. The message has no answer."""

    number: int
    cases: tuple[tuple[Case, str], ...]
    """The cases, each with its role."""


_DRAWS_APART = 1_000_000  # more than the trials of a search


class TrialRequest(_OfDevice, frozen=True, tag=True, kw_only=True):
    """Requests one trial. `confirm`, `part`, `audit`, `repeat`, `skipped`, `until_s`, `rival`,
    `lengths`, `only_served` and `served_s` are those of `Proposal`.

    - `contender`: a candidate whose fitness is surely below this value needs no more samples.
    - `fixed_sampling`: such a candidate gets as many samples as others.
    - `baselines`: the baseline's name by case label.
    - `build_s`: how long the worker may take to build the kernel for one case; 0 if a compiler has
      built it.
    """

    number: int
    cases: tuple[TrialCase, ...]
    confirm: bool = False
    part: str = ""
    audit: bool = False
    repeat: int = 0
    skipped: tuple[Check, ...] = ()
    until_s: float = float("inf")
    rival: tuple[TrialCase, ...] = ()
    lengths: tuple[LengthPlan, ...] = ()
    only_served: bool = False
    served_s: float = SERVED_S
    contender: float = float("-inf")
    fixed_sampling: bool = False
    baselines: Mapping[str, str] = {}
    build_s: float = 0.0

    @property
    def thorough(self) -> bool:
        """Whether it is a champion's trial, whose time limit is wide."""
        return self.confirm or self.repeat > 0 or self.only_served

    @property
    def draw(self) -> int:
        """The number of the random draws; each process of a candidate has its own."""
        return self.number + _DRAWS_APART * (self.repeat or int(self.confirm))


class Opened(_OfDevice, frozen=True, tag=True, kw_only=True):
    """The device is open and the problem loaded, so the worker takes requests."""


class Mistaken(_OfDevice, frozen=True, tag=True, kw_only=True):
    """The problem's file has a mistake."""

    mistake: str


class Prepared(_OfDevice, frozen=True, tag=True, kw_only=True):
    """A trial's inputs and references are ready: from now on time counts as the candidate's."""


class Step(_OfDevice, frozen=True, tag=True, kw_only=True):
    """The present step of a champion's trial, in words. Trials of the search report no steps,
    because a message would disturb them."""

    text: str


class TrialDone(_OfDevice, frozen=True, tag=True, kw_only=True):
    """A trial's outcome.

    - `retire`: this worker must measure nothing more.
    - `doubtful`: earlier candidates may have caused the outcome.
    """

    outcome: Outcome
    retire: bool = False
    doubtful: bool = False


class BaselinesTimed(_OfDevice, frozen=True, tag=True, kw_only=True):
    report: BaselineReport


class BaselineFailed(_OfDevice, frozen=True, tag=True, kw_only=True):
    """A baseline raised an error; `timing` has the reason. This worker must time nothing more."""

    timing: BaselineTiming


Request: TypeAlias = TrialRequest | BaselinesRequest
Answer: TypeAlias = TrialDone | BaselinesTimed | BaselineFailed
ToDeviceWorker: TypeAlias = (
    Preload | WriteTo | Hello | PrepareRequest | TrialRequest | BaselinesRequest
)
FromDeviceWorker: TypeAlias = (
    Preloaded | Opened | Mistaken | Prepared | Step | TrialDone | BaselinesTimed | BaselineFailed
)

DEVICE_WORKER: Wire[ToDeviceWorker, FromDeviceWorker] = Wire(
    "evotune.workers.device_worker",
    "the device worker",
    Decoder(ToDeviceWorker),
    Decoder(FromDeviceWorker),
)


# --- the compile worker ---------------------------------------------------------------------------


class LoadCompiler(msgspec.Struct, frozen=True, tag=True):
    """Makes the worker load the compiler of a language before the first job."""

    language: str


class Compile(msgspec.Struct, frozen=True, tag=True):
    """Makes the worker compile a job, in a folder under `scratch`, unless its binary is in the
    `cache`."""

    job: CompileJob
    cache: str
    scratch: str
    timeout_s: float


class Started(msgspec.Struct, frozen=True, tag=True):
    """The worker's first message: it has started."""


class MachineProblem(msgspec.Struct, frozen=True, tag=True):
    """No job can be compiled, because the machine lacks something."""

    problem: str


ToCompileWorker: TypeAlias = LoadCompiler | Compile
FromCompileWorker: TypeAlias = Started | Binary | CompileFailure | MachineProblem

COMPILE_WORKER: Wire[ToCompileWorker, FromCompileWorker] = Wire(
    "evotune.workers.compile_worker",
    "the compile process",
    Decoder(ToCompileWorker),
    Decoder(FromCompileWorker),
)


# --- the problem worker ---------------------------------------------------------------------------


class TryProblem(msgspec.Struct, frozen=True, tag=True):
    """Makes the process call every method that the user wrote, on one case. `timed`: candidates are
    measured on the CPU. `named`: the case for which the names of the baselines are requested.
    `ordinary`: the case on which methods are called twice, and their results compared."""

    problem: ProblemToLoad
    case: Case
    ordinary: Case
    timed: bool
    named: Case | None = None


class Tried(msgspec.Struct, frozen=True, tag=True):
    """What trying a problem found. `mistake`: the first mistake in the problem's file; "" if there
    is none. `baselines`: their names, if they are known. `warnings`: a line each."""

    mistake: str
    baselines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


PROBLEM_WORKER: Wire[TryProblem, Tried] = Wire(
    "evotune.workers.problem_check",
    "the process that tried it",
    Decoder(TryProblem),
    Decoder(Tried),
)


# --- tasks of a cluster ---------------------------------------------------------------------------


class ClusterRun(msgspec.Struct, frozen=True):
    """What a cluster's worker must know of a run. A worker may join late, and shares no folder with
    others.

    - `files`: the run's own copies by path, compressed.
    - `device_name`, `device_arch`: those of the device on which the run began.
    - `cases`: cases that a user gave in place of the space's.
    """

    part: str
    files: Mapping[str, bytes]
    space_file: str
    backend: str
    device_name: str
    device_arch: str
    allow_mixed: bool
    fixed_sampling: bool
    secret: str
    baselines: Mapping[str, str] = {}
    cases: tuple[GivenCase, ...] = ()


class DescribeDevice(msgspec.Struct, frozen=True, tag=True):
    """Asks on which device of this backend the worker would measure. `evotune`: the coordinator's
    version."""

    backend: str
    evotune: str


class TimeBaselines(msgspec.Struct, frozen=True, tag=True):
    run: ClusterRun


class Calibrate(msgspec.Struct, frozen=True, tag=True):
    """Makes the worker measure the space's default against the chosen baselines."""

    run: ClusterRun


class ClusterTrial(msgspec.Struct, frozen=True, tag=True):
    run: ClusterRun
    number: int
    configuration: Mapping[str, Value]
    confirm: bool
    repeat: int
    contender: float


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The worker at `address` cannot work for the run, for this `reason`."""

    reason: str
    worker: str


class DeviceFound(msgspec.Struct, frozen=True, tag=True):
    profile: DeviceProfile


class Calibrated(msgspec.Struct, frozen=True, tag=True):
    devices: tuple[Calibration, ...]


class ClusterTrialDone(msgspec.Struct, frozen=True, tag=True):
    """The outcome of a trial, and the address of the worker that measured it."""

    outcome: Outcome
    worker: str


ToClusterWorker: TypeAlias = DescribeDevice | TimeBaselines | Calibrate | ClusterTrial
FromClusterWorker: TypeAlias = (
    Refused | DeviceFound | BaselineReport | Calibrated | ClusterTrialDone
)

TO_CLUSTER_WORKER: Decoder[ToClusterWorker] = Decoder(ToClusterWorker)
FROM_CLUSTER_WORKER: Decoder[FromClusterWorker] = Decoder(FromClusterWorker)
