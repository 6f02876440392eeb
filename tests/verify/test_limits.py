"""The error limits: no right way of computing attention exceeds them, no wrong one stays within."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from _pytest.mark import ParameterSet

from evotune.problems.attention import Attention
from evotune.problems.problem import Case, rounding_of
from evotune.verify.accuracy import (
    LIMITS,
    Errors,
    error_terms,
    errors_against,
    errors_of,
    expected,
    worst_element,
)
from evotune.verify.pool import InputPool
from tests.sweeps import swept

from . import emulations, roundings
from .kernels import PROBLEM, make_case

SHAPES: list[tuple[dict[str, int], bool]] = [
    ({"batch": 1, "heads": 2, "seq_len": 130, "head_dim": 64}, True),
    (
        {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len_q": 33, "seq_len_k": 257, "head_dim": 32},
        False,
    ),
    ({"batch": 1, "heads": 1, "seq_len_q": 1, "seq_len_k": 257, "head_dim": 128}, False),
    ({"batch": 1, "heads": 1, "seq_len_q": 5, "seq_len_k": 3, "head_dim": 40}, True),
]


def case_of(problem: Attention, shape: Mapping[str, int], causal: bool, scale: float = 0) -> Case:
    """A case of the shape, with `scale` as its softmax_scale unless that is 0."""
    case = problem.case(shape, {"causal": causal})
    if not scale:
        return case
    symbols = {**case.symbols, "softmax_scale": scale}
    return dataclasses.replace(case, label=f"{case.label} scale {scale}", symbols=symbols)


@functools.cache
def pool_of(dtype: str) -> InputPool:
    return InputPool(Attention(dtype))


def shares(way: emulations.Way, problem: Attention, case: Case, seed: int) -> dict[str, float]:
    """The errors as a share of the limits, by kind of inputs."""
    found = {}
    for kind in problem.input_kinds:
        inputs = pool_of(problem.dtype).get(case, kind, seed)
        output = emulations.compute(way, case, inputs.inputs)["out"]
        errors = errors_against(output, inputs.expected["out"])
        share = max(errors.max / LIMITS.max, errors.rms / LIMITS.rms)
        found[kind] = math.inf if math.isnan(share) else share
    return found


def spread(ways: Sequence[tuple[str, str]]) -> list[ParameterSet]:
    """`make test` takes each way with one type, in turn; `make soak` takes it with all."""
    types: dict[str, list[str]] = {}
    for name, dtype in ways:
        types.setdefault(name, []).append(dtype)
    soon = {(name, of[turn % len(of)]) for turn, (name, of) in enumerate(types.items())}
    return swept(ways, soon.__contains__)


RIGHT = [(name, dtype) for name in emulations.HONEST for dtype in Attention.dtypes]


@pytest.mark.parametrize(("name", "dtype"), spread(RIGHT))
def test_a_right_way_is_within_the_limits(name: str, dtype: str) -> None:
    """2 seeds here; benchmarks/lab/limits.py takes 100."""
    problem = Attention(dtype)
    for shape, causal in SHAPES:
        for seed, scale in ((0, 0.0), (1, 0.31)):
            case = case_of(problem, shape, causal, scale)
            found = shares(emulations.HONEST[name], problem, case, seed)
            assert max(found.values()) <= 0.9, (case.label, found)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", Attention.dtypes)
def test_pytorchs_own_ways_are_within_the_limits(dtype: str, causal: bool) -> None:
    problem = Attention(dtype)
    shape = {"batch": 1, "heads": 2, "seq_len": 128, "head_dim": 64}
    base = problem.case(shape, {"causal": causal})
    cases = [base, *problem.edge_cases(base), case_of(problem, shape, causal, 0.4)]
    pool = InputPool(problem)
    refused = []
    for case in cases:
        for kind in problem.input_kinds:
            inputs = pool.get(case, kind, 0)
            for name, call in problem.baselines(case, dict(inputs.inputs)).items():
                # The unfused path rounds its scores to 16 bits: too coarse for large ones.
                if name == "unfused" and dtype != "float32":
                    continue
                if not LIMITS.hold(errors_against(call()["out"], inputs.expected["out"])):
                    refused.append((name, case.label, kind))
    assert refused == []


@pytest.mark.parametrize("name", ["weights_in_float", "in_order", "logsumexp"])
def test_another_rounding_passes_and_a_flipped_last_bit_does_not(name: str) -> None:
    """Results of ramp inputs lie near 1/2. Just above it a unit in the last place is largest as a
    share of the limit. 12 seeds here; benchmarks/lab/limits_of_rounding.py takes 200."""
    problem = Attention("float16")
    case = problem.case({"batch": 1, "heads": 2, "seq_len": 96, "head_dim": 64}, {"causal": True})
    found: dict[str, list[float]] = {rounding: [] for rounding in roundings.ROUNDINGS}
    for seed in range(12):
        inputs = pool_of("float16").get(case, "ramp", seed)
        result = roundings.WAYS[name](emulations.problem_of(case, inputs.inputs))
        for rounding, rounded in roundings.ROUNDINGS.items():
            found[rounding].append(
                errors_against(rounded(result), inputs.expected["out"]).max / LIMITS.max
            )
    assert max(found["to_nearest"]) <= 0.7
    assert max(found["towards_zero"]) <= 1
    assert sum(share > 1 for share in found["last_bit_flipped"]) >= 3


WRONG = [
    (name, dtype)
    for dtype in Attention.dtypes
    for name in (*emulations.WRONG, *emulations.WRONG_IN[dtype])
]


@pytest.mark.sweep(12)
@pytest.mark.parametrize(("name", "dtype"), spread(WRONG))
def test_a_wrong_way_exceeds_them_whatever_the_seed(name: str, dtype: str) -> None:
    problem = Attention(dtype)
    way = {**emulations.WRONG, **emulations.WRONG_IN[dtype]}[name]
    shape = {"batch": 1, "heads": 1, "seq_len_q": 257, "seq_len_k": 257, "head_dim": 64}
    case = case_of(problem, shape, True, 0.11 if name == "scale_ignored" else 0.0)
    for seed in range(3):
        found = shares(way, problem, case, seed)
        assert max(found.values()) > 1, found


@pytest.mark.parametrize(
    "name", ["no_maximum", "maximum_from_zero", "zero_is_masked", "drops_below_e-8", "clamped"]
)
def test_a_single_row_shows_it_in_some_seed(name: str) -> None:
    """The seed decides which trait the single row has."""
    problem = Attention("bfloat16")
    shape = {"batch": 1, "heads": 1, "seq_len_q": 1, "seq_len_k": 257, "head_dim": 64}
    case = problem.case(shape, {"causal": False})
    found = [
        max(shares(emulations.WRONG[name], problem, case, seed).values()) for seed in range(40)
    ]
    assert sum(share > 1 for share in found) >= 3


def test_small_weights_count_beside_one_that_is_far_above_them() -> None:
    """In bfloat16 one key scores 6.5 above 255 others, whose weights are a quarter of the sum."""
    problem = Attention("bfloat16")
    shape = {"batch": 1, "heads": 1, "seq_len_q": 60, "seq_len_k": 256, "head_dim": 128}
    case = problem.case(shape, {"causal": False})
    for exponent in (6, 8, 10, 12):
        for way in ("drops_below_e", "drops_tiles_below_e"):
            found = shares(emulations.WRONG[f"{way}-{exponent}"], problem, case, 3)
            assert found["ramp"] > 5, (way, exponent)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", Attention.dtypes)
def test_parts_of_split_keys_in_half_precision_exceed_them(dtype: str, interleaved: bool) -> None:
    problem = Attention(dtype)
    shape = {"batch": 1, "heads": 2, "seq_len_q": 16, "seq_len_k": 1024, "head_dim": 64}
    case = problem.case(shape, {"causal": False})
    for count in (2, 4, 8):
        way = functools.partial(emulations.narrow_parts, count, interleaved)
        found = [shares(way, problem, case, seed)["ramp"] for seed in range(3)]
        assert max(found) > 1.5, (count, found)


@pytest.mark.parametrize("keys", [1100, 4100])
@pytest.mark.parametrize("dtype", Attention.dtypes)
def test_right_ways_are_within_the_limits_for_many_keys(dtype: str, keys: int) -> None:
    problem = Attention(dtype)
    shape = {"batch": 1, "heads": 1, "seq_len_q": 40, "seq_len_k": keys, "head_dim": 16}
    case = problem.case(shape, {"causal": False})
    for name in ("library", "backwards", "logsumexp", "exp2_folded", "whole_maximum", "split"):
        found = shares(emulations.HONEST[name], problem, case, 2)
        assert max(found.values()) <= 0.9, (name, found)


@pytest.mark.parametrize("below", [9.0, 16.0 * math.log(2.0)])
def test_a_sink_that_is_left_out_exceeds_them(below: float) -> None:
    """Where it lies 9 below the highest score, or 16 powers of two. Half precision hides that."""
    problem, pool = Attention("float32"), pool_of("float32")
    shape = {"batch": 1, "heads": 2, "seq_len": 64, "head_dim": 64}
    case = problem.case(shape, {"causal": True, "sinks": True})
    for least, right in ((below, False), (math.inf, True)):
        inputs = pool.get(case, "needle", 0)
        p = emulations.problem_of(case, inputs.inputs)
        sink = inputs.inputs["sinks"].view(1, -1, 1, 1)
        top = torch.maximum(p.scores.amax(-1, keepdim=True), sink)
        weight = torch.where(sink < top - least, 0.0, torch.exp(sink - top))
        weights = torch.exp(p.scores - top)
        out = weights @ p.v / (weights.sum(-1, keepdim=True) + weight)
        assert LIMITS.hold(errors_against(out, inputs.expected["out"])) == right


def test_rows_and_columns_of_any_size_hide_no_others() -> None:
    reference = torch.tensor([[1e4, 1.0], [1e-4, 3.0]], dtype=torch.float64)
    tolerance = rounding_of(reference, torch.float32)
    wanted = expected(reference, tolerance, torch.float32)
    assert LIMITS.hold(errors_against(reference.float(), wanted))
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        wrong = reference.float()
        wrong[place] *= 1 + 1e-6
        errors = errors_against(wrong, wanted)
        assert 2 < errors.max < 10
        worst = worst_element(wrong, wanted)
        assert worst.place == place
        assert worst.found == float(wrong[place])
        assert worst.wanted == pytest.approx(float(reference[place]), rel=1e-6)
        assert worst.error == pytest.approx(1e-6 * float(reference[place]), rel=0.2)
        assert worst.tolerance == pytest.approx(float(tolerance[place]), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_errors_are_shares_of_tolerances(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    tolerance = torch.rand(3, 5, generator=generator, dtype=torch.float64) / 100 + 1e-3
    wanted = expected(reference, tolerance, dtype)
    found = -wanted[0].double() / wanted[1].double()
    torch.testing.assert_close(found, reference, rtol=1e-6, atol=1e-6)
    output = reference.float().to(dtype)
    difference = ((output.double() - reference) / tolerance).abs()
    errors = errors_against(output, wanted)
    assert errors.max == pytest.approx(float(difference.max()), rel=1e-3, abs=1e-3)
    assert errors.rms == pytest.approx(float(difference.square().mean().sqrt()), rel=1e-3, abs=1e-3)
    several = error_terms(torch.stack([output, output + 1]), wanted[None])
    assert errors_of([float(term[0]) for term in several], 15) == errors
    assert not LIMITS.hold(errors_of([float(term[1]) for term in several], 15))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_result_may_be_one_unit_in_the_last_place_off(dtype: torch.dtype) -> None:
    values = torch.tensor([1.5, -3.0, 0.3, 1000.0], dtype=dtype)
    beside = torch.nextafter(values, torch.full_like(values, math.inf))
    after = torch.nextafter(beside, torch.full_like(values, math.inf))
    allowed = rounding_of(values.double(), dtype)
    assert ((beside.double() - values.double()).abs() <= allowed).all()
    assert ((after.double() - values.double()).abs() > allowed).any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_is_not_finite_never_passes(bad: float, dtype: torch.dtype) -> None:
    zero = torch.zeros(4, dtype=torch.float64)
    wanted = expected(zero, rounding_of(zero, dtype), dtype)
    assert LIMITS.hold(errors_against(zero.to(dtype), wanted))
    output = torch.tensor([0.0, bad, 0.0, 0.0], dtype=dtype)
    errors = errors_against(output, wanted)
    assert not LIMITS.hold(errors)
    assert not math.isfinite(errors.max)
    assert not LIMITS.hold(Errors(0.0, math.nan))


def test_input_sets_are_made_once_and_never_share_values() -> None:
    pool = InputPool(PROBLEM)
    case, other = make_case(16, causal=False), make_case(16, causal=True)
    first = pool.get(case, "normal", 0)
    assert pool.get(case, "normal", 0) is first
    again = InputPool(PROBLEM).get(case, "normal", 0)
    assert torch.equal(again.inputs["q"], first.inputs["q"])
    for different in (
        pool.get(case, "normal", 1),
        pool.get(case, "ramp", 0),
        pool.get(other, "normal", 0),
    ):
        assert not torch.equal(different.inputs["q"], first.inputs["q"])


def test_the_pool_forgets_what_was_used_least_recently() -> None:
    case = make_case(16, causal=False)
    nbytes = InputPool(PROBLEM).get(case, "normal", 0).nbytes
    pool = InputPool(PROBLEM, limit_bytes=3 * nbytes)
    first = pool.get(case, "normal", 0)
    for seed in (1, 2):
        pool.get(case, "normal", seed)
    assert pool.get(case, "normal", 0) is first  # used again: now the most recent
    pool.get(case, "normal", 3)
    assert pool.get(case, "normal", 0) is first
    assert len(pool._sets) == 3


def test_a_stray_write_into_a_set_is_noticed() -> None:
    pool = InputPool(PROBLEM)
    sets = [pool.get(make_case(33, causal=True), kind, 0) for kind in ("normal", "ramp")]
    assert pool.intact()
    for tensor in (sets[0].expected["out"], sets[1].inputs["k"]):
        before = tensor.view(-1)[7].clone()
        tensor.view(-1)[7] += 1.0
        assert not pool.intact()
        tensor.view(-1)[7] = before
        assert pool.intact()
