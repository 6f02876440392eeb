from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.errors import UsageError
from evotune.problems import Case, create_problem, problem_names
from evotune.problems.attention import Attention
from evotune.problems.loading import baseline_names
from evotune.trial import Value

ROOT = Path(__file__).parents[2]
FLOAT32 = Attention("float32")


def case(shape: dict[str, Value], *, causal: bool = False, problem: Attention = FLOAT32) -> Case:
    return problem.case({"batch": 1, "head_dim": 32, **shape}, {"causal": causal})


SHAPES: list[dict[str, Value]] = [
    {"heads": 2, "seq_len": 65},
    {"heads": 4, "kv_heads": 2, "seq_len": 40},
    {"heads": 3, "kv_heads": 1, "seq_len_q": 9, "seq_len_k": 70},
    {"heads": 2, "seq_len_q": 70, "seq_len_k": 9},
    {"batch": 3, "heads": 1, "seq_len": 1},
    {"heads": 2, "seq_len": 40, "scale": 0.7},
]


# --- cases --------------------------------------------------------------------------------


def test_siblings_are_the_shape_with_and_without_a_mask() -> None:
    this = case({"heads": 4, "kv_heads": 2, "seq_len_q": 9, "seq_len_k": 70}, causal=True)
    full, causal = FLOAT32.siblings(this)
    assert causal == this
    assert full.label == "(1,4/2,9x70,32) full"
    assert {**full.symbols, "causal": True} == this.symbols


# --- reference ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", Attention.input_kinds)
def test_the_reference_is_sdpa_in_float64(shape: dict[str, Value], causal: bool, kind: str) -> None:
    this = case(shape, causal=causal)
    inputs = FLOAT32.make_inputs(this, kind, 7)
    expected = F.scaled_dot_product_attention(
        *(inputs[name].double() for name in ("q", "k", "v")),
        is_causal=causal,
        scale=float(this.symbols["softmax_scale"]),
        enable_gqa=True,
    )
    (reference,) = FLOAT32.reference(this, inputs).values()
    torch.testing.assert_close(reference, expected, rtol=1e-11, atol=1e-11)


def test_the_reference_does_not_depend_on_its_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from evotune.problems import attention_torch

    this = case({"heads": 2, "seq_len_q": 50, "seq_len_k": 33}, causal=True)
    inputs = FLOAT32.make_inputs(this, "normal", 1)
    whole = FLOAT32.reference(this, inputs)["out"]
    monkeypatch.setattr(attention_torch, "_SCORES_PER_TILE", 2 * 33 * 7)
    torch.testing.assert_close(FLOAT32.reference(this, inputs)["out"], whole, rtol=0, atol=1e-14)


def test_causal_is_aligned_to_the_top_left() -> None:
    this = case({"heads": 1, "seq_len_q": 2, "seq_len_k": 5}, causal=True)
    inputs = FLOAT32.make_inputs(this, "normal", 0)
    out = FLOAT32.reference(this, inputs)["out"]
    assert torch.equal(out[0, 0, 0], inputs["v"][0, 0, 0].double())  # row 0 sees key 0 only


@pytest.mark.parametrize("scale", [0.0, 0.7])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", Attention.dtypes)
def test_baselines_compute_the_same_thing(
    shape: dict[str, Value], dtype: str, scale: float
) -> None:
    """They also do with a softmax_scale other than 1 / sqrt(head_dim)."""
    problem = Attention(dtype)
    this = case(shape, causal=True, problem=problem)
    if scale:
        this = Case(this.label, {**this.symbols, "softmax_scale": scale})
    inputs = problem.make_inputs(this, "normal", 3)
    reference = problem.reference(this, inputs)["out"]
    tolerance = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    calls = problem.baselines(this, inputs)
    assert {"sdpa:math", "unfused"} <= calls.keys() <= set(baseline_names(problem))
    for name, call in calls.items():
        output = call()["out"]
        assert output.dtype == inputs["q"].dtype
        torch.testing.assert_close(
            output.double(), reference, rtol=tolerance, atol=tolerance, msg=name
        )


def test_the_reference_has_the_scale_of_its_case() -> None:
    this = case({"heads": 2, "seq_len": 40})
    inputs = FLOAT32.make_inputs(this, "normal", 3)
    other = Case(this.label, {**this.symbols, "softmax_scale": 0.7})
    expected = F.scaled_dot_product_attention(
        *(inputs[name].double() for name in ("q", "k", "v")), scale=0.7
    )
    torch.testing.assert_close(FLOAT32.reference(other, inputs)["out"], expected)


