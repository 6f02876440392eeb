"""Facts for `info` that every kind of package has."""

from __future__ import annotations

import platform
from typing import Any

import torch

from ._certificate import Contents
from ._loaded_kernels import LoadedKernels


def device_facts(contents: Contents, loaded: LoadedKernels) -> dict[str, Any]:
    """The device that the kernels are for, and why they are not used here ("" when they are)."""
    try:
        refused = loaded.refused(torch.device(loaded.device_type, loaded.current_index()))
        why = refused.words if refused else ""
    except (RuntimeError, AssertionError) as error:  # PyTorch has no such devices here
        why = " ".join(str(error).split())
    return {"device": loaded.device_name, "device_matches": not why, "why_not": why}


def version_facts(contents: Contents) -> dict[str, Any]:
    """The versions with which the kernels were measured, and those of this process."""
    measured = contents.certificate.get("environment", {})
    here = {"torch": torch.__version__, "python": platform.python_version()}
    return {"measured_with": dict(measured), "versions": here}
