"""Masks of attention: what a case may say, the tensor, the reference, limits, inputs, baselines."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from evotune.problems import Case
from evotune.problems.attention import Attention
from evotune.problems.attention_torch import sdpa_call
from evotune.problems.libraries import UnusableBaseline
from evotune.problems.problem import (
    Tensors,
    TensorSpec,
    WrongSymbol,
    distinct_broadcasts,
    was_broadcast,
)
from evotune.trial import Value
from evotune.verify.accuracy import LIMITS, errors_against, expected
from evotune.verify.pool import InputPool

FLOAT32 = Attention("float32")
SHAPE: dict[str, Value] = {
    **{"batch": 3, "heads": 4, "kv_heads": 2, "seq_len_q": 37, "seq_len_k": 45, "head_dim": 16}
}
FEW: dict[str, Value] = {"mask_batch": 1, "mask_heads": 1}
VARIANTS: dict[str, dict[str, Value]] = {
    "padding": {"mask": "padding"},
    "padding of one batch": {"mask": "padding", "mask_batch": 1},
    "causal padding": {"mask": "padding", "causal": True},
    "bool": {"mask": "bool"},
    "bool of rows": {"mask": "bool", **FEW},
    "bool of heads, causal": {"mask": "bool", "mask_rows": 1, "causal": True},
    "bias": {"mask": "bias"},
    "bias of heads": {"mask": "bias", "mask_batch": 1, "causal": True},
    "bias of keys": {"mask": "bias", **FEW, "mask_rows": 1},
}
FEATURED: dict[str, dict[str, Value]] = {
    "padding, window, sinks": {"mask": "padding", "window_left": 9, "sinks": True, "lse": True},
    "bias, cap, alibi": {"mask": "bias", "softcap": 3.0, "alibi": True, "lse": True},
    "bias, sinks, bottom right": {
        **{"mask": "bias", "sinks": True, "lse": True, "causal": True},
        **{"alignment": "bottom_right"},
    },
}


def case(variant: dict[str, Value], problem: Attention = FLOAT32, **sizes: Value) -> Case:
    return problem.case({**SHAPE, **sizes}, variant)


def mask_of(this: Case, problem: Attention = FLOAT32) -> TensorSpec:
    return next(spec for spec in problem.tensors(this) if spec.name == "attn_mask")


def with_mask(this: Case, mask: torch.Tensor, problem: Attention = FLOAT32) -> Tensors:
    inputs = problem.make_inputs(this, "normal", 0)
    if mask.dtype == torch.bool:
        mask = mask.to(torch.uint8)
    return {**inputs, "attn_mask": mask.expand(mask_of(this, problem).shape).contiguous()}


def by_sdpa(this: Case, inputs: Tensors, dtype: torch.dtype) -> torch.Tensor:
    """SDPA's math backend, which refuses a mask together with `is_causal`."""
    mask = inputs["attn_mask"]
    s: Any = this.symbols
    mask = mask == 1 if mask.dtype == torch.uint8 else mask.to(dtype)
    if s["causal"]:
        hidden = torch.ones(s["seq_len_q"], s["seq_len_k"]).triu(1) > 0
        bool_mask = mask.dtype == torch.bool
        mask = mask & ~hidden if bool_mask else mask.masked_fill(hidden, -math.inf)
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(
            *(inputs[name].to(dtype) for name in "qkv"),
            attn_mask=mask,
            scale=s["softmax_scale"],
            enable_gqa=s["heads"] != s["kv_heads"],
        )


# --- cases ---------------------------------------------------------------------------------


def test_a_mask_is_an_input_with_its_own_sizes_and_strides_of_0_where_it_is_broadcast() -> None:
    this = case({"mask": "bool", "mask_heads": 1})
    spec = mask_of(this)
    assert (spec.shape, spec.dtype, spec.strides) == ((3, 1, 37, 45), "uint8", ())
    assert [this.symbols[name] for name in spec.stride_symbols] == [37 * 45, 0, 45]
    assert this.label == "(3,4/2,37x45,16,bool=3x1x37) full"
    odd = FLOAT32.odd_layout(this)
    assert mask_of(odd).strides == (37 * 69, 0, 69, 1)
    assert FLOAT32.bytes_moved(this) - FLOAT32.bytes_moved(case({})) == 3 * 37 * 45


