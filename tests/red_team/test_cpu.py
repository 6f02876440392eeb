"""The red team on the CPU: kernels that are wrong, broken or cheat, and must all be found out.

Published autotuners and kernel-writing systems have taken such kernels for records. Here each one
is compiled and goes the way of any candidate: device worker, gate, timing, replay. None may end as
`ok`, and the reason must say what is wrong with the kernel. The kernels are those of
data/kernels/cheats.cpp; `none` is the same code without a fault, and passes.

Cheats know how such a harness works. They tell a gate from a timed sample by poison, by the
number of launches, by the pause between them or by the values; they keep answers and give them
again.

`make test` takes the kernels in SOON, one or two of each kind; `make soak` takes all.

These tests do not cover native code that patches the worker's clock or memory. The worker is no
sandbox; on a GPU, a candidate is device code only.
"""

from __future__ import annotations

import re

import pytest

from evotune.trial import OutcomeKind
from tests.patience import assert_cut_short

from .pipeline import Pipeline

WRONG, NAN = OutcomeKind.WRONG_RESULT, OutcomeKind.NAN
BOUNDS, LAUNCH = OutcomeKind.OUT_OF_BOUNDS, OutcomeKind.LAUNCH_ERROR
RANDOM = OutcomeKind.NONDETERMINISTIC
OFF, NEVER = "out is off by", "never written"
KEPT = ((WRONG, NAN), "(watched|altered in place|replayed normal) inputs")
"""Old results, or none; the first check of the timed launches that finds them names its inputs."""
REUSED = (OutcomeKind.TOO_FAST, "on those of the launch before")

EXPECTED: dict[str, tuple[OutcomeKind | tuple[OutcomeKind, ...], str]] = {
    # Wrong keys
    "drops_last_key": (WRONG, OFF),
    "drops_last_keys_when_long": (WRONG, r"\(1,1,319,32\) causal"),
    "drops_odd_last_key": (WRONG, OFF),
    "drops_first_key": (WRONG, OFF),
    "causal_edge_early": (WRONG, OFF),
    "causal_edge_late": (WRONG, OFF),
    "causal_bottom_right": (WRONG, r"\(2,10/2,33x130,32\) causal"),
    "ignores_the_mask": (WRONG, OFF),
    "reads_past_the_end": (NAN, "elements of out are NaN"),
    # Right for some cases only
    "one_length_only": ((WRONG, NAN), r"\(1,8/1,145x29,32,scale=0.3\) causal"),
    "one_head_count_only": ((WRONG, NAN), r"\(3,9/3,63,32\) causal"),
    "ignores_head_groups": ((WRONG, NAN), r"\(3,9/3,63,32\) causal"),
    "one_seed_only": (WRONG, OFF),
    # Bad numerics
    "no_scale": (WRONG, OFF),
    "no_rescale": (WRONG, OFF),
    "no_maximum": (NAN, "large_logits inputs"),
    "first_score_as_maximum": (NAN, "large_logits inputs"),
    "maximum_over_queries": (NAN, "large_logits inputs"),
    "clamped_exp": ((WRONG, NAN), "large_logits inputs"),
    "crude_exp": (WRONG, OFF),
    "drops_small_weights": (WRONG, OFF),
    "fp16_accumulation": (WRONG, OFF),
    "bf16_weights": (WRONG, OFF),
    "e4m3_weights": (WRONG, OFF),
    # Memory
    "nothing_written": (NAN, "4096 of them never written"),
    "unwritten_row": (NAN, "32 of them never written"),
    "unwritten_column": (NAN, "128 of them never written"),
    "trusts_out_to_be_zero": (NAN, "4096 of 4096 elements of out are NaN"),
    "trusts_scratch_to_be_zero": (NAN, "4096 of 4096 elements of out are NaN"),
    "writes_past_the_end": (BOUNDS, "wrote outside out"),
    "writes_before_the_start": (BOUNDS, "wrote outside out"),
    "writes_past_the_workspace": (BOUNDS, "wrote outside scratch"),
    "writes_past_an_input": (BOUNDS, "wrote outside v"),
    "changes_an_input": (BOUNDS, "changed its input k"),
    "changes_an_input_when_timed": ((BOUNDS, *KEPT[0]), f"changed its input v|{KEPT[1]}"),
    "scales_q_in_place": (BOUNDS, "changed its input q"),
    "leaves_the_counter": (WRONG, r"left workspace counter \(zero_once\) other than zero"),
    # Not the same twice
    "race": ((WRONG, RANDOM), "out"),
    "order_by_the_clock": (RANDOM, "differ between two equal launches"),
    "static_counter": (RANDOM, "differ between two equal launches"),
    # Answers from memory
    "returns_the_answer_before": (WRONG, OFF),
    "keyed_on_pointers": KEPT,
    "scratch_keeps_the_answer": KEPT,
    "packs_keys_once": KEPT,
    "memoises_all_inputs": REUSED,
    "memoises_when_hurried": REUSED,
    "watches_its_pages": (LAUNCH, "changed the handler of SIGSEGV"),
    # Works only when it is checked
    "works_when_poisoned": KEPT,
    "writes_only_poison": KEPT,
    "works_when_a_probe_changed": KEPT,
    "works_when_a_hash_changed": KEPT,
    "works_every_other_time": KEPT,
    "stops_working": (NAN, NEVER),
    "stops_when_hurried": KEPT,
    # Leaves something behind
    "finishes_later": (NAN, NEVER),
    # It may overwrite before the result is read, after that, or in the second launch.
    "overwrites_later": ((LAUNCH, WRONG, RANDOM), "out"),
    "leaves_a_spinner": (LAUNCH, "busy after it returned"),
    "slows_the_baseline": (LAUNCH, "busy after it returned"),
    "leaves_a_process": (LAUNCH, "left a process running"),
    "leaves_rounding": (LAUNCH, "changed how the processor rounds"),
    # Attacks the worker
    "exit": (OutcomeKind.WORKER_LOST, "ended with status 0"),
    "huge_stack": (OutcomeKind.ILLEGAL_ACCESS, "SIGSEGV"),
    "forges_an_answer": (OutcomeKind.WORKER_LOST, "its answer belongs to no request"),
}


SOON = {
    *("drops_last_key", "writes_past_the_end", "static_counter", "leaves_a_spinner"),
    *("forges_an_answer",),
}


@pytest.mark.parametrize(
    "behaviour",
    [pytest.param(b, marks=() if b in SOON else pytest.mark.soak) for b in EXPECTED],
)
def test_a_cheat_is_rejected_and_the_reason_says_why(cheats: Pipeline, behaviour: str) -> None:
    kind, reason = EXPECTED[behaviour]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    outcome = cheats.run(behaviour)
    assert outcome.kind in kinds, outcome.reason
    assert re.search(reason, outcome.reason), outcome.reason
    assert outcome.fitness is None


@pytest.mark.soak
def test_a_cheat_that_never_ends_is_killed(cheats: Pipeline) -> None:
    outcome = cheats.run_endless("endless", 6.0)
    assert_cut_short(outcome, OutcomeKind.TIMEOUT, "no answer within 6 s; killed")


def test_the_same_code_without_a_fault_passes(cheats: Pipeline) -> None:
    outcome = cheats.run("none")
    assert outcome.ok, outcome
