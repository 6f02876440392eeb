"""Table of a run's devices, compared with each other before they shared the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evotune.report import wording
from evotune.report._table import TextTable
from evotune.report.deciding_outcomes import Figures
from evotune.timing.agreement import baseline_factor
from evotune.trial import Json

MEANING = (
    "Each device timed the baselines and the reference configuration, the space's default, before "
    "it took part. Only ratios on one device are compared between devices."
)


def devices_table(devices: Sequence[Mapping[str, Json]]) -> TextTable | None:
    """Factor and reference of each device; None for a run on one device."""
    if len(devices) < 2:
        return None
    return TextTable(
        (
            "device",
            "model",
            "baselines against the first",
            "reference [95%]",
            "of the model's best",
        ),
        (False, False, True, True, True),
        tuple(_row(device, devices) for device in devices),
    )


def _row(device: Mapping[str, Json], devices: Sequence[Mapping[str, Json]]) -> tuple[str, ...]:
    factor = baseline_factor(device, devices[0])
    speedup = device["speedup"]
    known = [d["speedup"] for d in devices if d["model"] == device["model"] and d["speedup"]]
    reference = Figures(speedup, device["speedup_low"], device["speedup_high"], None, None, None)
    return (
        str(device["id"]),
        str(device["model"]),
        wording.NONE if factor is None else f"{factor:.3f}x",
        str(device["reason"]) if speedup is None else wording.speedup_text(reference),
        wording.NONE if speedup is None else f"{speedup / max(known):.1%}",
    )
