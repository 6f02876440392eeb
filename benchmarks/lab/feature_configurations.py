"""Times configurations with a feature in turn with one of plain attention, on one GPU.

    python benchmarks/lab/feature_configurations.py [--dtype float16|bfloat16] [--only JOB ...]
        [--rest-ms MS] [--repeats N] [--device cuda:0] -o benchmarks/results/FILE.json

All are of attention-wgmma-features, at (1,16,8192,64) and (1,16,8192,128) causal. Timed as by
feature_pairs.py: warm, in one process; with --rest-ms the GPU rests so long before each sample.
With --repeats a pair has the median of as many measurements, each on buffers of its own. A second
call with the same FILE adds to it, and replaces pairs that it has.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attention_features import JOBS_BY_NAME, problem_of
from feature_pairs import Pair, keep_measured

SPACE = "attention_wgmma_features"
_ALL = {"SKIP_MASKED": True, "RESCALE_LOG2": 8, "HEAD_SECTION": 16}
SMALL = {**_ALL, "CONSUMER_WARPGROUPS": 3, "BLOCK_N": 128, "STAGES": 3, "PRODUCER_REGISTERS": 32}
WIDE = {**_ALL, "CONSUMER_WARPGROUPS": 2, "BLOCK_N": 128, "STAGES": 2, "PRODUCER_REGISTERS": 40}
IN_REGISTERS, IN_SHARED = {"Q_IN_REGS": True}, {"Q_IN_REGS": False}
HIDDEN, HALVES = {"HIDE_ENDS": True}, {"HALF_BLOCKS": True}
KEPT = {"KEEP_MAXIMUM": True, **HIDDEN, **HALVES}
BIAS = {"BIAS_IN_PRODUCT": True}
PLAIN = {
    "causal": {**SMALL, **KEPT, "L2_PROMOTION": 256},
    "causal 128": {**WIDE, **KEPT, **IN_SHARED},
}
CONFIGURATIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "softcap": (
        SMALL,
        {**SMALL, **HIDDEN},
        {**SMALL, **HALVES},
        {**SMALL, **HIDDEN, **HALVES, "STAGES": 4},
        {**SMALL, "RESCALE_LOG2": 0},
        {**SMALL, "EXP2_FMA_SHARE": 1},
        {**SMALL, "BLOCK_N": 112},
        {**WIDE, **IN_REGISTERS, "STAGES": 3},
        {**WIDE, **IN_REGISTERS, "STAGES": 3, "BLOCK_N": 160},
    ),
    "softcap 128": (
        {**WIDE, **IN_REGISTERS, **HIDDEN},
        {**WIDE, **IN_SHARED, **HIDDEN, **HALVES},
        {**WIDE, **IN_SHARED, **HIDDEN},
        {**WIDE, **IN_REGISTERS},
        {**WIDE, **IN_REGISTERS, "BLOCK_N": 112},
        {**WIDE, **IN_REGISTERS, "RESCALE_LOG2": 0},
    ),
    "score mod 128": ({**WIDE, **KEPT, **BIAS, **IN_REGISTERS},),
    "window 1024": ({**SMALL, **KEPT, "STAGES": 4},),
    "causal 128": (
        {**WIDE, **IN_REGISTERS, "KEEP_MAXIMUM": True, **HIDDEN},
        {**WIDE, **IN_REGISTERS, **KEPT},
    ),
}


def pairs_of(job: str, dtype: str) -> Iterator[Pair]:
    """The job's configurations, each with that of the job without the feature; `causal 128` has
    none, and is timed in turn with itself."""
    plain = JOBS_BY_NAME[job].plain or job
    problem, plain_problem = (problem_of(JOBS_BY_NAME[each], dtype) for each in (job, plain))
    for configuration in CONFIGURATIONS[job]:
        yield Pair(job, SPACE, configuration, problem, PLAIN[plain], plain_problem)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--only", nargs="*", choices=list(CONFIGURATIONS))
    parser.add_argument("--rest-ms", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=1, help="an odd number")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    if options.repeats % 2 == 0 or options.repeats < 1:
        parser.error("--repeats: an odd number has a middle one")
    wanted = options.only or list(CONFIGURATIONS)
    pairs = [pair for job in wanted for pair in pairs_of(job, options.dtype)]
    keep_measured(
        pairs,
        options.output,
        options.device,
        "python benchmarks/lab/feature_configurations.py, --rest-ms and --repeats as pairs say",
        dtype=options.dtype,
        rest_s=options.rest_ms / 1000,
        repeats=options.repeats,
    )


if __name__ == "__main__":
    main()
