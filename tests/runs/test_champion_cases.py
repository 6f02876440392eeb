"""The cases of a confirmation, which depend on the symbols that the kernel is told."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from evotune.problems.problem import distinct_broadcasts
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.trial import Configuration, Value
from evotune.workers.executor import EDGE, RANDOM, TIMED, Proposal

ROOT = Path(__file__).parents[2]
RANDOM_TESTS = 120
CUDA_SPACE = ROOT / "tests" / "data" / "cuda" / "cuda.yaml"
SPACE = f"""
name: tuned-without-a-mask
root: {ROOT}
problem:
  name: attention
  shapes: [{{batch: 1, heads: 2, seq_len: 64, head_dim: 32}}]
  variants: [{{causal: false}}]
kernels:
  scalar:
    source: kernels/attention/1_scalar.cpp
    entry: attention_forward
    supports: {{head_dim: [32]}}
    define: [head_dim, causal]
    arguments: [q, k, v, out, softmax_scale, batch, heads, kv_heads, seq_len_q, seq_len_k]
parameters:
  BLOCK_N: {{pow2: [16, 128]}}
constraints:
  - BLOCK_N <= 1024
"""
EDGES_EACH = 5


def confirmation(
    tmp_path: Path, *changes: tuple[str, str], block_n: int = 16, number: int = 3
) -> Proposal:
    text = SPACE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "space.yaml"
    path.write_text(text)
    planner = load_setup(path, "cpu").planner
    assert planner is not None
    return planner.proposal(number, Configuration({"BLOCK_N": block_n}), confirm=True)


def edges(proposal: Proposal, mask: str) -> int:
    labels = [job.case.label for job in proposal.cases if job.role == EDGE]
    return sum(label.endswith(mask) for label in labels)


def random_labels(proposal: Proposal) -> list[str]:
    return [job.case.label for job in proposal.cases if job.role == RANDOM]


def test_a_finalist_meets_the_edge_shapes_of_the_variant_that_is_not_tuned(tmp_path: Path) -> None:
    found = confirmation(tmp_path)
    assert (edges(found, "full"), edges(found, "causal")) == (EDGES_EACH, EDGES_EACH)
    assert len({job.compile.key for job in found.cases}) == 2  # the mask is compiled in
    assert found.skipped == ()
    as_argument = (
        ("define: [head_dim, causal]", "define: [head_dim]"),
        ("seq_len_k]", "seq_len_k, {value: hides, type: int32}]"),
        ("parameters:", "let: {hides: 1 if causal else 0}\nparameters:"),
    )
    found = confirmation(tmp_path, *as_argument)
    assert (edges(found, "causal"), found.skipped) == (EDGES_EACH, ())
    assert len({job.compile.key for job in found.cases}) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            ("define: [head_dim, causal]", "define: [head_dim]"),
            "kernel scalar does not receive causal",
        ),
        (
            ("{head_dim: [32]}", "{head_dim: [32], causal: [false]}"),
            "kernel scalar needs causal in (False), found causal = True",
        ),
        (
            ("BLOCK_N <= 1024", "BLOCK_N < 16 or not causal"),
            "the configuration is not valid for it: BLOCK_N < 16 or not causal",
        ),
    ],
)
def test_a_variant_that_the_kernel_does_not_claim_is_skipped_and_said_to_be(
    tmp_path: Path, change: tuple[str, str], why: str
) -> None:
    found = confirmation(tmp_path, change)
    assert (found.rejection, edges(found, "full"), edges(found, "causal")) == ("", EDGES_EACH, 0)
    (check,) = found.skipped
    assert check.case == "edge shapes of (1,2,64,32) causal"
    assert (check.status, check.detail) == ("skipped", why)


def test_random_shapes_need_no_other_binary_and_differ_by_trial(tmp_path: Path) -> None:
    found = confirmation(tmp_path)
    random = [job for job in found.cases if job.role == RANDOM]
    assert len(random) == RANDOM_TESTS
    timed = next(job for job in found.cases if job.role == "timed")
    assert {job.compile.key for job in random} == {timed.compile.key}
    assert {job.case.symbols["causal"] for job in random} == {False}
    assert random_labels(found) == random_labels(confirmation(tmp_path))
    assert random_labels(found) != random_labels(confirmation(tmp_path, number=4))


def test_random_shapes_are_those_that_the_kernel_supports(tmp_path: Path) -> None:
    change = ("{head_dim: [32]}", '{head_dim: [32], seq_len_q: ">= 50"}')
    found = [job.case.symbols for job in confirmation(tmp_path, change).cases if job.role == RANDOM]
    assert len(found) == RANDOM_TESTS
    assert min(int(symbols["seq_len_q"]) for symbols in found) >= 50


def test_shapes_that_are_compiled_in_leave_no_random_test_and_it_is_said(tmp_path: Path) -> None:
    sizes = "batch, heads, kv_heads, seq_len_q, seq_len_k"
    changes = (
        ("define: [head_dim, causal]", f"define: [head_dim, causal, {sizes}]"),
        ("softmax_scale", "{value: 0.17, type: float32}"),
    )
    found = confirmation(tmp_path, *changes, number=4)
    assert (random_labels(found), edges(found, "full")) == ([], 0)
    random, scale = found.skipped
    assert (random.case, random.status) == ("random tests", "skipped")
    assert random.detail == "kernel scalar needs another binary for every random shape"
    assert (scale.case, scale.status) == ("other values of softmax_scale", "skipped")
    assert scale.detail == "kernel scalar does not receive softmax_scale"


def test_sizes_that_are_compiled_in_keep_their_values_and_the_others_vary(tmp_path: Path) -> None:
    change = ("define: [head_dim, causal]", "define: [head_dim, causal, heads, seq_len_q]")
    found = confirmation(tmp_path, change)
    symbols = [job.case.symbols for job in found.cases]
    assert {(s["heads"], s["seq_len_q"]) for s in symbols} == {(2, 64)}
    assert len({job.compile.key for job in found.cases}) == 2  # with a mask and without
    assert len(random_labels(found)) == RANDOM_TESTS
    assert len({s["seq_len_k"] for s in symbols}) > 30


@pytest.mark.parametrize(
    ("written", "told"),
    [("softmax_scale", True), ("{value: softmax_scale * 1.44, type: float32}", True),
     ("{value: 0.17, type: float32}", False)],
)  # fmt: skip
def test_only_a_kernel_that_is_told_the_scale_is_asked_for_another(
    tmp_path: Path, written: str, told: bool
) -> None:
    found = confirmation(tmp_path, ("softmax_scale", written))
    for role in (EDGE, RANDOM):
        cases = [job.case for job in found.cases if job.role == role]
        assert len(cases) == (2 * EDGES_EACH if role == EDGE else RANDOM_TESTS)
        assert (
            {case.symbols["softmax_scale"] for case in cases} == {1 / math.sqrt(32)}
        ) is not told
    assert ([check.case for check in found.skipped] == []) is told


def test_the_search_itself_meets_none_of_these(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    planner = load_setup(path, "cpu").planner
    assert planner is not None
    found = planner.proposal(3, Configuration({"BLOCK_N": 16}))
    assert (random_labels(found), edges(found, "causal"), found.skipped) == ([], 0, ())


def test_random_shapes_that_a_gpu_cannot_launch_are_left_out(tmp_path: Path) -> None:
    text = CUDA_SPACE.read_text()
    assert "block: [THREADS]" in text
    block = 'block: ["2048 if seq_len_q % 7 == 6 else THREADS"]'
    shutil.copytree(CUDA_SPACE.parent / "kernels", tmp_path / "kernels")
    path = tmp_path / "cuda.yaml"
    path.write_text(text.replace("block: [THREADS]", block))
    planner = load_setup(path, "l4", compile_only=True).planner
    assert planner is not None
    values: dict[str, Value] = {"FAULT": "none", "SPLIT": 1, "THREADS": 128, "SHARED_KIB": 0}
    found = planner.proposal(3, Configuration(values), confirm=True)
    lengths = [int(job.case.symbols["seq_len_q"]) for job in found.cases if job.role == RANDOM]
    assert len(lengths) == RANDOM_TESTS
    assert not any(length % 7 == 6 for length in lengths)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("space", ["attention-masks-cpu", "attention-mma-masks"])
def test_each_binary_of_a_measured_case_meets_its_mask_broadcast_in_every_way(space: str) -> None:
    """On a GPU the alignment of a mask's rows is compiled in."""
    setup = load_setup(find_space(space), "cpu" if "cpu" in space else "h200", compile_only=True)
    planner = setup.planner
    assert planner is not None
    problem = planner.problem
    proposal = planner.proposal(0, planner.bound.default(), confirm=True)
    ways: dict[tuple[str, str], set[str]] = {}
    for job in proposal.cases:
        place = problem.place(job.case)
        key = job.compile.key, repr(sorted(place.fixed.items()))
        ways.setdefault(key, set()).add(place.mask_sizes)
    for job in (job for job in proposal.cases if job.role == TIMED):
        place = problem.place(job.case)
        found = ways[job.compile.key, repr(sorted(place.fixed.items()))]
        expected = 2 if place.fixed["mask"] == "padding" else 8
        assert len(distinct_broadcasts(found)) == expected, job.case.label
