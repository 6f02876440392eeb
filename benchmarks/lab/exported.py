"""Functions that the benchmarks of exported packages share."""

from __future__ import annotations

import importlib
import os
import platform
import random
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

SIZES = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim")
Sizes = dict[str, int]


def opened(folder: Path) -> ModuleType:
    """The package in `folder` (DIR/NAME of `evotune export`). SystemExit, one line, where there is
    none."""
    folder = Path(os.path.abspath(folder))  # a link may stand for the package
    if not (folder / "dispatch.json").is_file():
        raise SystemExit(f"{folder} is no package: expected DIR/NAME of `evotune export`")
    sys.path.insert(0, str(folder.parent))
    return importlib.import_module(folder.name)


def device_of(module: ModuleType) -> torch.device:
    """The device that the kernels are for, the current one of its type."""
    return torch.device(module._loaded._loaded.device_type)


def dtype_of(module: ModuleType) -> torch.dtype:
    dtype: torch.dtype = module._loaded._kernels.dtype
    return dtype


def calls(module: ModuleType) -> int:
    """The number of calls that kernels of the package have served."""
    return int(module.info()["calls"])


def facts(module: ModuleType, script: str) -> dict[str, Any]:
    """Where and with what a figure was measured."""
    device = device_of(module)
    found = {
        "command": " ".join(
            ["python", f"benchmarks/{script}", *map(_without_folder, sys.argv[1:])]
        ),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": module._loaded._loaded.device_name,
        "package": module.__name__,
        "launcher": module.info()["launcher"],
    }
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_properties(device).name
    return found


def _without_folder(word: str) -> str:
    return Path(word).name if os.sep in word else word


def regions(module: ModuleType) -> list[dict[str, Any]]:
    """The served regions."""
    found: list[dict[str, Any]] = module.info()["served"]
    return found


def domain(module: ModuleType) -> list[Mapping[str, Any]]:
    """The regions in which kernels were checked."""
    found: list[Mapping[str, Any]] = module._loaded._kernels.dispatch._domain
    return found


def sizes_in(region: Mapping[str, Any], rng: random.Random, most: int = 1 << 30) -> Sizes:
    """Sizes in the region, or in no region where ratios rule them out; none is above `most`."""
    values = {**{name: [value, value] for name, value in region["fixed"].items()}}
    values |= region["ranges"]

    def drawn(name: str) -> int:
        low, high = (int(bound) for bound in values.get(name, (1, 4)))
        high = max(low, min(high, most))
        if high > 8 * low:  # a wide range: as many small sizes as large ones
            return min(high, int(low * (high / low) ** rng.random()))
        return rng.randint(low, high)

    sizes = {name: drawn(name) for name in SIZES if name != "kv_heads"}
    group = drawn("group") if "group" in values else 1
    if "kv_heads" in values:
        sizes["kv_heads"] = drawn("kv_heads")
    else:
        sizes["kv_heads"] = (
            sizes["heads"] // group if sizes["heads"] % group == 0 else sizes["heads"]
        )
    if "length_ratio" in values and rng.random() < 0.5:
        ratio = float(values["length_ratio"][0] + values["length_ratio"][1]) / 2
        sizes["seq_len_k"] = max(1, round(ratio * sizes["seq_len_q"]))
    return sizes
