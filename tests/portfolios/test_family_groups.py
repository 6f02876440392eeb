"""The family `attention`: which case goes to which spaces, in which groups, and where none goes."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from evotune.errors import SpaceError, UsageError
from evotune.portfolios.family_groups import budget_shares, point_in, require_cases, sorted_cases
from evotune.portfolios.near_champions import (
    nearest_starts,
    recorded_champions,
)
from evotune.problems import create_problem
from evotune.runs.given_cases import spaces_for
from evotune.runs.setup import load_kernel_setup
from evotune.runs.spaces import shipped_spaces
from evotune.runs.starting import brought_into
from evotune.space.reading.case_file import CaseEntry, given_cases
from evotune.trial import Value

PLAIN: dict[str, Value] = {"batch": 1, "heads": 8, "seq_len": 512, "head_dim": 64}
LARGE: dict[str, Value] = {"batch": 16, "heads": 16, "seq_len": 2048, "head_dim": 64}
DECODE: dict[str, Value] = {
    **{"batch": 8, "heads": 32, "kv_heads": 8},
    **{"seq_len_q": 1, "seq_len_k": 4096, "head_dim": 128},
}
LADDER = ["attention-wgmma", "attention-tma", "attention-mma", "attention-wmma", "attention-scalar"]


def contenders(case: dict[str, Value], device: str) -> list[str]:
    (group,) = sorted_cases(given_cases([case]), device).groups
    return [each.space for each in group.contenders]


def test_the_rungs_that_can_compute_a_case_race_for_it() -> None:
    assert sorted(contenders(PLAIN, "h200")) == sorted(LADDER)
    assert sorted(contenders(PLAIN, "l4")) == sorted(LADDER[2:])
    assert contenders(PLAIN, "cpu") == ["attention-cpu", "attention-scalar-cpu"]


def test_the_most_promising_spaces_come_first() -> None:
    """By recorded champions near the case, then by rung: a small budget is for the first ones."""
    assert contenders(PLAIN, "h200")[:2] == ["attention-mma", "attention-wgmma"]
    assert contenders(PLAIN, "h200")[-1] == "attention-scalar"
    assert contenders(LARGE, "h200")[:2] == ["attention-wgmma", "attention-tma"]
    assert contenders(DECODE, "h200")[0] == "attention-mma-decode"


def test_of_spaces_with_the_same_kernels_the_nearest_races() -> None:
    assert "attention-mma-large" in contenders(LARGE, "l4")
    assert "attention-mma-decode" in contenders(DECODE, "l4")
    (group,) = sorted_cases(given_cases([DECODE]), "l4").groups
    why = "attention-mma-decode has the same kernels and is nearer"
    assert group.passed_over["attention-mma"] == why
    assert "triton" in group.passed_over["attention-triton"]


def test_features_go_to_the_spaces_that_compute_them() -> None:
    windowed = {**PLAIN, "causal": True, "window_left": 100}
    assert sorted(contenders(windowed, "h200")) == [
        *("attention-features", "attention-mma-features", "attention-wgmma-features"),
    ]
    assert contenders({**PLAIN, "head_dim": 80}, "h200") == [
        *("attention-mma-features", "attention-scalar"),
    ]


def test_no_space_gets_a_case_that_it_cannot_compute() -> None:
    cases = [
        {**PLAIN, "head_dim": size, "seq_len": length, "causal": causal, "dtype": dtype}
        for size in (16, 48, 64, 80, 128, 256)
        for length in (1, 333)
        for causal in (False, True)
        for dtype in ("float16", "bfloat16", "float32")
    ]
    for device in ("cpu", "l4", "h200"):
        found = sorted_cases(given_cases(cases), device)
        gone = 0
        for group in found.groups:
            gone += len(group.cases)
            for case in group.cases:
                entry = CaseEntry({}, case.shape, case.variant, group.dtype)
                able = {
                    each.space: each.dtype for each in spaces_for(entry, device) if not each.why
                }
                assert {each.space: each.dtype for each in group.contenders}.items() <= able.items()
        assert gone + len(found.unserved) == len(cases)


def test_a_case_that_goes_nowhere_says_why_and_which_space_can_elsewhere() -> None:
    wide, other = {**PLAIN, "head_dim": 48}, {**PLAIN, "dtype": "float32"}
    found = sorted_cases(given_cases([PLAIN, wide, other]), "h200")
    assert [each.case for each in found.unserved] == [
        "(1,8,512,48) full float16",
        "(1,8,512,64) full float32",
    ]
    nowhere, elsewhere = (each.why for each in found.unserved)
    assert nowhere == "kernel mma needs head_dim in (32, 64, 96, 128), found head_dim = 48"
    assert elsewhere.endswith("found dtype = float32; attention-cpu can on cpu")
    (on_cpu,) = sorted_cases(given_cases([{**PLAIN, "dtype": "float16"}]), "cpu").unserved
    assert "; attention-" in on_cpu.why


def test_a_recorded_call_of_which_no_kernel_is_goes_nowhere() -> None:
    entry = CaseEntry({}, PLAIN, {}, "float32", call={"grad": True})
    found = sorted_cases([entry], "cpu")
    (unserved,) = found.unserved
    assert "an input requires grad" in unserved.why
    assert "; attention" not in unserved.why
    with pytest.raises(UsageError, match="no shipped space can compute"):
        require_cases(found)


def test_a_masked_call_goes_to_the_space_that_takes_masks() -> None:
    entry = CaseEntry({}, PLAIN, {"mask": "bias"}, "float32")
    (group,) = sorted_cases([entry], "cpu").groups
    assert [each.space for each in group.contenders] == ["attention-masks-cpu"]
    (group,) = sorted_cases([CaseEntry({}, PLAIN, {"mask": "bias"}, "float16")], "h200").groups
    on_hopper = {"attention-masks", "attention-mma-masks", "attention-wgmma-masks"}
    assert {each.space for each in group.contenders} == on_hopper


def test_a_mistake_in_a_list_is_said_with_its_place() -> None:
    with pytest.raises(SpaceError, match=r"cases\[1\].*heads"):
        sorted_cases(given_cases([PLAIN, {**PLAIN, "heads": 0}]), "cpu")
    with pytest.raises(UsageError, match="unknown device 'l5'"):
        sorted_cases(given_cases([PLAIN]), "l5")


def test_cases_without_a_dtype_have_the_devices_usual_one() -> None:
    (on_cpu,) = sorted_cases(given_cases([PLAIN]), "cpu").groups
    (on_gpu,) = sorted_cases(given_cases([PLAIN]), "l4").groups
    assert (on_cpu.dtype, on_gpu.dtype) == ("float32", "float16")


def test_a_space_is_told_the_dtype_only_where_its_file_says_another() -> None:
    (group,) = sorted_cases(given_cases([{**PLAIN, "dtype": "bfloat16"}]), "h200").groups
    assert {each.dtype for each in group.contenders} == {"bfloat16"}
    (group,) = sorted_cases(given_cases([{**PLAIN, "dtype": "bfloat16"}]), "cpu").groups
    assert [(each.space, each.dtype) for each in group.contenders] == [("attention-cpu-bf16", "")]


def test_alike_cases_are_one_group() -> None:
    cases = [
        {**PLAIN, "count": 4},
        {**PLAIN, "seq_len": 1024},
        {**PLAIN, "seq_len": 1025},
        {**PLAIN, "causal": True},
        {**PLAIN, "head_dim": 32},
        {**PLAIN, "count": 2},
    ]
    found = sorted_cases(given_cases(cases), "cpu")
    assert [group.labels for group in found.groups] == [
        ("(1,8,512,64) full", "(1,8,1024,64) full"),
        ("(1,8,1025,64) full",),
        ("(1,8,512,32) full",),
        ("(1,8,512,64) causal",),
    ]
    assert found.groups[0].count == 7
    assert found.groups[0].name == "(1,8,512,64) full float32 and 1 more"


def test_half_of_the_budget_is_divided_equally_and_half_by_count() -> None:
    assert budget_shares([3.0, 1.0]) == [0.25 + 0.375, 0.25 + 0.125]
    assert sum(budget_shares([1000.0, 1.0, 1.0])) == pytest.approx(1.0)


def test_each_recorded_champion_is_a_configuration_of_its_space() -> None:
    """For each of its cases; of a parameter that came later it has the default."""
    for space, champions in recorded_champions().items():
        device = "cpu" if space.endswith("-cpu") else "h200"
        path = shipped_spaces()[space]
        for champion in champions:
            cases = given_cases([near.case for near in champion.cases])
            setup = load_kernel_setup(path, device, compile_only=True, cases=cases)
            assert len(setup.problem_spec.cases) == len(cases)
            found = brought_into(setup.space, champion.configuration)
            assert found is not None
            assert champion.configuration.items() <= found.items(), space


def test_the_table_of_champions_is_what_its_benchmark_writes(
    benchmark_module: Callable[[str], ModuleType],
) -> None:
    folder = next(iter(shipped_spaces().values())).parent
    assert (folder / "attention_champions.json").read_text() == benchmark_module(
        "champion_table"
    ).text()


def test_a_search_begins_with_the_champions_of_the_nearest_cases() -> None:
    problem = create_problem("attention", "float32")
    given = sorted_cases(given_cases([{**PLAIN, "seq_len": 500}]), "cpu").groups[0].cases[0]
    starts = nearest_starts("attention-cpu", problem, point_in(problem, given))
    assert [start["BLOCK_M"] for start in starts] == [64, 192]
    of_the_same_kernels = nearest_starts(
        "attention-features-simd-cpu", problem, point_in(problem, given)
    )
    assert of_the_same_kernels == starts
    assert nearest_starts("attention-scalar-cpu", problem, point_in(problem, given)) == []
