"""A backend: the languages of one kind of device, its compilers, its devices and their facts.

The rest of evotune calls a `Backend` and imports no particular one. A method that is not abstract
has a default for a simple device: every machine has exactly one, and its compiler reports no
figures that could make a launch invalid. The module also defines `doctor`'s lines, and the kernel
that a user's own process calls.
"""

from __future__ import annotations

import contextlib
import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

import msgspec

from evotune.backends.base.evidence import BaselineRequest, Ceilings, Evidence, EvidenceRequest
from evotune.backends.base.launch import CompileJob, DeviceProfile, Launch, LaunchPlan
from evotune.backends.base.session import Compiler, Session
from evotune.errors import EvotuneError
from evotune.languages import Language
from evotune.problems.problem import Tensors, TensorSpec
from evotune.trial import Check, NamedFigures, OutcomeKind, Value

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Figures:
    """The resources that one launch uses.

    - values: the resources by name; see `COMPILED_FIGURES` in `space/case_scope.py`.
    - violation: why the launch cannot run; "" if it can.
    """

    values: Mapping[str, int | float]
    violation: str


@dataclass(frozen=True, slots=True)
class LaunchBounds:
    """The largest launch that a device accepts. `grid` and `block` have a limit for each axis, in
    blocks and in threads; `threads` and `shared_bytes` are limits of one block."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    threads: int
    shared_bytes: int


class SanitizedCase(msgspec.Struct, frozen=True):
    """A small case of a champion, to be launched under tools. `indices` has the bytes of the inputs
    that are lengths, or indices into other tensors."""

    binary: str
    plan: LaunchPlan
    tensors: tuple[TensorSpec, ...]
    indices: Mapping[str, bytes] = {}


class Limits(Protocol):
    """Knows which launches a device refuses. `device`: the attributes of the device's profile."""

    def violation(self, launch: Launch, device: Mapping[str, Value]) -> str:
        """Why no device with these attributes accepts the launch, known before compiling; "" if one
        does."""

    def bounds(self, device: Mapping[str, Value]) -> LaunchBounds:
        """The largest launch that a device with these attributes accepts."""

    def figures(
        self, launch: Launch, resources: NamedFigures, device: Mapping[str, Value]
    ) -> Figures:
        """The figures of a launch whose binary has these resources."""

    def worst(self, figures: Iterable[Mapping[str, int | float]]) -> dict[str, int | float]:
        """The worst figure of several launches, by name."""


SANITIZER = "compute-sanitizer"
TOOLS = ("memcheck", "initcheck", "racecheck")
"""NVIDIA's sanitizer tools. A champion has a check for each of them, on every backend."""


def sanitizer_check(tool: str, status: str, detail: str) -> Check:
    """The check that records what a sanitizer tool found in a champion."""
    return Check("edge shapes", f"{SANITIZER} {tool}", status, detail=detail)


def not_sanitized(detail: str) -> list[Check]:
    """The checks to record if the tools cannot run."""
    return [sanitizer_check(tool, "skipped", detail) for tool in TOOLS]


def no_evidence(profile: DeviceProfile, reason: str) -> Evidence:
    """Evidence without any part, for a device that offers none. `reason` says why."""
    parts = ("ceilings", "launches", "occupancy", "static", "counters")
    missing = dict.fromkeys(parts, reason)
    model = Ceilings(kind="model")
    return Evidence(device=profile.name, ceilings=model, launches=(), unavailable=missing)


