"""A backend: the languages of one kind of device, its compilers, its devices and their facts.

The rest of evotune asks a `Backend` and knows none by name. A method that is not abstract has an
answer for a device that is simple: it is always here, there is one of it, and its compiler reports
nothing that could be wrong.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec

from evotune.backends.calling import Caller
from evotune.backends.finding import Finding
from evotune.device.launch import CompileJob, Launch, LaunchPlan
from evotune.device.profile import DeviceProfile
from evotune.device.protocol import Compiler, Session
from evotune.errors import EvotuneError
from evotune.languages import Language
from evotune.problems.base import TensorSpec
from evotune.trial import Check, Json, OutcomeKind, Value


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one launch: what it takes (see `COMPILED_FIGURES` in `space.figures`), and why it
    cannot run, "" when it can."""

    values: Mapping[str, int | float]
    violation: str


class SanitizedCase(msgspec.Struct, frozen=True):
    """A small case of a champion, to be launched under tools."""

    binary: str
    plan: LaunchPlan
    tensors: tuple[TensorSpec, ...]


class Limits(Protocol):
    """What a device cannot launch. `device` are the attributes of its profile."""

    def violation(self, launch: Launch, device: Mapping[str, Value]) -> str:
        """Why no device with these attributes takes the launch, before it is compiled; ""."""

    def figures(
        self, launch: Launch, resources: Mapping[str, Json], device: Mapping[str, Value]
    ) -> Figures:
        """Of a launch whose binary has these resources."""

    def worst(self, figures: Iterable[Mapping[str, int | float]]) -> dict[str, int | float]:
        """By name the worst figure of several launches."""


SANITIZER = "compute-sanitizer"
TOOLS = ("memcheck", "initcheck", "racecheck")
"""NVIDIA's, of which a champion's checks tell on every backend."""


def sanitizer_check(tool: str, status: str, detail: str) -> Check:
    """What one of the tools found of a champion."""
    return Check("edge shapes", f"{SANITIZER} {tool}", status, detail=detail)


def not_sanitized(detail: str) -> list[Check]:
    """What is recorded where the tools cannot run."""
    return [sanitizer_check(tool, "skipped", detail) for tool in TOOLS]


class Backend(ABC):
    """One object a backend; it has no state. `name` is that of its devices' profiles."""

    name: ClassVar[str]
    languages: ClassVar[tuple[Language, ...]]
    requests: ClassVar[tuple[str, ...]]
    """How `--device` asks for its devices, for messages; models come on top."""
    flagship: ClassVar[str] = ""
    """The space that is tuned when none is named and `--device` means this backend."""
    preference: ClassVar[int] = 0
    """Of the backends with a flagship whose device is here `auto` takes the one of the highest."""
    exclusive: ClassVar[bool] = True
    """Whether compilers would disturb what the device measures: then they take turns."""
    several: ClassVar[bool] = False
    """Whether a run can measure on several devices."""
    spare_worker: ClassVar[bool] = False
    """Whether opening a device takes so long that the next worker waits beside the present one."""
    times_user_problems: ClassVar[bool] = False
    """Whether `check` may time a problem's baselines, as it runs where the device is."""
    least_half_width: ClassVar[float] = 0.0
    """How far, in ln, a user's program may be from a confirmed figure, whatever the spread of
    processes: no interval is narrower to either side."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Installed packages that times depend on, beside evotune's own."""

    # Devices

    def understands(self, request: str) -> bool:
        """Whether `--device` `request` means a device of this backend."""
        return request in (*self.requests, *self.models())

    def models(self) -> tuple[str, ...]:
        """Names of devices that need not be here to compile for them."""
        return ()

    def model(self, name: str) -> DeviceProfile:
        """The profile of a device of `models`."""
        raise KeyError(name)

    def completions(self) -> tuple[str, ...]:
        """Values of `--device` that a shell offers."""
        return (*self.requests, *self.models())

    def is_here(self) -> bool:
        """Whether this machine has such a device, whether or not software can use it."""
        return True

    @abstractmethod
    def profile(self, request: str, *, compile_only: bool = False) -> DeviceProfile:
        """The device that `request` (or `auto`) means. With `compile_only` a model's name needs no
        such device. EnvironmentProblem (exit 3) when it is not here or cannot be used."""

    def profiles(self, request: str, count: int | None) -> list[DeviceProfile]:
        """The first `count` devices that `request` allows, None for all."""
        return [self.profile(request)]

    def same_device(self, profile: DeviceProfile) -> str:
        """The request for the device that a run of before had, or for one like it."""
        return self.requests[0]

    def measuring_alone(self, profile: DeviceProfile) -> AbstractContextManager[object]:
        """RunLocked when another run measures on the device and would disturb this one."""
        return contextlib.nullcontext()

    def take_device(self, stack: ExitStack) -> str:
        """The request for the first device that nobody measures on, which is held as long as
        `stack`: so each worker of a cluster on this machine has its own."""
        return self.requests[0]

    def offered(self) -> DeviceProfile:
        """The device that a worker of a cluster offers; EnvironmentProblem when it is unusable."""
        return self.profile(self.requests[0])

    def others_at_work(self, profile: DeviceProfile) -> Iterator[str]:
        """Work of others on the device, in words."""
        yield from ()

    # Building

    @abstractmethod
    def compiler(self, language: str) -> Compiler:
        """Of one of its languages."""

    def limits(self) -> Limits | None:
        """What the device cannot launch; None where every launch can be tried."""
        return None

    # Measuring

    @abstractmethod
    def open_device(self, profile: DeviceProfile) -> Session:
        """In a worker process."""

    def caller(self, profile: DeviceProfile) -> Caller:
        """Of its kernels, in the user's own process. EvotuneError where they cannot be called."""
        raise EvotuneError(f"kernels for {profile.name} cannot be called from Python")

    def worker_environment(self, profile: DeviceProfile) -> Mapping[str, str]:
        """Environment variables of the device's worker, beside those of this process."""
        return {}

    def sanitize(self, cases: Sequence[SanitizedCase]) -> list[Check]:
        """What tools find that look for memory errors and races in a champion's machine code."""
        return not_sanitized("the kernel is no CUDA kernel")

    def sanitizer_limit_s(self) -> float:
        """How long `sanitize` takes at most."""
        return 0.0

    def disqualification(self, check: Check, *, mbarriers: bool | None) -> OutcomeKind | None:
        """How a champion ends whose `sanitize` came to `check`; None where it may pass.
        `mbarriers`: whether its code uses mbarriers; None where nobody noted it."""
        return None

    def rebuilt(self, job: CompileJob, folder: Path, limit_s: float) -> Mapping[str, Path | str]:
        """A champion's code built anew in `folder` so that it disturbs itself, by what disturbs it:
        the file to load, or why there is none."""
        return {}

    # The user's machine

    def doctor(self) -> tuple[list[Finding], list[Finding]]:
        """What `doctor` says of the packages it needs, and of its compilers and devices."""
        return [], []
