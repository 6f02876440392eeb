"""Reads and checks a space, and binds it to the devices on which it will run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, TypeAlias

import msgspec

from evotune.backends import registry
from evotune.backends.base.backend import Backend
from evotune.backends.base.launch import DeviceProfile
from evotune.backends.base.recorded import RecordedSpace, read_named_recording, read_recorded_space
from evotune.backends.registry import work_together
from evotune.errors import NoSuchGpu, UsageError
from evotune.languages import language
from evotune.problems import create_problem
from evotune.problems.problem import Case, Problem, WrongKey, WrongSymbol
from evotune.run_options import RunOptions
from evotune.runs.champion_cases import missing_features
from evotune.runs.folder import RunFolder
from evotune.runs.given_cases import GIVEN_CASES, Skipped, kept_cases, stored_cases
from evotune.runs.planning import Planner, architecture
from evotune.runs.spaces import (
    is_recording,
    problem_file,
    read_kernel_sources,
    require_agreement,
    shipped_name,
    space_file_name,
    space_path,
)
from evotune.space.bound import BoundSpace, bind
from evotune.space.document import SpaceDocument, load_space, with_dtype
from evotune.space.reading.case_file import CaseEntry
from evotune.space.search_space import SearchSpace
from evotune.space.specs import GivenCase, KernelSpec, ProblemSpec, filled, parameters_in
from evotune.store import RunStore
from evotune.util.commands import command_line
from evotune.util.files import read_regular
from evotune.util.words import did_you_mean
from evotune.workers.executor import HELD_OUT, TIMED

_RECORDED = DeviceProfile("recorded", "recorded", "", {})


@dataclass(frozen=True, slots=True)
class KernelSetup:
    """A space of kernels, ready to be measured.

    - `problem_spec`: the problem as the space file states it.
    - `root`: the folder under which the kernels and the problem are read by compilers and workers.
    - `space_file`: the space file's path under the root; `files`: the content of it and of all
      sources, by their paths.
    - `devices`: the devices to measure on. `profile` is valid for each of them.
    - `secret`: the gate draws inputs, places and shapes from it. It is drawn when a run begins and
      stored with the run. So the author of a kernel cannot know it, and yet the run can be
      repeated.
    """

    kind: ClassVar[str] = "kernel"

    document: SpaceDocument
    problem_spec: ProblemSpec
    space: BoundSpace
    cases: Mapping[str, list[Case]]
    planner: Planner
    profile: DeviceProfile
    devices: tuple[DeviceProfile, ...]
    root: Path
    space_file: str
    files: Mapping[str, bytes]
    secret: str
    skipped: tuple[Skipped, ...] = ()
    """Cases that a user gave and that no kernel can compute."""

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def options(self) -> RunOptions:
        return self.document.options

    @property
    def tries_first(self) -> bool:
        """Whether the space file names configurations to be tried first."""
        return bool(self.document.try_first)

    @property
    def languages(self) -> tuple[str, ...]:
        """The kernels' languages, each once, sorted."""
        return tuple(sorted({kernel.language for kernel in self.document.kernels}))

    @property
    def problem_facts(self) -> dict[str, str]:
        """The problem in the form that a run's store has."""
        tolerance = getattr(self.planner.problem, "tolerance", None)
        found = {"name": self.problem_spec.name, "dtype": self.problem_spec.dtype}
        return found | ({} if tolerance is None else {"tolerance": str(tolerance)})

    def at(self, root: Path) -> KernelSetup:
        """A copy of the setup that reads its files under `root`, which has copies of them."""
        return dataclasses.replace(self, root=root, planner=self.planner.at(root))


