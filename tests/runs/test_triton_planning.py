"""Triton kernels in a space: the plan that follows, and the place of each mistake.

These tests need no Triton.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from evotune.backends.base.launch import DYNAMIC_SHARED_BYTES, Argument, Binary, Launch
from evotune.errors import SpaceError
from evotune.runs.planning import Planner
from evotune.runs.setup import load_setup
from evotune.trial import Configuration
from evotune.user_code import trust
from evotune.workers.executor import Proposal
from evotune.workers.in_flight import review_build

SPACE = """\
name: written-in-triton
problem:
  name: attention
  dtype: bfloat16
  shapes: [{batch: 1, heads: 2, seq_len: 100, head_dim: 64}]
kernels:
  mine:
    source: kernels/mine.py
    entry: attend
    define: [head_dim]
    arguments: [q, k, v, out, parts, softmax_scale, seq_len, {value: BLOCK * 2, type: int64}]
    workspace: {parts: {bytes: 4096}}
    launches:
      - grid: [heads]
parameters: {BLOCK: [16, 32], NUM_WARPS: {pow2: [1, 8]}}
after_compile: [spill_bytes == 0]
"""


@pytest.fixture(autouse=True)
def here(nobody_agreed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def planner(old: str = "", new: str = "", folder: Path = Path()) -> Planner:
    assert old in SPACE
    (folder / "kernels").mkdir(exist_ok=True, parents=True)
    (folder / "kernels" / "mine.py").write_text("# include the diagonal: this is no directive\n")
    (folder / "kernels" / "mine.cu").write_text("\n")
    path = folder / "space.yaml"
    path.write_text(SPACE.replace(old, new))
    made = load_setup(path, "h200", compile_only=True).planner
    assert made is not None
    return made


def proposal(*change: str) -> Proposal:
    return planner(*change).proposal(0, Configuration({"BLOCK": 32, "NUM_WARPS": 8}))


def test_a_plan_says_types_to_the_compiler_and_passes_tritons_scratch_pointers() -> None:
    case = proposal().cases[0]
    scalars = ("float32", "int32", "int64")
    assert (case.compile.language, case.compile.entry) == ("triton", "attend")
    assert case.compile.signature == (*["*bfloat16"] * 4, "*byte", *scalars)
    assert dict(case.compile.defines).items() >= {"HEAD_DIM": 64, "NUM_WARPS": 8}.items()
    assert case.plan.arguments[-3:] == (Argument("int64", value=64), *[Argument("int64")] * 2)
    assert case.plan.launches == (Launch((2,), (256,), 0, "attend"),)


def test_without_num_warps_there_are_tritons_own_four() -> None:
    made = planner(", NUM_WARPS: {pow2: [1, 8]}", "")
    (launch,) = made.proposal(0, Configuration({"BLOCK": 32})).cases[0].plan.launches
    assert launch.block == (128,)


def test_shared_memory_is_what_the_compiler_says_and_held_against_the_devices() -> None:
    planned = planner()
    made = planned.proposal(0, Configuration({"BLOCK": 32, "NUM_WARPS": 8}))
    plan = made.cases[0].plan
    assert plan.completed({"registers": 40}) is plan
    whole = plan.completed({DYNAMIC_SHARED_BYTES: 50_000})
    assert [launch.shared_bytes for launch in whole.launches] == [50_000]
    for shared_bytes, violation in ((200_000, ""), (300_000, "300000 bytes of shared memory")):
        resources = {DYNAMIC_SHARED_BYTES: shared_bytes, "registers": 40}
        binary = Binary("", "", resources, 0.0)
        review = review_build(made, {key: binary for key in made.compile_jobs}, planned.rules)
        assert review.resources["shared_bytes_total"] == shared_bytes
        assert violation in review.violation
        assert bool(review.violation) == bool(violation)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("- grid: [heads]", "- {grid: [1], block: [64]}", "14:21: Triton makes its blocks itself"),
        ("- grid: [heads]", "- {grid: [1], shared_bytes: 0}", "14:21: Triton knows its shared"),
        (
            "- grid: [heads]",
            "- {grid: [1], entry: merge}",
            "14:21: a Triton kernel is one function",
        ),
        ("    launches:\n      - grid: [heads]\n", "", "8:5: a kernel for a GPU needs 'launches'"),
        ("    define:", "    options: [--fmad=false]\n    define:", "allowed: none in Triton"),
        ("mine.py", "mine.cu\n    language: triton", "8:13: expected a .py file, found"),
        ("source: kernels/mine.py", "source: kernels/mine.cu", "14:9: a launch needs a 'block'"),
        ("parts, soft", "{tensor_map: q, box: [1, 1, 1, 8]}, soft", "needs a CUDA kernel"),
    ],
)
def test_mistakes_are_shown_where_they_stand(old: str, new: str, expected: str) -> None:
    with pytest.raises(SpaceError) as caught:
        planner(old, new)
    assert expected in str(caught.value)


def test_a_kernel_from_elsewhere_is_not_run_without_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(SpaceError, match=r"mine\.py, which lies outside this folder: read it"):
        planner(folder=tmp_path / "elsewhere")
    asked: list[Path] = []
    trust.ask = lambda paths: not asked.extend(paths)
    planner(folder=tmp_path / "elsewhere")
    planner(folder=tmp_path / "copy")  # agreement is to the content
    assert asked == [tmp_path / "elsewhere" / "kernels" / "mine.py"]


def test_a_triton_kernel_and_a_cuda_kernel_may_share_a_space() -> None:
    second = """  other:
    source: kernels/mine.cu
    entry: attend
    arguments: [q]
    launches: [{grid: [1], block: [64]}]
parameters:"""
    made = planner("parameters:", second)
    values = {"KERNEL": "other", "BLOCK": 16, "NUM_WARPS": 1}
    case = made.proposal(0, Configuration(values)).cases[0]
    compiled = case.compile
    assert (compiled.language, compiled.signature) == ("cuda", ("pointer",))
    assert (compiled.entry, compiled.entries) == ("", ("attend",))
    assert case.plan.arguments == (Argument("tensor", "q"),)