class Backend(ABC):
    """A backend: one stateless object. The profiles of its devices have its `name`."""

    name: ClassVar[str]
    languages: ClassVar[tuple[Language, ...]]
    requests: ClassVar[tuple[str, ...]]
    """The values of `--device` for the backend's devices. Messages list them together with its
    models."""
    peak_is: ClassVar[str] = "fma_flops"
    """The field of `Ceilings` to which `peak_gflops` of the backend's profiles corresponds."""
    flagship: ClassVar[str] = ""
    """The space that is tuned when the user names none and `--device` means this backend."""
    first_look: ClassVar[Mapping[str, float]] = MappingProxyType({})
    """Options that replace the flagship's if the user names neither a space nor a limit. With them
    a run should show a confirmed champion in a few minutes."""
    exponential_flops: ClassVar[float] = 0.0
    """The FLOP that an exponential costs the unit that computes FMAs; 0 if another unit computes
    it."""
    explain_minutes: ClassVar[float] = math.inf
    """The most minutes that `evotune explain` measures, unless the user gives a limit."""
    preference: ClassVar[int] = 0
    """`auto` takes the backend with the highest preference among those that have a flagship and a
    device on this machine."""
    exclusive: ClassVar[bool] = True
    """Whether compilers would disturb the measurements: then compiling and measuring take turns."""
    builds_in_worker: ClassVar[bool] = False
    """Whether the device's worker builds kernels, each within the time limit of a compiler."""
    loads_files: ClassVar[bool] = False
    """Whether a worker loads a compiled kernel's file as code, as it does a shared library."""
    several: ClassVar[bool] = False
    """Whether a run can measure on several devices."""
    spare_worker: ClassVar[bool] = False
    """Whether opening a device takes so long that a spare worker is kept ready while another
    works."""
    times_user_problems: ClassVar[bool] = False
    """Whether `evotune check` may time a problem's baselines, for which the device must be in the
    machine."""
    least_half_width: ClassVar[float] = 0.0
    """The least half-width of a confirmed interval, in ln: a user's program may differ this much
    from the confirmed figure, however little the processes of the confirmation differ."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Optional packages whose versions change times."""
    binary_suffix: ClassVar[str] = ""
    """The suffix of machine code in an exported package; "" if kernels of this backend cannot be
    exported."""
    exported_call_us: ClassVar[float] = 0.0
    """How much longer, in µs, a call of an exported kernel takes than a timed launch, if the
    baseline's call has no such cost. A package serves no case that gains less."""

    # Devices

    def understands(self, request: str) -> bool:
        """Whether the value `request` of `--device` means a device of this backend."""
        return request in (*self.requests, *self.models())

    def models(self) -> tuple[str, ...]:
        """The names of devices for which evotune can compile on a machine without them."""
        return ()

    def model(self, name: str) -> DeviceProfile:
        """The profile of the device `name`, one of `models`. Raises KeyError for any other name."""
        raise KeyError(name)

    def completions(self) -> tuple[str, ...]:
        """The values of `--device` that a shell's completion offers."""
        return (*self.requests, *self.models())

    def is_here(self) -> bool:
        """Whether this machine has a device of this backend, even if software cannot use it."""
        return True

    @abstractmethod
    def profile(self, request: str, *, compile_only: bool = False) -> DeviceProfile:
        """The profile of the device that `request` (or `auto`) means. With `compile_only` a model's
        name is enough, and the machine need not have such a device. Raises EnvironmentProblem (exit
        3) if the device is absent or cannot be used."""

    def profiles(self, request: str, count: int | None) -> list[DeviceProfile]:
        """The profiles of the first `count` devices that `request` allows, or of all if `count` is
        None."""
        return [self.profile(request)]

    def same_device(self, profile: DeviceProfile) -> str:
        """The value of `--device` for the device that an earlier run used, or for one like it."""
        return self.requests[0]

    def left_free(self, request: str) -> str:
        """The value of `--device` for the part of the device that other work leaves free now, such
        as the free cores of a CPU. A new run uses it; `same_device` requests the same part again.
        """
        return request

    def measuring_alone(self, profile: DeviceProfile) -> AbstractContextManager[object]:
        """Locks the device for one run. Raises RunLocked if another run measures on it and would
        disturb this one."""
        return contextlib.nullcontext()

    def take_device(self, stack: ExitStack) -> str:
        """The value of `--device` for the first device on which no other run measures. Locks the
        device until `stack` closes, so that each worker of a cluster on this machine has its own
        device."""
        return self.requests[0]

    def offered(self) -> DeviceProfile:
        """The profile of the device on which a worker of a cluster would measure. Raises
        EnvironmentProblem if the device cannot be used."""
        return self.profile(self.requests[0])

    def others_at_work(self, profile: DeviceProfile) -> Iterator[str]:
        """The work of other processes on the device, in words."""
        yield from ()

    # Building

    @abstractmethod
    def compiler(self, language: str) -> Compiler:
        """The compiler for one of the backend's languages."""

    def limits(self) -> Limits | None:
        """The device's limits on launches; None if every launch can be tried."""
        return None

    # Measuring

    def preload(self) -> None:
        """Imports the libraries that `open_device` needs, in a worker that waits to be used."""
        return None

    @abstractmethod
    def open_device(self, profile: DeviceProfile) -> Session:
        """Opens the device, in a worker process."""

    def caller(self, profile: DeviceProfile) -> Caller:
        """An object that calls the backend's kernels in the user's own process. Raises EvotuneError
        if they cannot be called."""
        raise EvotuneError(f"kernels for {profile.name} cannot be called from Python")

    def exported_files(self, package: str) -> Mapping[str, bytes]:
        """The files that an exported package named `package` gets in addition to its kernels, by
        their names: the launcher `_BACKEND_launcher.py`, and native code if this machine can build
        it."""
        return {}

    def exported_slower_because(self) -> str:
        """Why packages exported on this machine launch more slowly than they could; "" if they do
        not."""
        return ""

    def worker_environment(self, profile: DeviceProfile) -> Mapping[str, str]:
        """Environment variables that the device's worker gets in addition to this process's."""
        return {}

    def likely_environment(self) -> Mapping[str, str] | None:
        """The environment variables of a worker that starts before its device is known. None if
        they cannot be guessed, or if starting it would disturb the search for the device.
        """
        return None

    def devices_here(self) -> tuple[DeviceProfile, ...]:
        """This machine's devices. Called in a worker that has the likely environment and the
        backend's libraries. Empty if the libraries cannot use the devices."""
        return ()

    def learn(self, devices: Sequence[DeviceProfile]) -> None:
        """Remembers the result of `devices_here`, in a process that will look for a device."""
        return None

    def sanitizing(
        self, cases: Sequence[SanitizedCase]
    ) -> AbstractContextManager[Callable[[], list[Check]]]:
        """Runs tools that look for memory errors and races in a champion's machine code, in
        parallel with the caller, until the block ends. The function that it yields waits for their
        checks."""
        return contextlib.nullcontext(lambda: not_sanitized("the kernel is not a CUDA kernel"))

    def sanitizer_limit_s(self) -> float:
        """The longest time that the tools of `sanitizing` take."""
        return 0.0

    def disqualification(self, check: Check, *, mbarriers: bool | None) -> OutcomeKind | None:
        """The outcome of a champion for which a tool reported `check`; None if it may pass.
        `mbarriers`: whether its code uses mbarriers, or None if that was not recorded."""
        return None

    def rebuilt(self, job: CompileJob, folder: Path, limit_s: float) -> Mapping[str, Path | str]:
        """Builds versions of a champion's code that disturb themselves, for example by delays, in
        `folder`. Returns, by the description of each version, the file to load or the reason why
        there is none."""
        return {}

    # Explaining

    def gather_evidence(self, request: EvidenceRequest) -> Evidence:
        """The facts about a case's launches. If one is not available, `Evidence.unavailable` has
        the reason; no error is raised. Takes seconds; on a live device it launches the case under
        profilers."""
        return no_evidence(request.profile, f"the backend {self.name} gathers none")

    def gather_baseline_evidence(self, request: BaselineRequest) -> Evidence:
        """Gathers the facts about the kernels that a baseline launches, as `gather_evidence` does
        for a candidate.
        """
        return no_evidence(request.profile, f"the backend {self.name} gathers none")

    # The user's machine

    def doctor(self) -> tuple[list[Finding], list[Finding]]:
        """The findings of `doctor` on its packages, then on its compilers and devices."""
        return [], []


