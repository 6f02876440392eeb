"""Made-up runs in which the cause of each candidate's time is planted, with evidence to match."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from report.runs import make_run

from evotune.backends.base.evidence import (
    FACT,
    Ceilings,
    Counters,
    Evidence,
    GatheredEvidence,
    LaunchEvidence,
    Occupancy,
    StaticView,
    Work,
)
from evotune.backends.cuda.gpu_profiles import named
from evotune.runs.folder import RunFolder
from evotune.trial import Measurement, Outcome, OutcomeKind, Value

CASE = "(1,8,512,64) full"
BASE_US = 10.0
WORK = Work(operations=537_000_000, bytes_moved=2_100_000, exponentials=2_100_000)
CEILINGS = Ceilings(
    kind="measured",
    tensor_flops=900e12,
    fma_flops=60e12,
    exp2_per_s=8e12,
    issue_per_s=1e12,
    shared_bytes_per_s=30e12,
    l2_bytes_per_s=6e12,
    dram_bytes_per_s=4e12,
    launch_us=1.0,
)
PARAMETERS: Mapping[str, tuple[Value, ...]] = {
    "PAD": (False, True),
    "STAGES": (1, 2, 4, 5),
    "BLOCK": (32, 64, 128),
}
DEVICE = named("h200").to_json()


def time_us(configuration: Mapping[str, Value]) -> float:
    """Without padding bank conflicts hold the kernel, and stages are worth nothing. BLOCK 128
    spills."""
    stages = {1: 1.5, 2: 1.1, 4: 1.0, 5: 1.0}[int(configuration["STAGES"])]
    block = {32: 1.1, 64: 1.0, 128: 1.6}[int(configuration["BLOCK"])]
    held = max(stages, 2.0) if not configuration["PAD"] else stages
    return BASE_US * held * block


def resources(configuration: Mapping[str, Value]) -> dict[str, Any]:
    spills = 96 if configuration["BLOCK"] == 128 else 0
    shared = 20_000 * int(configuration["STAGES"])
    return {
        "registers": 128,
        "spill_bytes": spills,
        "shared_bytes_total": shared,
        "blocks_resident": min(8, 233_472 // (shared + 1024)),
        "occupancy": 0.25,
    }


def outcome(configuration: Mapping[str, Value]) -> Outcome:
    """STAGES=5 does not fit."""
    if configuration["STAGES"] == 5:
        reason = "262144 bytes of shared memory (0 of them static), but a block may have 232448"
        return Outcome(OutcomeKind.RESOURCE_LIMIT, reason=reason)
    time = time_us(configuration)
    speedup = 12.0 / time
    measured = Measurement(
        CASE, time, time, "sdpa:cudnn", 12.0, speedup, speedup * 0.995, speedup * 1.005, 20
    )
    return Outcome(
        OutcomeKind.OK,
        math.log(speedup),
        math.log(speedup * 0.995),
        math.log(speedup * 1.005),
        measurements=(measured,),
        resources=resources(configuration),
        stage_s={"compile": 0.5, "verify": 0.1, "measure": 0.2},
    )


def all_configurations() -> list[dict[str, Value]]:
    return [
        dict(zip(PARAMETERS, values, strict=True))
        for values in itertools.product(*PARAMETERS.values())
    ]


def planted_run(runs_dir: Path, *evidence: GatheredEvidence, **meta: Any) -> RunFolder:
    """A run that tried everything. Trial n has configuration n of `all_configurations`."""
    configurations = all_configurations()
    return make_run(
        runs_dir,
        [outcome(configuration) for configuration in configurations],
        configurations=dict(enumerate(configurations)),
        meta={
            "space": "planted",
            "device": DEVICE,
            "problem": {"name": "attention", "dtype": "float16"},
            "default": configurations[0],
            FACT: [item.to_json() for item in evidence],
            **meta,
        },
    )


def number_of(**values: Value) -> int:
    return all_configurations().index({**dict(PAD=True, STAGES=4, BLOCK=64), **values})


def launch(
    *,
    pipes: Mapping[str, float] | None = None,
    stalls: Mapping[str, float] | None = None,
    conflicts: float = 0.0,
    local: int = 0,
    blocks: int = 1056,
    waves: float = 4.0,
    warps: int = 16,
    counted: bool = True,
) -> LaunchEvidence:
    """One launch. By default nothing holds it but the latency of loads."""
    counters = Counters(
        source="ncu 2030.1",
        time_us=10.0,
        pipes=dict(pipes or {"tensor": 0.2, "mufu": 0.15, "shared": 0.2, "issue": 0.25}),
        stalls=dict(stalls or {"wait": 1.0, "long_scoreboard": 2.5, "selected": 1.0}),
        instructions=400_000.0,
        shared_wavefronts=100_000.0,
        shared_conflicts=conflicts * 100_000.0,
        dram_bytes=2_100_000.0,
        l2_bytes=9_000_000.0,
        registers=128,
        warps_active=0.25,
    )
    view = StaticView(
        instructions={"tensor": 32, "shared_load": 40, "alu": 100, "local": local},
        loop_instructions={"tensor": 16, "shared_load": 20, "alu": 40, "local": local},
        registers=128,
        spill_load_bytes=4 * local,
        spill_store_bytes=4 * local,
        static_shared_bytes=0,
        code_bytes=20_000,
        source="nvdisasm 12.8",
    )
    return LaunchEvidence(
        kernel="attention_forward",
        blocks=blocks,
        threads=256,
        shared_bytes=80_000,
        occupancy=Occupancy(
            blocks_per_multiprocessor=2,
            bound_by="shared memory",
            warps=warps,
            max_warps=64,
            waves=waves,
        ),
        static=view,
        counters=counters if counted else None,
    )


def gathered(
    *launches: LaunchEvidence, ceilings: Ceilings = CEILINGS, baseline: str = "", **values: Value
) -> GatheredEvidence:
    """The evidence of the best configuration with these values changed, or of a baseline."""
    counted = any(item.counters is not None for item in launches)
    return GatheredEvidence(
        case=CASE,
        date="2030-01-01T00:00:00+00:00",
        work=WORK,
        evidence=Evidence(
            device="NVIDIA H200",
            ceilings=ceilings,
            launches=launches,
            unavailable={} if counted else {"counters": "ERR_NVGPUCTRPERM: not permitted"},
        ),
        configuration=None if baseline else {**dict(PAD=True, STAGES=4, BLOCK=64), **values},
        baseline=baseline,
        resources={} if baseline else resources(all_configurations()[number_of(**values)]),
    )