@dataclass(frozen=True, slots=True)
class RecordedSetup:
    """A recorded space. Each outcome is looked up after a pause of `delay_ms`."""

    kind: ClassVar[str] = "recorded"
    devices: ClassVar[tuple[DeviceProfile, ...]] = ()
    languages: ClassVar[tuple[str, ...]] = ()
    problem_facts: ClassVar[Mapping[str, str]] = {}

    name: str
    recording: RecordedSpace
    document: SpaceDocument | None
    """None for a recording without a space file."""
    space_file: str
    recording_file: Path

    @property
    def files(self) -> dict[str, bytes]:
        """The content of the space file and of the recording, by their paths under the root."""
        content = read_regular(self.recording_file)
        if self.document is None:
            return {self.space_file: content}
        file, root = self.recording_file.resolve(), self.document.root.resolve()
        text = self.document.text.encode()
        return {self.space_file: text, file.relative_to(root).as_posix(): content}

    @property
    def space(self) -> SearchSpace:
        return self.recording.space

    @property
    def profile(self) -> DeviceProfile:
        """The device that the recording names."""
        return dataclasses.replace(_RECORDED, name=self.recording.device_name or "recorded")

    @property
    def options(self) -> RunOptions:
        return self.document.options if self.document is not None else RunOptions()

    @property
    def tries_first(self) -> bool:
        """Whether the space file names configurations to be tried first."""
        return self.document is not None and bool(self.document.try_first)

    @property
    def delay_ms(self) -> float:
        named = self.document.recorded if self.document is not None else None
        return 0.0 if named is None else named.delay_ms

    def at(self, root: Path) -> RecordedSetup:
        """Returns itself, because the recording is in memory."""
        return self


Setup: TypeAlias = KernelSetup | RecordedSetup


class Elsewhere(Protocol):
    """Devices of other machines, such as a cluster's."""

    allow_mixed: bool

    def devices(self, backend: str) -> list[DeviceProfile]:
        """The devices that the run needs. Raises EnvironmentProblem if there is none."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A request to measure on `count` GPUs, or on all if it is None."""

    count: int | None
    allow_mixed: bool = False

    @classmethod
    def parse(cls, gpus: int | str, *, allow_mixed: bool) -> GpuRequest:
        """Parses `all` or a number. Raises UsageError for anything else."""
        if gpus == "all":
            return cls(None, allow_mixed)
        text = str(gpus)
        if not (text.isascii() and text.isdecimal() and len(text) < 5 and int(text)):
            raise UsageError(f"expected all or a number of GPUs (1 or more), not {gpus!r}")
        return cls(int(text), allow_mixed)


def load_setup(
    path: Path,
    device: str,
    run: RunFolder | None = None,
    *,
    compile_only: bool = False,
    left_free: bool = False,
    gpus: GpuRequest | None = None,
    elsewhere: Elsewhere | None = None,
    secret: str = "",
    cases: Sequence[CaseEntry] = (),
    dtype: str = "",
    looking: Callable[[Backend], None] = lambda backend: None,
) -> Setup:
    """Reads and binds a space file or a recording, for a device, or for several GPUs.

    With `compile_only` a GPU's name (`l4`) is enough; else the device must be in this machine, or
    `elsewhere`. With `left_free` only the part of the device that other work leaves free is used
    (`Backend.left_free`). `cases` replace the space's, and `dtype` replaces its problem's.
    `looking` is called before the search for a device, which may take seconds. Every mistake in the
    file is a SpaceError with its position. Raises UsageError if the space does not fit the device
    or the other arguments.
    """
    root = None if run is None else run.sources
    document = None if is_recording(path) else load_space(path, root=root)
    if document is not None and dtype:
        document = with_dtype(document, dtype)
    if document is None or document.recorded is not None:
        wants_device = device not in ("auto", "recorded") and run is None
        if wants_device or gpus is not None or elsewhere is not None:
            raise UsageError(
                f"{path} is a recorded space: it runs on no device; leave --device and --gpus out"
            )
        if cases:
            raise UsageError(
                f"{path} is a recorded space: it knows only its own cases; leave --cases out"
            )
        return _recorded_setup(path, document)
    if device == "recorded":
        raise UsageError(f"{path} is not a recorded space, so --device recorded does not fit it")
    backend = _backend(document, device)
    refuse_options(document)
    if elsewhere is not None:
        devices = elsewhere.devices(backend.name)
        profile = work_together(devices, allow_mixed=elsewhere.allow_mixed)
    elif gpus is None:
        with _offering_to_compile(backend, document, run):
            looking(backend)
            wanted = backend.left_free(device) if left_free else device
            profile = backend.profile(wanted, compile_only=compile_only)
        devices = [profile]
    elif not backend.several:
        raise UsageError(f"{path} holds {backend.name} kernels; --gpus is for CUDA kernels")
    else:
        with _offering_to_compile(backend, document, run):
            devices = backend.profiles(device, gpus.count)
        profile = work_together(devices, allow_mixed=gpus.allow_mixed)
    return _kernel_setup(
        document,
        profile,
        devices,
        compile_only=compile_only,
        secret=secret,
        cases=cases,
        stored=run is not None,
    )


