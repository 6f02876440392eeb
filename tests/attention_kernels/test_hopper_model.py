"""The Hopper kernels' sources on a CPU model of wgmma, TMA and mbarriers, with fibers as threads.

These tests need no GPU. They show that each element is read from where it was written, that softmax
and fragments fit together, and that no schedule that was tried deadlocks or reads too early.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from _pytest.mark import ParameterSet

from evotune.trial import Configuration, Value
from evotune.workers.executor import TIMED, CaseJob

from .hopper import emulation
from .hopper.planning import planner_on

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

ROOT = Path(__file__).parents[2]
SPACES = {
    name: yaml.safe_load((ROOT / "search_spaces" / f"attention_{name}.yaml").read_text())
    for name in ("wgmma", "tma")
}
SPACE = SPACES["wgmma"]
ODD: list[dict[str, Value]] = [
    {"batch": 1, "heads": 2, "kv_heads": 1, "seq_len": 67},
    {"batch": 1, "heads": 1, "seq_len_q": 145, "seq_len_k": 29},
    {"batch": 2, "heads": 2, "seq_len_q": 33, "seq_len_k": 130},
    {"batch": 1, "heads": 3, "seq_len": 257},
]
GROUPED: list[dict[str, Value]] = [
    {"batch": 2, "heads": 8, "kv_heads": 2, "seq_len_q": 1, "seq_len_k": 75},
    {"batch": 1, "heads": 6, "kv_heads": 1, "seq_len_q": 67, "seq_len_k": 100},  # 2 heads a tile
    {"batch": 1, "heads": 128, "kv_heads": 1, "seq_len_q": 2, "seq_len_k": 40},  # 64 heads a tile
    {"batch": 1, "heads": 3, "kv_heads": 1, "seq_len": 33},  # 1 head a tile
]


def _later(*values: object) -> ParameterSet:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


def case_jobs(
    folder: Path,
    values: Mapping[str, Value],
    shapes: Sequence[Mapping[str, Value]],
    multiprocessors: int,
    kernel: str = "wgmma",
    **problem: Value,
) -> list[CaseJob]:
    """The compile jobs and launch plans of the configuration `values` on these shapes."""
    shipped = SPACES[kernel]
    causal, dtype = bool(problem.get("causal", False)), problem.get("dtype", "float16")
    space = {**shipped, "root": str(ROOT), "default": {**shipped["default"], **values}}
    head_dim = problem.get("head_dim", 64)
    space["problem"] = {
        "name": "attention",
        "dtype": dtype,
        "shapes": [{**shape, "head_dim": head_dim} for shape in shapes],
        "variants": [{"causal": causal}],
    }
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    planner = planner_on(multiprocessors, path)
    configuration = planner.bound.repair(space["default"], random.Random(0))
    assert configuration is not None
    assert {name: configuration[name] for name in values} == values
    cases = planner.proposal(0, Configuration(configuration)).cases
    return [job for job in cases if job.role == TIMED]


def complaints(
    folder: Path,
    values: Mapping[str, Value],
    shapes: Sequence[Mapping[str, Value]] = ODD,
    *,
    seeds: int = 2,
    mistakes: Mapping[str, str] | None = None,
    multiprocessors: Sequence[int] = (2,),
    kernel: str = "wgmma",
    **problem: Value,
) -> Iterator[str]:
    """The mistakes found on any shape, in the words of the model; an error is above 2 roundings.

    The devices have so few `multiprocessors` that a persistent block has several tiles. With
    SPLIT_KV above 1 a device has 132, since SPLIT_KV is for tiles too few to fill a device.
    """
    if int(values.get("SPLIT_KV", 1)) > 1:
        multiprocessors = (132,)
    jobs = [
        job
        for few in multiprocessors
        for job in case_jobs(folder, values, shapes, few, kernel, **problem)
    ]
    library = emulation.build(folder, jobs[0].compile, mistakes)
    limit = 2**-9 if problem.get("dtype", "float16") == "float16" else 2**-6
    for number, job in enumerate(jobs):
        inputs = emulation.inputs_of(job.case, seed=number)
        expected = emulation.reference(job.case, inputs)
        for seed in range(seeds):
            ran = emulation.run(library, job.plan, job.case, inputs, seed)
            if ran.out is None:
                yield ran.complaint
            else:
                error = np.abs(ran.out - expected) / np.maximum(1.0, np.abs(expected))
                if not error.max() <= limit:
                    yield f"{job.case.label}, {job.plan.launches[0].grid}: error {error.max()}"


SMALLEST: dict[str, Value] = {
    "CONSUMER_WARPGROUPS": 1,
    "BLOCK_N": 32,
    "STAGES": 1,
    "QUERY_STAGES": 1,
    "PRODUCER_WARPS": 1,
    "PRODUCER_REGISTERS": 24,
    "OVERLAP": False,
    "PERSISTENT": 0,
    "RESCALE_LOG2": 0,
    "STORE": "direct",
}
TWO: dict[str, Value] = {"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 48, "PING_PONG": True}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        pytest.param(SMALLEST, {}, marks=pytest.mark.soak),
        pytest.param(
            {"SKIP_MASKED": True, "PING_PONG": True}, {"causal": True}, marks=pytest.mark.soak
        ),
        pytest.param(
            {**TWO, "STAGES": 1, "EXP2_FMA_SHARE": 8},
            {"causal": True, "dtype": "bfloat16"},
            marks=pytest.mark.soak,
        ),
        pytest.param(
            {**TWO, "OVERLAP": False, "Q_IN_REGS": True, "WALK": "snake"},
            {"head_dim": 32},
            marks=pytest.mark.soak,
        ),
        pytest.param(
            {**TWO, "STORE": "direct", "STAGES": 3, "RESCALE_LOG2": 0},
            {"head_dim": 96},
            marks=pytest.mark.soak,
        ),
        pytest.param(
            {**TWO, "HEAD_SECTION": 1, "QUERY_STAGES": 1, "WEIGHT_SETS": 2},
            {"head_dim": 128},
            marks=pytest.mark.soak,
        ),
    ],
)
def test_odd_shapes_come_out_right(
    values: Mapping[str, Value], problem: Mapping[str, Value], tmp_path: Path
) -> None:
    assert not list(complaints(tmp_path, values, **problem))


@pytest.mark.parametrize(
    ("values", "shapes"),
    [
        pytest.param(TWO, ODD, marks=pytest.mark.soak),
        pytest.param({**TWO, "STORE": "direct", "CLUSTER": 2}, ODD, marks=pytest.mark.soak),
        pytest.param({**TWO, "PACK_GQA": True}, GROUPED, marks=pytest.mark.soak),
        pytest.param({**TWO, "SHARE_TAIL": True}, ODD, marks=pytest.mark.soak),
    ],
)
def test_tensors_may_have_any_strides(
    values: Mapping[str, Value], shapes: Sequence[Mapping[str, Value]], tmp_path: Path
) -> None:
    layouts = itertools.cycle(["mixed", "blhd", "packed_qkv"])
    laid_out = [{**shape, "layout": layout} for shape, layout in zip(shapes, layouts, strict=False)]
    assert not list(complaints(tmp_path, values, laid_out, seeds=1))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("out_strides.head_at(batch, of_head)", "out_strides.head_at(batch, 0)"),
        _later("problem.out_strides.further", "Strides(0, 0, HEAD_DIM).further"),
    ],
)
def test_a_wrong_stride_shows(right: str, wrong: str, tmp_path: Path) -> None:
    shapes = [{"batch": 2, "heads": 2, "seq_len": 40, "layout": "mixed"}]
    values, mistakes = {**TWO, "STORE": "direct"}, {right: wrong}
    assert list(complaints(tmp_path, values, shapes, seeds=1, mistakes=mistakes))


SPLIT: dict[str, Value] = {**TWO, "CONSUMER_WARPGROUPS": 1, "PING_PONG": False, "BLOCK_N": 32}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({**TWO, "SPLIT_KV": 4, "STAGES": 1, "RESCALE_LOG2": 0}, {"dtype": "bfloat16"}),
        pytest.param(
            {**SPLIT, "SPLIT_KV": 8, "OVERLAP": False, "SKIP_MASKED": True},
            {"causal": True},
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_cluster_shares_the_keys_of_a_tile(
    values: Mapping[str, Value], problem: Mapping[str, Value], tmp_path: Path
) -> None:
    """Some of the shapes have fewer blocks of keys than the cluster has blocks."""
    assert not list(complaints(tmp_path, values, seeds=1, **problem))


def test_a_cluster_loads_keys_once_for_all_its_blocks(tmp_path: Path) -> None:
    """A cluster's tiles lie side by side (also where there is only one); each block has several."""
    values = {**TWO, "CLUSTER": 2, "WALK": "snake", "WEIGHT_SETS": 2, "SKIP_MASKED": True}
    assert not list(complaints(tmp_path, values, causal=True))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        _later(TWO, {"causal": True}),
        ({**SPLIT, "SPLIT_KV": 2, "Q_IN_REGS": True}, {"head_dim": 32}),
    ],
)
def test_heads_of_a_group_share_a_tile(
    values: Mapping[str, Value], problem: Mapping[str, Value], tmp_path: Path
) -> None:
    packed = {**values, "PACK_GQA": True}
    assert not list(complaints(tmp_path, packed, GROUPED, seeds=1, **problem))


