"""Times kernels that keep the maximum (KEEP_MAXIMUM) in turn with kernels that look for one.

    python benchmarks/lab/kept_maximum.py [--inputs normal|needle|ramp|large_logits]
        [--device cuda:0]
        -o benchmarks/results/FILE.json

All are of attention-wgmma-features at (1,16,8192,64) and (1,16,8192,128) in float16. Timed as by
feature_pairs.py: warm, in one process. Of `ramp` and `large_logits` some rows have scores that rise
from block to block, so that many blocks are computed again. A second call with the same FILE and
other inputs adds to it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from attention_features import JOBS_BY_NAME, LONG, Job, problem_of
from feature_pairs import Pair, keep_measured

SPACE, DTYPE = "attention_wgmma_features", "float16"
JOBS = {
    **JOBS_BY_NAME,
    "full": Job("full", {"causal": False}),
    "full 128": Job("full 128", {"causal": False}, LONG),
}
_SMALL = {"CONSUMER_WARPGROUPS": 3, "BLOCK_N": 128, "STAGES": 3}
WINDOW = {**_SMALL, "STAGES": 4, "SKIP_MASKED": True, "HALF_BLOCKS": True, "HIDE_ENDS": True}
WINDOW |= {"RESCALE_LOG2": 4, "HEAD_SECTION": 32}
CAUSAL_64 = {**_SMALL, "HALF_BLOCKS": True}
FULL_64 = {**_SMALL, "STAGES": 4, "SHARE_TAIL": True}
WIDE = {"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 128, "STAGES": 2, "Q_IN_REGS": True}
KEPT = {"KEEP_MAXIMUM": True}
KEPT_HIDDEN = {**KEPT, "HIDE_ENDS": True}
HALVES = {"HALF_BLOCKS": True}
# The job, the configuration without, and what differs in the one with.
PAIRS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("window 1024", WINDOW, KEPT),
    ("window 1024", WINDOW, {**KEPT, "STAGES": 3}),
    ("causal", CAUSAL_64, KEPT),
    ("causal", CAUSAL_64, KEPT_HIDDEN),
    ("causal", CAUSAL_64, {**KEPT_HIDDEN, "STAGES": 4}),
    ("full", FULL_64, KEPT),
    ("full", FULL_64, KEPT_HIDDEN),
    ("full", FULL_64, {**KEPT_HIDDEN, "SHARE_TAIL": False}),
    ("causal 128", WIDE, KEPT),
    ("causal 128", WIDE, KEPT_HIDDEN),
    ("causal 128", WIDE, {**KEPT_HIDDEN, "Q_IN_REGS": False}),
    ("causal 128", WIDE, {**KEPT_HIDDEN, **HALVES, "Q_IN_REGS": False}),
    ("full 128", WIDE, KEPT),
    ("full 128", WIDE, KEPT_HIDDEN),
    ("full 128", WIDE, {**KEPT, "SHARE_TAIL": True}),
)


def pair_of(job: str, plain: dict[str, Any], changes: dict[str, Any]) -> Pair:
    problem = problem_of(JOBS[job], DTYPE)
    name = f"{job}: {', '.join(f'{key} {value}' for key, value in changes.items())}"
    return Pair(name, SPACE, {**plain, **changes}, problem, plain, problem)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", default="normal")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    command = "python benchmarks/lab/kept_maximum.py, --inputs as each pair says"
    pairs = [pair_of(*each) for each in PAIRS]
    kind = options.inputs
    keep_measured(pairs, options.output, options.device, command, dtype=DTYPE, kind=kind)


if __name__ == "__main__":
    main()
