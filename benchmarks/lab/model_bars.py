"""The bars that a package must clear in whole models, and the table of `export_models`.

In a CUDA graph the attention of bert, gpt2 and ViT, that is the time above a model without
attention, is 1.3 times as fast as that of SDPA without a mask; no model is slower than 0.98 times;
and bert-base and ViT-L take at most 1 / 2.5 of the time with transformers' "sdpa" as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ATTENTION, WHOLE, AS_IT_IS = 1.3, 0.98, 2.5
_ATTENTION_OF = ("bert-base", "bert-large", "gpt2", "vit-large")
_AS_IT_IS_OF = ("bert-base", "vit-large")
_HEAD = (
    f"{'model':14} {'dtype':9} {'way':8} {'sdpa':>9} {'unmasked':>9} {'none':>9} {'package':>9}"
    f" {'attention':>9} {'unmasked':>9} {'sdpa':>6}  served  bars"
)


def ratios(cell: Mapping[str, Any]) -> dict[str, float]:
    """Speedups of the package: of the attention above the floor and of the whole model against SDPA
    without a mask, and of the whole model against "sdpa"."""
    us = cell["us"]
    ours, unmasked = us["package"] - us["none"], us["unmasked"] - us["none"]
    return {
        "attention": unmasked / ours if ours > 0 else float("inf"),
        "whole": us["unmasked"] / us["package"],
        "as_it_is": us["sdpa"] / us["package"],
    }


def faults(cell: Mapping[str, Any]) -> list[str]:
    """The bars that the cell misses, in words."""
    if "error" in cell:
        return [cell["error"]]
    found = [] if cell.get("agrees", True) else ["the output is off"]
    if "us" not in cell or cell["way"] != "graph":
        return found
    speedups, model = ratios(cell), cell["model"]
    if model in _ATTENTION_OF and speedups["attention"] < ATTENTION:
        found.append(f"attention below {ATTENTION}x")
    if speedups["whole"] < WHOLE:
        found.append(f"slower than {WHOLE}x")
    if model in _AS_IT_IS_OF and speedups["as_it_is"] < AS_IT_IS:
        found.append(f"below {AS_IT_IS}x of sdpa")
    return found


def missed(cells: Sequence[Mapping[str, Any]]) -> bool:
    return any(map(faults, cells))


def table(cells: Sequence[Mapping[str, Any]]) -> str:
    """A line for each cell: times in us, then the speedups, then the missed bars."""
    lines = [_HEAD]
    for cell in sorted(cells, key=lambda c: (c["way"], c["model"], c["dtype"])):
        words = f"{cell['model']:14} {cell['dtype']:9} {cell['way']:8}"
        said = ", ".join(faults(cell)) or "ok"
        if "us" not in cell:
            lines.append(f"{words} {cell.get('skipped', said)}")
            continue
        times = [cell["us"][side] for side in ("sdpa", "unmasked", "none", "package")]
        speedups = ratios(cell)
        served = f"{cell['served']}/{cell['attention_calls']}"
        lines.append(
            f"{words} {' '.join(f'{time:9.1f}' for time in times)} {speedups['attention']:8.2f}x"
            f" {speedups['whole']:8.2f}x {speedups['as_it_is']:5.2f}x {served:>7}  {said}"
        )
    return "\n".join(lines)