def test_padding_has_neither_heads_nor_rows() -> None:
    this = case({"mask": "padding"})
    assert mask_of(this).shape == (3, 1, 1, 45)
    told = {"mask": "padding", "mask_batch": 3, "mask_heads": 1, "mask_rows": 1}
    assert case(dict(told)) == this  # as a recording has it


@pytest.mark.parametrize(
    ("dtype", "told", "found"),
    [
        ("float16", {}, "float16"),
        ("float16", {"mask_dtype": "float32"}, "float32"),
        ("bfloat16", {"mask_dtype": "bfloat16"}, "bfloat16"),
    ],
)
def test_a_bias_has_the_dtype_of_the_inputs_or_float32(
    dtype: str, told: dict[str, Value], found: str
) -> None:
    problem = Attention(dtype)
    this = case({"mask": "bias", **told}, problem)
    assert mask_of(this, problem).dtype == found
    inputs = problem.make_inputs(this, "normal", 0)
    assert str(inputs["attn_mask"].dtype) == f"torch.{found}"


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ({"mask": "boolean"}, "mask"),
        ({"mask": "bool", "mask_batch": 2}, "mask_batch"),
        ({"mask": "bool", "mask_heads": 2}, "mask_heads"),
        ({"mask": "padding", "mask_rows": 37}, "mask_rows"),
        ({"mask": "padding", "mask_dtype": "float32"}, "mask_dtype"),
        ({"mask": "bias", "mask_dtype": "float16"}, "mask_dtype"),
        ({"mask_batch": 1}, "mask_batch"),
    ],
)
def test_a_wrong_mask_is_refused_by_its_symbol(variant: dict[str, Value], name: str) -> None:
    with pytest.raises(WrongSymbol) as error:
        case(variant)
    assert error.value.name == name


def test_tests_broadcast_the_mask_in_every_way_and_keep_its_kind() -> None:
    this = case({"mask": "bool", "mask_batch": 1})
    others = [*FLOAT32.edge_cases(this), *islice(FLOAT32.random_cases([this], 3), 80)]
    assert {each.symbols["mask"] for each in others} == {"bool"}
    assert len({each.label for each in others}) > 80

    def broadcast(each: Case) -> tuple[bool, ...]:
        specs = zip(mask_of(each).shape[:3], ("batch", "heads", "seq_len_q"), strict=True)
        return tuple(size < int(each.symbols[name]) for size, name in specs)

    assert {broadcast(each) for each in others} == set(product((False, True), repeat=3))
    kept = list(islice(FLOAT32.random_cases([this], 3, ("layout",)), 80))
    assert all(mask_of(each).shape[0] == 1 and not mask_of(each).strides for each in kept)


def test_a_call_says_the_sizes_of_its_mask() -> None:
    this = case({"mask": "bool"})
    shapes = {spec.name: spec.shape for spec in FLOAT32.tensors(this) if not spec.is_output}
    shapes["attn_mask"] = (1, 4, 37, 45)
    found = FLOAT32.called_case(shapes, {}, [this])
    assert found == case({"mask": "bool", "mask_batch": 1})