@pytest.mark.parametrize("causal", [False, True])
def test_tolerances_do_not_depend_on_their_tiles(
    monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    from evotune.problems import attention_torch

    problem = Attention("float16")
    shape: dict[str, Value] = {"heads": 4, "kv_heads": 2, "seq_len_q": 50, "seq_len_k": 33}
    this = case(shape, causal=causal, problem=problem)
    inputs = problem.make_inputs(this, "ramp", 1)
    reference = problem.reference(this, inputs)
    whole = problem.tolerances(this, inputs, reference)["out"]
    monkeypatch.setattr(attention_torch, "_SCORES_PER_TILE", 4 * 33 * 7)
    tiled = problem.tolerances(this, inputs, reference)["out"]
    torch.testing.assert_close(tiled, whole, rtol=1e-4, atol=0)


# --- inputs -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Attention.input_kinds)
def test_inputs_are_those_of_their_seed(kind: str) -> None:
    this = case({"heads": 2, "seq_len": 16})
    first, again, other = (FLOAT32.make_inputs(this, kind, seed) for seed in (1, 1, 2))
    for spec in FLOAT32.tensors(this):
        if not spec.is_output:
            assert first[spec.name].shape == spec.shape
            assert first[spec.name].is_contiguous()
            assert torch.equal(first[spec.name], again[spec.name])
            assert not torch.equal(first[spec.name], other[spec.name])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        {"heads": 2, "seq_len": 512},
        {"heads": 4, "kv_heads": 2, "seq_len": 300},
        {"heads": 1, "seq_len_q": 300, "seq_len_k": 200},
        {"heads": 1, "seq_len_q": 1, "seq_len_k": 257},
    ],
    ids=str,
)
def test_needle_inputs_need_the_last_key_that_can_be_seen(
    shape: dict[str, Value], causal: bool
) -> None:
    this = case(shape, causal=causal)
    inputs = FLOAT32.make_inputs(this, "needle", 5)
    last = int(this.symbols["seq_len_k"]) - 1
    if causal:
        last = min(last, int(this.symbols["seq_len_q"]) - 1)
    reference = FLOAT32.reference(this, inputs)["out"]
    changed = {**inputs, "v": inputs["v"].clone()}
    changed["v"][:, :, last] = 0.0
    difference = (FLOAT32.reference(this, changed)["out"] - reference).abs()
    rows = difference.amax(dim=-1)
    assert (rows.amax(dim=-1) > 0.5).all(), "in every head some row rests on the last key"


def test_causal_needle_rows_rest_on_the_key_at_their_edge() -> None:
    this = case({"heads": 1, "seq_len": 200}, causal=True)
    inputs = FLOAT32.make_inputs(this, "needle", 5)
    scores = inputs["q"][0, 0] @ inputs["k"][0, 0].T
    strongest = scores.tril().masked_fill(torch.ones(200, 200).triu(1).bool(), -1e9).argmax(-1)
    own = strongest == torch.arange(200)
    assert own.sum() >= 100
    assert own[-1]


def _scores(this: Case, kind: str, seed: int) -> torch.Tensor:
    inputs = FLOAT32.make_inputs(this, kind, seed)
    return inputs["q"] @ inputs["k"].transpose(-1, -2) * float(this.symbols["softmax_scale"])


@pytest.mark.parametrize("scale", [0.0, 0.003, 2.0])
def test_large_logits_have_rows_far_above_and_below_zero_rising_and_falling(scale: float) -> None:
    this = case({"heads": 2, "seq_len": 256})
    if scale:
        this = Case(this.label, {**this.symbols, "softmax_scale": scale})
    scores = _scores(this, "large_logits", 0)
    assert torch.isinf(torch.exp(scores)).any()
    lowest, highest = scores.amin(-1), scores.amax(-1)
    first, last = scores[..., :16].mean(-1), scores[..., -16:].mean(-1)
    for rows in (lowest > 140, highest < -140, last > first + 200, last < first - 200):
        assert rows.sum(-1).min() >= 256 // 7 - 1  # in each head
    assert (scores.std(-1) > 20).sum(-1).min() >= 256 // 7 - 1