def load_kernel_setup(
    path: Path,
    device: str,
    run: RunFolder | None = None,
    *,
    compile_only: bool = False,
    secret: str = "",
    cases: Sequence[CaseEntry] = (),
    dtype: str = "",
) -> KernelSetup:
    """`load_setup` for a space of kernels. Raises UsageError for a recorded space."""
    setup = load_setup(
        path, device, run, compile_only=compile_only, secret=secret, cases=cases, dtype=dtype
    )
    if isinstance(setup, RecordedSetup):
        raise UsageError(f"{path} is a recorded space: there is no kernel in it")
    return setup


def _recorded_setup(path: Path, document: SpaceDocument | None) -> RecordedSetup:
    if document is None or document.recorded is None:
        name = path.name.partition(".")[0]
        return RecordedSetup(name, read_recorded_space(path), document, path.name, path)
    recording = read_named_recording(document.recorded)
    file = document.recorded.file
    return RecordedSetup(document.name, recording, document, space_file_name(document), file)


def _kernel_setup(
    document: SpaceDocument,
    profile: DeviceProfile,
    devices: Sequence[DeviceProfile],
    *,
    compile_only: bool,
    secret: str,
    cases: Sequence[CaseEntry],
    stored: bool,
) -> KernelSetup:
    _refuse_device_of_no_kernel(document, profile)
    spec = document.problem
    assert spec is not None, "the schema demands a problem of a space with kernels"
    sources = {kernel.name: read_kernel_sources(document, kernel) for kernel in document.kernels}
    python = problem_file(document, spec)
    require_agreement(document, spec, python, sources, compile_only=compile_only)
    root = document.root.absolute()
    problem = _problem(spec, root)
    skipped: tuple[Skipped, ...] = ()
    if cases:
        given, skipped = kept_cases(document, problem, cases, profile, stored=stored)
        spec = dataclasses.replace(spec, cases=given)
    bound, by_role = bind_space(document, spec, problem, profile)
    if not stored and not spec.cases:
        _refuse_missing_features(document, spec, problem)
    planner = Planner(document, bound, problem, by_role, profile, sources=sources, secret=secret)
    space_file = space_file_name(document)
    files = {space_file: document.text.encode(), **python}
    for found in sources.values():
        files |= found
    return KernelSetup(
        document=document,
        problem_spec=spec,
        space=bound,
        cases=by_role,
        planner=planner,
        profile=profile,
        devices=tuple(devices),
        root=root,
        space_file=space_file,
        files=files,
        secret=secret,
        skipped=skipped,
    )


def _backend(document: SpaceDocument, device: str) -> Backend:
    """The one backend of all kernels."""
    backends = {registry.speaking(kernel.language) for kernel in document.kernels}
    if len(backends) > 1:
        message = "kernels of one space must all be for the CPU or all for a GPU"
        raise document.kernels[0].position.error(message)
    (backend,) = backends
    if registry.asked_for(device) is not None and not backend.understands(device):
        held = f"{document.path} holds {backend.name} kernels"
        raise UsageError(f"{held}; they cannot run on --device {device}")
    return backend


def _problem(spec: ProblemSpec, root: Path) -> Problem:
    try:
        return create_problem(spec.name, spec.dtype, root)
    except UsageError as error:
        key = error.key if isinstance(error, WrongKey) else "name"
        raise spec.at(key).error(str(error)) from error


