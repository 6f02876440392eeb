"""The package's machine code, loaded when it is first needed, and the device that it is for."""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ._certificate import Contents, Damaged
from ._dispatch import Choice

DAMAGED = "damaged file"
DEVICE = "device"
NO_KERNEL = "no kernel for the device"
VERSION = "version"


class Refused(NamedTuple):
    """Why a call is not served: the kind of miss, a reason in words, and the case if it has one."""

    kind: str
    words: str
    case: Mapping[str, Any] | None = None


class LoadedKernels:
    """The kernels of one package. They are called through the launcher of the package's backend."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        device = contents.dispatch["device"]
        module = importlib.import_module(f".{_launcher_module(device)}", __package__)
        self.device_type: str = module.DEVICE_TYPE
        self.device_name = str(device["name"])
        self.launcher = module.Launcher(device, _native_files(contents))
        driver_version = getattr(self.launcher, "driver_version", lambda: "")
        self.versions = MeasuredVersions(contents.certificate, driver_version)
        self._modules: dict[tuple[str, int], Any] = {}
        self._refusals: dict[int, str] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def refused(self, device: torch.device, any_version: bool = False) -> Refused | None:
        """Why no kernel may run on the device; None if kernels may. With `any_version` the versions
        of PyTorch and of the driver do not matter."""
        if self._contents.damage:
            return Refused(DAMAGED, self._contents.damage)
        if device.type != self.device_type:
            return Refused(DEVICE, f"the tensors are on {device}")
        index = index_of(device)
        if index not in self._refusals:
            self._refusals[index] = self.launcher.refusal(index)
        if words := self._refusals[index]:
            return Refused(DEVICE, words)
        words = "" if any_version else self.versions.refusal()
        return Refused(VERSION, words) if words else None

    def bound(
        self, choice: Choice, names: Sequence[str], device: torch.device
    ) -> Callable[..., None] | Refused:
        """A function that launches the kernel on the tensors `names`, given in this order."""
        file = choice.binary["file"]
        key = (file, index_of(device))
        with self._lock:
            try:
                if key not in self._modules:
                    content = self._contents.bytes_of(file)
                    path = self._contents.path(file)
                    self._modules[key] = self.launcher.load(path, content, key[1])
                module = self._modules[key]
                launch: Callable[..., None] = self.launcher.bind(module, choice.plan, names, key[1])
            except Damaged as fault:
                return Refused(DAMAGED, str(fault))
            except (OSError, AttributeError) as error:
                return Refused(NO_KERNEL, f"{file}: {' '.join(str(error).split())}")
            return launch

    def current_index(self) -> int:
        """The number of the device that PyTorch works on. Raises RuntimeError or AssertionError if
        it has no such device."""
        return int(self.launcher.current_index())

    def facts(self) -> dict[str, Any]:
        """Facts for `info`."""
        return {
            "launcher": self.launcher.words,
            # A copy, since another thread may load a file meanwhile.
            "loaded": sorted({file for file, _ in list(self._modules)}),
        }


def index_of(device: torch.device) -> int:
    return 0 if device.index is None else device.index


def _launcher_module(device: Mapping[str, Any]) -> str:
    """Raises ImportError for a backend whose name is no identifier."""
    backend = str(device["backend"])
    if not backend.isidentifier():
        raise ImportError(f"the package's backend {backend!r} is no identifier")
    return f"_{backend}_launcher"


def _native_files(contents: Contents) -> Mapping[str, Path]:
    """The package's own native libraries that are the files of its certificate, by name."""
    found = {}
    for name in contents.certificate["files"]:
        if name.startswith("_native_"):
            try:
                contents.bytes_of(name)
                found[name] = contents.path(name)
            except Damaged:
                continue
    return found


# Holds the versions of PyTorch and of the driver here to those of the measurements.
#
# The first two numbers of PyTorch's version count, and the first one of the driver's.
_COUNTING = {"torch": 2, "driver": 1}
_WAY_OUT = "check() compares the kernels with float64 here, and lets them serve if they are right"


class MeasuredVersions:
    """The versions with which the kernels were measured, and those of this process.

    - accepted: whether a check on this machine has passed, so that kernels may run although
      versions differ.
    - here: this process's versions by name. A version that is unknown is "", and does not stop the
      kernels.
    """

    def __init__(self, certificate: Mapping[str, Any], driver: Callable[[], str]) -> None:
        environment = certificate.get("environment", {})
        packages = environment.get("packages", environment)
        device = certificate.get("device", {})
        # A package may hold kernels of several runs.
        all_of = [each.get("versions", {}) for each in certificate.get("champions", [])]
        all_of.append({"torch": packages.get("torch"), "driver": device.get("driver")})
        self._measured = {
            name: list(dict.fromkeys(str(each[name]) for each in all_of if each.get(name)))
            for name in _COUNTING
        }
        self._driver = driver
        self._here: dict[str, str] | None = None
        self.accepted = False

    @property
    def here(self) -> Mapping[str, str]:
        if self._here is None:
            self._here = {"torch": torch.__version__, "driver": self._driver()}
        return self._here

    def difference(self) -> str:
        """How the versions differ, in words; "" if they count as the same."""
        return ", ".join(
            f"{name} is {self.here[name]} here and was {measured}"
            for name, counting in _COUNTING.items()
            for measured in self._measured[name]
            if _differ(measured, self.here[name], counting)
        )

    def refusal(self) -> str:
        """Why no kernel may run, in words; "" if kernels may."""
        difference = "" if self.accepted else self.difference()
        return f"{difference}; {_WAY_OUT}" if difference else ""


def _differ(measured: str, here: str, counting: int) -> bool:
    some, others = (_numbers(text)[:counting] for text in (measured, here))
    return bool(some and others) and some != others


def _numbers(version: str) -> list[int]:
    """The numbers at the beginning: [2, 11, 0] for 2.11.0+cu130."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return [int(number) for number in found[0].split(".")] if found else []
