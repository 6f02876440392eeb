"""Features of a call: which cases it is, and what PyTorch computes where no kernel does."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from evotune.export.case_shapes import NONE as NOTHING_FIXED
from evotune.export.case_shapes import to_json
from evotune.export.runtime._asked_features import (
    NONE,
    Asked,
    asked_of,
    read_features,
    same_cases,
)
from evotune.export.runtime._attention_package import Call
from evotune.export.runtime._plain_features import (
    explicit,
    own_keys,
    plain_with_features,
    visible,
)
from evotune.problems.attention import Attention
from evotune.problems.problem import Case
from evotune.space.language import parse_expression
from evotune.space.reading.yaml_source import Position

SCORE_MOD = (
    "max(-3, score - 0.1 * abs(row - column)) if not head % 2 == 0 and row // 2 < 9 "
    "else -score / 2 + min(row, column)"
)
TREES = {SCORE_MOD: to_json(parse_expression(SCORE_MOD, Position()).node)}
_WINDOWS = (-1, 0, 1, 3, 20)


def called(case: Case, kind: str = "normal", seed: int = 0) -> tuple[Call, Any]:
    """The call of a case of evotune's problem, and its inputs."""
    problem = Attention(str(case.symbols["dtype"]))
    inputs = problem.make_inputs(case, kind, seed)
    call = Call(
        *(inputs[name] for name in ("q", "k", "v")),
        bool(case.symbols["causal"]),
        float(case.symbols["softmax_scale"]),
        enable_gqa=True,
        asked=asked_of(case.symbols),
        slopes=inputs.get("alibi_slopes"),
        sinks=inputs.get("sinks"),
    )
    return call, inputs


def random_case(rng: random.Random, dtype: str) -> Case:
    features: dict[str, Any] = {
        "window_left": rng.choice(_WINDOWS[1:]),
        "window_right": rng.choice(_WINDOWS[1:]),
        "softcap": rng.choice((2.0, 30.0)),
        "alibi": True,
        "sinks": True,
        "lse": True,
        "score_mod": SCORE_MOD,
        "alignment": "bottom_right",
        "causal": True,
    }
    told = {name: value for name, value in features.items() if rng.random() < 0.35}
    if told.get("causal"):
        told.pop("window_right", None)
    heads = rng.choice((2, 4))
    shape = {"batch": rng.choice((1, 2)), "heads": heads, "kv_heads": rng.choice((1, 2, heads))}
    shape |= {"seq_len_q": rng.choice((1, 7, 33)), "seq_len_k": rng.choice((1, 12, 40))}
    shape |= {"head_dim": 8, "value_dim": rng.choice((4, 8))}
    variant = {"causal": told.pop("causal", False)}
    return Attention(dtype).case({**shape, **told}, variant)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pytorch_computes_what_the_reference_does(dtype: str) -> None:
    rng = random.Random(dtype)
    problem = Attention(dtype)
    for number in range(60):
        case = random_case(rng, dtype)
        call, inputs = called(case, rng.choice(problem.input_kinds), number)
        reference = problem.reference(case, inputs)
        allowed = problem.tolerances(case, inputs, reference)
        out, lse = plain_with_features(call, TREES)
        assert out.dtype == call.q.dtype
        assert (lse is not None) == call.asked.lse
        for name, found in (("out", out), ("lse", lse)):
            if found is not None:
                same = found.double() == reference[name]  # -inf too
                off = (found.double() - reference[name]).abs()
                assert bool((same | (off <= allowed[name])).all()), (case.label, name)


def test_all_names_of_a_case_are_the_same_function() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        queries, keys = rng.choice((1, 2, 5, 9)), rng.choice((1, 2, 5, 9))
        q, k = torch.empty(1, 1, queries, 4), torch.empty(1, 1, keys, 4)
        causal = rng.random() < 0.5
        asked = Asked(
            bottom_right=rng.random() < 0.5,
            window_left=rng.choice((-1, 0, 1, 4, 8, 9)),
            window_right=-1 if causal else rng.choice((-1, 0, 1, 4, 8, 9)),
            alibi=rng.random() < 0.3,
        )
        everything = torch.ones(queries, keys, dtype=torch.bool)
        rows = slice(0, queries)
        seen = []
        for each, mask in same_cases(asked, causal, queries, keys):
            found = visible(each, mask, rows, q, k)
            seen.append(everything if found is None else found)
            assert each._replace(bottom_right=False, window_left=-1, window_right=-1) == Asked(
                alibi=asked.alibi
            )
            if asked.alibi:
                assert torch.equal(own_keys(each, rows, q, k), own_keys(asked, rows, q, k))
        assert all(torch.equal(mask, seen[0]) for mask in seen), (asked, causal, queries, keys)


def test_a_window_that_hides_nothing_and_one_row_at_the_end_are_plain_cases() -> None:
    plain = (NONE, False)
    for asked, causal, queries, keys in (
        (Asked(window_left=9, window_right=9), False, 10, 10),
        (Asked(bottom_right=True), True, 1, 10),
        (Asked(bottom_right=True), False, 4, 10),
        (Asked(bottom_right=True, window_left=9), True, 1, 10),
    ):
        assert plain in same_cases(asked, causal, queries, keys)
    assert plain not in same_cases(Asked(bottom_right=True, window_left=8), True, 1, 10)
    assert (NONE, True) in same_cases(Asked(bottom_right=True), True, 7, 7)


