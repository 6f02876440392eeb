"""Which region of `dispatch.json` decides on a case."""

from __future__ import annotations

from typing import Any

import pytest

from evotune.export.runtime._dispatch import Choice, Dispatch
from tests.export.runtime.packages import CASE, HEAD_DIM, STRIDES, description, region

SYMBOLS = {
    **{"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 40, "seq_len_k": 40},
    **{"head_dim": HEAD_DIM, "causal": False, "softmax_scale": 0.25, "seq_len": 40},
    **dict.fromkeys(STRIDES, HEAD_DIM),
}


def dispatch(*served: dict[str, Any], **changes: Any) -> Dispatch:
    """Two kernels alike, but the first has no machine code for the causal mask."""
    whole = description("any", served=list(served))
    (kernel,) = whole["kernels"]
    binaries = [{"fixed": {"causal": causal}, "file": str(causal)} for causal in (False, True)]
    whole["kernels"] = [
        {**kernel, "binaries": binaries[:1]},
        {**kernel, "binaries": binaries, "guards": []},
    ]
    return Dispatch({**whole, **changes})


def kernel_of(found: Choice | str) -> int | str:
    return found if isinstance(found, str) else found.kernel


def test_the_first_region_that_holds_the_case_decides() -> None:
    regions = [region(kernel=1, **CASE), region(kernel=0, **CASE)]
    assert kernel_of(dispatch(*regions).choose(SYMBOLS, "contiguous")) == 1
    assert kernel_of(dispatch(*regions[::-1]).choose(SYMBOLS, "contiguous")) == 0


def test_the_next_one_does_where_a_guard_or_the_machine_code_is_missing() -> None:
    regions = [region(kernel=0, **CASE, causal=True), region(kernel=1, **CASE, causal=True)]
    found = dispatch(*regions).choose({**SYMBOLS, "causal": True}, "contiguous")
    assert kernel_of(found) == 1
    many = {**CASE, "seq_len_q": [1, 2000]}
    regions = [region(kernel=0, **many), region(kernel=1, **many)]
    found = dispatch(*regions).choose({**SYMBOLS, "seq_len_q": 1000}, "contiguous")  # 4000 rows
    assert kernel_of(found) == 1


def test_a_compiled_in_value_that_has_none_is_no_machine_code() -> None:
    (kernel,) = description("any")["kernels"]
    steps = ["//", 100, ["-", {"name": "batch"}, 2]]
    kernel = {
        **{**kernel, "let": {**kernel["let"], "steps": steps}, "guards": []},
        "binaries": [{"fixed": {"steps": value}, "file": str(value)} for value in (-100, 100)],
    }
    many = region(**{**CASE, "batch": [1, 4]})
    package = dispatch(many, kernels=[kernel], domain=[many])
    batches = {batch: package.choose({**SYMBOLS, "batch": batch}, "contiguous") for batch in (1, 2)}
    assert kernel_of(batches[1]) == 0
    assert batches[2] == "not measured to win"


@pytest.mark.parametrize(
    ("of_region", "of_call", "taken"),
    [
        ("contiguous", "contiguous", True),
        ("contiguous", "strided", False),
        ("strided", "contiguous", True),
        ("strided", "strided", True),
        ("another", "contiguous", False),
        ("another", "strided", False),
    ],
)
def test_a_region_serves_contiguous_tensors_and_views_only_if_it_was_measured_on_views(
    of_region: str, of_call: str, taken: bool
) -> None:
    found = dispatch(region(kernel=1, layout=of_region, **CASE)).choose(SYMBOLS, of_call)
    assert kernel_of(found) == (1 if taken else "layout")


@pytest.mark.parametrize(("strided", "taken"), [(0, True), (1, False)])
def test_a_binary_serves_the_cases_on_which_it_was_checked(strided: int, taken: bool) -> None:
    """The binary for views was checked on batches from 2 on, the other one on all."""
    (kernel,) = description("any")["kernels"]
    symbol = {"strided": {"name": "is_view"}}
    binaries = [{"fixed": {"strided": value}, "file": str(value)} for value in (0, 1)]
    domain = [
        {**region(**{**CASE, "batch": batches}, layout="strided"), "compiled": {"strided": value}}
        for value, batches in ((0, [1, 4]), (1, [2, 4]))
    ]
    package = dispatch(
        region(layout="strided", **CASE),
        kernels=[{**kernel, "let": {**kernel["let"], **symbol}, "binaries": binaries}],
        domain=domain,
    )
    found = package.choose({**SYMBOLS, "is_view": strided}, "strided")
    assert kernel_of(found) == (0 if taken else "not measured to win")


def test_numbers_that_differ_in_their_last_bits_are_equal() -> None:
    scale = [0.3, 0.3]
    exact = dispatch(region(kernel=1, softmax_scale=scale, **CASE))
    for value, expected in ((0.1 + 0.2, 1), (0.3001, "not measured to win")):
        found = exact.choose({**SYMBOLS, "softmax_scale": value}, "contiguous")
        assert kernel_of(found) == expected


def test_the_plan_has_numbers() -> None:
    plan: dict[str, Any] = {
        "entry": "f",
        "arguments": [
            {"type": "int32", "value": {"name": "causal"}},
            {"type": "float32", "value": 2},
        ],
        "workspaces": [{"name": "w", "bytes": ["*", 4, {"name": "rows"}], "init": "poison"}],
        "launches": [
            {"entry": "a", "grid": [{"name": "rows"}], "block": [64], "shared_bytes": 1},
            {"entry": "b", "grid": [1], "block": [1], "shared_bytes": 0, "when": False},
        ],
    }
    kernel = {
        "let": {"rows": ["*", {"name": "heads"}, {"name": "seq_len_q"}]},
        "binaries": [{"fixed": {}, "file": "f", "resources": {"dynamic_shared_bytes": 512}}],
        "plan": plan,
        "guards": [],
    }
    found = dispatch(region(**CASE), kernels=[kernel]).choose(SYMBOLS, "contiguous")
    assert isinstance(found, Choice)
    assert [each["value"] for each in found.plan["arguments"]] == [0, 2.0]
    assert found.plan["workspaces"][0]["bytes"] == 640
    assert found.plan["launches"] == [
        {"entry": "a", "grid": [160], "block": [64], "shared_bytes": 512}
    ]


@pytest.mark.parametrize("value", [2**31, 1.5, ["//", 1, 0], {"name": "unknown"}])
def test_an_argument_that_has_no_value_is_no_launch(value: Any) -> None:
    plan = {"entry": "f", "arguments": [{"type": "int32", "value": value}]}
    kernel = {
        "binaries": [{"fixed": {}, "file": "f"}],
        "plan": {**plan, "workspaces": [], "launches": []},
        "guards": [],
    }
    found = dispatch(region(**CASE), kernels=[kernel]).choose(SYMBOLS, "contiguous")
    assert kernel_of(found) == "not measured to win"


def test_a_domain_holds_only_sizes_that_were_executed() -> None:
    """A user's kernels serve their whole domain: the sizes that were executed in pairs of bands,
    and the lengths that were executed one by one."""
    many = region(kernel=1, **{**CASE, "seq_len_q": [1, 64], "batch": [1, 8]})
    known = {
        **many,
        "pairs": {"batch seq_len_q": [[[1, 1], [32, 63]], [[4, 7], [1, 1]]]},
        "lengths": {"seq_len_q": [[1, 1], [40, 50]]},
    }
    package = dispatch(domain=[known])

    def chosen(batch: int, rows: int) -> int | str:
        symbols = {**SYMBOLS, "batch": batch, "seq_len_q": rows}
        return kernel_of(package.choose(symbols, "contiguous", anywhere=True))

    assert chosen(1, 40) == chosen(1, 50) == chosen(5, 1) == 1
    assert chosen(1, 51) == chosen(5, 40) == chosen(1, 1) == "outside the domain"
    assert kernel_of(dispatch(domain=[many]).choose(SYMBOLS, "contiguous", anywhere=True)) == 1

    def why_not(batch: int, rows: int) -> dict[str, Any]:
        return package.never_checked({**SYMBOLS, "batch": batch, "seq_len_q": rows})

    assert why_not(1, 51) == {"seq_len_q": 51}
    assert why_not(5, 40) == {"batch": 5, "seq_len_q": 40}
    assert why_not(9, 40) == {}, "outside of the ranges"


@pytest.mark.parametrize(
    ("mask_sizes", "found"),
    [("batch 1 rows", 0), ("- 1 rows", 0), ("- - -", 0), ("batch 1 1", "not measured to win")],
)
def test_a_mask_must_be_broadcast_in_one_of_the_regions_ways(
    mask_sizes: str, found: int | str
) -> None:
    served = {**region(**CASE), "mask_sizes": ["1 1 rows", "batch 1 rows"]}
    chosen = dispatch(served).choose({**SYMBOLS, "mask_sizes": mask_sizes}, "contiguous")
    assert kernel_of(chosen) == found
    (case,) = dispatch(served).exact_cases()
    assert case["mask_sizes"] == "1 1 rows"
