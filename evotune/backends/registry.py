"""Finds a backend by its name, by a kernel's language or by the user's `--device`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from evotune.backends.base.backend import Backend
from evotune.backends.base.profile import DeviceProfile
from evotune.errors import EnvironmentProblem, UsageError
from evotune.plugins import BACKENDS

# --- One profile for the several devices of a run -------------------------------------------------


def work_together(found: Sequence[DeviceProfile], *, allow_mixed: bool) -> DeviceProfile:
    """A profile that holds on each of the GPUs: it has the least value of every attribute.

    EnvironmentProblem when their models differ and `allow_mixed` is false, or when they run
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


AUTO = "auto"
"""The request that lets evotune choose the device."""


def own() -> list[Backend]:
    """The backends that evotune brings."""
    return [cast("Backend", found) for found in BACKENDS.own().values()]


def every() -> Iterator[Backend]:
    """Evotune's own backends, then those of installed packages. Packages are looked for only when
    the caller asks for more than evotune's own; a broken package is left out."""
    yield from own()
    yield from (cast("Backend", found) for _, found in BACKENDS.loadable())


def named(name: str) -> Backend:
    """The backend that a device's profile names. EnvironmentProblem where it is not installed."""
    for backend in every():
        if backend.name == name:
            return backend
    lines = "; ".join(BACKENDS.broken())
    raise EnvironmentProblem(
        f"no backend is named {name!r}; fix: install the package that brings it"
        + (f" ({lines})" if lines else "")
    )


def speaking(language: str) -> Backend:
    """The backend of a kernel's language; ValueError when no backend has the language."""
    for backend in every():
        if any(known.name == language for known in backend.languages):
            return backend
    raise ValueError(f"no compiler for language {language}")


def asked_for(request: str) -> Backend | None:
    """The backend that `--device` means; None for auto. UsageError for an unknown request."""
    if request == AUTO:
        return None
    for backend in every():
        if backend.understands(request):
            return backend
    known = list(every())
    forms = ", ".join((AUTO, *(form for backend in known for form in backend.requests)))
    models = ", ".join(model for backend in known for model in backend.models())
    raise UsageError(f"unknown device {request!r}; expected {forms} or one of {models}")


def choose(request: str, looking: Callable[[Backend], None] = lambda backend: None) -> Backend:
    """The backend for a `--device` request where no kernel decides it.

    `auto` means the GPU when the machine has one, else the CPU. `looking` is called before the
    device is looked for, which may take seconds. EnvironmentProblem (exit 3) when a device is
    there, or asked for, and cannot be used.
    """
    backend = asked_for(request)
    if backend is None:
        able = [known for known in own() if known.flagship]
        able.sort(key=lambda known: known.preference, reverse=True)
        backend = next(known for known in able if known.is_here())
    looking(backend)
    backend.profile(request)
    return backend


@contextlib.contextmanager
def measuring_alone(profiles: Sequence[DeviceProfile]) -> Iterator[None]:
    """Holds the locks of all devices that have one; RunLocked when one of them is taken."""
    with contextlib.ExitStack() as locks:
        for profile in profiles:
            locks.enter_context(named(profile.backend).measuring_alone(profile))
        yield
