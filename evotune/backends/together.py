"""One profile for the several devices of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from evotune.device.profile import DeviceProfile
from evotune.errors import EnvironmentProblem


def work_together(found: Sequence[DeviceProfile], *, allow_mixed: bool) -> DeviceProfile:
    """A profile that holds on each of the GPUs: it has the least value of every attribute.

    EnvironmentProblem when their models differ and `allow_mixed` is false, or when they run
    different machine code.
    """
    first = found[0]
    models = list(dict.fromkeys(profile.name for profile in found))
    if len(models) > 1 and not allow_mixed:
        raise EnvironmentProblem(
            f"the GPUs differ ({', '.join(models)}): times of one say nothing of the other; fix: "
            "choose a model with --device, or use --allow-mixed, which ranks them apart"
        )
    architectures = list(dict.fromkeys(profile.arch for profile in found))
    if len(architectures) > 1:
        raise EnvironmentProblem(
            f"the GPUs differ ({', '.join(models)}) and run different machine code "
            f"({', '.join(architectures)}); fix: a run for each, with --device"
        )
    least = {
        name: min(profile.attributes.get(name, value) for profile in found)
        for name, value in first.attributes.items()
    }
    return dataclasses.replace(first, attributes=least)