def test_gradients_of_every_feature_are_right_and_finite() -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        made = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return made.requires_grad_()

    tensors = (normal(1, 2, 4, 3), normal(1, 1, 3, 3), normal(1, 1, 3, 2), normal(2), normal(2))
    asked = Asked(True, 1, -1, 2.0, alibi=True, sinks=True, lse=True)

    def attend(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, slopes, sinks = given
        call = Call(q, k, v, True, 0.7, True, None, asked, slopes, sinks)
        return explicit(call, {})

    out, lse = attend(*tensors)
    assert not out[0, :, 0].any()  # a row that sees no key
    assert torch.equal(lse[0, :, 0], tensors[4])
    assert torch.autograd.gradcheck(attend, tensors)


@pytest.mark.parametrize("half", [False, True])
def test_windows_alone_have_the_gradients_of_sdpa(half: bool) -> None:
    q, k, v = (torch.randn(1, 2, 9, 8, requires_grad=True) for _ in range(3))
    asked = Asked(bottom_right=half, window_left=3, window_right=1)
    call = Call(q, k[:, :, : 7 if half else 9], v[:, :, : 7 if half else 9], False, None, False)
    plain_with_features(call._replace(asked=asked), {})[0].square().sum().backward()
    found = [tensor.grad.clone() for tensor in (q, k, v) if tensor.grad is not None]
    for tensor in (q, k, v):
        tensor.grad = None
    explicit(call._replace(asked=asked), {})[0].square().sum().backward()
    for one, other in zip(found, (q, k, v), strict=True):
        torch.testing.assert_close(one, other.grad)


def test_rows_are_computed_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Attention("float32").case(
        {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len": 50, "head_dim": 8, "alibi": True,
         "softcap": 5.0, "lse": True, "score_mod": SCORE_MOD},
        {"causal": True},
    )  # fmt: skip
    call, _ = called(case)
    whole = explicit(call, TREES)
    monkeypatch.setattr("evotune.export.runtime._plain_features._SCORES_PER_TILE", 4 * 50 * 7 + 1)
    for one, other in zip(explicit(call, TREES), whole, strict=True):
        torch.testing.assert_close(one, other)


def test_masks_join_the_features() -> None:
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    asked, sinks = Asked(sinks=True), torch.full((4,), -math.inf)
    call = Call(q, k, v, False, None, False, None, asked, None, sinks)
    allowed = torch.rand(2, 1, 6, 6) < 0.6
    allowed[..., 0] = True
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, allowed)
    added = torch.where(allowed, 0.0, -math.inf)
    for mask in (allowed, added):
        torch.testing.assert_close(plain_with_features(call._replace(mask=mask), {})[0], plain)
    allowed[0, 0, 3] = False
    assert not plain_with_features(call._replace(mask=allowed), {})[0][0, :, 3].any()


@pytest.mark.parametrize(
    ("features", "error", "words"),
    [
        ({"windows": (1, 1)}, TypeError, "unexpected keyword argument 'windows'"),
        ({"alignment": "left"}, ValueError, "alignment is top_left or bottom_right"),
        ({"window": 3}, ValueError, "window is"),
        ({"window": (3,)}, ValueError, "window is"),
        ({"window": (True, 1)}, ValueError, "window is"),
        ({"window": (-2, 1)}, ValueError, "window is"),
        ({"window": (1.0, None)}, ValueError, "window is"),
        ({"softcap": -1.0}, ValueError, "softcap is"),
        ({"softcap": math.inf}, ValueError, "softcap is"),
        ({"softcap": "3"}, ValueError, "softcap is"),
        ({"softcap": torch.ones(4)}, ValueError, "softcap is"),
        ({"alibi_slopes": [0.5] * 4}, TypeError, "alibi_slopes is a tensor"),
        ({"sinks": 1.0}, TypeError, "sinks is a tensor"),
        ({"score_mod": "score + 1"}, ValueError, "none of this package's"),
    ],
)
def test_features_that_make_no_sense_are_refused_in_one_line(
    features: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        read_features(features, False, TREES)
    assert "\n" not in str(caught.value)


def test_no_feature_is_asked_for_by_values_that_mean_none() -> None:
    for window, cap, alignment in itertools.product(
        (None, (None, None), (-1, -1)), (None, 0, 0.0), (None, "top_left")
    ):
        given = {"window": window, "softcap": cap, "alignment": alignment, "return_lse": False}
        assert read_features(given, False, {}) == (NONE, None, None)


def test_numbers_may_be_those_of_numpy() -> None:
    asked, *_ = read_features(
        {"window": (np.int64(3), np.int32(0)), "softcap": np.float32(2)}, False, {}
    )
    assert (asked.window_left, asked.window_right, asked.softcap) == (3, 0, 2.0)


def test_regions_name_every_feature_that_a_package_knows() -> None:
    named = NONE._asdict().keys() - {"window_left", "window_right", "softcap"}
    assert named | {"given", "mask_dtype"} == NOTHING_FIXED.keys()
    assert {name: NONE.symbols()[name] for name in NOTHING_FIXED} == NOTHING_FIXED
    case = Attention("float32").case(
        {"batch": 1, "heads": 2, "seq_len": 5, "head_dim": 4, "softcap": 2.0, "window_left": 1,
         "alibi": True, "alignment": "bottom_right"},
        {},
    )  # fmt: skip
    symbols = asked_of(case.symbols).symbols()
    assert symbols["given"] == Attention("float32").place(case).fixed["given"]
    assert {n: case.symbols[n] for n in symbols if n != "given"}.items() <= symbols.items()
    again = Attention("float32").case(
        {"batch": 1, "heads": 2, "seq_len": 5, "head_dim": 4, **asked_of(case.symbols).told()}, {}
    )
    assert again == case
