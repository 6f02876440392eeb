"""A finding of `doctor`: one line, of a backend or of evotune itself."""

from __future__ import annotations

import enum
import importlib.metadata
from dataclasses import dataclass


class Status(enum.StrEnum):
    """MISSING and BROKEN ask the user to act; ABSENT is fine on this machine."""

    OK = "ok"
    ABSENT = "absent"
    MISSING = "missing"
    BROKEN = "broken"

    @property
    def fine(self) -> bool:
        return self in (Status.OK, Status.ABSENT)


@dataclass(frozen=True, slots=True)
class Finding:
    """`fix` is a command or a setting, "" when the user need do nothing."""

    name: str
    status: Status
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return {name: str(getattr(self, name)) for name in self.__slots__}


def version(package: str) -> str:
    """The version of an installed package; "" when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def optional(package: str, extra: str, use: str) -> Finding:
    """The finding on a package that only some users need, for `use`; evotune's `extra` brings
    it."""
    if found := version(package):
        return Finding(package, Status.OK, found)
    fix = f"pip install 'evotune[{extra}]'"
    return Finding(package, Status.ABSENT, f"not installed; {use}", fix)
