"""Strides in a space: which kernels get tensors that are not contiguous, and what they are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evotune.backends.base.launch import Argument
from evotune.errors import SpaceError
from evotune.problems.problem import Case
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.workers.executor import EDGE, HELD_OUT, RANDOM, TIMED, CaseJob, Proposal

STRIDES = [f"{t}_stride_{d}" for t in ("q", "k", "v", "out") for d in ("batch", "head", "row")]
SPACE = """\
name: strided
problem:
  name: attention
  shapes: [{SHAPE}]
  held_out: [{batch: 2, heads: 2, seq_len: 40, head_dim: 32, layout: blhd}]
kernels:
  strided:
    source: kernel.cpp
    entry: attention
    arguments: [q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k, STRIDES]
parameters: {A: [1, 2]}
"""
SHAPE = "batch: 2, heads: 2, seq_len: 64, head_dim: 32"


def proposal(folder: Path, strides: list[str], shape: str = SHAPE) -> Proposal:
    text = SPACE.replace("STRIDES]", ", ".join(strides) + "]").replace("SHAPE", shape)
    (folder / "kernel.cpp").write_text("")
    (folder / "space.yaml").write_text(text)
    planner = load_setup(folder / "space.yaml", "cpu").planner
    assert planner is not None
    return planner.proposal(0, planner.bound.default(), confirm=True)


def layouts(made: Proposal, role: str) -> set[str]:
    return {str(job.case.symbols["layout"]) for job in made.cases if job.role == role}


def test_a_kernel_that_is_told_strides_gets_every_layout(tmp_path: Path) -> None:
    made = proposal(tmp_path, STRIDES)
    assert layouts(made, TIMED) == {"bhld"}
    assert layouts(made, EDGE) == {"bhld", "blhd", "packed_qkv", "mixed"}
    assert {"blhd", "packed_qkv", "mixed", "far_k"} <= layouts(made, RANDOM)
    assert layouts(made, HELD_OUT) == {"blhd"}
    (held_out,) = (job for job in made.cases if job.role == HELD_OUT)
    told = held_out.plan.arguments[-12:]
    assert told[:3] == (
        Argument("int64", value=40 * 2 * 32),
        Argument("int64", value=32),
        Argument("int64", value=2 * 32),
    )


def of_mma(folder: Path, shape: str = SHAPE, **changes: str) -> Planner:
    root = Path(__file__).parents[2]
    text = (root / "search_spaces" / "attention_mma.yaml").read_text()
    for old, new in {"batch: 1, heads: 8, seq_len: 512, head_dim: 64": shape, **changes}.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "mma.yaml").write_text(f"root: {root}\n{text}")
    planner = load_setup(folder / "mma.yaml", "h200", compile_only=True).planner
    assert planner is not None
    return planner


def strided(made: Proposal) -> dict[int, set[str]]:
    """The layouts that each binary serves, by its STRIDED."""
    found: dict[int, set[str]] = {}
    for job in made.cases:
        key = dict(job.compile.defines)["STRIDED"]
        found.setdefault(key, set()).add(str(job.case.symbols["layout"]))
    return found


def test_views_have_a_binary_of_their_own_that_champions_are_checked_with(tmp_path: Path) -> None:
    planner = of_mma(tmp_path)
    default = planner.bound.default()
    searched = planner.proposal(0, default)
    assert strided(searched) == {0: {"bhld"}}
    confirmed = planner.proposal(0, default, confirm=True)
    binaries = strided(confirmed)
    assert "bhld" not in binaries[1]
    assert {"blhd", "packed_qkv", "mixed", "far_k"} <= binaries[1]
    timed = planner.compile_jobs(default)
    assert [dict(job.defines)["STRIDED"] for job in timed] == [0, 0]  # full and causal
    for job in confirmed.cases:
        taken = 24 if dict(job.compile.defines)["STRIDED"] else 12
        assert len(job.plan.arguments) == len(job.compile.signature) == taken


@pytest.mark.parametrize("layout", ["bhld", "blhd"])
def test_measured_cases_are_checked_in_another_layout(tmp_path: Path, layout: str) -> None:
    """A package serves a measured case in each layout, so both binaries were checked on it."""
    planner = of_mma(tmp_path, f"{SHAPE}, layout: {layout}")
    made = planner.proposal(0, planner.bound.default(), confirm=True)
    other = {"bhld": "blhd", "blhd": "bhld"}

    def of(*roles: str) -> set[tuple[str, ...]]:
        names = ("batch", "heads", "seq_len_q", "seq_len_k", "causal", "layout")
        found = [job.case.symbols for job in made.cases if job.role in roles]
        return {tuple(str(symbols[name]) for name in names) for symbols in found}

    measured = of(TIMED, HELD_OUT)
    assert len(measured) > 2
    assert {(*sizes, other[layout]) for *sizes, layout in measured} <= of(RANDOM)


def test_a_space_that_times_views_searches_with_their_binary(tmp_path: Path) -> None:
    planner = of_mma(tmp_path, f"{SHAPE}, layout: blhd")
    timed = planner.compile_jobs(planner.bound.default())
    assert [dict(job.defines)["STRIDED"] for job in timed] == [1, 1]


def rows(made: Proposal, *roles: str) -> dict[tuple[int, ...], list[Case]]:
    """The cases of each binary for views, by the distances between rows that it has compiled in."""
    found: dict[tuple[int, ...], list[Case]] = {}
    for job in made.cases:
        given = dict(job.compile.defines)
        if given["STRIDED"] and job.role in roles:
            distances = tuple(given[f"{tensor}_ROW"] for tensor in ("Q", "K", "V", "OUT"))
            found.setdefault(distances, []).append(job.case)
    return found


def test_views_of_the_measured_heads_have_a_binary_of_their_own(tmp_path: Path) -> None:
    planner = of_mma(tmp_path, "batch: 2, heads: 6, kv_heads: 2, seq_len: 64, head_dim: 32")
    made = planner.proposal(0, planner.bound.default(), confirm=True)
    found = rows(made, EDGE, RANDOM)
    held_out = (8 * 64,) * 4
    measured = (6 * 32, 2 * 32, 2 * 32, 6 * 32)
    assert set(found) == {(0, 0, 0, 0), measured, held_out}
    assert len(found[measured]) > 10
    assert {case.symbols["layout"] for case in found[measured]} == {"blhd"}
    assert len({case.symbols["seq_len_k"] for case in found[measured]}) > 5
    assert {"blhd", "mixed", "far_k"} <= {str(case.symbols["layout"]) for case in found[0, 0, 0, 0]}
    for case in found[0, 0, 0, 0]:
        sizes = tuple(case.symbols[name] for name in ("heads", "kv_heads", "head_dim", "layout"))
        assert sizes not in {(6, 2, 32, "blhd"), (8, 8, 64, "blhd")}


def lies_between_checks(made: Proposal, job: CaseJob, planner: Planner) -> bool:
    """Whether each quantity of the case lies between those of cases with the same binary."""
    place = planner.problem.place
    same = [place(each.case) for each in made.cases if each.compile.key == job.compile.key]
    ranges = {
        name: (min(p.ranged[name] for p in same), max(p.ranged[name] for p in same))
        for name in same[0].ranged
    }
    return place(job.case).is_in(place(job.case).fixed, ranges)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("space", ["attention-mma", "attention-mma-decode"])
@pytest.mark.parametrize("number", range(3))
def test_every_view_of_a_measured_case_lies_between_checks(space: str, number: int) -> None:
    """A package serves such a view, also where another binary is for one of its layouts."""
    planner = load_setup(find_space(space), "h200", compile_only=True).planner
    assert planner is not None
    default = planner.bound.default()
    made = planner.proposal(number, default, confirm=True)
    for measured in [job.case for job in made.cases if job.role in (TIMED, HELD_OUT)]:
        names = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "head_dim")
        shape = {name: measured.symbols[name] for name in names}
        for layout in ("bhld", "blhd", "packed_qkv", "mixed"):
            variant = {"causal": measured.symbols["causal"], "layout": layout}
            job = planner.case_job(default, planner.problem.case(shape, variant))
            assert lies_between_checks(made, job, planner), job.case.label
        cached = {
            f"{t}_stride_{d}": 3 * int(measured.symbols[f"{t}_stride_{d}"])
            for t in "kv"
            for d in ("batch", "head")
        }
        job = planner.case_job(default, Case("of a cache", {**measured.symbols, **cached}))
        assert dict(job.compile.defines)["K_ROW"] == 0
        assert lies_between_checks(made, job, planner), measured.label


@pytest.mark.soak
def test_one_head_of_keys_lies_at_any_distance(tmp_path: Path) -> None:
    """PyTorch lets the only index of a dimension have any stride."""
    planner = of_mma(tmp_path, "batch: 2, heads: 6, kv_heads: 1, seq_len: 64, head_dim: 32")
    made = planner.proposal(0, planner.bound.default(), confirm=True)
    measured = (6 * 32, 32, 32, 6 * 32)
    (case, *_) = rows(made, RANDOM)[measured]
    far = Case("far", {**case.symbols, "k_stride_head": 12345, "v_stride_head": 12345})
    job = planner.case_job(planner.bound.default(), far)
    assert dict(job.compile.defines)["VIEW_HEADS"] == 6


@pytest.mark.soak
def test_one_query_lies_at_any_distance(tmp_path: Path) -> None:
    """PyTorch lets the only index of a dimension have any stride."""
    shape = "batch: 2, heads: 6, kv_heads: 2, seq_len_q: 1, seq_len_k: 64, head_dim: 32"
    planner = of_mma(tmp_path, shape)
    made = planner.proposal(0, planner.bound.default(), confirm=True)
    measured = (6 * 32, 2 * 32, 2 * 32, 6 * 32)
    (case, *_) = (c for c in rows(made, RANDOM)[measured] if c.symbols["seq_len_q"] == 1)
    far = Case("far", {**case.symbols, "q_stride_row": 12345})
    job = planner.case_job(planner.bound.default(), far)
    assert dict(job.compile.defines)["Q_ROW"] == 6 * 32


def test_a_search_of_views_has_edge_shapes_of_their_binary(tmp_path: Path) -> None:
    planner = of_mma(
        tmp_path, "batch: 2, heads: 6, kv_heads: 2, seq_len: 64, head_dim: 32, layout: blhd"
    )
    made = planner.proposal(0, planner.bound.default())
    measured = (6 * 32, 2 * 32, 2 * 32, 6 * 32)
    assert set(rows(made, TIMED, EDGE)) == {measured}
    assert len(rows(made, EDGE)[measured]) > 5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out_rows", "unknown symbol 'out_rows'; did you mean 'out_row'"),
        ("heads", "expected a name of 'let', found 'heads'"),
        ("threads", "'threads' depends on the parameter WARPS_Q"),
    ],
)
def test_only_a_let_of_the_case_is_specialised(tmp_path: Path, name: str, message: str) -> None:
    old = "specialise: [view_heads, view_kv_heads, q_row, k_row, v_row, out_row]"
    with pytest.raises(SpaceError, match=re.escape(message)):
        of_mma(tmp_path, **{old: f"specialise: [q_row, {name}]"})


def test_what_is_compiled_in_follows_from_the_case_alone(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="'threads' depends on the parameter WARPS_Q"):
        of_mma(tmp_path, **{"define: [head_dim, causal, strided]": "define: [head_dim, threads]"})


def test_a_kernel_that_is_told_none_gets_the_cases_of_before(tmp_path: Path) -> None:
    made = proposal(tmp_path, [])
    for role in (TIMED, EDGE, RANDOM):
        assert layouts(made, role) == {"bhld"}
    assert not layouts(made, HELD_OUT)
    edges = [job.case.label for job in made.cases if job.role == EDGE]
    assert edges[:2] == ["(3,40,1,32) full", "(3,9/3,63,32) full"]


@pytest.mark.parametrize("missing", ["q_stride_head", "out_stride_row"])
def test_all_strides_of_a_tensor_must_be_told(tmp_path: Path, missing: str) -> None:
    told = [name for name in STRIDES if name != missing]
    assert layouts(proposal(tmp_path, told), EDGE) == {"bhld"}
    refused = proposal(tmp_path, told, f"{SHAPE}, layout: packed_qkv")
    assert refused.rejection == (
        f"kernel strided takes contiguous tensors only: it does not receive {missing}"
    )


def test_a_tensor_map_has_the_strides_of_its_case(tmp_path: Path) -> None:
    """Only `out`, which the kernel also gets as a pointer, needs strides beside its map."""
    root = Path(__file__).parents[2]
    text = (root / "search_spaces" / "attention_wgmma.yaml").read_text()
    shape = "{batch: 2, heads: 4, seq_len: 512, head_dim: 64, layout: packed_qkv}"
    old = "{batch: 16, heads: 16, seq_len: 2048, head_dim: 64}"
    assert old in text
    (tmp_path / "space.yaml").write_text(f"root: {root}\n{text.replace(old, shape)}")
    planner = load_setup(tmp_path / "space.yaml", "h200", compile_only=True).planner
    assert planner is not None
    made = planner.proposal(0, planner.bound.default())
    plan = next(job.plan for job in made.cases if job.role == TIMED)
    q, _, v, out, *others = plan.arguments
    for argument in (q, v):
        assert argument.tensor_map is not None
        assert argument.tensor_map.strides_bytes() == (512 * 12 * 128, 128, 12 * 128)
    assert out.tensor_map is not None
    assert out.tensor_map.strides_bytes() == (512 * 4 * 128, 128, 4 * 128)
    assert [a.value for a in others if a.type == "int64"] == [512 * 4 * 64, 64, 4 * 64]
    assert {"blhd", "mixed"} <= layouts(made, EDGE)
