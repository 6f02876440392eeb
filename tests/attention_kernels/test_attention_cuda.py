"""The shipped CUDA kernels compile for every architecture they name; needs NVRTC, no GPU."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import yaml
from _pytest.mark import ParameterSet

pytest.importorskip("cupy")

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.space.bound import BoundSpace
from evotune.trial import Configuration, Json, Value
from tests.patience import PATIENCE_S

from .hopper.planning import planner_on

DEVICES = {"a100": "sm_80", "l4": "sm_89", "h200": "sm_90a"}
LADDER = ["attention-scalar", "attention-wmma", "attention-mma"]
SHAPES_OF_MMA = ["large", "decode"]
ON_L4 = [(space, "l4") for space in LADDER]
DEFAULTS = [("attention-tma", "h200"), ("attention-mma-features", "l4")]
LATER = [*ON_L4, ("attention-scalar", "a100"), ("attention-mma-large", "h200")]
LATER += [("attention-wmma", "a100"), ("attention-wmma", "h200"), ("attention-scalar", "h200")]
LATER += [("attention-mma", "a100"), ("attention-mma", "h200")]
LATER += [("attention-wgmma-features", "h200"), ("attention-wgmma", "h200")]
LATER += [("attention-mma-decode", "h200"), ("attention-wgmma-masks", "h200")]
LATER += [(f"attention-{rung}masks", each) for rung in ("", "mma-") for each in DEVICES]


def planner_for(space: str, device: str) -> tuple[Planner, BoundSpace]:
    planner = load_setup(find_space(space), device, compile_only=True).planner
    assert planner is not None
    return planner, planner.bound


def compiled(job: CompileJob, tmp_path: Path) -> Mapping[str, Json]:
    found = NvrtcCompiler().compile(job, tmp_path / "kernel.cubin", timeout_s=PATIENCE_S)
    assert not isinstance(found, CompileFailure), found.reason
    return found


def repaired(bound: BoundSpace, **values: Value) -> Configuration:
    """The default with these values; the space must accept them unchanged."""
    configuration = bound.repair({**bound.default(), **values}, random.Random(0))
    assert configuration is not None
    assert {name: configuration[name] for name in values} == values
    return configuration


def _later(*values: object) -> ParameterSet:
    """A case that only `make soak` runs."""
    return pytest.param(*values, marks=pytest.mark.soak)


# For an L4, `make test` compiles these defaults with another head dimension, or as kernels of one
# space; for an H200, that of attention-mma for views (test_mma_binaries.py) and that of
# attention-wgmma for its figures.
@pytest.mark.parametrize(("space", "device"), [*DEFAULTS, *(_later(*each) for each in LATER)])
def test_the_default_compiles_without_spills(space: str, device: str, tmp_path: Path) -> None:
    planner, bound = planner_for(space, device)
    for job in planner.compile_jobs(bound.default()):
        assert job.arch == DEVICES[device]
        figures = compiled(job, tmp_path)
        assert (figures["spill_store_bytes"], figures["spill_load_bytes"]) == (0, 0)


@pytest.mark.parametrize("kernel", [_later("mma"), "wmma", "scalar"])
def test_every_kernel_of_the_l4_space_compiles(kernel: str, tmp_path: Path) -> None:
    planner, bound = planner_for("attention-l4", "l4")
    for job in planner.compile_jobs(repaired(bound, KERNEL=kernel)):
        assert compiled(job, tmp_path)["spill_store_bytes"] == 0


def test_the_l4_space_launches_its_kernels_as_their_own_spaces_do() -> None:
    planner, bound = planner_for("attention-l4", "l4")
    own = {kernel: planner_for(f"attention-{kernel}", "l4") for kernel in ("mma", "wmma", "scalar")}
    rng = random.Random(0)
    kernels = set()
    for _ in range(100):
        configuration = bound.sample(rng)
        kernel = str(configuration["KERNEL"])
        kernels.add(kernel)
        own_planner, own_bound = own[kernel]
        names = [parameter.name for parameter in own_bound.parameters]
        twin = Configuration({name: configuration[name] for name in names})
        assert own_bound.is_valid(twin)
        cases = planner.proposal(0, configuration).cases
        own_cases = own_planner.proposal(0, twin).cases
        assert [case.plan for case in cases] == [case.plan for case in own_cases]
    assert kernels == set(own)


@pytest.mark.parametrize(
    ("merge", "split_kv"),
    [("counter", 64), _later("kernel", 2), _later("counter", 2), _later("kernel", 64)],
)
def test_splits_merge_through_memory_on_every_architecture(
    merge: str, split_kv: int, tmp_path: Path
) -> None:
    entries = {"attention_forward", *(["attention_merge"] if merge == "kernel" else [])}
    for device in DEVICES:
        planner, bound = planner_for("attention-mma-decode", device)
        configuration = repaired(bound, SPLIT_KV=split_kv, MERGE=merge)
        (case, *_) = planner.proposal(0, configuration).cases
        assert {launch.entry for launch in case.plan.launches} == entries
        figures = compiled(case.compile, tmp_path)
        assert set(figures["entries"]) == entries
        assert figures["spill_store_bytes"] == 0


@pytest.mark.parametrize("split_kv", [_later(2), 8])
def test_a_cluster_merges_whatever_its_warps(split_kv: int, tmp_path: Path) -> None:
    """There may be more warps along the keys than columns to share among them."""
    planner, bound = planner_for("attention-mma-decode", "h200")
    values = {**bound.default(), "BLOCK_N": 128, "STAGES": 1, "V_WAIT": "late"}
    values |= {"SPLIT_KV": split_kv, "MERGE": "cluster", "WARPS_KV": 8}
    assert bound.is_valid(values)
    for job in planner.compile_jobs(Configuration(values)):
        assert compiled(job, tmp_path)["spill_store_bytes"] == 0


def test_clusters_are_left_to_architectures_that_have_them() -> None:
    for device, works in (("a100", False), ("l4", False), ("h200", True)):
        _, bound = planner_for("attention-mma", device)
        values = {**bound.default(), "BLOCK_N": 64, "STAGES": 1, "SPLIT_KV": 2, "MERGE": "cluster"}
        values["V_WAIT"] = "late"
        assert bound.is_valid(values) is works


def test_packing_is_a_gene_only_where_heads_share_keys() -> None:
    grouped = planner_for("attention-mma-decode", "h200")[1]
    assert "PACK_GQA" in grouped.active(grouped.default())
    alone = planner_for("attention-mma", "h200")[1]
    assert "PACK_GQA" not in alone.active(alone.default())
    assert alone.default()["PACK_GQA"] is False


@pytest.mark.parametrize(
    ("head_dim", "dtype"), [_later(32, 1), _later(64, 2), (96, 2), _later(128, 1)]
)
@pytest.mark.parametrize("space", [*map(_later, LADDER[:2]), *LADDER[2:]])
def test_every_head_dimension_and_type_compiles(
    space: str, head_dim: int, dtype: int, tmp_path: Path
) -> None:
    planner, bound = planner_for(space, "l4")
    for job in planner.compile_jobs(bound.default()):
        defines = {**dict(job.defines), "HEAD_DIM": head_dim, "DTYPE": dtype}
        job = msgspec.structs.replace(job, defines=tuple(defines.items()))  # noqa: PLW2901
        assert compiled(job, tmp_path)["spill_store_bytes"] == 0


@pytest.mark.parametrize("head_dim", [80, 112, _later(256)])
def test_the_readable_kernel_compiles_for_other_head_dimensions(
    head_dim: int, tmp_path: Path
) -> None:
    planner, bound = planner_for("attention-scalar", "l4")
    job = planner.compile_jobs(bound.default())[1]
    defines = {**dict(job.defines), "HEAD_DIM": head_dim}
    job = msgspec.structs.replace(job, defines=tuple(defines.items()))
    assert compiled(job, tmp_path)["spill_store_bytes"] == 0


def test_features_and_a_score_modification_compile(tmp_path: Path) -> None:
    planner, bound = planner_for("attention-features", "l4")
    jobs = planner.compile_jobs(bound.default())
    assert [bool(job.formulas) for job in jobs] == [False, False, True]
    for job in jobs:
        assert compiled(job, tmp_path)["spill_store_bytes"] == 0


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("head_dim", "dtype"), [(32, 1), (64, 2), (96, 2), (128, 1)])
def test_the_short_hopper_kernel_compiles_for_every_head_dimension_and_type(
    head_dim: int, dtype: int, tmp_path: Path
) -> None:
    planner, bound = planner_for("attention-tma", "h200")
    configuration = repaired(bound, CONSUMER_WARPGROUPS=2, BLOCK_N=64, VALUES_WAIT="late")
    job = planner.compile_jobs(configuration)[-1]
    defines = {**dict(job.defines), "HEAD_DIM": head_dim, "DTYPE": dtype}
    job = msgspec.structs.replace(job, defines=tuple(defines.items()))
    figures = compiled(job, tmp_path)
    assert (figures["spill_store_bytes"], figures["serialized"]) == (0, 0)


@pytest.mark.parametrize(
    ("head_dim", "dtype"), [_later(32, 1), _later(64, 2), (96, 2), _later(128, 1)]
)
def test_the_hopper_kernel_compiles_for_every_head_dimension_and_type(
    head_dim: int, dtype: int, tmp_path: Path
) -> None:
    planner, bound = planner_for("attention-wgmma", "h200")
    configuration = repaired(bound, CONSUMER_WARPGROUPS=2, PRODUCER_REGISTERS=24, PING_PONG=True)
    job = planner.compile_jobs(configuration)[-1]
    defines = {**dict(job.defines), "HEAD_DIM": head_dim, "DTYPE": dtype}
    job = msgspec.structs.replace(job, defines=tuple(defines.items()))
    assert compiled(job, tmp_path)["spill_store_bytes"] == 0


@pytest.mark.soak
def test_ptxas_neither_serializes_products_nor_ignores_the_register_split(tmp_path: Path) -> None:
    """Either would be slow but right. ptxas reports them in its log (C7510 to C7519, C7508)."""
    from cupy.cuda import nvrtc

    planner, bound = planner_for("attention-wgmma", "h200")
    two: dict[str, Value] = {"CONSUMER_WARPGROUPS": 2, "PRODUCER_REGISTERS": 24, "PING_PONG": True}
    for values in ({}, {**two, "SHARE_TAIL": True}):
        for job in planner.compile_jobs(repaired(bound, **values)):
            options = ["--gpu-architecture=sm_90a", "--std=c++17", "--ptxas-options=-v"]
            options += [f"-D{name}={value}" for name, value in job.defines]
            source = Path(job.root) / job.source
            program = nvrtc.createProgram(source.read_text(), source.name, [], [])
            with contextlib.chdir(source.parent):
                nvrtc.compileProgram(program, options)
            log = nvrtc.getProgramLog(program)
            nvrtc.destroyProgram(program)
            assert "Used" in log
            assert "(C75" not in log


@pytest.mark.parametrize(("split_kv", "head_dim"), [_later(1, 128), (2, 64), _later(8, 128)])
def test_shares_of_keys_and_packed_heads_cost_no_spills(
    split_kv: int, head_dim: int, tmp_path: Path
) -> None:
    space = yaml.safe_load(find_space("attention-wgmma").read_text())
    space["root"] = str(find_space("attention-wgmma").parents[1])
    shape = {"batch": 1, "heads": 8, "kv_heads": 2, "seq_len": 512, "head_dim": head_dim}
    space["problem"] |= {"shapes": [shape], "held_out": []}
    space["default"] |= {"CONSUMER_WARPGROUPS": 2, "PRODUCER_REGISTERS": 24, "QUERY_STAGES": 1}
    space["default"]["STAGES"] = 2
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    planner = load_setup(path, "h200", compile_only=True).planner
    assert planner is not None
    configuration = repaired(planner.bound, SPLIT_KV=split_kv, PACK_GQA=True)
    for job in planner.compile_jobs(configuration):
        figures = compiled(job, tmp_path)
        assert (figures["spill_store_bytes"], figures["serialized"]) == (0, 0)


@pytest.mark.parametrize(
    ("shape", "multiprocessors", "blocks", "parts"),
    [
        ({"batch": 2, "seq_len": 8192}, 132, 132, 132 + 56 - 1),  # 1376 tiles: 10 each, 56 left
        ({"batch": 1, "seq_len": 192}, 16, 16, 0),  # a tile each
        ({"batch": 1, "seq_len": 192}, 132, 32, 32 + 16 - 1),  # 16 tiles of 2 blocks of keys
    ],
)
def test_there_is_a_second_launch_where_last_tiles_are_shared(
    shape: Mapping[str, int],
    multiprocessors: int,
    blocks: int,
    parts: int,
    tmp_path: Path,
) -> None:
    path = find_space("attention-wgmma")
    space = {**yaml.safe_load(path.read_text()), "root": str(path.parents[1])}
    space["problem"] |= {"shapes": [{"heads": 16, "head_dim": 64, **shape}], "held_out": []}
    space["default"] |= {"SHARE_TAIL": True}
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    planner = planner_on(multiprocessors, tmp_path / "space.yaml")
    full, causal = (c.plan for c in planner.proposal(0, planner.bound.default()).cases[:2])
    assert [w.bytes for w in full.workspaces] == [4 * parts * 192 * (64 + 2) or 16]
    assert full.launches[0].grid == (blocks,)
    assert [launch.grid for launch in full.launches[1:]] == [(blocks,)] * (parts > 0)
    assert len(causal.launches) == 1


def test_products_that_ptxas_serializes_are_a_figure(tmp_path: Path) -> None:
    """A softmax that keeps more registers than a consumer has: 3 warpgroups get 160 each."""
    planner, bound = planner_for("attention-wgmma", "h200")
    job = planner.compile_jobs(bound.default())[0]
    assert compiled(job, tmp_path)["serialized"] == 0
    crowded = tuple((dict(job.defines) | {"BLOCK_N": 160}).items())
    figures = compiled(msgspec.structs.replace(job, defines=crowded), tmp_path)
    assert figures["serialized"] == figures["entries"]["attention_forward"]["serialized"] == 1
