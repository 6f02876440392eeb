"""The red team on the GPU: CUDA kernels that are wrong, broken or cheat, and must all be found out.

This is test_cpu.py for the behaviours of data/kernels/cheats.cu, with one `evotune run` for all.
Device code starts nothing that outlives a launch, so nothing is left behind here; but it may keep
answers in global memory, and the launches of a timed sample come from one graph.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from evotune.trial import Json

from .pipeline import SPACES

pytestmark = pytest.mark.gpu

EVOTUNE = [sys.executable, "-m", "evotune"]
OFF, NEVER = "out is off by", "never written"
KEPT = ("wrong_result|nan", "watched inputs|altered in place inputs|replayed normal inputs")
"""Old results, or none; the first check of the timed launches that finds them names its inputs."""

EXPECTED: dict[str, tuple[str, str]] = {
    # Wrong keys
    "drops_last_key": ("wrong_result", OFF),
    "drops_last_keys_when_long": ("wrong_result", "(1,1,319,64) causal"),
    "drops_odd_last_key": ("wrong_result", OFF),
    "drops_first_key": ("wrong_result", OFF),
    "causal_edge_early": ("wrong_result", OFF),
    "causal_edge_late": ("wrong_result", OFF),
    "causal_bottom_right": ("wrong_result", "(2,10/2,33x130,64) causal"),
    "reads_past_the_end": ("nan", "elements of out are NaN"),
    # Right for some cases only
    "one_length_only": ("wrong_result|nan", "(1,8/1,145x29,64,scale=0.3) causal"),
    "ignores_head_groups": ("wrong_result", "(3,9/3,63,64) causal"),
    # Bad numerics
    "no_scale": ("wrong_result", OFF),
    "no_rescale": ("wrong_result", OFF),
    "no_maximum": ("nan", "large_logits inputs"),
    "clamped_exp": ("wrong_result|nan", "large_logits inputs"),
    "fp16_scores": ("wrong_result", OFF),
    "fp16_accumulation": ("wrong_result", OFF),
    "e4m3_weights": ("wrong_result", OFF),
    "not_a_number": ("nan", "64 of 12288 elements of out are NaN"),
    # Memory
    "nothing_written": ("nan", "12288 of them never written"),
    "unwritten_row": ("nan", "64 of them never written"),
    "unwritten_column": ("nan", "192 of them never written"),
    "trusts_out_to_be_zero": ("nan", "12288 elements of out are NaN"),
    "trusts_scratch_to_be_zero": ("nan", "12288 elements of out are NaN"),
    "writes_past_the_end": ("out_of_bounds", "wrote outside out"),
    "writes_before_the_start": ("out_of_bounds", "wrote outside out"),
    "writes_past_the_workspace": ("out_of_bounds", "wrote outside scratch"),
    "writes_past_an_input": ("out_of_bounds", "wrote outside v"),
    "changes_an_input": ("out_of_bounds", "changed its input q"),
    "changes_an_input_when_timed": (
        f"out_of_bounds|{KEPT[0]}",
        f"changed its input v while it was timed|{KEPT[1]}",
    ),
    "leaves_the_counter": ("wrong_result", "left workspace counter (zero_once) other than zero"),
    # Not the same twice. A race may change a result in any way.
    "missing_barrier": ("wrong_result|nan|nondeterministic", "out"),
    "order_by_the_clock": ("nondeterministic", "differ between two equal launches"),
    "static_counter": ("nondeterministic", "differ between two equal launches"),
    "works_by_turns": ("nondeterministic", "differ between two equal launches"),
    # Answers from memory
    "returns_the_answer_before": ("wrong_result", OFF),
    "keyed_on_pointers": KEPT,
    "scratch_keeps_the_answer": KEPT,
    "packs_keys_once": KEPT,
    "memoises_some_inputs": KEPT,
    "memoises_all_inputs": ("too_fast|wrong_result", f"on those of the launch before|{KEPT[1]}"),
    # Works only when it is checked
    "works_when_poisoned": KEPT,
    "writes_only_poison": KEPT,
    "works_every_other_time": KEPT,
    "stops_working": ("nan", NEVER),
    # Attacks the device
    "illegal_address": ("illegal_access", "illegal"),
    "trap": ("launch_error", ""),
    "endless": ("timeout", "killed"),
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    """The trials of one run, by behaviour."""
    runs = ["--runs-dir", str(tmp_path_factory.mktemp("runs"))]
    space = str(SPACES / "cheats_cuda.yaml")
    subprocess.run([*EVOTUNE, "run", space, "--device", "cuda:0", *runs], check=True, timeout=500)
    report = subprocess.run(
        [*EVOTUNE, "report", "latest", "--format", "jsonl", *runs], check=True, capture_output=True
    )
    print(report.stdout.decode())
    found = [json.loads(line) for line in report.stdout.splitlines()]
    return {trial["configuration"]["BEHAVIOUR"]: trial for trial in found}


@pytest.mark.parametrize("behaviour", EXPECTED)
def test_a_cheat_is_rejected_and_the_reason_says_why(
    trials: dict[str, Json], behaviour: str
) -> None:
    kinds, reason = EXPECTED[behaviour]
    trial = trials[behaviour]
    assert trial["outcome"] in kinds.split("|"), trial["reason"]
    assert any(words in trial["reason"] for words in reason.split("|"))


def test_the_same_code_without_a_fault_passes(trials: dict[str, Json]) -> None:
    assert trials["right"]["outcome"] == "ok", trials["right"]["reason"]
    assert len(trials) == len(EXPECTED) + 1