@pytest.mark.parametrize("dtype", Attention.dtypes)
def test_large_logits_reach_a_million_above_and_below_zero(dtype: str) -> None:
    problem = Attention(dtype)
    this = problem.case({"batch": 1, "heads": 2, "seq_len": 64, "head_dim": 64}, {"causal": False})
    inputs = problem.make_inputs(this, "large_logits", 0)
    q, k = (inputs[name].double() for name in ("q", "k"))
    scores = q @ k.transpose(-1, -2) / 8.0
    highest = scores.amax(-1)
    for wanted in (-1e6, -2e4, -900.0, -450.0, 900.0, 2e4, 1e6):
        assert (highest / wanted - 1.0).abs().amin(-1).max() < 0.02, wanted
    gap = scores.topk(2).values.diff().abs()[..., 0]  # one key has all the weight
    assert gap[highest.abs() > 9e5].min() > 5e3


def test_ramp_has_zero_rows_and_equal_keys_far_above_the_others_whose_v_is_zero() -> None:
    this = case({"heads": 2, "seq_len": 256})
    scores = _scores(this, "ramp", 0)
    assert ((scores == 0).all(-1).sum(-1) >= 256 // 6).all()
    highest, at = scores.topk(4, dim=-1)
    gaps = highest[..., 0] - scores.mean(-1)
    sunk = (gaps > 6) & (highest[..., 0] - highest[..., 3] > 4)
    assert (sunk.sum(-1) >= 256 // 6).all()
    assert {int(gap) for gap in gaps[sunk].round()} >= {8, 11, 13, 16}
    first, beside, far = at[..., :3][sunk].unique().tolist()
    assert beside == first + 1 or far == beside + 1
    inputs = FLOAT32.make_inputs(this, "ramp", 0)
    assert (inputs["v"][:, :, [first, beside, far]] == 0).all()
    assert (inputs["v"].abs().amax(-1) == 0).sum() == 6  # of each head three
    assert torch.equal(inputs["k"][:, :, first], inputs["k"][:, :, far])


def test_shapes_of_one_row_meet_every_trait_over_the_seeds() -> None:
    this = case({"heads": 1, "seq_len_q": 1, "seq_len_k": 200})
    found = set()
    for seed in range(0, 40):
        (row,) = _scores(this, "large_logits", seed)[0, 0]
        slope = float(row[-16:].mean() - row[:16].mean())
        found.add((round(float(row.mean()) / 200), round(slope / 250)))
    assert {(1, 0), (-1, 0), (0, 1), (0, -1), (0, 0)} <= found


def test_an_unknown_kind_of_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown input kind 'odd'"):
        FLOAT32.make_inputs(case({"heads": 1, "seq_len": 4}), "odd", 0)


# --- figures ------------------------------------------------------------------------------


@settings(derandomize=True, max_examples=60)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_flops_are_those_of_the_visible_scores(
    batch: int, heads: int, queries: int, keys: int, causal: bool
) -> None:
    this = case(
        {"batch": batch, "heads": heads, "seq_len_q": queries, "seq_len_k": keys}, causal=causal
    )
    visible = sum(1 for i in range(queries) for j in range(keys) if not causal or j <= i)
    multiply_adds = batch * heads * visible * 32 * 2  # q k^T, and weights times v
    assert FLOAT32.flops(this) == 2 * multiply_adds


def test_a_shape_whose_figures_are_known_by_hand() -> None:
    problem = Attention("float16")
    this = problem.case({"batch": 1, "heads": 8, "seq_len": 512, "head_dim": 64}, {})
    assert problem.flops(this) == 4 * 8 * 512 * 512 * 64 == 536_870_912
    assert problem.bytes_moved(this) == 4 * 8 * 512 * 64 * 2
    assert this.label == "(1,8,512,64) full"
    assert this.symbols["softmax_scale"] == 0.125


def test_labels_tell_cases_apart() -> None:
    shapes = [
        {"heads": 4, "seq_len": 8},
        {"heads": 4, "kv_heads": 2, "seq_len": 8},
        {"heads": 4, "seq_len_q": 8, "seq_len_k": 9},
        {"heads": 4, "seq_len": 8, "batch": 2},
        {"heads": 4, "seq_len": 8, "scale": 0.5},
    ]
    labels = {case(shape, causal=causal).label for shape in shapes for causal in (False, True)}
    assert len(labels) == 10
    assert "(1,4,8,32,scale=0.5) full" in labels
    usual = {"heads": 4, "seq_len": 8, "scale": 32**-0.5}
    assert case(usual).label == "(1,4,8,32) full"


def test_edge_cases_keep_what_is_compiled_in() -> None:
    this = case({"heads": 8, "seq_len": 512}, causal=True)
    edges = FLOAT32.edge_cases(this)
    for name in ("head_dim", "causal", "dtype"):
        assert {edge.symbols[name] for edge in edges} == {this.symbols[name]}


# --- refused shapes and names -------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "variant", "words"),
    [
        ({"seq_len": 4}, {}, "lacks batch, heads, head_dim"),
        ({"batch": 1, "heads": 2, "head_dim": 8}, {}, "lacks seq_len_q, seq_len_k"),
        ({"batch": 1, "heads": 2, "seq_len": 4, "head_dim": 8, "width": 1}, {}, "size 'width'"),
        ({"batch": 0, "heads": 2, "seq_len": 4, "head_dim": 8}, {}, "batch to be an integer of"),
        ({"batch": True, "heads": 2, "seq_len": 4, "head_dim": 8}, {}, "at least 1, got True"),
        ({"batch": 1.5, "heads": 2, "seq_len": 4, "head_dim": 8}, {}, "got 1.5"),
        ({"batch": 1, "heads": 3, "kv_heads": 2, "seq_len": 4, "head_dim": 8}, {}, "multiple of"),
        (
            {"batch": 1, "heads": 1, "seq_len": 4, "seq_len_q": 5, "seq_len_k": 5, "head_dim": 8},
            {},
            "omit it if",
        ),
        ({"batch": 1, "heads": 2, "seq_len": 4, "head_dim": 8}, {"causal": 1}, "got causal: 1"),
        (
            {"batch": 1, "heads": 2, "seq_len": 4, "head_dim": 8},
            {"hidden": True},
            "got hidden: True",
        ),
        (
            {"batch": 1, "heads": 2, "seq_len": 4, "head_dim": 8, "scale": 0},
            {},
            "expected scale to be a positive number, got 0",
        ),
        (
            {"batch": 1, "heads": 2, "seq_len": 4, "head_dim": 8, "scale": True},
            {},
            "expected scale to be a positive number, got True",
        ),
    ],
)
def test_a_shape_or_variant_that_makes_no_sense_is_refused(
    shape: dict[str, Value], variant: dict[str, Value], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        FLOAT32.case(shape, variant)
    assert "\n" not in str(caught.value)


def test_one_length_of_its_own_beside_seq_len_is_allowed() -> None:
    this = case({"heads": 1, "seq_len": 8, "seq_len_k": 16})
    assert (this.symbols["seq_len_q"], this.symbols["seq_len_k"]) == (8, 16)


def test_an_unknown_problem_or_dtype_names_the_known_ones() -> None:
    assert "attention" in problem_names()
    with pytest.raises(UsageError, match=r"unknown problem 'fft'; known: .*attention"):
        create_problem("fft", "float32")
    with pytest.raises(UsageError, match="no dtype 'int8'; it has float16, bfloat16, float32"):
        create_problem("attention", "int8")


def test_making_a_problem_does_not_load_torch() -> None:
    script = (
        "import sys; from evotune.problems import create_problem\n"
        "p = create_problem('attention', 'float32')\n"
        "c = p.case({'batch': 1, 'heads': 1, 'seq_len': 8, 'head_dim': 8}, {})\n"
        "p.flops(c); p.tensors(c); p.bytes_moved(c); p.edge_cases(c)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_memory_that_runs_out_under_a_chosen_baseline_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Attention("float32")
    case = problem.case({"batch": 1, "heads": 1, "seq_len": 8, "head_dim": 8}, {})
    inputs = problem.make_inputs(case, "normal", 0)

    def full(*tensors: torch.Tensor, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *tensors, **options: 1)  # flash
    monkeypatch.setattr(F, "scaled_dot_product_attention", full)
    assert "sdpa:math" not in problem.baselines(case, inputs)
    with pytest.raises(torch.OutOfMemoryError):
        problem.baselines(case, inputs, "sdpa:math")
