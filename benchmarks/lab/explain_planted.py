"""One cause planted in a space's default, whose name `evotune explain` must then find: the part
`planted` of `explain_trials.py`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from explain_items import SMOKE, Item, alone, explained, unconfirmed
from explain_records import Record
from tuning import ROOT, derive, environment, shape_of

from evotune.runs.setup import load_kernel_setup

# The mma rung with four blocks wanted on each multiprocessor: 128 registers, where it needs more.
# The first of them that is valid is taken, the one that spills most.
_BOUNDS = {"WARPS_Q": 2, "WARPS_KV": 2, "STAGES": 1, "Q_IN_REGS": True}
_BOUNDS |= {"MIN_CTAS": 4, "SPLIT_KV": 1, "PERSISTENT": 0}
_SPILLING: Sequence[Mapping[str, Any]] = (
    {**_BOUNDS, "BLOCK_M": 64, "BLOCK_N": 256},
    {**_BOUNDS, "BLOCK_M": 64, "BLOCK_N": 128},
    {**_BOUNDS, "BLOCK_M": 128, "BLOCK_N": 64, "WARPS_Q": 4, "WARPS_KV": 1},
    {**_BOUNDS, "BLOCK_M": 128, "BLOCK_N": 32, "STAGES": 2},
)
PLANTED: Sequence[tuple[str, str, Sequence[Mapping[str, Any]], str]] = (
    ("no pad", "attention_wmma", ({"SWIZZLE": "none"},), "bank conflicts"),
    ("one stage", "attention_wmma", ({"STAGES": 1},), "latency: long_scoreboard"),
    ("spilling launch bounds", "attention_mma", _SPILLING, "spills"),
)
PLANTED_SMOKE: Sequence[tuple[str, str, Sequence[Mapping[str, Any]], str]] = (
    ("one lane", "rms_norm_cpu", ({"LANES": 16},), ""),
)


def planted(options: argparse.Namespace, name: str) -> Iterator[Record]:
    """A space's default with one cause planted; its limiter must be that cause."""
    known = PLANTED_SMOKE if options.smoke else PLANTED
    _, space, causes, expected = next(each for each in known if each[0] == name)
    sizes = SMOKE[0].sizes if options.smoke else shape_of(1, 8, 512, 64)
    item = Item(name, space, sizes, causal=None if options.smoke else False)
    refused = []
    for values in causes:
        with tempfile.TemporaryDirectory() as folder:
            report = tried_alone(item, values, Path(folder))
            (trial,) = report["trials"]
            if not trial["time_us"]:
                refused.append({**values, "outcome": trial["outcome"], "why": trial["reason"]})
                print(f"{name}: {trial['outcome']}: {trial['reason']}", file=sys.stderr)
                continue
            found = explained(Path(folder) / "runs", "--no-effects")
        yield {
            "name": name,
            "environment": environment(report),
            "configuration": trial["configuration"],
            "refused": refused,
            "limiter": found["limiter"],
            "counters": found["counters"],
            "expected": expected,
            "confirmed": found["limiter"]["name"].startswith(expected),
        }
        return
    # Nothing is kept: a later call tries again.
    print(f"{name}: no candidate is valid", flush=True)


def tried_alone(item: Item, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The report of a run of the default with these values alone."""
    configuration = changed_default(item.space, values, folder)
    changes = {**alone(item, configuration, None), "after_compile": []}
    path = derive(item.space, changes, folder / "planted.yaml")
    return unconfirmed(path, folder / "runs", 1)


def changed_default(space: str, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The configuration that a search of the space starts from, with other values; parameters that
    no longer apply get the value that they then have. No constraint need hold."""
    setup = load_kernel_setup(ROOT / f"search_spaces/{space}.yaml", "auto")
    wanted = {**setup.space.default(), **values}
    path = derive(space, {"constraints": [], "default": {}}, folder / "free.yaml")
    free = load_kernel_setup(path, "auto").space
    found = free.repair(wanted, random.Random(0))
    assert found is not None
    return found.to_json()
