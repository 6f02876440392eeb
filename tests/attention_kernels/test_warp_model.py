"""The CUDA rungs before Hopper's on a CPU model of a warp's instructions.

These tests need no GPU. They show that every address is right, whatever the order of tiles, the
splits of the keys and the packing of heads. They show nothing about waits: copies are
done at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from _pytest.mark import ParameterSet

from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Configuration, Value
from evotune.workers.executor import TIMED, CaseJob

from .hopper.emulation import inputs_of, reference
from .warps import emulation

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

ALONE: list[dict[str, Value]] = [
    {"batch": 2, "heads": 2, "seq_len_q": 35, "seq_len_k": 70},
    {"batch": 1, "heads": 3, "seq_len": 33},
    {"batch": 2, "heads": 2, "seq_len_q": 1, "seq_len_k": 65},
]
GROUPED: list[dict[str, Value]] = [
    {"batch": 2, "heads": 6, "kv_heads": 2, "seq_len_q": 7, "seq_len_k": 70},
    {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len_q": 1, "seq_len_k": 97},
]


def job_of(
    folder: Path, space: str, values: Mapping[str, Value], shape: Mapping[str, Value], causal: bool
) -> CaseJob:
    shipped = find_space(space)
    made = yaml.safe_load(shipped.read_text())
    made["root"] = str(shipped.parents[1])
    made["problem"] |= {"held_out": [], "variants": [{"causal": causal}]}
    made["problem"]["shapes"] = [{**shape, "head_dim": 32}]
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(made))
    planner = load_setup(path, "h200", compile_only=True).planner
    assert planner is not None
    configuration = {**planner.bound.default(), **values}
    assert planner.bound.is_valid(configuration), configuration
    proposal = planner.proposal(0, Configuration(configuration))
    assert not proposal.rejection, proposal.rejection
    return next(job for job in proposal.cases if job.role == TIMED)


def complaints(
    folder: Path,
    space: str,
    values: Mapping[str, Value],
    shapes: Sequence[Mapping[str, Value]],
    *,
    causal: bool = False,
    mistakes: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """The mistakes found on any shape; an error is above 2 roundings."""
    found = [job_of(folder, space, values, shape, causal) for shape in shapes]
    libraries: dict[tuple[str, ...], Path] = {}
    for number, job in enumerate(found):
        binary = tuple(job.compile.macros)
        if binary not in libraries:
            libraries[binary] = emulation.build(folder, job, mistakes)
        inputs = inputs_of(job.case, seed=number)
        ran = emulation.run(libraries[binary], job, inputs, seed=number)
        if ran.out is None:
            yield f"{job.case.label}: {ran.complaint}"
            continue
        expected = reference(job.case, inputs)
        error = np.abs(ran.out - expected) / np.maximum(1.0, np.abs(expected))
        if not error.max() <= 2**-9:
            yield f"{job.case.label}, {job.plan.launches[0].grid}: error {error.max()}"


def _later(*values: object) -> ParameterSet:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


SMALL: dict[str, Value] = {
    **{"BLOCK_M": 32, "BLOCK_N": 32, "WARPS_Q": 2, "WARPS_KV": 1, "STAGES": 2, "V_WAIT": "late"},
    **{"Q_IN_REGS": False, "SHARE_QK_SMEM": False, "SPLIT_KV": 1, "MERGE": "counter"},
}
ONE_WARP: dict[str, Value] = {**SMALL, "BLOCK_M": 16, "WARPS_Q": 1}


@pytest.mark.parametrize(
    ("values", "shapes", "causal"),
    [
        (SMALL, ALONE, True),
        _later({**ONE_WARP, "WARPS_KV": 2, "TILE_ORDER": "by_head_descending"}, ALONE, False),
        _later({**ONE_WARP, "SPLIT_KV": 2, "TILE_ORDER": "by_head"}, ALONE, True),
        _later({**ONE_WARP, "SPLIT_KV": 3, "MERGE": "kernel"}, ALONE, False),
        _later({**ONE_WARP, "PERSISTENT": 1, "TILE_ORDER": "by_row_descending"}, ALONE, True),
        _later({**ONE_WARP, "PACK_GQA": True}, GROUPED, True),
        ({**ONE_WARP, "PACK_GQA": True, "SPLIT_KV": 2, "MERGE": "kernel"}, GROUPED, False),
        _later({**ONE_WARP, "PERSISTENT": 2, "TILE_ORDER": "by_head"}, GROUPED, False),
    ],
)
def test_mma_reads_and_writes_where_it_should(
    values: Mapping[str, Value], shapes: Sequence[Mapping[str, Value]], causal: bool, tmp_path: Path
) -> None:
    assert not list(complaints(tmp_path, "attention-mma", values, shapes, causal=causal))


VIEWS: list[dict[str, Value]] = [
    {**shape, "layout": layout}
    for shape, layout in zip(ALONE, ("blhd", "packed_qkv", "mixed"), strict=True)
]
GROUPED_VIEWS: list[dict[str, Value]] = [
    {**shape, "layout": layout}
    for shape, layout in zip(GROUPED, ("packed_qkv", "mixed"), strict=True)
]


@pytest.mark.parametrize(
    ("values", "shapes", "causal"),
    [
        _later(SMALL, VIEWS, True),
        ({**ONE_WARP, "PACK_GQA": True, "SPLIT_KV": 2, "MERGE": "kernel"}, GROUPED_VIEWS, False),
        _later({**ONE_WARP, "PERSISTENT": 2, "TILE_ORDER": "by_head"}, GROUPED_VIEWS, False),
        _later({**ONE_WARP, "WARPS_KV": 2, "TILE_ORDER": "by_head_descending"}, VIEWS, False),
        _later({**ONE_WARP, "SPLIT_KV": 2, "TILE_ORDER": "by_head"}, VIEWS, True),
        _later({**ONE_WARP, "SPLIT_KV": 3, "MERGE": "kernel"}, VIEWS, False),
        _later({**ONE_WARP, "PACK_GQA": True}, GROUPED_VIEWS, True),
    ],
)
def test_mma_finds_the_rows_of_views(
    values: Mapping[str, Value], shapes: Sequence[Mapping[str, Value]], causal: bool, tmp_path: Path
) -> None:
    assert not list(complaints(tmp_path, "attention-mma", values, shapes, causal=causal))


COPIED = "policy.copy(shared + to(i), from + i * kRows * DISTANCE)"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("PACK_GQA || of.group == 1 ? of_batch : of_batch / of.group", "of_batch"),
        _later("head < of.tile_heads ? 0 : head / of.tile_heads", "0"),
        _later(
            "head_at(batch, of_batch * problem.group + row % problem.group)", "head_at(batch, 0)"
        ),
        _later("strides.further(out, row)", "out + row * HEAD_DIM"),
        (COPIED, COPIED.replace("DISTANCE", "kElements")),
    ],
)
def test_a_wrong_address_in_a_view_shows(right: str, wrong: str, tmp_path: Path) -> None:
    values = {**ONE_WARP, "PACK_GQA": "% problem" in right}
    made = complaints(tmp_path, "attention-mma", values, GROUPED_VIEWS, mistakes={right: wrong})
    assert list(made)


WMMA: dict[str, Value] = {
    **{"BLOCK_M": 32, "BLOCK_N": 32, "K_TILE": 16, "WARPS": 2, "PRODUCER_WARPS": 0, "STAGES": 2},
    **{"SWIZZLE": "pad", "VEC_WIDTH": 8, "Q_IN_REGS": True, "EPILOGUE": "shared", "PERSISTENT": 0},
}


@pytest.mark.parametrize(
    ("values", "shapes", "causal"),
    [
        (WMMA, ALONE, True),
        _later({**WMMA, "BLOCK_M": 16, "EPILOGUE": "registers", "SWIZZLE": "tile"}, GROUPED, False),
        _later(
            {**WMMA, "PRODUCER_WARPS": 1, "EPILOGUE": "registers", "VEC_WIDTH": 4}, GROUPED, True
        ),
        _later({**WMMA, "PERSISTENT": 1, "STAGES": 1, "Q_IN_REGS": False}, ALONE, False),
        ({**WMMA, "PERSISTENT": 2, "PRODUCER_WARPS": 2, "SWIZZLE": "none"}, GROUPED, True),
    ],
)
def test_wmma_reads_and_writes_where_it_should(
    values: Mapping[str, Value], shapes: Sequence[Mapping[str, Value]], causal: bool, tmp_path: Path
) -> None:
    assert not list(complaints(tmp_path, "attention-wmma", values, shapes, causal=causal))


@pytest.mark.parametrize("shapes", [_later(ALONE), GROUPED])
def test_scalar_reads_and_writes_where_it_should(
    shapes: Sequence[Mapping[str, Value]], tmp_path: Path
) -> None:
    values = {"BLOCK_N": 32, "WARPS": 2, "VEC_WIDTH": 8}
    assert not list(complaints(tmp_path, "attention-scalar", values, shapes, causal=True))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("head * problem.group + row % problem.group", "head * problem.group"),
        _later("PACK_GQA || problem.group == 1 ? head : head / problem.group", "0"),
        _later(
            "* problem.seq_len_q + row / problem.group)",
            "* problem.seq_len_k + row / problem.group)",
        ),
    ],
)
def test_a_wrong_address_shows(right: str, wrong: str, tmp_path: Path) -> None:
    values = {**ONE_WARP, "PACK_GQA": "% problem" in right or "seq_len_q" in right}
    assert list(complaints(tmp_path, "attention-mma", values, GROUPED, mistakes={right: wrong}))