SHARED: dict[str, Value] = {**TWO, "SHARE_TAIL": True}


@pytest.mark.parametrize(
    ("values", "shapes", "problem"),
    [
        ({"WEIGHT_SETS": 2}, [{"batch": 1, "heads": 5, "seq_len": 100}], {}),
        pytest.param({"WEIGHT_SETS": 2}, ODD, {}, marks=pytest.mark.soak),
        pytest.param(
            {"PACK_GQA": True, "STORE": "direct", "QUERY_STAGES": 1, "HEAD_SECTION": 1},
            GROUPED,
            {"head_dim": 128, "dtype": "bfloat16"},
            marks=pytest.mark.soak,
        ),
    ],
)
def test_the_last_tiles_are_shared_out(
    values: Mapping[str, Value],
    shapes: Sequence[Mapping[str, Value]],
    problem: Mapping[str, Value],
    tmp_path: Path,
) -> None:
    """The numbers of multiprocessors give whole rounds with and without a tail, a tail of fewer
    blocks of keys than there are blocks, fewer tiles than blocks, and a block of keys for each."""
    values, few = {**SHARED, **values}, (2, 5, 8, 40)
    assert not list(complaints(tmp_path, values, shapes, seeds=1, multiprocessors=few, **problem))


TMA: dict[str, Value] = {
    **{"CONSUMER_WARPGROUPS": 2, "BLOCK_N": 48, "STAGES": 2, "VALUES_WAIT": "late"},
    **{"RESCALE_LOG2": 0, "PERSISTENT": True, "MIN_CTAS": 1},
}
LONG: list[dict[str, Value]] = [{"batch": 1, "heads": 1, "seq_len": 200}]