# --- the reference -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Attention.input_kinds)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_reference_is_sdpas_math_backend_in_float64(name: str, kind: str) -> None:
    this = case(VARIANTS[name])
    for seed in (0, 1, 2):
        inputs = FLOAT32.make_inputs(this, kind, seed)
        wanted = by_sdpa(this, inputs, torch.float64)
        assert wanted.isfinite().all()
        found = FLOAT32.reference(this, inputs)["out"]
        size = inputs["v"].double().abs().amax()
        torch.testing.assert_close(found / size, wanted / size, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("hidden", ["false", "-inf", "lowest", "-1e4"])
def test_rows_that_see_no_key_are_as_sdpas_math_backend_has_them(hidden: str) -> None:
    """Zeros for false and -inf, as since PyTorch 2.5. With the lowest float all keys count the
    same; -1e4 on all keys changes nothing."""
    value = {"-inf": -math.inf, "lowest": torch.finfo(torch.float32).min, "-1e4": -1e4}
    this = case({"mask": "bool" if hidden == "false" else "bias"})
    seen = torch.rand(3, 4, 37, 45) < 0.5
    seen[:, :, ::3] = False
    mask = seen
    if hidden != "false":
        mask = torch.zeros(3, 4, 37, 45).masked_fill(~seen, value[hidden])
    inputs = with_mask(this, mask)
    found = FLOAT32.reference(this, inputs)["out"]
    in_float32 = 2e-3 if hidden == "-1e4" else 1e-5
    for dtype, share in ((torch.float64, 1e-11), (torch.float32, in_float32)):
        wanted = by_sdpa(this, inputs, dtype).double()
        torch.testing.assert_close(found, wanted, rtol=share, atol=share)
    unseen = found[:, :, ::3]
    if hidden in ("false", "-inf"):
        assert not unseen.any()
    elif hidden == "lowest":
        mean = inputs["v"].double().mean(2, keepdim=True).repeat_interleave(2, 1)
        torch.testing.assert_close(unseen, mean.expand_as(unseen))
    else:
        bare = FLOAT32.reference(case({}), inputs)["out"][:, :, ::3]
        torch.testing.assert_close(unseen, bare, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bias_that_is_no_number_makes_its_rows_nan_as_in_sdpa(bad: float) -> None:
    this = case({"mask": "bias"})
    mask = torch.zeros(3, 4, 37, 45)
    mask[1, 2, 5, 7] = bad
    inputs = with_mask(this, mask)
    found = FLOAT32.reference(this, inputs)["out"]
    assert found.isnan().sum() == found[1, 2, 5].isnan().sum() == 16
    assert torch.equal(found.isnan(), by_sdpa(this, inputs, torch.float32).isnan())


@pytest.mark.parametrize("name", FEATURED)
def test_the_mask_comes_after_all_other_features(name: str) -> None:
    """Against plain float64 sums of exponentials."""
    this = case(FEATURED[name])
    inputs = FLOAT32.make_inputs(this, "normal", 4)
    s: Any = this.symbols
    q, k, v = (inputs[each].double() for each in "qkv")
    k, v = (each.repeat_interleave(2, 1) for each in (k, v))
    scores = q @ k.transpose(2, 3) * s["softmax_scale"]
    own = torch.arange(37)[:, None] + (8 if s["bottom_right"] else 0)
    away = own - torch.arange(45)
    if s["softcap"]:
        scores = s["softcap"] * torch.tanh(scores / s["softcap"])
    if s["alibi"]:
        scores = scores - inputs["alibi_slopes"].double().view(4, 1, 1) * away.abs()
    mask = inputs["attn_mask"]
    scores = scores.masked_fill(mask == 0, -math.inf) if s["mask"] == "padding" else scores + mask
    if s["causal"]:
        scores = scores.masked_fill(away < 0, -math.inf)
    if s["window_left"] >= 0:
        scores = scores.masked_fill(away > s["window_left"], -math.inf)
    logits = scores
    if s["sinks"]:
        sink = inputs["sinks"].double().view(4, 1, 1).expand(3, 4, 37, 1)
        logits = torch.cat([scores, sink], -1)
    top = logits.amax(-1, keepdim=True)
    weights = torch.exp(logits - top.masked_fill(top == -math.inf, 0.0))
    total = weights.sum(-1, keepdim=True)
    out = weights[..., :45] @ v / total.masked_fill(total == 0, 1.0)
    found = FLOAT32.reference(this, inputs)
    torch.testing.assert_close(found["out"], out, rtol=1e-9, atol=1e-11)
    lse = (top + total.log())[..., 0]
    torch.testing.assert_close(found["lse"], lse, rtol=1e-9, atol=1e-11)


# --- the limits ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", Attention.dtypes)
@pytest.mark.parametrize("name", VARIANTS)
def test_sdpa_and_plain_calls_are_within_the_limits(name: str, dtype: str) -> None:
    problem = Attention(dtype)
    dtypes: list[dict[str, Value]] = [{}]
    if VARIANTS[name]["mask"] == "bias" and dtype != "float32":
        dtypes.append({"mask_dtype": "float32"})
    for told in dtypes:
        this = case({**VARIANTS[name], **told}, problem)
        pool = InputPool(problem)
        for kind in problem.input_kinds:
            made = pool.get(this, kind, 0)
            assert all(each.isfinite().all() for each in made.expected.values())
            calls = problem.baselines(this, dict(made.inputs))
            assert {"sdpa:math", "unfused"} < calls.keys()
            for baseline, call in calls.items():
                errors = errors_against(call()["out"], made.expected["out"])
                assert LIMITS.hold(errors), (baseline, kind, told, errors)


@pytest.mark.parametrize("name", FEATURED)
def test_plain_calls_with_further_features_are_within_the_limits(name: str) -> None:
    this = case(FEATURED[name])
    pool = InputPool(FLOAT32)
    for kind in FLOAT32.input_kinds:
        made = pool.get(this, kind, 0)
        for call in FLOAT32.baselines(this, dict(made.inputs)).values():
            for output, value in call().items():
                assert LIMITS.hold(errors_against(value, made.expected[output])), (kind, output)


def judged(this: Case, inputs: Tensors, out: torch.Tensor, problem: Attention = FLOAT32) -> bool:
    reference = problem.reference(this, inputs)
    limits = problem.tolerances(this, inputs, reference)
    wanted = expected(reference["out"], limits["out"], out.dtype)
    return LIMITS.hold(errors_against(out, wanted))


WRONG: dict[str, Callable[[Tensors], torch.Tensor]] = {
    "one key more": lambda inputs: _flipped(inputs, 1),
    "one key less": lambda inputs: _flipped(inputs, 0),
    "another batch's": lambda inputs: inputs["attn_mask"].roll(1, 0),
    "inverted": lambda inputs: 1 - inputs["attn_mask"],
    "ignored": lambda inputs: torch.ones_like(inputs["attn_mask"]),
}


def _flipped(inputs: Tensors, value: int) -> torch.Tensor:
    """The mask with one element of another value in the row that sees the most keys."""
    mask = inputs["attn_mask"].clone()
    rows = mask.flatten(0, 2)
    several = rows.sum(1).where((rows == 0).any(1), 0)  # those of a row that hides some, too
    row = rows[several.argmax()]
    row[(row != value).nonzero()[-1]] = value
    return mask


@pytest.mark.parametrize("dtype", Attention.dtypes)
@pytest.mark.parametrize("how", WRONG)
def test_one_key_of_padding_too_many_or_too_few_shows(how: str, dtype: str) -> None:
    problem = Attention(dtype)
    this = case({"mask": "padding"}, problem, batch=4, seq_len_q=9, seq_len_k=600)
    inputs = problem.make_inputs(this, "normal", 0)
    assert judged(
        this, inputs, problem.reference(this, inputs)["out"].to(inputs["q"].dtype), problem
    )
    other = {**inputs, "attn_mask": WRONG[how](inputs)}
    assert not torch.equal(other["attn_mask"], inputs["attn_mask"])
    out = problem.reference(this, other)["out"].to(inputs["q"].dtype)
    assert not judged(this, inputs, out, problem)


# --- the inputs ----------------------------------------------------------------------------


def test_masks_have_rows_with_every_trait() -> None:
    this = case({"mask": "bool"}, seq_len_k=300)
    mask = FLOAT32.make_inputs(this, "normal", 5)["attn_mask"]
    assert set(mask.unique().tolist()) == {0, 1}
    counts = mask.sum(-1)
    for count in (0, 1, 300):
        assert (counts == count).any()
    rows = mask.flatten(0, 2)
    several = rows.sum(1) > 1
    assert ((rows[:, 0] == 0) & several).any()
    assert ((rows[:, -1] == 0) & several).any()
    alone = (rows[:, 0] == 1) & (rows.sum(1) == 1)
    assert alone.any()
    # A block of 16 keys that is hidden but for one key, in a row that sees whole blocks.
    blocks = rows[:, :288].view(-1, 18, 16).sum(2)
    assert ((blocks == 1).any(1) & (blocks == 16).any(1) & (blocks == 0).any(1)).any()


@pytest.mark.parametrize("kind", ["normal", "large_logits"])
def test_a_bias_has_small_and_large_values_and_hides_keys_in_three_ways(kind: str) -> None:
    this = case({"mask": "bias"})
    bias = FLOAT32.make_inputs(this, kind, 5)["attn_mask"].flatten(0, 2)
    lowest = torch.finfo(torch.float32).min
    hiding = (-math.inf, lowest, -1e4)
    for value in hiding:
        assert (bias == value).any()
        assert (bias == value).all(1).any()  # rows that see no key
    seen = bias[(bias > -2e3)]
    assert seen.abs().amax() > 25
    assert (seen.abs() < 1).sum() > 0.15 * len(seen)


def test_padding_of_one_row_sees_several_keys_whatever_the_seed() -> None:
    this = case({"mask": "padding", "mask_batch": 1}, seq_len_k=256)
    counts = [FLOAT32.make_inputs(this, "ramp", n)["attn_mask"].sum().item() for n in range(60)]
    assert sum(count >= 8 for count in counts) >= 50
    assert len(set(counts)) > 15


def test_changed_sets_alter_the_mask_and_show_it() -> None:
    for variant in ({"mask": "padding"}, {"mask": "bias", "mask_dtype": "float32"}):
        this = case({**variant}, seq_len_k=200)
        pool = InputPool(FLOAT32)
        normal = pool.get(this, "normal", 0)
        sets = [
            each
            for each in pool.changed(this, 0)
            if {one.name for one in each.alterations} == {"attn_mask"}
        ]
        assert sets
        for each in sets:
            out = normal.expected["out"][0] / normal.expected["out"][1]
            errors = errors_against(out.float(), each.expected["out"])
            assert not LIMITS.hold(errors)


def test_a_masks_first_seed_does_not_change_the_other_inputs() -> None:
    plain, masked = (FLOAT32.make_inputs(case(each), "ramp", 9) for each in ({}, {"mask": "bias"}))
    assert all(torch.equal(plain[name], masked[name]) for name in "qkv")


# --- other programs ------------------------------------------------------------------------


def test_sdpa_is_called_with_the_mask_as_it_is() -> None:
    this = case({"mask": "padding"})
    inputs = FLOAT32.make_inputs(this, "normal", 0)
    call = sdpa_call(this, inputs)
    assert call is not None
    mask = call.options["attn_mask"]
    assert mask.dtype == torch.bool
    assert mask.data_ptr() == inputs["attn_mask"].data_ptr()


def test_a_library_is_not_called_with_a_mask() -> None:
    this = case({"mask": "padding"})
    inputs = FLOAT32.make_inputs(this, "normal", 0)
    with pytest.raises(UnusableBaseline, match="with a mask"):
        FLOAT32.baselines(this, inputs, only="flex")["flex"]()


def test_a_domain_names_the_mask() -> None:
    place = FLOAT32.place(case({"mask": "bias", "mask_heads": 1}))
    assert (place.fixed["mask"], place.fixed["mask_dtype"]) == ("bias", "float32")
    assert "mask" not in FLOAT32.place(case({})).fixed


@pytest.mark.parametrize(
    ("variant", "sizes", "words"),
    [
        ({"mask": "padding"}, {}, "batch 1 1"),
        ({"mask": "padding", "mask_batch": 1}, {}, "1 1 1"),
        ({"mask": "bool", "mask_heads": 1}, {}, "batch 1 rows"),
        ({"mask": "bias", "mask_batch": 1}, {"batch": 1}, "- heads rows"),
        ({"mask": "bool"}, {"seq_len_q": 1}, "batch heads -"),
        ({}, {}, ""),
    ],
)
def test_a_place_says_how_the_mask_is_broadcast(
    variant: dict[str, Value], sizes: dict[str, Value], words: str
) -> None:
    assert FLOAT32.place(case(variant, **sizes)).mask_sizes == words


def test_a_mask_of_one_batch_is_read_as_every_mask_of_several() -> None:
    assert was_broadcast(["batch 1 rows"], "- 1 rows")
    assert was_broadcast(["1 1 rows"], "- 1 -")
    assert not was_broadcast(["- 1 rows"], "1 1 rows")  # no stride of 0 was read at batch 1
    assert not was_broadcast(["batch 1 rows", "1 1 1"], "batch 1 1")
    assert not was_broadcast([], "- - -")
    ways = ["- - -", "- 1 1", "batch 1 1", "1 1 1", "- heads -"]
    assert distinct_broadcasts(ways) == ("batch 1 1", "1 1 1", "- heads -")


@pytest.mark.parametrize(("mask", "ways"), [("padding", 2), ("bool", 8), ("bias", 8)])
def test_edge_shapes_have_every_way_of_broadcasting(mask: str, ways: int) -> None:
    """A package serves the ways that a confirmation executed."""
    edges = FLOAT32.edge_cases(case({"mask": mask}))
    assert len(distinct_broadcasts(FLOAT32.place(edge).mask_sizes for edge in edges)) == ways
