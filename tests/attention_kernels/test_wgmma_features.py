"""5_wgmma.cu with the features of attention on the CPU model of Hopper; needs no GPU."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from evotune.problems.problem import torch_dtype
from evotune.workers.executor import CaseJob

from .features_on_the_cpu import (
    Values,
    depends_on_shared_memory,
    other_no_numbers,
    planned,
    small_jobs,
    wrong_outputs,
)
from .hopper import emulation

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

SHORT: Values = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len": 100, "head_dim": 32}
LATE: Values = {
    **{"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 7, "seq_len_k": 97, "head_dim": 32},
}
LONG: Values = {**SHORT, "seq_len": 370}
MANY: Values = {**SHORT, "heads": 72, "seq_len": 250}  # more tiles than blocks of threads
RIGHT: Values = {"alignment": "bottom_right", "causal": True}
ALL: Values = {
    **{**RIGHT, "window_left": 20, "softcap": 8.0, "alibi": True, "sinks": True, "lse": True},
}
FEATURED: Values = {
    **{**RIGHT, "window_left": 60, "softcap": 30.0, "sinks": True, "lse": True},
}
MOD = "score - 0.1 * abs(row - column) if head % 2 == 0 else score / 2"
ONE: Values = {
    **{"CONSUMER_WARPGROUPS": 1, "BLOCK_N": 32, "STAGES": 2, "QUERY_STAGES": 1, "MIN_CTAS": 1},
    **{"PING_PONG": False, "RESCALE_LOG2": 0},
}
TWO: Values = {
    **{"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 32, "STAGES": 2, "PING_PONG": True},
    **{"SKIP_MASKED": True, "EXP2_FMA_SHARE": 4},
}
SPLIT: Values = {
    **{**ONE, "SPLIT_KV": 2, "PERSISTENT": 0, "WALK": "straight", "STORE": "direct"},
    **{"PACK_GQA": True, "OVERLAP": False},
}
TWO_SKIP: Values = {"CONSUMER_WARPGROUPS": 2, "SKIP_MASKED": True, "PING_PONG": True}
CLUSTER: Values = {**TWO, "CLUSTER": 2, "STORE": "direct"}
TAIL: Values = {**ONE, "SHARE_TAIL": True}
HIDDEN: Values = {"HIDE_ENDS": True, "QUERY_STAGES": 2, "STORE": "bulk"}
HALVES: Values = {"HALF_BLOCKS": True}
KEPT: Values = {"KEEP_MAXIMUM": True, "EXP2_FMA_SHARE": 0}
RIDES: Values = {"BIAS_IN_PRODUCT": True}
WINDOW: Values = {**HIDDEN, **HALVES, **KEPT, "CONSUMER_WARPGROUPS": 3}  # as the champion's
FIND_MASKS = "find_masks<PART>(place, step, masked);"
LINEAR = "score - 0.1 * (row - column) if head % 2 == 0 else score"
NOT_LINEAR = (
    "score - 0.1 * (row - column) if row > column else score + 0.1 * (row - column)",
    "score + 0.1 * (column if column > 50 else -column)",
    "min(score - 0.1 * (row - column), score + 0.1 * (row - column))",
    "score - 0.1 * max(row - column, column - row)",
    "score - (0.1 * column if score > 0 else 0.02 * column)",
)
ALIBI: Values = {"causal": True, "alibi": True}


def complaints(
    folder: Path,
    shape: Values,
    variant: Values,
    values: Values,
    mistakes: Mapping[str, str] | None = None,
    *,
    dtype: str = "float16",
) -> list[str]:
    planner = planned("attention-wgmma-features", folder, shape, variant, dtype)
    jobs = small_jobs(planner, values, count=4)
    library = emulation.build(folder, jobs[0].compile, mistakes)

    def launch(job: CaseJob, places: Mapping[str, int]) -> None:
        emulation.launch(library, job.plan, places, seed=1)

    return wrong_outputs(jobs, launch)


def _later(*values: object) -> Any:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("variant", "shape", "values"),
    [
        (ALL, LATE, ONE),
        _later({"softcap": 30.0}, SHORT, TWO),
        _later({**RIGHT, "softcap": 30.0, "sinks": True}, SHORT, {**ONE, "RESCALE_LOG2": 8}),
        _later({"softcap": 30.0, "window_left": 40}, SHORT, SPLIT),
        _later({"softcap": 300.0, "sinks": True}, SHORT, {**TWO, "RESCALE_LOG2": 8}),
        _later(ALL, SHORT, TWO),
        _later({"window_left": 7, "window_right": 3, "lse": True}, SHORT, ONE),
        _later({**RIGHT, "window_left": 40, "sinks": True}, LATE, SPLIT),
        _later({**RIGHT, "window_left": 40}, SHORT, CLUSTER),
        _later({"causal": True, "window_left": 20}, SHORT, TWO),
        _later({"causal": True, "window_left": 5, "lse": True}, SHORT, {**TWO, "OVERLAP": False}),
        _later({"causal": True, "window_left": 60}, MANY, {**TWO, **WINDOW}),
        _later({"causal": True, "window_left": 40}, LONG, {**TWO, **KEPT, "OVERLAP": False}),
        _later({"window_left": 3, "window_right": 9}, SHORT, {**TWO, "QUERY_STAGES": 1}),
        _later({"causal": True, "window_left": 70}, LONG, {**TWO, "BLOCK_N": 160}),
        _later({**RIGHT, "window_left": 9}, SHORT, {**SPLIT, **TWO_SKIP}),
        _later({"alignment": "bottom_right", "window_right": 2, "sinks": True}, LATE, TWO),
        _later({**RIGHT}, LATE, TWO),
        _later({"softcap": 5.0, "lse": True, "sinks": True}, SHORT, TAIL),
        _later({"alibi": True, "sinks": True}, SHORT, {**ONE, "RESCALE_LOG2": 8}),
        _later({**ALIBI, **RIGHT, "sinks": True, "lse": True}, LATE, {**ONE, **RIDES}),
        _later({**ALIBI, "sinks": True, "lse": True}, SHORT, {**TWO, **RIDES, "RESCALE_LOG2": 8}),
        _later({**ALIBI, "window_left": 40, "lse": True}, SHORT, {**SPLIT, **RIDES}),
        _later(ALIBI, SHORT, {**CLUSTER, **RIDES, "Q_IN_REGS": True}),
        _later({**ALIBI, "score_mod": LINEAR}, SHORT, {**ONE, **RIDES}),
        ({"score_mod": LINEAR, "lse": True}, SHORT, {**ONE, **RIDES}),
        _later({**RIGHT, "score_mod": "score + 0.05 * column"}, LATE, {**TWO, **RIDES}),
        _later({"score_mod": LINEAR, "sinks": True}, SHORT, {**SPLIT, **RIDES}),
        *(_later({"score_mod": mod}, SHORT, {**ONE, **RIDES}) for mod in (MOD, *NOT_LINEAR)),
        _later({"score_mod": "score * 0.5"}, SHORT, {**ONE, **RIDES}),
        _later({"score_mod": "score - 3 if row < column else score"}, SHORT, {**ONE, **RIDES}),
        _later({"alibi": True}, SHORT, {**ONE, **RIDES}),
        _later({"score_mod": MOD, "lse": True}, SHORT, SPLIT),
        _later({**ALL, "score_mod": MOD}, LATE, SPLIT),
    ],
)
def test_a_feature_is_right(variant: Values, shape: Values, values: Values, tmp_path: Path) -> None:
    assert not complaints(tmp_path, shape, variant, values)


def complaints_of_small_scores(folder: Path, mistakes: Mapping[str, str] | None) -> list[str]:
    """Keys of a score of -7.4 come first, then 64 times as many of -13.8. A kernel that weighed the
    former as 2^-11 would round the latter as subnormal numbers, all of them up or all down."""
    shape = {**LATE, "heads": 1, "kv_heads": 1, "seq_len_q": 16, "seq_len_k": 2080}
    planner = planned("attention-wgmma-features", folder, shape, {"softcap": 50.0}, "float16")
    (job,) = small_jobs(planner, ONE, 1)
    q, v = torch.ones(1, 1, 16, 32).half(), torch.ones(1, 1, 2080, 32).half()
    of_score = -math.sqrt(32) / 32  # from a score before the cap to an element of k
    scores = 13.8 + torch.arange(100) / 400
    halves = (of_score * scores).half()
    units = 2.0**24 * torch.exp(50 * torch.tanh(halves.double() / of_score / -50))
    worst = halves[(units % 1 - 0.5).abs().argmin()]
    k = worst.expand(1, 1, 2080, 32).clone()
    k[:, :, -32:] = of_score * 7.4
    library = emulation.build(folder, job.compile, mistakes)

    def launch(job: CaseJob, places: Mapping[str, int]) -> None:
        emulation.launch(library, job.plan, places, seed=1)

    return wrong_outputs([job], launch, {"q": q, "k": k, "v": v})


def test_small_scores_take_no_bits_from_the_weights_of_smaller_ones(tmp_path: Path) -> None:
    assert not complaints_of_small_scores(tmp_path, None)


@pytest.mark.soak
@pytest.mark.parametrize(
    "mistakes",
    [
        {"11.0f : 7.5f": "11.0f : 60.0f"},
        {"11.0f : 7.5f": "11.0f : 11.0f", "fmaxf(before, -Cap::kMost)": "fmaxf(before, 0.0f)"},
    ],
)
def test_small_scores_without_a_fitting_maximum_show(
    mistakes: Mapping[str, str], tmp_path: Path
) -> None:
    assert complaints_of_small_scores(tmp_path, mistakes)


@pytest.mark.soak
@pytest.mark.parametrize("values", [ONE, TWO, SPLIT, TAIL])
def test_bits_do_not_depend_on_left_overs_in_shared_memory(values: Values, tmp_path: Path) -> None:
    planner = planned("attention-wgmma-features", tmp_path, SHORT, {"softcap": 30.0}, "float16")
    (job,) = small_jobs(planner, values, 1)
    library = emulation.build(tmp_path, job.compile)

    def launch(job: CaseJob, places: Mapping[str, int], left_over: int) -> None:
        emulation.launch(library, job.plan, places, seed=1, left_over=left_over)

    assert not depends_on_shared_memory(job, planner.problem, launch)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("variant", "values"),
    [
        ({"softcap": 30.0, "lse": True}, TWO),
        _later({"softcap": 5.0, "sinks": True}, {**TWO, "RESCALE_LOG2": 8}),
        _later({"softcap": 30.0}, ONE),
        _later({"alibi": True, "causal": True}, TWO),
        _later({"causal": True, "window_left": 20}, {**TWO, "HALF_BLOCKS": True}),
        _later({"score_mod": "max(score, row - column)"}, TWO),
    ],
)
def test_no_nan_is_lost_and_none_changes_other_rows(
    variant: Values, values: Values, tmp_path: Path
) -> None:
    planner = planned("attention-wgmma-features", tmp_path, SHORT, variant, "float16")
    (job,) = small_jobs(planner, values, 1)
    library = emulation.build(tmp_path, job.compile)

    def launch(job: CaseJob, places: Mapping[str, int]) -> None:
        emulation.launch(library, job.plan, places, seed=1)

    assert not other_no_numbers(job, planner.problem, launch)


@pytest.mark.soak
@pytest.mark.parametrize("variant", [{"softcap": 300.0}, ALIBI, {"score_mod": LINEAR}])
def test_changed_scores_in_bfloat16_are_right(variant: Values, tmp_path: Path) -> None:
    values = {**TWO, "BIAS_IN_PRODUCT": "softcap" not in variant}
    assert not complaints(tmp_path, SHORT, variant, values, dtype="bfloat16")


@pytest.mark.soak
@pytest.mark.parametrize("head_dim", [192, 256])
def test_other_head_sizes_are_right(head_dim: int, tmp_path: Path) -> None:
    values = {**TWO, "QUERY_STAGES": 1, "STAGES": 1}
    shape = {**LATE, "head_dim": head_dim}
    assert not complaints(tmp_path, shape, {"causal": True, "window_left": 40}, values)


@pytest.mark.parametrize(
    ("variant", "shape", "values"),
    [
        ({"causal": True, "window_left": 23}, SHORT, TWO),
        _later({"causal": True}, SHORT, {**TWO, "SKIP_MASKED": True}),
        _later({"causal": True}, SHORT, {**TWO, "SKIP_MASKED": False}),
        _later({}, LATE, {**ONE, "OVERLAP": False}),
        _later({}, {**SHORT, "seq_len": 40}, {**ONE, "Q_IN_REGS": True}),
        _later({"causal": True, "window_left": 70}, LONG, {**TWO, "BLOCK_N": 160}),
        _later({**RIGHT, "window_left": 40, "sinks": True}, LATE, SPLIT),
        _later({**RIGHT, "window_left": 9}, SHORT, {**SPLIT, **TWO_SKIP}),
        _later({"causal": True, "window_left": 40}, SHORT, CLUSTER),
        _later({"window_left": 7, "window_right": 3, "lse": True}, SHORT, ONE),
        _later({"softcap": 30.0, "window_left": 40}, SHORT, {**TWO, "OVERLAP": False}),
        _later({"softcap": 300.0, "causal": True}, SHORT, {**TWO, "RESCALE_LOG2": 8}),
        _later({"softcap": 5.0, "lse": True}, SHORT, TAIL),
        _later({**ALIBI, "window_left": 40}, SHORT, {**TWO, **RIDES}),
        _later({**ALIBI, **RIGHT, "lse": True}, LATE, {**ONE, **RIDES}),
        _later({"causal": True, "score_mod": MOD, "window_left": 30}, SHORT, TWO),
        _later({**RIGHT, "window_left": 20}, SHORT, {**ONE, "PACK_GQA": True}),
    ],
)
def test_half_of_a_block_at_the_ends_is_enough(
    variant: Values, shape: Values, values: Values, tmp_path: Path
) -> None:
    assert not complaints(tmp_path, shape, variant, {**values, "HALF_BLOCKS": True})


@pytest.mark.parametrize(
    ("variant", "shape", "values"),
    [
        ({"causal": True, "window_left": 23, "lse": True}, SHORT, TWO),
        _later({"causal": True}, SHORT, {**TWO, "OVERLAP": False}),
        _later({"causal": True, "sinks": True, "lse": True}, LONG, {**TWO, "WALK": "straight"}),
        _later({"softcap": 5.0, "lse": True}, SHORT, TAIL),
        _later({}, LATE, {**TWO, "STAGES": 1}),
        _later({**RIGHT, "window_left": 40}, SHORT, {**CLUSTER, "PERSISTENT": 1}),
        _later({**RIGHT, "window_left": 9}, SHORT, {**TWO, "HALF_BLOCKS": True}),
    ],
)
def test_an_end_of_a_tile_may_be_hidden(
    variant: Values, shape: Values, values: Values, tmp_path: Path
) -> None:
    assert not complaints(tmp_path, shape, variant, {**values, **HIDDEN})


@pytest.mark.parametrize(
    ("variant", "shape", "values"),
    [
        ({"causal": True, "window_left": 70, "lse": True}, LONG, TWO),
        _later({"causal": True}, LONG, {**TWO, "OVERLAP": False}),
        _later({"causal": True, "sinks": True}, LONG, {**TWO, **HIDDEN, "HALF_BLOCKS": True}),
        _later({"lse": True}, SHORT, TAIL),
        _later({}, SHORT, {**ONE, "RESCALE_LOG2": 0, "Q_IN_REGS": True}),
        _later({**RIGHT}, LATE, SPLIT),
        _later({"alibi": True}, LONG, {**TWO, "WEIGHT_SETS": 2}),
        _later({"score_mod": MOD, "causal": True}, LONG, {**CLUSTER, "PERSISTENT": 1}),
        _later({**ALIBI, "lse": True}, LONG, {**TWO, **RIDES}),
        _later({"score_mod": LINEAR}, SHORT, {**ONE, **RIDES}),
        _later({"causal": True, "window_left": 23}, LONG, {**TWO, **HIDDEN, **HALVES}),
        _later({"causal": True, "window_left": 23}, LONG, {**TWO, **HIDDEN, "STAGES": 1}),
        _later({"window_left": 9, "window_right": 9}, LONG, {**TWO, "BLOCK_N": 160}),
    ],
)
def test_a_maximum_may_be_kept(
    variant: Values, shape: Values, values: Values, tmp_path: Path
) -> None:
    assert not complaints(tmp_path, shape, variant, {**values, **KEPT})


def complaints_of_rising_scores(
    folder: Path,
    variant: Values,
    values: Values,
    mistakes: Mapping[str, str] | None = None,
    *,
    head_dim: int = 64,
    dtype: str = "float16",
    steepest: float = 100.0,
    heads: int = 1,
) -> list[str]:
    """Scores rise from the last keys to the first, those of the steepest rows by more from one
    block to the next than an exponent of 2 has room for; with 30 half precision has no room for the
    weights, but float has. In every other warp only the second one of a thread's rows rises."""
    shape = {**SHORT, "heads": heads, "kv_heads": 1, "seq_len": 192, "head_dim": head_dim}
    planner = planned("attention-wgmma-features", folder, shape, variant, dtype)
    (job,) = small_jobs(planner, {**values, **KEPT}, 1)
    random = torch.Generator().manual_seed(0)
    q = torch.rand(192, head_dim, generator=random) + 0.5
    row = torch.arange(192)
    slopes = torch.tensor([0.0, 1.0, 3.0, steepest, -5.0])[row % 5]
    q *= torch.where((row // 16 % 2 == 1) & (row % 16 < 8), 0.0, slopes)[:, None]
    k = torch.rand(192, head_dim, generator=random) * torch.linspace(2, 0, 192)[:, None]
    v = torch.randn(192, head_dim, generator=random)
    library = emulation.build(folder, job.compile, mistakes)

    def launch(job: CaseJob, places: Mapping[str, int]) -> None:
        emulation.launch(library, job.plan, places, seed=1)

    rises = -(q @ k.T).unflatten(1, (-1, 32)).amax(2).diff(dim=1) / head_dim**0.5 * 1.44
    assert rises.max() > (127 if steepest > 30 else 16)
    tensors = (("q", q), ("k", k), ("v", v))
    given = {name: value[None, None].to(torch_dtype(dtype)) for name, value in tensors}
    given["q"] = given["q"].repeat(1, heads, 1, 1)
    return wrong_outputs([job], launch, given)


@pytest.mark.parametrize(
    ("variant", "values", "head_dim"),
    [
        ({}, TWO, 64),
        _later({"causal": True, "lse": True}, TWO, 32),
        _later({"causal": True, "window_left": 90}, {**TWO, **HIDDEN, "HALF_BLOCKS": True}, 96),
        _later({}, {**ONE, "OVERLAP": False, "Q_IN_REGS": True}, 128),
        _later({"score_mod": MOD, "causal": True}, {**TWO, "WEIGHT_SETS": 2, "BLOCK_N": 64}, 64),
        _later({}, TAIL, 64),
        _later({"score_mod": LINEAR, "causal": True}, {**TWO, **RIDES}, 64),
        _later({"causal": True}, {**CLUSTER, "PERSISTENT": 1}, 64),
        _later({}, {**TWO, "QUERY_STAGES": 1, "STAGES": 1}, 192),
        _later({"causal": True}, {**ONE, "STAGES": 1}, 256),
        _later({}, {**SPLIT, "PACK_GQA": False}, 64),
    ],
)
def test_a_maximum_that_rises_is_not_kept(
    variant: Values, values: Values, head_dim: int, tmp_path: Path
) -> None:
    assert not complaints_of_rising_scores(tmp_path, variant, values, head_dim=head_dim)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("offset, problem.exponent_scale())) return;\n      scores_again();",
         "offset, problem.exponent_scale())) return;"),
        ("most = most_added(COUNT / 2)", "most = 3e38f"),
        ("chunk + lane / 8)", "chunk + lane / 8 % 2)"),
        ("8 * tile + lane % 8", "8 * tile + 7 - lane % 8"),
        ("!FIRST && (kHidesApart", "(kHidesApart"),
        (" && added[1] <= most", ""),
        ("    sum[0] += added[0], sum[1] += added[1];\n    moved = false;",
         "    sum[0] += added[0], sum[1] += added[1];"),
        ("kHoldsKeys = KEEPS_MAXIMUM && (kHidesApart || !MASKED)", "kHoldsKeys = false"),
        ("Rows::chunk_at(64, 16 * warp + lane % 16, chunk", "Rows::chunk_at(64, lane % 16, chunk"),
        ("sum[0] += added[0], sum", "sum"),
    ],
)  # fmt: skip
def test_a_maximum_that_is_kept_wrongly_shows(right: str, wrong: str, tmp_path: Path) -> None:
    mistakes = {right: wrong}
    assert (
        complaints_of_rising_scores(tmp_path, {}, TWO, mistakes)
        or complaints_of_rising_scores(tmp_path, {}, TWO, mistakes, steepest=30.0)
        or complaints(tmp_path, SHORT, {}, {**TWO, **KEPT}, mistakes)
    )


