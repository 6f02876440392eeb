"""Finds a backend by its name, by a kernel's language or by the user's `--device`.

It also describes other work on the machine when a run begins, because other work makes times
longer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

from evotune.backends.base.backend import Backend
from evotune.backends.base.cpu_cores import busy_shares, core_of
from evotune.backends.base.launch import DeviceProfile
from evotune.errors import EnvironmentProblem, UsageError
from evotune.plugins import BACKENDS
from evotune.util.words import counted

AUTO = "auto"
"""The request that lets evotune choose the device."""


def own() -> list[Backend]:
    """evotune's own backends."""
    return [cast("Backend", found) for found in BACKENDS.own().values()]


def every() -> Iterator[Backend]:
    """Evotune's own backends, then those of installed packages. Packages are looked for only when
    the caller asks for more than evotune's own; a broken package is left out."""
    yield from own()
    yield from (cast("Backend", found) for _, found in BACKENDS.loadable())


def named(name: str) -> Backend:
    """The backend that a device's profile names. Raises EnvironmentProblem if it is not
    installed."""
    for backend in every():
        if backend.name == name:
            return backend
    lines = "; ".join(BACKENDS.broken())
    raise EnvironmentProblem(
        f"no backend is named {name!r}; fix: install the package that brings it"
        + (f" ({lines})" if lines else "")
    )


def speaking(language: str) -> Backend:
    """The backend of a kernel's language. Raises ValueError if no backend has the language."""
    for backend in every():
        if any(known.name == language for known in backend.languages):
            return backend
    raise ValueError(f"no compiler for language {language}")


def asked_for(request: str) -> Backend | None:
    """The backend that `--device` means; None for auto. Raises UsageError for an unknown
    request."""
    if request == AUTO:
        return None
    for backend in every():
        if backend.understands(request):
            return backend
    known = list(every())
    forms = ", ".join(dict.fromkeys((AUTO, *(r for backend in known for r in backend.requests))))
    models = ", ".join(model for backend in known for model in backend.models())
    raise UsageError(f"unknown device {request!r}; expected {forms} or one of {models}")


def choose(request: str, looking: Callable[[Backend], None] = lambda backend: None) -> Backend:
    """The backend for a `--device` request if no kernel determines it.

    `auto` means the GPU if the machine has one, else the CPU. `looking` is called before the search
    for the device, which may take seconds. Raises EnvironmentProblem (exit 3) if a device is
    present or requested and cannot be used.
    """
    backend = asked_for(request)
    if backend is None:
        able = [known for known in own() if known.flagship]
        able.sort(key=lambda known: known.preference, reverse=True)
        backend = next(known for known in able if known.is_here())
    looking(backend)
    backend.profile(request)
    return backend


def work_together(found: Sequence[DeviceProfile], *, allow_mixed: bool) -> DeviceProfile:
    """A profile that is valid for each of the GPUs: it has the least value of every attribute.

    Raises EnvironmentProblem if the models differ and `allow_mixed` is false, or if the GPUs need
    different machine code.
    """
    first = found[0]
    models = list(dict.fromkeys(profile.name for profile in found))
    if len(models) > 1 and not allow_mixed:
        raise EnvironmentProblem(
            f"the GPUs differ ({', '.join(models)}): times on one say nothing about the other; "
            "fix: choose a model with --device, or use --allow-mixed, which ranks them apart"
        )
    architectures = list(dict.fromkeys(profile.arch for profile in found))
    if len(architectures) > 1:
        raise EnvironmentProblem(
            f"the GPUs differ ({', '.join(models)}) and run different machine code "
            f"({', '.join(architectures)}); fix: start a run for each model, with --device"
        )
    least = {
        name: min(profile.attributes.get(name, value) for profile in found)
        for name, value in first.attributes.items()
    }
    return dataclasses.replace(first, attributes=least)


@contextlib.contextmanager
def measuring_alone(profiles: Sequence[DeviceProfile]) -> Iterator[None]:
    """Holds the locks of all devices in the block. Raises RunLocked if another run has one of
    them."""
    with contextlib.ExitStack() as locks:
        for profile in profiles:
            locks.enter_context(named(profile.backend).measuring_alone(profile))
        yield


_LOOK_S = 0.2
_BUSY_CORES = 0.3  # less is what a desktop does anyway
_WORKER = b"evotune.workers.device_worker"


def others_at_work(devices: Sequence[DeviceProfile]) -> list[str]:
    """The other work on the machine, a line each: cores that other processes keep busy, other runs
    of evotune that measure, busy devices. Must be called before this process starts workers. Takes
    0.2 s."""
    found = [*_busy_cores(), *_other_runs()]
    for device in devices:
        found += named(device.backend).others_at_work(device)
    return found


def sharing(profile: DeviceProfile) -> str:
    """Advice on how runs can share the cores of a CPU without disturbing each other, if another run
    of evotune measures now; else ""."""
    cores = len({core_of(cpu) for cpu in os.sched_getaffinity(0)})
    runs = len(_measuring_parents()) + 1
    if runs == 1 or cores == 1 or "threads" not in profile.attributes:
        return ""
    each, request = max(1, cores // runs), named(profile.backend).requests[0]
    return f"start each run with OMP_NUM_THREADS={each} or --device {request}:{each}"


def in_part(profile: DeviceProfile) -> str:
    """A line that says how a run uses the device, if it uses only a part of it: a CPU with fewer
    threads than this process has physical cores. Else ""."""
    used = cores_in_use(profile)
    if used is None:
        return ""
    threads, cores = used
    return (
        f"candidates and baselines run on {threads} of {counted(cores, 'core')}, with as many "
        "threads, throughout this run"
    )


def cores_in_use(profile: DeviceProfile) -> tuple[int, int] | None:
    """The threads of a CPU's profile and the physical cores of this process, if the profile has
    fewer threads; else None."""
    threads = profile.attributes.get("threads")
    cores = len({core_of(cpu) for cpu in os.sched_getaffinity(0)})
    return (threads, cores) if isinstance(threads, int) and threads < cores else None


def _busy_cores() -> Iterator[str]:
    busy = sum(busy_shares(_LOOK_S).values())
    if busy > _BUSY_CORES:
        yield f"other processes keep {busy:.1f} of {os.cpu_count() or 1} cores busy"


def _other_runs() -> Iterator[str]:
    yield from _in_one_line(sorted(_measuring_parents()))


def _measuring_parents() -> set[int]:
    """Other runs of evotune: their device workers name another parent than this process."""
    parents = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = path.read_bytes().split(b"\0")
            if _WORKER in words:
                parents.add(int(words[words.index(_WORKER) + 1]))
    return parents - {os.getpid()}


def _in_one_line(processes: Sequence[int]) -> Iterator[str]:
    if len(processes) == 1:
        yield f"another evotune run is measuring (process {processes[0]})"
    elif processes:
        named = ", ".join(map(str, processes))
        yield f"{len(processes)} other evotune runs are measuring (processes {named})"
