"""`--cases`: which cases a space tunes for in place of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evotune.errors import EvotuneError, SpaceError, UsageError
from evotune.runs.given_cases import GIVEN_CASES, skipped_in_words
from evotune.runs.reopening import ReopenedRun
from evotune.runs.setup import load_kernel_setup
from evotune.runs.spaces import shipped_spaces
from evotune.space.reading.case_file import given_cases, read_cases
from evotune.store import RunStore
from evotune.workers.executor import HELD_OUT, TIMED
from tests.export.making import fabricated, tiny_space
from tests.runs.runs import RECORDING, recorded_space

SMALL = {"batch": 1, "heads": 2, "seq_len": 64, "head_dim": 32}
SPACE = shipped_spaces()["attention-cpu"]


def test_cases_take_the_place_of_shapes_variants_and_held_out_shapes() -> None:
    cases = given_cases([{**SMALL, "causal": True}, {**SMALL, "layout": "blhd"}])
    setup = load_kernel_setup(SPACE, "cpu", compile_only=True, cases=cases)
    assert [case.label for case in setup.cases[TIMED]] == [
        "(1,2,64,32) causal",
        "(1,2,64,32,blhd) full",
    ]
    assert setup.cases[HELD_OUT] == []
    assert setup.skipped == ()
    assert skipped_in_words(setup.skipped, 2) == ""


@pytest.mark.parametrize(
    ("name", "shape", "label"),
    [
        (
            "attention-varlen-cpu",
            {"sequences": 4, "heads": 4, "kv_heads": 2, "tokens_q": 16, "tokens_k": 16}
            | {"longest_q": 6, "longest_k": 6, "head_dim": 64, "lengths": "even"},
            "longest_k=6,head_dim=64,even) causal",
        ),
        (
            "attention-paged-cpu",
            {"sequences": 2, "queries": 1, "heads": 4, "kv_heads": 2, "longest": 64}
            | {"page_size": 16, "head_dim": 64},
            "page_size=16,head_dim=64) causal",
        ),
    ],
)
def test_hand_written_cases_of_ragged_attention(
    name: str, shape: dict[str, int], label: str
) -> None:
    cases = given_cases([{**shape, "causal": True}])
    setup = load_kernel_setup(shipped_spaces()[name], "cpu", compile_only=True, cases=cases)
    (case,) = setup.cases[TIMED]
    assert case.label.endswith(label)


def test_cases_that_no_kernel_takes_are_skipped_counted_and_told(tmp_path: Path) -> None:
    logged = {"shape": {**SMALL, "batch": 0}, "variant": {"causal": True}, "dtype": "float32"}
    (tmp_path / "misses.json").write_text(json.dumps([logged]))
    cases = given_cases(
        [
            {**SMALL, "count": 2},
            SMALL,
            {**SMALL, "head_dim": 48},
            {**SMALL, "dtype": "float16"},
            {**SMALL, "batch": 2, "dtype": "float16"},
        ]
    ) + read_cases(tmp_path / "misses.json")
    setup = load_kernel_setup(SPACE, "cpu", compile_only=True, cases=cases)
    assert [(case.shape["batch"], case.count) for case in setup.problem_spec.cases] == [(1, 3)]
    said = skipped_in_words(setup.skipped, 1)
    assert said.startswith("4 of 5 cases are skipped: 2 for dtype float16, where the space has")
    assert "1 for kernel cpu needs head_dim" in said
    assert "1 for expected batch to be an integer of at least 1, got 0" in said


def test_mistakes_name_their_place() -> None:
    for case, words in (
        ({**SMALL, "heads": 0}, r"^cases\[1\].heads: expected heads to be an integer"),
        ({**SMALL, "rows": 1}, r"^cases\[1\].rows: unknown size 'rows'"),
        ({"batch": 1}, r"^cases\[1\]: the shape lacks"),
    ):
        with pytest.raises(SpaceError, match=words) as caught:
            load_kernel_setup(SPACE, "cpu", compile_only=True, cases=given_cases([SMALL, case]))
        assert caught.value.exit_code == 2


def test_a_list_of_which_nothing_is_left_is_refused() -> None:
    cases = given_cases([{**SMALL, "head_dim": 48}])
    with pytest.raises(UsageError, match="can serve none of 1 case: kernel cpu needs head_dim"):
        load_kernel_setup(SPACE, "cpu", compile_only=True, cases=cases)


def test_a_recorded_space_takes_no_cases(tmp_path: Path) -> None:
    for space in (RECORDING, recorded_space(tmp_path)):
        with pytest.raises(EvotuneError, match="recorded space") as caught:
            load_kernel_setup(space, "auto", cases=given_cases([SMALL]))
        assert caught.value.exit_code == 2


def test_a_run_is_opened_again_with_its_cases(tmp_path: Path) -> None:
    cases = given_cases([{"rows": 8, "columns": 32, "count": 2}, {"rows": 4, "columns": 48}])
    run = fabricated(tiny_space("softmax-cpu", tmp_path), tmp_path, given=cases)
    reopened = ReopenedRun.load(run, anywhere=True)
    assert [case.label for case in reopened.setup.cases[TIMED]] == ["(8,32)", "(4,48)"]
    with RunStore.open_for_writing(run.store) as store:
        assert [case["count"] for case in store.meta(GIVEN_CASES)] == [2, 1]
        store.set_meta(GIVEN_CASES, [{"shape": 3}])
    with pytest.raises(EvotuneError) as caught:
        ReopenedRun.load(run, anywhere=True)
    assert caught.value.exit_code == 4


FEATURES = {
    "window_left": {"window_left": 16, "causal": True},
    "alibi": {"alibi": True},
    "sinks, lse": {"sinks": True, "lse": True},
    "alignment": {"alignment": "bottom_right", "causal": True, "seq_len_q": 8},
    "value_dim": {"value_dim": 64},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_a_case_with_a_feature_that_no_kernel_computes_is_skipped_and_a_space_that_can_is_named(
    feature: str,
) -> None:
    case = {**SMALL, **FEATURES[feature]}
    if "seq_len_q" in case:
        case["seq_len_k"] = case.pop("seq_len")
    cases = given_cases([SMALL, case])
    setup = load_kernel_setup(SPACE, "cpu", compile_only=True, cases=cases)
    assert [case.label for case in setup.cases[TIMED]] == ["(1,2,64,32) full"]
    said = skipped_in_words(setup.skipped, 1)
    assert f"1 for kernel cpu does not compute {feature} (use attention-features-" in said
    (able, *_) = said.split("(use ")[1].rstrip(")").split(" or ")
    other = load_kernel_setup(shipped_spaces()[able], "cpu", compile_only=True, cases=cases[1:])
    assert len(other.cases[TIMED]) == 1


def test_alignment_of_as_many_queries_as_keys_is_no_feature() -> None:
    cases = given_cases([{**SMALL, "causal": True, "alignment": "bottom_right"}])
    setup = load_kernel_setup(SPACE, "cpu", compile_only=True, cases=cases)
    assert len(setup.cases[TIMED]) == 1


def test_a_run_of_an_older_evotune_keeps_its_cases(tmp_path: Path) -> None:
    """It took cases with features that its kernel does not compute."""
    run = fabricated(tiny_space("attention-cpu", tmp_path), tmp_path, given=given_cases([SMALL]))
    older = {"shape": SMALL, "variant": {"causal": True, "window_left": 16}, "count": 1}
    with RunStore.open_for_writing(run.store) as store:
        store.set_meta(GIVEN_CASES, [older])
    reopened = ReopenedRun.load(run, anywhere=True)
    assert len(reopened.setup.cases[TIMED]) == 1
