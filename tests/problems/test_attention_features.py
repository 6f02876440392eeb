"""Features of attention: what a case may say, the reference, limits, baselines, edge shapes."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import pytest
import torch

from evotune.backends.base.launch import DeviceProfile
from evotune.problems import Case
from evotune.problems.attention import Attention
from evotune.problems.problem import WrongSymbol
from evotune.report.front import domain_table
from evotune.trial import Value
from evotune.verify.accuracy import LIMITS, errors_against
from evotune.verify.kept_checks import checked_domain
from evotune.verify.pool import InputPool

from .featured import by_tiles, one_by_one, visible_keys

FLOAT32 = Attention("float32")
SHAPE: dict[str, Value] = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
LENGTHS: dict[str, dict[str, Value]] = {
    "few queries": {"seq_len_q": 5, "seq_len_k": 19},
    "many queries": {"seq_len_q": 19, "seq_len_k": 7},
    "as many": {"seq_len": 13},
}
FEATURES: dict[str, tuple[dict[str, Value], bool]] = {
    "bottom_right": ({"alignment": "bottom_right"}, True),
    "window": ({"window_left": 3, "window_right": 2}, False),
    "window_of_one_key": ({"window_left": 0, "window_right": 0}, False),
    "window_left_causal": ({"window_left": 4}, True),
    "window_right": ({"window_right": 1, "alignment": "bottom_right"}, False),
    "window_beyond": ({"window_left": 100, "alignment": "bottom_right"}, True),
    "softcap": ({"softcap": 2.5}, False),
    "alibi": ({"alibi": True}, False),
    "alibi_bottom_right": ({"alibi": True, "alignment": "bottom_right"}, True),
    "sinks": ({"sinks": True}, True),
    "lse": ({"lse": True}, True),
    "value_dim": ({"value_dim": 24}, True),
    "all": (
        {
            **{"alignment": "bottom_right", "window_left": 6, "softcap": 4.0, "alibi": True},
            **{"sinks": True, "lse": True, "value_dim": 8},
        },
        True,
    ),
    "score_mod": (
        {"score_mod": "score - 0.3 * abs(row - column) if head % 2 == 0 else min(score, 1)"},
        True,
    ),
    "window_lse": ({"window_left": 1, "window_right": 0, "lse": True}, False),
}


def case(name: str, lengths: str = "few queries", problem: Attention = FLOAT32) -> Case:
    told, causal = FEATURES[name]
    return problem.case({**SHAPE, **LENGTHS[lengths], **told}, {"causal": causal})


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", FEATURES)
def test_the_reference_is_what_the_definition_says(name: str, lengths: str) -> None:
    this = case(name, lengths)
    inputs = FLOAT32.make_inputs(this, "normal", 3)
    wanted, found = one_by_one(this, inputs), FLOAT32.reference(this, inputs)
    assert found.keys() == wanted.keys()
    for each, value in wanted.items():
        torch.testing.assert_close(found[each], value, rtol=1e-11, atol=1e-11)


def test_a_row_that_sees_no_key_is_zero_and_its_sum_is_nothing() -> None:
    this = FLOAT32.case(
        {**SHAPE, "seq_len_q": 9, "seq_len_k": 4, "lse": True, "alignment": "bottom_right"},
        {"causal": True},
    )
    inputs = FLOAT32.make_inputs(this, "normal", 0)
    found = FLOAT32.reference(this, inputs)
    assert (found["out"][:, :, :5] == 0).all()
    assert (found["lse"][:, :, :5] == -math.inf).all()
    assert found["lse"][:, :, 5:].isfinite().all()
    allowed = FLOAT32.tolerances(this, inputs, found)
    assert all(bool((each > 0).all()) for each in allowed.values())
    assert allowed["out"].isfinite().all()
    assert allowed["out"][:, :, :5].max() < 1e-6


@pytest.mark.parametrize("dtype", Attention.dtypes)
@pytest.mark.parametrize("name", FEATURES)
def test_a_fused_kernel_is_within_the_limits(name: str, dtype: str) -> None:
    problem = Attention(dtype)
    pool = InputPool(problem)
    for number, lengths in enumerate(LENGTHS):
        this = case(name, lengths, problem)
        for kind in problem.input_kinds:
            made = pool.get(this, kind, number)
            output = by_tiles(this, dict(made.inputs), base2=number == 1)
            for each, value in output.items():
                errors = errors_against(value, made.expected[each])
                share = max(errors.max / LIMITS.max, errors.rms / LIMITS.rms)
                assert share <= 0.9, (this.label, kind, each, share)


@pytest.mark.parametrize("dtype", Attention.dtypes)
@pytest.mark.parametrize("name", FEATURES)
def test_pytorch_with_a_mask_is_a_baseline(name: str, dtype: str) -> None:
    problem = Attention(dtype)
    this = case(name, "as many", problem)
    inputs = problem.make_inputs(this, "normal", 3)
    reference = problem.reference(this, inputs)
    calls = problem.baselines(this, inputs)
    assert "unfused" in calls
    assert ("sdpa:math" in calls) is not bool(
        this.symbols["has_softcap"] or this.symbols["score_mod"]
    )
    tolerance = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    for way, call in calls.items():
        for each, output in call().items():
            torch.testing.assert_close(
                output.double(), reference[each], rtol=tolerance, atol=tolerance, msg=way
            )


@pytest.mark.parametrize("dtype", Attention.dtypes)
@pytest.mark.parametrize("variant", [{"softcap": 15.0}, {"softcap": 30.0, "alibi": True}])
def test_the_unfused_baseline_is_within_the_limits_of_the_gate(
    variant: dict[str, Value], dtype: str
) -> None:
    problem = Attention(dtype)
    shape: dict[str, Value] = {**SHAPE, "seq_len": 300, "head_dim": 112, "lse": True}
    this = problem.case(shape, {"causal": True, **variant})
    inputs = InputPool(problem).get(this, "normal", 0)
    found = problem.baselines(this, dict(inputs.inputs), "unfused")["unfused"]()
    assert found.keys() == inputs.expected.keys()
    for name, value in found.items():
        assert LIMITS.hold(errors_against(value, inputs.expected[name]))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", FEATURES)
def test_flops_and_bytes_count_what_is_seen(name: str, lengths: str) -> None:
    this = case(name, lengths)
    s: Any = this.symbols
    seen = [list(visible_keys(this, row)) for row in range(s["seq_len_q"])]
    scores = s["batch"] * s["heads"] * sum(map(len, seen))
    assert FLOAT32.flops(this) == 2 * scores * (s["head_dim"] + s["value_dim"])
    keys = {key for row in seen for key in row}
    read = len(keys) if s["has_window"] else s["seq_len_k"]
    of_keys = s["batch"] * s["kv_heads"] * read * (s["head_dim"] + s["value_dim"])
    others = sum(each.nbytes for each in FLOAT32.tensors(this) if each.name not in "kv")
    assert FLOAT32.bytes_moved(this) == others + 4 * of_keys


def test_needles_lie_at_both_ends_of_a_window_and_just_outside() -> None:
    shape = {**SHAPE, "seq_len": 60, "window_left": 9, "window_right": 4}
    this = FLOAT32.case(shape, {})
    inputs = FLOAT32.make_inputs(this, "needle", 1)
    scores = inputs["q"][0, 0] @ inputs["k"][0, 0].T
    away = scores.argmax(-1) - torch.arange(60)
    for distance in (-9, 4, -10, 5):
        assert int((away == distance).sum()) >= 7, distance


# --- what a case may say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "variant", "words"),
    [
        (
            {"alignment": "left"},
            {},
            "expected alignment to be top_left or bottom_right, got 'left'",
        ),
        ({"window_left": -1}, {}, "expected window_left to be an integer of at least 0, got -1"),
        ({"window_left": True}, {}, "expected window_left to be an integer"),
        ({"window_right": 1.5}, {}, "expected window_right to be an integer"),
        ({"window_right": 3}, {"causal": True}, "a causal mask hides all keys that window_right"),
        ({"softcap": 0}, {}, "expected softcap to be a positive number, got 0"),
        ({"softcap": "big"}, {}, "expected softcap to be a positive number"),
        ({"sinks": 1}, {}, "expected sinks to be true or false, got 1"),
        ({"value_dim": 0}, {}, "expected value_dim to be an integer of at least 1"),
        ({"lse": True}, {"lse": True}, "both the shape and the variant set lse"),
        ({}, {"windows": 1}, "expected a variant"),
    ],
)
def test_a_feature_that_makes_no_sense_is_refused(
    told: dict[str, Value], variant: dict[str, Value], words: str
) -> None:
    with pytest.raises(WrongSymbol, match=words) as caught:
        FLOAT32.case({**SHAPE, "seq_len": 8, **told}, variant)
    assert "\n" not in str(caught.value)


def test_a_shape_and_a_variant_say_the_same_and_labels_tell_cases_apart() -> None:
    labels = set()
    for told, causal in FEATURES.values():
        features = {name: value for name, value in told.items() if name != "value_dim"}
        sizes = {name: value for name, value in told.items() if name == "value_dim"}
        by_shape = FLOAT32.case({**SHAPE, "seq_len": 8, **told}, {"causal": causal})
        by_variant = FLOAT32.case({**SHAPE, "seq_len": 8, **sizes}, {"causal": causal, **features})
        assert by_shape == by_variant
        labels.add(by_shape.label)
    assert len(labels) == len(FEATURES)
    assert case("all").label == (
        "(2,4/2,5x19,16/8,left=6,softcap=4.0,alibi,sinks,lse) causal bottom_right"
    )


def test_tensors_that_a_feature_needs_are_there_with_it() -> None:
    names = [spec.name for spec in FLOAT32.tensors(case("all"))]
    assert names == ["q", "k", "v", "out", "alibi_slopes", "sinks", "lse"]
    specs = {spec.name: spec for spec in Attention("float16").tensors(case("all"))}
    assert {specs[name].dtype for name in ("alibi_slopes", "sinks", "lse")} == {"float32"}
    assert specs["v"].shape == (2, 2, 19, 8)
    assert (specs["lse"].is_output, specs["lse"].shape) == (True, (2, 4, 5))
    assert FLOAT32.optional == ("alibi_slopes", "sinks", "lse", "attn_mask")
    assert [spec.name for spec in FLOAT32.tensors(case("window"))] == ["q", "k", "v", "out"]


@pytest.mark.parametrize("layout", ["blhd", "packed_qkv", "mixed"])
def test_layouts_hold_values_of_another_size(layout: str) -> None:
    this = FLOAT32.case({**SHAPE, "seq_len": 5, "value_dim": 24, "layout": layout}, {})
    for spec in FLOAT32.tensors(this):
        index = torch.meshgrid(*map(torch.arange, spec.shape), indexing="ij")
        places = sum(at * step for at, step in zip(index, spec.all_strides, strict=True))
        assert isinstance(places, torch.Tensor)
        assert places.unique().numel() == places.numel()


@pytest.mark.parametrize("name", FEATURES)
def test_siblings_and_test_cases_keep_the_features(name: str) -> None:
    this = case(name)
    fixed = (
        "bottom_right",
        "score_mod",
        "alibi",
        "sinks",
        "lse",
        "has_window",
        "has_softcap",
        "value_dim",
    )
    numbers = FLOAT32.scalars(this)[1:]
    edges, drawn = FLOAT32.edge_cases(this), islice(FLOAT32.random_cases([this], 1), 80)
    found = [*FLOAT32.siblings(this), *edges, *drawn]
    for symbol in fixed:
        assert {each.symbols[symbol] for each in found} == {this.symbols[symbol]}
    for number in numbers:
        assert len({each.symbols[number] for each in edges}) > 1
        assert len({each.symbols[number] for each in found}) > 5
    kept = ("softmax_scale", *numbers)
    found = [*FLOAT32.edge_cases(this, kept), *islice(FLOAT32.random_cases([this], 1, kept), 40)]
    for number in numbers:
        assert {each.symbols[number] for each in found} == {this.symbols[number]}


def test_edge_shapes_meet_the_borders_of_a_window() -> None:
    this = FLOAT32.case({**SHAPE, "seq_len": 128, "window_left": 20, "window_right": 20}, {})
    edges = [each.symbols for each in FLOAT32.edge_cases(this)]
    assert any(s["window_left"] == s["window_right"] == 0 for s in edges)
    assert any(s["window_left"] > s["seq_len_k"] for s in edges)  # type: ignore[operator]
    compiled = FLOAT32.edge_cases(this, ("window_left", "window_right"))
    lengths = {(s.symbols["seq_len_q"], s.symbols["seq_len_k"]) for s in compiled}
    assert {(21, 21), (23, 22), (107, 55)} <= lengths
    assert this.symbols["has_window"] is True


def test_a_domain_names_the_features() -> None:
    place = FLOAT32.place(case("all"))
    assert place.fixed == {
        **{"dtype": "float32", "head_dim": 16, "causal": True, "value_dim": 8, "alibi": True},
        **{"bottom_right": True, "sinks": True, "lse": True, "given": "window_left, softcap"},
    }
    assert (place.ranged["window_left"], place.ranged["softcap"]) == (6, 4.0)


def test_cases_with_other_features_are_other_regions_of_a_domain() -> None:
    cases = [case(name) for name in FEATURES]
    found = checked_domain(
        FLOAT32,
        [("binary", each) for each in cases],
        DeviceProfile("Test CPU", "cpu", "x86_64", {"threads": 4}),
    )
    assert sum(region.cases for region in found.regions) == len(FEATURES)
    assert len(found.regions) >= len(FEATURES) - 2
    assert len(domain_table(found).rows) == len(found.regions)


def test_a_call_names_what_shapes_do_not_tell() -> None:
    shapes = {"q": (2, 4, 5, 16), "k": (2, 2, 19, 16), "v": (2, 2, 19, 8)}
    tuned = [case("all")]
    assert FLOAT32.called_case(shapes, {}, tuned) == case("all")
    other = FLOAT32.called_case(shapes, {"window_left": 2, "causal": True}, tuned)
    assert (other.symbols["window_left"], other.symbols["softcap"]) == (2, 4.0)
    with pytest.raises(ValueError, match="unknown argument 'window'; known: causal, scale, align"):
        FLOAT32.called_case(shapes, {"window": 2}, tuned)
