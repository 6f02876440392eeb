"""The limiter agrees with the lab book of the Hopper kernel, by the counters behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from evotune.backends.base.evidence import Counters
from evotune.explain.limiter_rules import Case, limiter_of
from evotune.explain.roofline import roofline_of

from .planted import CASE, CEILINGS, DEVICE, gathered, launch

PROFILES = Path(__file__).parents[2] / "benchmarks" / "results" / "profile_h200.json"
PIPES = {
    "tensor": "sm__pipe_tensor_cycles_active",
    "mufu": "sm__inst_executed_pipe_xu",
    "alu": "sm__pipe_alu_cycles_active",
    "fma": "sm__pipe_fma_cycles_active",
    "issue": "smsp__issue_active",
    "l2": "lts__throughput",
    "dram": "gpu__dram_throughput",
}
STALL = re.compile(r"issue_stalled_(\w+?)_per_issue_active")


def counters(metrics: Mapping[str, Mapping[str, float]]) -> Counters:
    values = {name: found["value"] for name, found in metrics.items()}

    def share(name: str) -> float:
        over = (f"{name}.avg.pct_of_peak_sustained_{what}" for what in ("active", "elapsed"))
        return next((values[metric] / 100 for metric in over if metric in values), 0.0)

    return Counters(
        source="ncu",
        time_us=values["gpu__time_duration.avg"] / 1e3,
        pipes={pipe: share(name) for pipe, name in PIPES.items()},
        stalls={m.group(1): v for name, v in values.items() if (m := STALL.search(name))},
    )


@pytest.mark.parametrize(
    ("name", "limiter"),
    [
        ("hopper 2x8192x128 full", "tensor cores"),
        ("hopper 16x2048x128 causal", "tensor cores"),
        ("hopper 2x8192x64 full", "MUFU + tensor cores"),
        ("hopper 16x2048x64 full", "MUFU + tensor cores + issue slots"),
        ("hopper 1x1024x64 causal", "latency: long_scoreboard"),
        ("mission full", "latency: wait"),
    ],
)
def test_what_holds_each_champion(name: str, limiter: str) -> None:
    """head_dim 64: nothing alone; 128: products; small grids: waits (docs/lab/wgmma.md)."""
    champions = json.loads(PROFILES.read_text())["champions"]
    found = next(item for item in champions if item["name"] == name)["launches"][0]
    read = counters(found["metrics"])
    item = gathered(
        msgspec.structs.replace(launch(blocks=132), counters=read, occupancy=None, static=None)
    )
    roofline = roofline_of(
        CASE,
        read.time_us,
        item.work,
        dtype="float16",
        evidence=item.evidence,
        ceilings=CEILINGS,
        attributes=DEVICE["attributes"],
    )
    assert limiter_of(Case(roofline, item, DEVICE["attributes"])).name == limiter