@pytest.mark.parametrize(
    ("head_dim", "value_dim", "variant", "values"),
    [
        (96, 64, FEATURED, ONE),  # panels of 32 columns and of 64
        _later(192, 128, FEATURED, {**TWO, "QUERY_STAGES": 1, "STAGES": 1}),
        _later(64, 32, FEATURED, CLUSTER),
        _later(64, 32, FEATURED, {**SPLIT, "PACK_GQA": False}),
        _later(64, 32, FEATURED, {**ONE, "PACK_GQA": True}),
        _later(64, 32, {"sinks": True, "lse": True}, TAIL),  # which windows do not share
        _later(128, 32, FEATURED, {**ONE, "Q_IN_REGS": True, "STORE": "bulk"}),
    ],
)
def test_values_may_be_narrower_than_keys(
    head_dim: int, value_dim: int, variant: Values, values: Values, tmp_path: Path
) -> None:
    shape = {**SHORT, "head_dim": head_dim, "value_dim": value_dim}
    assert not complaints(tmp_path, shape, variant, values)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("wait_mbarrier(query_full(ring.stage), ring.parity);\n    int", "int"),
        ("first_step, end_step, kShareTail", "first_step, first_step + 1, kShareTail"),
        ("    if (owes && threadIdx", "    if (threadIdx"),
        ("    give_back_stored();\n#endif\n    if (group", "#endif\n    if (group"),
        ("scale[half] = inverse_sum(place, half)", "scale[half] = inverse_sum(place, 0)"),
    ],
)
def test_a_hidden_end_that_is_wrong_shows(right: str, wrong: str, tmp_path: Path) -> None:
    assert complaints(tmp_path, SHORT, {"causal": True}, {**TWO, **HIDDEN}, {right: wrong})


