"""A space made ready to search, and its copy in a run's folder."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from evotune.backends import registry
from evotune.backends.base import Backend
from evotune.backends.together import work_together
from evotune.command_line import command_line
from evotune.device.profile import DeviceProfile
from evotune.device.recorded import RecordedSpace, read_named_recording, read_recorded_space
from evotune.engine.agreement import require_agreement
from evotune.engine.folder import RunFolder, write_durably
from evotune.engine.kept_files import space_path
from evotune.engine.kernel_sources import (
    read_kernel_sources,
    source_files,
    space_file_name,
)
from evotune.engine.planning import (
    Planner,
    architecture,
    bind_space,
)
from evotune.engine.spaces import is_recording, shipped_name
from evotune.errors import NoSuchGpu, UsageError
from evotune.languages import language
from evotune.problems import Case, create_problem
from evotune.problems.base import WrongKey
from evotune.regular_file import read_regular
from evotune.space.document import SpaceDocument, load_space
from evotune.space.kernel_options import filled, parameters_in
from evotune.space.protocol import SearchSpace
from evotune.space.specs import KernelSpec
from evotune.space.suggest import did_you_mean
from evotune.store import RunStore

_RECORDED_PROFILE = DeviceProfile("recorded", "recorded", "", {})


@dataclass(frozen=True, slots=True)
class Setup:
    """A space ready to search: what `start_run` and `resume_run` share.

    `planner` is None for a recorded space, `recording` for every other one.
    """

    name: str
    space: SearchSpace
    profile: DeviceProfile
    document: SpaceDocument | None
    planner: Planner | None
    recording: RecordedSpace | None
    cases: dict[str, list[Case]]
    delay_ms: float = 0.0
    devices: tuple[DeviceProfile, ...] = ()
    """The devices to measure on; `profile` is what holds on each of them."""
    secret: str = ""
    """What the gate's inputs, places and shapes are drawn from. It is drawn when a run begins and
    kept in its store, so that nobody who writes a kernel knows it and yet the run repeats."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Of the kernels, each once, sorted."""
        kernels = self.document.kernels if self.document is not None else ()
        return tuple(sorted({kernel.language for kernel in kernels}))