@pytest.mark.parametrize(
    ("values", "shapes", "problem"),
    [
        ({}, ODD, {"causal": True}),
        _later(
            {"STAGES": 1, "VALUES_WAIT": "early", "RESCALE_LOG2": 8}, ODD, {"dtype": "bfloat16"}
        ),
        _later(
            {"CONSUMER_WARPGROUPS": 3, "PERSISTENT": False, "BLOCK_N": 32},
            ODD,
            {"head_dim": 96, "causal": True},
        ),
        _later({"CONSUMER_WARPGROUPS": 1}, GROUPED, {"head_dim": 128}),
    ],
)
def test_the_short_rung_comes_out_right(
    values: Mapping[str, Value],
    shapes: Sequence[Mapping[str, Value]],
    problem: Mapping[str, Value],
    tmp_path: Path,
) -> None:
    layouts = itertools.cycle(["bhld", "mixed", "packed_qkv"])
    laid_out = [{**shape, "layout": layout} for shape, layout in zip(shapes, layouts, strict=False)]
    values = {**TMA, **values}
    assert not list(complaints(tmp_path, values, laid_out, kernel="tma", **problem))


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        # A stage is loaded while it is read; Q is given back too early; no weight is masked.
        _later("wait_mbarrier(empty(value), ring.parity ^ 1);", "", "deadlock"),
        ("if (block == tile.blocks - 1) give_back", "if (block == 0) give_back", "error"),
        _later("> seen_by_all", "> seen_by_all + BLOCK_N", "error"),
    ],
)
def test_the_model_sees_mistakes_of_the_short_rung(
    right: str, wrong: str, complaint: str, tmp_path: Path
) -> None:
    shapes = [{"batch": 1, "heads": 4, "seq_len": 200}]
    values, mistakes = {**TMA, "STAGES": 3, "BLOCK_N": 32}, {right: wrong}
    found = complaints(tmp_path, values, shapes, seeds=6, mistakes=mistakes, kernel="tma")
    assert any(complaint in words for words in found)


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        # A stage is loaded while it is read; the wrong parity; sums are read before they are there.
        ("wait_mbarrier(value_empty(keys.stage), keys.parity ^ 1);", "", "deadlock"),
        _later("wait_mbarrier(key_empty(keys.stage), keys.parity ^ 1);", "", "more arrivals"),
        _later("value_full(value.stage), value.parity", "value_full(value.stage), 0", "deadlock"),
        _later("      wait_products<0>();\n      pin(output);", "", "error"),
        # A wrong stride, and a wrong swizzle of the output.
        ("step * 16 * kRowBytes, rows * kRowBytes)", "step * 16, rows * kRowBytes)", "error"),
        _later("row % 8 : row / 2 % 4", "row / 2 % 8 : row / 2 % 4", "error"),
    ],
)
def test_the_model_sees_mistakes(right: str, wrong: str, complaint: str, tmp_path: Path) -> None:
    """It does not see a missing fence: it models neither proxies nor code that ptxas may move."""
    values = {**TWO, "BLOCK_N": 32}
    found = complaints(tmp_path, values, LONG, seeds=6, mistakes={right: wrong})
    assert any(complaint in words for words in found)


