"""Facts for `info` that every kind of package has."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ._certificate import Contents
from ._loaded_kernels import VERSION, LoadedKernels
from ._shown_text import shown

_WIDTH = 110
_MOST_LINES = 12  # for one fact


class Facts(dict[str, Any]):
    """Facts by name. Printed, each fact is a line or a few; long ones are cut."""

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        lines = []
        for name, value in self.items():
            told = list(_told(value)) or ["none"]
            if len(told) > _MOST_LINES:
                left = len(told) - _MOST_LINES + 1
                told = [*told[: _MOST_LINES - 1], f"and {left} more"]
            for number, text in enumerate(told):
                cut = textwrap.shorten(shown(text), _WIDTH, placeholder=" …")
                lines.append(f"{'' if number else name:{width}}  {cut}".rstrip())
        return "\n".join(lines)


def _told(value: Any) -> Iterator[str]:
    """The lines of one fact."""
    if isinstance(value, Mapping):
        yield from (f"{name}: {_in_a_line(each)}" for name, each in value.items())
    elif isinstance(value, list):
        yield from map(_in_a_line, value)
    else:
        yield _in_a_line(value) or "-"


def _in_a_line(value: Any) -> str:
    """A region in words, or any other value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, Mapping):
        return str(value)
    if "ranges" not in value:
        return ", ".join(f"{name} {_in_a_line(each)}" for name, each in value.items())
    words = [f"{name} {_in_a_line(each)}" for name, each in value["fixed"].items()]
    for name, (low, high) in value["ranges"].items():
        if isinstance(high, int) and name != "elements":
            words.append(f"{name} {low}" if low == high else f"{name} {low} to {high}")
    least = f"at least {value['speedup_low']:.3f}x: " if "speedup_low" in value else ""
    return least + ", ".join(words)


def device_facts(contents: Contents, loaded: LoadedKernels) -> dict[str, Any]:
    """The device that the kernels are for, and why they are not used here ("" when they are)."""
    try:
        refused = loaded.refused(torch.device(loaded.device_type, loaded.current_index()))
        why = refused.words if refused else ""
        matches = refused is None or refused.kind == VERSION
    except (RuntimeError, AssertionError) as error:  # PyTorch has no such devices here
        why, matches = " ".join(str(error).split()), False
    return {"device": loaded.device_name, "device_matches": matches, "why_not": why}


def length_facts(contents: Contents) -> dict[str, Any]:
    """The lengths that each kernel executed one by one, in words."""
    champions = contents.certificate.get("champions", [])
    told = (each.get("lengths", ["lengths not executed"]) for each in champions)
    return {"lengths": [line for lines in told for line in lines]}


def version_facts(contents: Contents, loaded: LoadedKernels) -> dict[str, Any]:
    """The versions with which the kernels were measured, and those of this process; whether they
    count as the same; whether a check in this process has passed with other ones."""
    measured = dict(contents.certificate.get("environment", {}))
    if driver := contents.certificate.get("device", {}).get("driver"):
        measured["driver"] = driver
    versions = loaded.versions
    return {
        "measured_with": measured,
        "versions": {**versions.here, "python": platform.python_version()},
        "versions_match": not versions.difference(),
        "versions_accepted": versions.accepted,
    }
