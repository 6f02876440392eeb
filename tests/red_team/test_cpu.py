"""The red team on the CPU: kernels that are wrong, broken or cheat, and must all be found out.

Published autotuners and kernel-writing systems have taken such kernels for records. Here each one
is compiled and goes the way of any candidate: device worker, gate, timing, replay. What counts is
that none ends as `ok`, and that the reason says what is wrong with it. The kernels are the
behaviours of data/kernels/cheats.cpp; `none` is the same code without a fault, and passes.

Cheats know how such a harness works: they tell a gate from a timed sample by poison, by the
number of launches, by the pause between them or by the values, keep answers and give them again.

What this cannot show: native code in the worker could also patch its clock or its memory. The
worker is no sandbox; on a GPU, a candidate is device code only.
"""

from __future__ import annotations

import pytest

from evotune.trial import OutcomeKind

from .pipeline import Pipeline

WRONG, NAN = OutcomeKind.WRONG_RESULT, OutcomeKind.NAN
BOUNDS, LAUNCH = OutcomeKind.OUT_OF_BOUNDS, OutcomeKind.LAUNCH_ERROR
RANDOM = OutcomeKind.NONDETERMINISTIC
OFF, NEVER = "out is off by", "never written"
REPLAYED, ALTERED = "replayed normal inputs", "altered in place inputs"

EXPECTED: dict[str, tuple[OutcomeKind | tuple[OutcomeKind, ...], str]] = {
    # Wrong keys
    "drops_last_key": (WRONG, OFF),
    "drops_last_keys_when_long": (WRONG, "(1,1,257,32) causal"),
    "drops_odd_last_key": (WRONG, OFF),
    "drops_first_key": (WRONG, OFF),
    "causal_edge_early": (WRONG, OFF),
    "causal_edge_late": (WRONG, OFF),
    "causal_bottom_right": (WRONG, "(1,4/2,33x130,32) causal"),
    "ignores_the_mask": (WRONG, OFF),
    "reads_past_the_end": (NAN, "are NaN or infinite"),
    # Right for some cases only
    "one_length_only": (WRONG, "(2,2,67,32) causal"),
    "one_head_count_only": (WRONG, "(1,4/2,33x130,32) causal"),
    "ignores_head_groups": (WRONG, "(1,4/2,33x130,32) causal"),
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
    "trusts_out_to_be_zero": (NAN, "4096 elements of out are NaN"),
    "trusts_scratch_to_be_zero": (NAN, "4096 elements of out are NaN"),
    "writes_past_the_end": (BOUNDS, "wrote outside out"),
    "writes_before_the_start": (BOUNDS, "wrote outside out"),
    "writes_past_the_workspace": (BOUNDS, "wrote outside scratch"),
    "writes_past_an_input": (BOUNDS, "wrote outside v"),
    "changes_an_input": (BOUNDS, "changed its input k"),
    "changes_an_input_when_timed": (BOUNDS, "changed its input v while it was timed"),
    "scales_q_in_place": (BOUNDS, "changed its input q"),
    "leaves_the_counter": (WRONG, "left workspace counter (zero_once) other than zero"),
    # Not the same twice
    "race": ((WRONG, RANDOM), "out"),
    "order_by_the_clock": (RANDOM, "differ between two equal launches"),
    "static_counter": (RANDOM, "differ between two equal launches"),
    # Answers from memory
    "returns_the_answer_before": (WRONG, OFF),
    "keyed_on_pointers": (WRONG, REPLAYED),
    "scratch_keeps_the_answer": (WRONG, ALTERED),
    "packs_keys_once": (WRONG, ALTERED),
    "memoises_all_inputs": (OutcomeKind.TOO_FAST, "on those of the launch before"),
    "memoises_when_hurried": (OutcomeKind.TOO_FAST, "on those of the launch before"),
    "watches_its_pages": (OutcomeKind.TOO_FAST, "on those of the launch before"),
    # Works only when it is looked at
    "works_when_poisoned": (WRONG, ALTERED),
    "writes_only_poison": (WRONG, ALTERED),
    "works_when_a_probe_changed": (WRONG, ALTERED),
    "works_when_a_hash_changed": (WRONG, ALTERED),
    "works_every_other_time": (WRONG, ALTERED),
    "stops_working": (NAN, NEVER),
    "stops_when_hurried": (WRONG, ALTERED),
    # Leaves something behind
    "finishes_later": (NAN, NEVER),
    "overwrites_later": ((LAUNCH, WRONG, RANDOM), "out"),  # in time, too late, or in the second
    "leaves_a_spinner": (LAUNCH, "busy after it returned"),
    "slows_the_baseline": (LAUNCH, "busy after it returned"),
    "leaves_a_process": (LAUNCH, "left a process running"),
    "leaves_rounding": (LAUNCH, "left the processor's rounding"),
    # Attacks the worker
    "exit": (OutcomeKind.WORKER_LOST, "ended with status 0"),
    "huge_stack": (OutcomeKind.ILLEGAL_ACCESS, "SIGSEGV"),
    "forges_an_answer": (OutcomeKind.WORKER_LOST, "answer was garbled"),
    "endless": (OutcomeKind.TIMEOUT, "no answer within 6 s; killed"),
}


@pytest.mark.parametrize("behaviour", EXPECTED)
def test_a_cheat_is_rejected_and_the_reason_says_why(cheats: Pipeline, behaviour: str) -> None:
    kind, reason = EXPECTED[behaviour]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    outcome = cheats.run("BEHAVIOUR", behaviour)
    assert outcome.kind in kinds, outcome.reason
    assert reason in outcome.reason
    assert outcome.fitness is None


def test_the_same_code_without_a_fault_passes(cheats: Pipeline) -> None:
    outcome = cheats.run("BEHAVIOUR", "none")
    assert outcome.ok, outcome