# A compiled kernel called in the user's own process, on the user's own tensors.

KernelCall: TypeAlias = "Callable[[LaunchPlan, Mapping[str, torch.Tensor]], Tensors | None]"
"""A function that launches a kernel's plan. The mapping has each tensor and workspace by name. It
returns the outputs, or None if they are in the given tensors."""


class Caller(Protocol):
    """Calls the kernels of one backend in this process, on PyTorch tensors."""

    def refusal(self, device: torch.device) -> str:
        """Why the kernels cannot take tensors on this device; "" if they can."""

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        """Makes the device current, so that allocations and launches go to it."""

    def load(self, binary: Path) -> KernelCall:
        """Loads a compiled kernel, and returns the function that calls it."""


class Status(enum.StrEnum):
    """The status of a finding. MISSING and BROKEN require the user to act; ABSENT is fine on this
    machine."""

    OK = "ok"
    ABSENT = "absent"
    MISSING = "missing"
    BROKEN = "broken"

    @property
    def fine(self) -> bool:
        return self in (Status.OK, Status.ABSENT)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of `doctor`. `fix`: a command or a setting that mends it; "" if the user need do
    nothing."""

    name: str
    status: Status
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return {name: str(getattr(self, name)) for name in self.__slots__}


def version(package: str) -> str:
    """The version of an installed package, or "" if it is not installed."""
    import importlib.metadata  # here: most workers that compile start faster without

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def optional(package: str, extra: str, use: str) -> Finding:
    """The finding on a package that only some users need. `use`: what it is for. `extra`: evotune's
    extra that installs it."""
    if found := version(package):
        return Finding(package, Status.OK, found)
    fix = f"pip install 'evotune[{extra}]'"
    return Finding(package, Status.ABSENT, f"not installed; {use}", fix)
