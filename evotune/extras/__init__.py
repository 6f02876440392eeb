"""Importers, which turn another tuner's script into a space: evotune's own, or those of installed
packages.

A package names its importers in the group `evotune.importers` of its entry points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from evotune.errors import EnvironmentProblem
from evotune.plugins import Group

_IMPORTERS = Group("evotune.importers", "importer", ("import_script",), "evotune.extras")


@dataclass(frozen=True)
class Imported:
    """The files of a new space.

    - files: their contents by name
    - notes: lines about them, for the user
    - unwritten: the line of problem.py where the user must write `compute`, or 0 if it is written
    """

    name: str
    files: dict[str, bytes]
    notes: list[str]
    unwritten: int


class Importer(Protocol):
    def import_script(
        self,
        path: Path,
        *,
        name: str | None,
        kernel: str | None,
        outputs: Sequence[str],
        arguments: Sequence[str],
    ) -> Imported:
        """Makes a space of a script. Raises EvotuneError, one line, if that is impossible.

        - name: the space's name; the kernel's if None
        - kernel: the kernel to take if the script tunes several
        - outputs: the arrays that the kernel writes, if evotune cannot find them
        - arguments: the script's own arguments
        """


def importer(name: str) -> Importer:
    """The importer of one tuner's scripts. Raises EnvironmentProblem if it is not installed."""
    found = _IMPORTERS.own().get(name) or _IMPORTERS.load(name)
    if found is None:
        raise EnvironmentProblem(f"the importer {name!r} is not installed; fix: reinstall evotune")
    return cast(Importer, found)
