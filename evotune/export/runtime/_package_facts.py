"""Facts for `info` that every kind of package has."""

from __future__ import annotations

import platform
from typing import Any

import torch

from ._certificate import Contents
from ._loaded_kernels import VERSION, LoadedKernels


def device_facts(contents: Contents, loaded: LoadedKernels) -> dict[str, Any]:
    """The device that the kernels are for, and why they are not used here ("" when they are)."""
    try:
        refused = loaded.refused(torch.device(loaded.device_type, loaded.current_index()))
        why = refused.words if refused else ""
        matches = refused is None or refused.kind == VERSION
    except (RuntimeError, AssertionError) as error:  # PyTorch has no such devices here
        why, matches = " ".join(str(error).split()), False
    return {"device": loaded.device_name, "device_matches": matches, "why_not": why}


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
