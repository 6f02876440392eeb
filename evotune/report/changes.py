"""Rows of a stored ablation in words: see `evotune.engine.ablation.AblationRow`."""

from __future__ import annotations

from collections.abc import Mapping

from evotune.report import wording
from evotune.trial import Json


def change_text(row: Mapping[str, Json]) -> str:
    """`BLOCK_M 64 to 32`, with other changes that were needed for a valid configuration."""
    if not row["parameter"]:
        return "nothing (the champion against itself)"
    before, after = wording.value_text(row["before"]), wording.value_text(row["after"])
    others = wording.configuration_text(row.get("also") or {})
    return f"{row['parameter']} {before} to {after}" + (f" (with {others})" if others else "")


def ratio_text(row: Mapping[str, Json]) -> str:
    """`0.812x [0.801, 0.820]`, or the outcome and reason if there is no ratio."""
    if row["ratio"] is None:
        return f"{row['outcome']}: {row['reason']}" if row["reason"] else str(row["outcome"])
    figure = f"{row['ratio']:.3f}x [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}]"
    return f"{figure}, same code" if row.get("same_code") and row["parameter"] else figure
