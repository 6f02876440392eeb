"""attention_varlen_wgmma.cu on the CPU model of wgmma, TMA and mbarriers; needs no GPU."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet

from evotune.problems.problem import Tensors
from evotune.trial import Value
from tests.shipped_kernels.emulation import EmulatedKernel, ModelComplaint

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

Values = Mapping[str, Value]
Lengths = Sequence[tuple[int, int]]
TWO: Values = {
    **{"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 48, "STAGES": 2, "QUERY_STAGES": 1},
    **{"PING_PONG": True, "SKIP_MASKED": True, "WALK": "queue", "HEAD_SECTION": 1},
}
ONE: Values = {
    **{"CONSUMER_WARPGROUPS": 1, "BLOCK_N": 32, "STAGES": 1, "QUERY_STAGES": 2},
    **{"SKIP_MASKED": False, "WALK": "snake", "HEAD_SECTION": 16, "EXP2_FMA_SHARE": 8},
    **{"STORE": "direct"},
}
THREE: Values = {
    **{**TWO, "CONSUMER_WARPGROUPS": 3, "BLOCK_N": 64, "STAGES": 3, "Q_IN_REGS": True},
    **{"STORE": "direct"},
}
PACKED: Values = {**TWO, "PACK_GQA": True, "WALK": "snake", "PING_PONG": False}
HALVES: Values = {**TWO, "BLOCK_N": 64, "HALF_BLOCKS": True, "QUERY_STAGES": 2}
HIDDEN: Values = {**HALVES, "HIDE_ENDS": True}
KEPT: Values = {**HIDDEN, "KEEP_MAXIMUM": True}
ODD: Lengths = ((0, 7), (1, 130), (70, 90), (33, 0), (129, 17), (0, 0), (64, 48), (130, 97), (5, 5))
FEW: Lengths = ((70, 90), (0, 3), (40, 17), (140, 21), (1, 50))
READ = "wait_mbarrier(query_full(ring.stage), ring.parity);\n    tile = tile_of"
BESIDE = 40  # rows and keys that no sequence has


def _later(*values: object) -> ParameterSet:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


def complaints(
    folder: Path,
    values: Values,
    lengths: Lengths,
    *,
    dtype: str = "float16",
    causal: bool = True,
    head_dim: int = 64,
    heads: tuple[int, int] = (2, 1),
    most_blocks: int = 3,
    seeds: Sequence[int] = (0, 1),
    mistakes: Mapping[str, str] | None = None,
) -> list[str]:
    """What is wrong where one sequence, and all behind the last one, is NaN or infinite: any row of
    the other sequences, or one that none has. The launch has so few blocks that each has several
    tiles."""
    kernel = EmulatedKernel(
        *(folder, "attention_varlen_wgmma", values, dtype),
        mistakes=mistakes,
        variant={"causal": causal},
        most_blocks=most_blocks,
    )
    job = kernel.job(_sizes(lengths, heads, head_dim))
    found = []
    for seed in seeds:
        inputs = kernel.problem.make_inputs(job.case, "needle" if seed else "normal", seed)
        _set_lengths(inputs, lengths)
        reference = kernel.problem.reference(job.case, inputs)
        tolerances = kernel.problem.tolerances(job.case, inputs, reference)["out"]
        spoilt = _spoil(inputs, len(lengths) // 2)
        try:
            out = kernel.run(job, inputs, seed)["out"].double()
        except ModelComplaint as complaint:
            found.append(str(complaint))
            continue
        rows = int(inputs["cu_seqlens_q"][-1])
        share = ((out - reference["out"]).abs() / tolerances).nan_to_num(nan=torch.inf)
        share[spoilt] = share[rows:] = 0
        if share.max() > 1:
            found.append(f"error {float(share.max())}")
        if not out[rows:].isnan().all():
            found.append("rows that no sequence has were written")
    return found


def _sizes(lengths: Lengths, heads: tuple[int, int], head_dim: int) -> dict[str, Value]:
    sizes: dict[str, Value] = {"sequences": len(lengths), "heads": heads[0], "kv_heads": heads[1]}
    for side, each in zip("qk", zip(*lengths, strict=True), strict=True):
        tokens = sum(each) + BESIDE
        sizes |= {f"tokens_{side}": tokens, f"longest_{side}": max(*each, -(-tokens // len(each)))}
    return {**sizes, "head_dim": head_dim}


def _set_lengths(inputs: Tensors, lengths: Lengths) -> None:
    for place, table in enumerate(("cu_seqlens_q", "cu_seqlens_k")):
        inputs[table][0] = 0
        inputs[table][1:] = torch.tensor([each[place] for each in lengths]).cumsum(0)


def _spoil(inputs: Tensors, sequence: int) -> slice:
    """Takes all numbers from a sequence, and from the keys and values behind the last one. The rows
    of the sequence."""
    own = {}
    for table, tensors in (("cu_seqlens_q", "q"), ("cu_seqlens_k", "kv")):
        begin, end, last = (int(inputs[table][at]) for at in (sequence, sequence + 1, -1))
        own[table] = slice(begin, end)
        for name in tensors:
            behind = inputs[name].shape[0] if name == "q" else last
            for part in (inputs[name][begin:end], inputs[name][behind:]):
                part[::2], part[1::2] = torch.nan, torch.inf
    return own["cu_seqlens_q"]


@pytest.mark.parametrize(
    ("values", "lengths", "problem"),
    [
        _later(TWO, FEW, {}),
        _later(ONE, FEW, {"dtype": "bfloat16", "causal": False}),
        (PACKED, FEW, {"heads": (8, 2)}),
        (HIDDEN, FEW, {}),
        _later(KEPT, ODD, {}),
        _later({**KEPT, "BLOCK_N": 32, "WALK": "snake"}, ODD, {"causal": False}),
        _later(HALVES, FEW, {}),
        _later({**HIDDEN, "WALK": "snake"}, ODD, {"most_blocks": 1, "head_dim": 128}),
        _later({**HIDDEN, "CONSUMER_WARPGROUPS": 3, "BLOCK_N": 32}, ODD, {"causal": False}),
        _later({**HALVES, "SKIP_MASKED": False}, ODD, {"dtype": "bfloat16"}),
        _later({**HALVES, "CONSUMER_WARPGROUPS": 3, "BLOCK_N": 32}, ODD, {"head_dim": 128}),
        _later({**HALVES, "PACK_GQA": True, "PING_PONG": False}, ODD, {"causal": False}),
        _later(TWO, ODD, {"causal": False, "dtype": "bfloat16"}),
        _later(TWO, ODD, {"most_blocks": 1}),
        _later(ONE, ODD, {"most_blocks": 100}),
        _later({**THREE, "Q_IN_REGS": False}, ODD, {"head_dim": 128, "heads": (3, 3)}),
        _later(THREE, ODD, {"head_dim": 96, "causal": False}),
        _later({**PACKED, "CONSUMER_WARPGROUPS": 1}, ODD, {"head_dim": 32, "heads": (6, 1)}),
        _later(PACKED, ODD, {"head_dim": 128, "heads": (12, 3), "causal": False}),
    ],
)
def test_every_row_of_every_sequence_is_right(
    values: Values, lengths: Lengths, problem: Mapping[str, Any], tmp_path: Path
) -> None:
    assert not complaints(tmp_path, values, lengths, **problem)


@pytest.mark.soak
def test_more_sequences_than_a_warp_has_lanes(tmp_path: Path) -> None:
    lengths = [(n % 3 * 20 + n % 2, n % 5 * 13) for n in range(70)]
    assert not complaints(tmp_path, {**ONE, "WALK": "queue"}, lengths, seeds=(0,))
    assert not complaints(tmp_path, {**ONE, "WALK": "snake"}, lengths, seeds=(0,), causal=False)


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        # Values behind a sequence stay as they are; its rows are stored one too far.
        _later("store_zeros_16(at + byte)", "", "error"),
        ("if (query < place.seq_len_q())", "if (query <= place.seq_len_q())", "written"),
        _later("if (place.query_of(group, 63) >= place.seq_len_q())", "if (false)", "written"),
        # The keys of another sequence; a mask from the first row on; the next tile's keys.
        _later("tile.first_k + row", "tile.first_q + row", "error"),
        _later("tile.keys - tile.rows + 1 + query", "1 + query", "error"),
        _later("tile.first_k + row", "tile.first_k + row + 1", "error"),
        # A wrong tile; the counter is not given back; a group without rows has a turn more.
        _later("begin + left - (upto - count)", "begin", "error"),
        _later("tile_heads - 1) *counter = 0", "tile_heads - 1) *counter = 1", "not 0"),
        _later("    skip<false>();", "    skip();", "found a mistake"),
        # Q is given back, or a tile read, too early.
        _later(READ, "tile = tile_of", "found a mistake"),
        _later("leave_queries();\n    for", "for", "found a mistake"),
        # A place is written over, or read, too early.
        _later("wait_mbarrier(query_empty(ring.stage), ring.parity ^ 1);", "", "found a mistake"),
        _later("wait_mbarrier(tile_found(ring.stage), ring.parity);", "", "found a mistake"),
        _later("    then();\n", "", "found a mistake"),  # nobody asks for the next tile
    ],
)
def test_a_mistake_shows(right: str, wrong: str, complaint: str, tmp_path: Path) -> None:
    found = complaints(tmp_path, TWO, FEW, mistakes={right: wrong}, seeds=(0, 1))
    assert any(complaint in words for words in found), found


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("    give_back_stored();\n#endif\n    if (group", "#endif\n    if (group"),
        ("      give_back_stored();\n#endif\n      stand", "#endif\n      stand"),
        ("+ QUERY_STAGES - 1) %", "+ QUERY_STAGES) %"),
        ("    if (owes && threadIdx", "    if (threadIdx"),
    ],
)
def test_a_hidden_end_that_is_wrong_shows(right: str, wrong: str, tmp_path: Path) -> None:
    assert complaints(tmp_path, HIDDEN, FEW, mistakes={right: wrong})


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("<= place.first_key(step) + BLOCK_N / 2", "<= place.first_key(step) + BLOCK_N / 2 + 8"),
        ("begins_half && masked <= step", "masked <= step"),
        ("begins_half && step == place.end_step", "step == place.end_step"),
    ],
)
def test_a_half_too_few_shows(right: str, wrong: str, tmp_path: Path) -> None:
    lengths = [*FEW, (100, 100), (64, 40)]
    assert complaints(tmp_path, HALVES, lengths, mistakes={right: wrong})


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_random_configurations_are_right_for_random_lengths(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    kv_heads, group = rng.choice((1, 2)), rng.choice((1, 2, 3, 4))
    lengths = [
        (rng.choice((0, 1, 63, 64, 65, rng.randrange(200))), rng.choice((0, 1, rng.randrange(260))))
        for _ in range(rng.randrange(1, 12))
    ]
    problem: dict[str, Any] = {"heads": (kv_heads * group, kv_heads), "causal": rng.random() < 0.6}
    problem["head_dim"] = rng.choice((32, 64, 96, 128))
    problem["dtype"] = rng.choice(("float16", "bfloat16"))
    kernel = EmulatedKernel(tmp_path, "attention_varlen_wgmma", {}, problem["dtype"])
    sizes = _sizes(lengths, problem["heads"], problem["head_dim"])
    values = dict(kernel.planner(sizes).bound.sample(rng))
    blocks = rng.randrange(1, 9)
    found = complaints(tmp_path, values, lengths, most_blocks=blocks, **problem)
    assert not found, (values, lengths, problem, blocks)


@pytest.mark.soak
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_no_schedule_deadlocks(groups: int, stages: int, tmp_path: Path) -> None:
    for query_stages, skips in itertools.product((1, 2), (False, True)):
        values: dict[str, Value] = {"CONSUMER_WARPGROUPS": groups, "STAGES": stages, "BLOCK_N": 32}
        values |= {"QUERY_STAGES": query_stages, "SKIP_MASKED": skips}
        if groups > 1:
            values["PING_PONG"] = True
        assert not complaints(tmp_path, values, FEW, seeds=range(4)), values