@pytest.mark.parametrize(
    ("values", "right", "wrong", "complaint"),
    [
        # A block leaves before all parts have come; a part overwrites another one.
        ({"SPLIT_KV": 4}, "  wait_for_inbox(inbox);\n", "", "left"),
        _later({"SPLIT_KV": 4}, "(own - block - 1) % SPLIT_KV", "0", "error"),
        # A block leaves early; a block comes late; only one block gets a stage back.
        ({"CLUSTER": 2}, "    sync_cluster();  // the others", "// the others", "left"),
        _later({"CLUSTER": 2}, "    sync_cluster();\n", "    __syncthreads();\n", "nobody started"),
        _later({"CLUSTER": 2}, "arrive_in_block(empty, lane)", "arrive_in_block(empty, 0)", "dead"),
    ],
)
def test_the_model_sees_mistakes_of_a_cluster(
    values: Mapping[str, Value], right: str, wrong: str, complaint: str, tmp_path: Path
) -> None:
    shapes = [{"batch": 1, "heads": 1, "seq_len": 130}]
    values = {**SPLIT, **values}
    found = complaints(tmp_path, values, shapes, seeds=6, mistakes={right: wrong})
    assert any(complaint in words for words in found)


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        # A part is left out; a warpgroup that stores nothing into Q's memory does not give it back.
        ("last - first + 1", "last - first", "error"),
        _later("(kThroughShared) {  // nothing", "(false) {  // nothing", "deadlock"),
    ],
)
def test_the_model_sees_mistakes_of_a_shared_tail(
    right: str, wrong: str, complaint: str, tmp_path: Path
) -> None:
    shapes = [{"batch": 1, "heads": 3, "seq_len": 257}]
    mistakes, few = {right: wrong}, (5,)
    values = {**SHARED, "QUERY_STAGES": 1}
    found = complaints(tmp_path, values, shapes, seeds=1, mistakes=mistakes, multiprocessors=few)
    assert any(complaint in words for words in found)


@pytest.mark.soak
@pytest.mark.parametrize("kernel", ["tma", "wgmma"])
@pytest.mark.parametrize("seed", range(12))
def test_random_configurations_come_out_right(seed: int, kernel: str, tmp_path: Path) -> None:
    rng = random.Random(seed)
    head_dim = rng.choice((32, 64, 96, 128))
    problem: dict[str, Value] = {"head_dim": head_dim, "causal": rng.random() < 0.5}
    problem["dtype"] = rng.choice(("float16", "bfloat16"))
    path = tmp_path / "sampled.yaml"
    shapes = rng.choice((ODD, GROUPED))
    shipped = SPACES[kernel]
    space = {**shipped, "root": str(ROOT)}
    space["problem"] = {
        **shipped["problem"],
        "shapes": [{**s, "head_dim": head_dim} for s in shapes],
    }
    path.write_text(yaml.safe_dump({**space, "default": {}}))
    planner = planner_on(132, path)
    values = dict(planner.bound.sample(rng))
    few = (max(rng.randrange(1, 9), int(values.get("CLUSTER", 1))),)  # a cluster needs as many
    found = list(
        complaints(tmp_path, values, shapes, multiprocessors=few, kernel=kernel, **problem)
    )
    assert not found, (values, few, problem)


@pytest.mark.soak
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_no_schedule_deadlocks(groups: int, stages: int, tmp_path: Path) -> None:
    for overlap, ping_pong, query_stages in itertools.product((False, True), (False, True), (1, 2)):
        values: dict[str, Value] = {"CONSUMER_WARPGROUPS": groups, "STAGES": stages, "BLOCK_N": 32}
        values |= {"OVERLAP": overlap, "QUERY_STAGES": query_stages}
        if groups > 1:
            values["PING_PONG"] = ping_pong
        for causal in (False, True):
            assert not list(complaints(tmp_path, values, seeds=6, causal=causal)), values


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_tails_of_any_length_come_out_right(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    groups = rng.choice((1, 2, 3))
    values: dict[str, Value] = {"SHARE_TAIL": True, "CONSUMER_WARPGROUPS": groups, "BLOCK_N": 32}
    values["PING_PONG"] = groups > 1 and rng.random() < 0.5
    values["WALK"] = rng.choice(("straight", "snake"))
    values["STORE"] = rng.choice(("bulk", "direct"))
    values["QUERY_STAGES"] = rng.choice((1, 2))
    values["OVERLAP"] = rng.random() < 0.7
    values["HEAD_SECTION"] = rng.choice((1, 4, 16))
    few, head_dim = tuple(rng.sample(range(1, 70), 6)), rng.choice((32, 64, 96, 128))
    shapes = rng.choice((ODD, GROUPED))
    values["PACK_GQA"] = shapes is GROUPED and rng.random() < 0.5
    found = complaints(tmp_path, values, shapes, seeds=1, multiprocessors=few, head_dim=head_dim)
    assert not list(found), (values, few, head_dim)