class Elsewhere(Protocol):
    """Devices of other machines."""

    allow_mixed: bool

    def devices(self, backend: str) -> list[DeviceProfile]:
        """EnvironmentProblem when there is none."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """`count` None: all there are."""

    count: int | None
    allow_mixed: bool = False

    @classmethod
    def parse(cls, gpus: int | str, *, allow_mixed: bool) -> GpuRequest:
        """Of `all` or a number."""
        return cls(None if gpus == "all" else int(gpus), allow_mixed)


def load_setup(
    path: Path,
    device: str,
    run: RunFolder | None = None,
    *,
    compile_only: bool = False,
    gpus: GpuRequest | None = None,
    elsewhere: Elsewhere | None = None,
    secret: str = "",
) -> Setup:
    """Reads and binds a space file or a recording, for a device, or for several GPUs.

    With `compile_only` a GPU's name (`l4`) is enough; else the device must be here, or
    `elsewhere`.
    """
    root = run.sources if run is not None else None
    wants_device = device not in ("auto", "recorded") and run is None
    wants_device = wants_device or gpus is not None or elsewhere is not None
    if is_recording(path):
        _refuse_device(path, wants_device)
        return _recorded_setup(path.name.partition(".")[0], read_recorded_space(path), None)
    document = load_space(path, root=root)
    if document.recorded is not None:
        _refuse_device(path, wants_device)
        recording = read_named_recording(document.recorded)
        setup = _recorded_setup(document.name, recording, document)
        return dataclasses.replace(setup, delay_ms=document.recorded.delay_ms)
    if device == "recorded":
        raise UsageError(f"{path} is not a recorded space")
    backends = {registry.speaking(kernel.language) for kernel in document.kernels}
    if len(backends) > 1:
        message = "kernels of one space must all be for the CPU or all for a GPU"
        raise document.kernels[0].position.error(message)
    (backend,) = backends
    if registry.asked_for(device) not in (None, backend):
        held = f"{path} holds {backend.name} kernels"
        raise UsageError(f"{held}; they cannot run on --device {device}")
    _refuse_options(document)
    if elsewhere is not None:
        devices = elsewhere.devices(backend.name)
        profile = work_together(devices, allow_mixed=elsewhere.allow_mixed)
    elif gpus is None:
        with _offering_to_compile(backend, document, path, run):
            profile = backend.profile(device, compile_only=compile_only)
        devices = [profile]
    elif not backend.several:
        raise UsageError(f"{path} holds {backend.name} kernels; --gpus is for CUDA kernels")
    else:
        with _offering_to_compile(backend, document, path, run):
            devices = backend.profiles(device, gpus.count)
        profile = work_together(devices, allow_mixed=gpus.allow_mixed)
    _refuse_device_of_no_kernel(document, profile)
    sources = {kernel.name: read_kernel_sources(document, kernel) for kernel in document.kernels}
    require_agreement(document, sources, compile_only=compile_only)
    assert document.problem is not None
    try:
        problem = create_problem(
            document.problem.name, document.problem.dtype, document.root.absolute()
        )
    except UsageError as error:
        key = error.key if isinstance(error, WrongKey) else "name"
        raise document.problem.at(key).error(str(error)) from error
    bound, cases = bind_space(document, problem, profile)
    planner = Planner(document, bound, problem, cases, profile, sources=sources, secret=secret)
    return Setup(
        document.name,
        bound,
        profile,
        document,
        planner,
        None,
        cases,
        devices=tuple(devices),
        secret=secret,
    )


@contextlib.contextmanager
def _offering_to_compile(
    backend: Backend, document: SpaceDocument, path: Path, run: RunFolder | None
) -> Iterator[None]:
    """Where the GPU is missing: how the space is compiled without it."""
    try:
        yield
    except NoSuchGpu as error:
        models = (error.model,) if error.model else backend.models()
        fitting = (name for name in models if not _reasons(document, backend.model(name)))
        model = next(fitting, None)
        if run is not None or model is None:
            raise
        command = command_line("compile", shipped_name(path) or path, "--device", model)
        raise NoSuchGpu(f"{error}; or only compile: {command}", error.model) from error


def load_run_setup(
    run: RunFolder,
    store: RunStore,
    gpus: GpuRequest | None = None,
    elsewhere: Elsewhere | None = None,
) -> Setup:
    """A run's own copy of its space, for the device it was made on (or one of that model), or
    for several GPUs."""
    with store.trusting_facts():
        recorded = DeviceProfile.from_json(store.meta("device"))
        device = registry.AUTO
        if recorded.backend != _RECORDED_PROFILE.backend and gpus is None and elsewhere is None:
            device = registry.named(recorded.backend).same_device(recorded)
        secret = str(store.meta("secret", ""))
    return load_setup(
        space_path(run, store),
        device,
        run,
        gpus=gpus,
        elsewhere=elsewhere,
        secret=secret,
    )


def _refuse_options(document: SpaceDocument) -> None:
    """Compiler options come from a list: others can load plugins or write files."""
    for kernel in document.kernels:
        for option in kernel.options:
            for form in _forms(document, kernel, option):
                known = language(kernel.language)
                if not known.takes_option(form):
                    message = f"option {form!r} is not allowed; allowed: {known.options_in_words}"
                    raise kernel.position.error(message)


def _forms(document: SpaceDocument, kernel: KernelSpec, option: str) -> Iterator[str]:
    """The option for each value of the parameter that it names."""
    names = list(dict.fromkeys(parameters_in(option)))
    if len(names) > 1:
        raise kernel.position.error(f"option {option!r} names {' and '.join(names)}: one is enough")
    if not names:
        yield option
        return
    known = {spec.name: spec for spec in document.parameters}
    if names[0] not in known:
        hint = did_you_mean(names[0], known)
        raise kernel.position.error(f"option {option!r} names no parameter: {names[0]}{hint}")
    spec = known[names[0]]
    for value in (*spec.parameter.values, spec.otherwise):
        yield filled(option, {spec.name: value})


def _refuse_device_of_no_kernel(document: SpaceDocument, profile: DeviceProfile) -> None:
    """SpaceError (exit 2) when no kernel `supports` the device's architecture."""
    reasons = _reasons(document, profile)
    if reasons:
        kernel = document.kernels[0]
        hint = f"; use the space {kernel.alternative} there" if kernel.alternative else ""
        raise kernel.position.error(f"{reasons[0]} ({profile.name}){hint}")


def _reasons(document: SpaceDocument, profile: DeviceProfile) -> list[str]:
    """Why no kernel supports the device; none where one does."""
    reasons = [kernel.unsupported(architecture(profile)) for kernel in document.kernels]
    return [reason for reason in reasons if reason] if all(reasons) else []


def _refuse_device(path: Path, wants_device: bool) -> None:
    if wants_device:
        raise UsageError(f"{path} is a recorded space: it runs on no device")


def _recorded_setup(name: str, recording: RecordedSpace, document: SpaceDocument | None) -> Setup:
    profile = dataclasses.replace(_RECORDED_PROFILE, name=recording.device_name or "recorded")
    return Setup(name, recording.space, profile, document, None, recording, {})


def snapshot(run: RunFolder, setup: Setup, path: Path) -> str:
    """Copies the space and its sources into the run; the space file's place among them."""
    if setup.document is None:
        write_durably(run.sources / path.name, read_regular(path))
        return path.name
    name = space_file_name(setup.document)
    files = {name: setup.document.text.encode()}
    if setup.document.recorded is not None:
        recording = setup.document.recorded.file.resolve()
        place = recording.relative_to(setup.document.root.resolve()).as_posix()
        files[place] = read_regular(recording)
    else:
        files |= source_files(setup.document)
    for relative, content in files.items():
        target = run.sources / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        write_durably(target, content)
    return name