@contextlib.contextmanager
def _offering_to_compile(
    backend: Backend, document: SpaceDocument, run: RunFolder | None
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
        path = shipped_name(document.path) or document.path
        command = command_line("compile", path, "--device", model)
        raise NoSuchGpu(f"{error}; or only compile: {command}", error.model) from error


def load_run_setup(
    run: RunFolder,
    store: RunStore,
    gpus: GpuRequest | None = None,
    elsewhere: Elsewhere | None = None,
    cases: Sequence[GivenCase] = (),
    *,
    looking: Callable[[Backend], None] = lambda backend: None,
) -> Setup:
    """The setup of a run's own copy of its space, for the device on which the run was made or one
    of that model, or for several GPUs. `cases` replace those for which the run was tuned."""
    with store.trusting_facts():
        recorded = DeviceProfile.from_json(store.meta("device"))
        device = registry.AUTO
        if recorded.backend != _RECORDED.backend and gpus is None and elsewhere is None:
            looking(registry.named(recorded.backend))
            device = registry.named(recorded.backend).same_device(recorded)
        secret = str(store.meta("secret", ""))
        entries = stored_cases(msgspec.to_builtins(list(cases)) or store.meta(GIVEN_CASES, []))
    return load_setup(
        space_path(run, store),
        device,
        run,
        gpus=gpus,
        elsewhere=elsewhere,
        secret=secret,
        cases=entries,
    )


def _refuse_device_of_no_kernel(document: SpaceDocument, profile: DeviceProfile) -> None:
    """Raises SpaceError (exit 2) if no kernel `supports` the device's architecture."""
    reasons = _reasons(document, profile)
    if reasons:
        kernel = document.kernels[0]
        hint = f"; use the space {kernel.alternative} there" if kernel.alternative else ""
        raise kernel.position.error(f"{reasons[0]} ({profile.name}){hint}")


def _reasons(document: SpaceDocument, profile: DeviceProfile) -> list[str]:
    """Why no kernel supports the device; none if one does."""
    reasons = [kernel.unsupported(architecture(profile)) for kernel in document.kernels]
    return [reason for reason in reasons if reason] if all(reasons) else []


# A space bound to its problem's cases and to a device.
def bind_space(
    document: SpaceDocument, spec: ProblemSpec, problem: Problem, profile: DeviceProfile
) -> tuple[BoundSpace, dict[str, list[Case]]]:
    """The bound space and its cases by role; every mistake is a SpaceError with a position."""
    if spec.cases:
        timed, held_out = [problem.case(each.shape, each.variant) for each in spec.cases], []
    else:
        timed, held_out = (_cases(spec, problem, group) for group in ("shapes", "held_out"))
    bound = bind(document, [dict(case.symbols) for case in timed], dict(profile.attributes))
    return bound, {TIMED: timed, HELD_OUT: held_out}


def _cases(spec: ProblemSpec, problem: Problem, group: str) -> list[Case]:
    """A case for each shape of `shapes` or `held_out` in each variant. Raises SpaceError at a wrong
    value."""
    found = []
    for i, shape in enumerate(getattr(spec, group)):
        for j, variant in enumerate(spec.variants):
            try:
                found.append(problem.case(shape, variant))
            except ValueError as error:
                name = error.name if isinstance(error, WrongSymbol) else ""
                place = spec.at("variants", j, name) if name in variant else spec.at(group, i, name)
                raise place.error(str(error)) from error
    return found


def _refuse_missing_features(document: SpaceDocument, spec: ProblemSpec, problem: Problem) -> None:
    """Raises SpaceError at the first variant or shape with a feature that no kernel computes: every
    trial of such a case would end in wrong_result."""
    for group in ("shapes", "held_out"):
        for i, shape in enumerate(getattr(spec, group)):
            for j, variant in enumerate(spec.variants):
                case = problem.case(shape, variant)
                missing = [missing_features(document, k, problem, case) for k in document.kernels]
                if all(missing):
                    name = next((each for each in missing[0] if each in (*variant, *shape)), "")
                    of_variant = name in variant or (name not in shape and bool(variant))
                    place = spec.at("variants", j, name) if of_variant else spec.at(group, i, name)
                    kernel = document.kernels[0].name
                    what = ", ".join(missing[0])
                    raise place.error(f"kernel {kernel} does not compute {what}")


# Refuses compiler options that are not on the list of their language.
def refuse_options(document: SpaceDocument) -> None:
    """Raises SpaceError for a compiler option that is not on the list of allowed ones, because
    others can load plugins or write files."""
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
        found = " and ".join(names)
        raise kernel.position.error(f"option {option!r} names {found}; it may name one parameter")
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
