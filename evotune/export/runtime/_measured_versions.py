"""Holds the versions of PyTorch and of the driver here to those of the measurements.

The first two numbers of PyTorch's version count, and the first one of the driver's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

_COUNTING = {"torch": 2, "driver": 1}
_WAY_OUT = "check() compares the kernels with float64 here, and lets them serve if they are right"


class MeasuredVersions:
    """The versions of the measurements, and those here.

    - accepted: a check on this machine has passed, so that kernels may run though versions differ.
    - here: by name; a version that cannot be found out is "", and no reason.
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
        """How the versions differ, in words; "" where they count as the same."""
        return ", ".join(
            f"{name} is {self.here[name]} here and was {measured}"
            for name, counting in _COUNTING.items()
            for measured in self._measured[name]
            if _differ(measured, self.here[name], counting)
        )

    def refusal(self) -> str:
        """Why no kernel may run, in words; "" where kernels may."""
        difference = "" if self.accepted else self.difference()
        return f"{difference}; {_WAY_OUT}" if difference else ""


def _differ(measured: str, here: str, counting: int) -> bool:
    some, others = (_numbers(text)[:counting] for text in (measured, here))
    return bool(some and others) and some != others


def _numbers(version: str) -> list[int]:
    """The numbers at the beginning: [2, 11, 0] for 2.11.0+cu130."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return [int(number) for number in found[0].split(".")] if found else []