@pytest.mark.soak
def test_a_maximum_that_rises_is_not_kept_for_packed_heads(tmp_path: Path) -> None:
    values = {**TWO, "PACK_GQA": True}
    assert not complaints_of_rising_scores(tmp_path, {"causal": True}, values, heads=2)


@pytest.mark.soak
def test_a_maximum_that_rises_is_not_kept_in_bfloat16(tmp_path: Path) -> None:
    assert not complaints_of_rising_scores(tmp_path, {"causal": True}, TWO, dtype="bfloat16")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong", "variant", "values"),
    [
        ("      scores_again();\n#if HAS_WINDOW\n", "      scores_again();\n#if 0\n",
         {"causal": True, "window_left": 90}, {}),
        ("0u, 0u}, b[0], b[1]", "0u, 0u}, b[1], b[1]", {"score_mod": LINEAR}, RIDES),
        ("(RESCALE_LOG2 > 0 || KEEP_MAXIMUM) && !moved", "RESCALE_LOG2 > 0 && !moved",
         {}, {"RESCALE_LOG2": 0}),
    ],
)  # fmt: skip
def test_scores_again_with_a_mistake_show(
    right: str, wrong: str, variant: Values, values: Values, tmp_path: Path
) -> None:
    found = complaints_of_rising_scores(tmp_path, variant, {**TWO, **values}, {right: wrong})
    more = {**TWO, **KEPT, **values}
    assert found or complaints(tmp_path, LONG, variant, more, {right: wrong})


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("    if (!is_last) walk.next();\n", ""),
        ("if (is_last) walk.next();", "walk.next();"),
        ("rows[0].template hides_some<0>() || ", ""),
        ("      if (!masked) return;", "      if (step > 0) return;"),
        ("masks_of<PART>() = {seen, hidden}", "masks_of<PART>() = {hidden, seen}"),
        (f"    {FIND_MASKS}\n    wait_products<0>", "    wait_products<0>"),
        (f"{FIND_MASKS}\n      wait_products<1>", "wait_products<1>"),
    ],
)
def test_a_window_that_is_wrong_shows(right: str, wrong: str, tmp_path: Path) -> None:
    # Of a thread's two rows the second one sees all of a half block, the first one a part of it.
    shape = {**LATE, "seq_len_q": 93, "seq_len_k": 100}
    values = {**TWO, **HIDDEN, **KEPT}
    assert complaints(tmp_path, shape, {**RIGHT, "window_left": 40}, values, {right: wrong})


