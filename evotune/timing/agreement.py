"""Compares the devices that share a run, by their calibrations.

`runs/_calibration.py` keeps a calibration of each device: its id and model, the baselines'
times in microseconds by case, and the reference configuration's speedup with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from evotune.trial import Json

_AGREE: Final = 0.02


def spread(devices: Sequence[Mapping[str, Json]], model: str) -> float | None:
    """Relative difference of one model's devices on the reference configuration; None when it has
    no speedup on one of them."""
    speedups = [device["speedup"] for device in devices if device["model"] == model]
    if None in speedups:
        return None
    return float(max(speedups) / min(speedups) - 1)


def agreement(devices: Sequence[Mapping[str, Json]]) -> str:
    """`spread` of each model, in words."""
    words = []
    for model in dict.fromkeys(device["model"] for device in devices):
        count = sum(device["model"] == model for device in devices)
        apart = spread(devices, model)
        if apart is None:
            why = "the default configuration does not run there"
            words.append(f"{count} x {model}: not calibrated, since {why}")
            continue
        line = f"{count} x {model}: {apart:.1%} apart on the reference configuration"
        words.append(f"{line} (expected: {_AGREE:.0%} at most)" if apart > _AGREE else line)
    return "; ".join(words)


def baseline_factor(device: Mapping[str, Json], first: Mapping[str, Json]) -> float | None:
    """Speed of the device relative to `first` on the baselines: geometric mean over the cases that
    both timed, None without such a case."""
    ratios = [
        math.log(first["baseline_us"][case] / time_us)
        for case, time_us in device["baseline_us"].items()
        if case in first["baseline_us"]
    ]
    return math.exp(sum(ratios) / len(ratios)) if ratios else None
