"""Which baseline a case gets, and the message when it gets none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from workers.faulty import SPACE

from evotune.errors import SpaceError
from evotune.runs.kernel_run import chosen_baseline
from evotune.runs.setup import load_setup
from evotune.workers.executor import TIMED, BaselineTiming


def test_what_a_case_has_is_told_and_not_what_another_one_has() -> None:
    setup = load_setup(SPACE, "cpu")
    document, case = setup.document, setup.cases[TIMED][0]
    assert document is not None
    found = [
        BaselineTiming(case.label, "unfused", 9.0, passed=True),
        BaselineTiming(case.label, "sdpa:flash", 1.0, passed=False),
        BaselineTiming("another", "sdpa:math", 5.0, passed=True),
    ]
    wrong = "sdpa:flash: its outputs are not within the limits of the gate"
    with pytest.raises(SpaceError, match=f"no baseline 'sdpa.*; it has unfused; {wrong}$"):
        chosen_baseline(document, case, found)
    math = BaselineTiming(case.label, "sdpa:math", 5.0, passed=True)
    assert chosen_baseline(document, case, [*found, math]) == "sdpa:math"


def test_a_baseline_that_failed_is_named_with_its_reason_only_where_none_is_left() -> None:
    setup = load_setup(SPACE, "cpu")
    case = setup.cases[TIMED][0]
    failed = BaselineTiming(case.label, "unfused", 0.0, False, "unfused: ValueError: no copies")
    math = BaselineTiming(case.label, "sdpa:math", 5.0, passed=True)
    document = replace(setup.document, baseline="best")
    assert chosen_baseline(document, case, [failed, math]) == "sdpa:math"
    with pytest.raises(SpaceError, match=r"is correct; unfused: ValueError: no copies$"):
        chosen_baseline(document, case, [failed])


def test_a_library_is_chosen_by_name_and_as_the_fastest_of_its_family() -> None:
    setup = load_setup(SPACE, "cpu")
    case = setup.cases[TIMED][0]
    found = [
        BaselineTiming(case.label, "sdpa:flash", 1.0, passed=True),
        BaselineTiming(case.label, "fa4", 3.0, passed=True),
        BaselineTiming(case.label, "flashinfer", 2.0, passed=True),
        BaselineTiming(case.label, "flex", 0.5, passed=False),
        BaselineTiming(case.label, "fa2", 0.0, passed=False, reason="fa2: it has no float32"),
    ]

    def chosen(baseline: str) -> str:
        return chosen_baseline(replace(setup.document, baseline=baseline), case, found)

    assert chosen("fa4") == "fa4"
    assert chosen("library:best") == "flashinfer"
    assert chosen("best") == "sdpa:flash"
    with pytest.raises(SpaceError, match=r"no baseline 'fa2'.*fa2: it has no float32$"):
        chosen("fa2")
    with pytest.raises(SpaceError, match="flex: its outputs are not within the limits"):
        chosen("flex")
