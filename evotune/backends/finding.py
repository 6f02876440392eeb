"""What `doctor` finds: a line of a backend, or of evotune's own."""

from __future__ import annotations

import enum
import importlib.metadata
from dataclasses import dataclass


class Status(enum.StrEnum):
    """MISSING and BROKEN need the user; ABSENT is fine as things are."""

    OK = "ok"
    ABSENT = "absent"
    MISSING = "missing"
    BROKEN = "broken"

    @property
    def fine(self) -> bool:
        return self in (Status.OK, Status.ABSENT)


@dataclass(frozen=True, slots=True)
class Finding:
    """`fix` is a command or a setting, "" when nothing is to be done."""

    name: str
    status: Status
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return {name: str(getattr(self, name)) for name in self.__slots__}


def version(package: str) -> str:
    """Of an installed package; "" of one that is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def optional(package: str, extra: str, use: str) -> Finding:
    """Of a package that only some need, for `use`; `extra` is evotune's extra with it."""
    if found := version(package):
        return Finding(package, Status.OK, found)
    fix = f"pip install 'evotune[{extra}]'"
    return Finding(package, Status.ABSENT, f"not installed; {use}", fix)