@pytest.mark.soak
def test_masks_that_are_not_found_without_overlap_show(tmp_path: Path) -> None:
    missing = {f"{FIND_MASKS}\n      wait_products<0>": "wait_products<0>"}
    values = {**TWO, **KEPT, "OVERLAP": False}
    assert complaints(tmp_path, LONG, {"causal": True, "window_left": 40}, values, missing)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong", "variant"),
    [
        ("max(begin - 32", "max(begin + 1 - 32", {"window_left": 9}),
        ("left = place.blocks - (", "left = 1 + place.blocks - (", {"window_left": 9}),
        ("before = place.blocks -", "before = place.blocks - 1 -", {"window_left": 40}),
        ("<= place.first_key(step)", "<= 8 + place.first_key(step)", {"window_right": 20}),
        (">= place.first_key(step)", ">= -8 + place.first_key(step)", {"window_left": 20}),
        ("i = BLOCK_N / 8; i < BLOCK_N / 4;", "i = 0; i < 0;", {"causal": True}),
        ("sinks[of_head]", "sinks[0]", {"sinks": True}),
        ("batch * problem.heads + of_head", "of_head", {"lse": True}),
        ("6.0f) - 1.0f / 3.0f", "6.0f) - 0.2f", {"softcap": 30.0}),
        ("fmaf(made.third, made.end, first)", "first", {"softcap": 30.0}),
        ("factor = cap(weight);", "factor *= kLog2e * 0.17677669f;", {"softcap": 30.0}),
        ("fminf(0.18f,", "fminf(1.8f,", {"softcap": 4.0}),
        ("static_cast<float>(key)", "static_cast<float>(key + key / 31)", ALIBI),
        ("(chunk ^ (key / 4 & 1))", "chunk", ALIBI),
        ("next[half] - offset[half]", "next[half]", ALIBI),
        ("fmaf(-256.0f, high, rise)", "0.0f", ALIBI),
        ("of_score * bias.base", "bias.base", {"score_mod": LINEAR}),
    ],
)
def test_a_mistake_shows(right: str, wrong: str, variant: Values, tmp_path: Path) -> None:
    values = {**ONE, "BIAS_IN_PRODUCT": "softcap" not in variant, "SKIP_MASKED": True}
    values["HALF_BLOCKS"] = True
    assert complaints(tmp_path, SHORT, variant, values, {right: wrong})
