"""The red team's kernels of packed and of paged sequences: wrong ones are refused, right ones pass.

Each goes through the gate on the timed and the edge shapes; then through the checks of timed
launches, which alter lengths and tables in place, and through replay, which replaces them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import pytest
from _pytest.mark import ParameterSet

from evotune.trial import OutcomeKind
from tests.sweeps import swept

from .in_process import Teams

WRONG, NAN = OutcomeKind.WRONG_RESULT, OutcomeKind.NAN
EITHER = (WRONG, NAN)
RIGHT = {
    "varlen": ("right", "last_key_first", "last_sequence_first"),
    "paged": ("right", "last_key_first"),
}
EXPECTED: dict[str, dict[str, tuple[tuple[OutcomeKind, ...], str]]] = {
    "varlen": {
        "keys_by_the_table_of_rows": (EITHER, "out"),
        "even_lengths": (EITHER, "out"),
        "last_sequence_to_the_end_but_one": ((WRONG,), "out is off by"),
        "first_key_of_the_next": ((WRONG,), "out is off by"),
        "first_sequence_twice": (EITHER, "out"),
        "top_left": ((WRONG,), "out is off by"),
        "no_keys_divided": ((NAN,), "elements of out are NaN"),
        "table_kept": (EITHER, "out"),
    },
    "paged": {
        "length_of_the_next": (EITHER, "out"),
        "one_key_more": (EITHER, "out"),
        "last_page_whole": (EITHER, "out"),
        "rest_of_a_page_has_no_weight": ((NAN,), "elements of out are NaN"),
        "pages_in_a_row": (EITHER, "out"),
        "pages_of_the_first": (EITHER, "out"),
        "pages_of_16": (EITHER, "random|out"),
        "slots_in_reverse": (EITHER, "out"),
        "top_left": ((WRONG,), "out is off by"),
        "table_kept": (EITHER, "out"),
    },
}
SOON = {
    *("right", "keys_by_the_table_of_rows", "no_keys_divided", "pages_in_a_row", "table_kept"),
}
"""`make test` takes these; `make soak` takes all."""


def _file(space: str) -> str:
    return f"cheats_cpu_{space}.yaml"


def _marked(kinds: Mapping[str, Collection[str]]) -> list[ParameterSet]:
    rows = ((space, behaviour) for space in kinds for behaviour in kinds[space])
    return swept(rows, lambda row: row[1] in SOON)


@pytest.mark.parametrize(("space", "behaviour"), _marked(EXPECTED))
def test_a_kernel_that_is_wrong_in_lengths_or_tables_is_refused(
    teams: Teams, space: str, behaviour: str
) -> None:
    kinds, reason = EXPECTED[space][behaviour]
    verdict = teams.of(_file(space)).judge(behaviour, timed=True, random_tests=30)
    assert verdict.kind in kinds, verdict.reason
    assert re.search(reason, verdict.reason), verdict.reason


@pytest.mark.parametrize(("space", "behaviour"), _marked(RIGHT))
def test_a_right_kernel_passes(teams: Teams, space: str, behaviour: str) -> None:
    verdict = teams.of(_file(space)).judge(behaviour, timed=True, random_tests=30)
    assert verdict.passed, verdict.reason


def test_every_kernel_of_the_spaces_is_expected(teams: Teams) -> None:
    for space, behaviours in EXPECTED.items():
        assert teams.of(_file(space)).choices == [*RIGHT[space], *behaviours]
