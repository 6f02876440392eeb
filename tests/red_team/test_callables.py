"""The red team of Python callables: they patch, search, cache, delay and forge.

A host executes them, and another process judges and times them. So what they patch changes
nothing, and what they leave undone is found by the gate that judges native kernels.
callable_corpus.py lists them. `make test` takes those in SOON; `make soak` takes all, and
benchmarks/red_team_callables.py takes them with many seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from _pytest.mark import ParameterSet

from evotune.trial import OutcomeKind
from tests.callables import CallableTrials, callable_trials

from .callable_corpus import (
    CHEAT,
    ENTRIES,
    RIGHT,
    SLOW,
    Entry,
    functions,
    is_installed,
    judge,
    named,
    of_kind,
    write_space,
)

SOON = {
    "patches_comparisons",
    "works_in_a_thread",
    "changes_its_input",
    "answers_early",
    "shrinks_the_shared_memory",
    "takes_all_limits_off",
    "fills_its_result_on_demand",
    "reads_the_judges_memory",
    "lowers_the_judges_priority",
    "returns_a_negated_view",
}
HELPERS = {"right", "fill", "slow", "stale", "heavy", "once", "kept_for", "scripted"}


def _rows(entries: Sequence[Entry]) -> list[ParameterSet]:
    return [
        pytest.param(each, id=each.name, marks=() if each.name in SOON else pytest.mark.soak)
        for each in entries
    ]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallableTrials]:
    """One session for all: none may help or harm a later one."""
    folder = tmp_path_factory.mktemp("callables")
    with callable_trials(write_space(folder / "space.yaml"), folder) as made:
        yield made


@pytest.mark.parametrize("entry", _rows(of_kind(CHEAT)))
def test_a_cheat_is_refused_and_the_reason_says_why(trials: CallableTrials, entry: Entry) -> None:
    stage, outcome = judge(trials, entry)
    assert entry.is_as_expected(outcome), (stage, outcome.kind, outcome.reason)


@pytest.mark.parametrize("entry", _rows(of_kind(SLOW)))
def test_what_a_callable_does_elsewhere_makes_it_no_faster(
    trials: CallableTrials, entry: Entry
) -> None:
    _, outcome = judge(trials, entry)
    assert entry.is_as_expected(outcome), outcome


@pytest.mark.parametrize("entry", _rows(of_kind(RIGHT)))
def test_an_unusual_right_callable_passes(trials: CallableTrials, entry: Entry) -> None:
    if not is_installed(entry):
        pytest.skip(f"needs {entry.needs}")
    _, outcome = judge(trials, entry)
    assert entry.is_as_expected(outcome), outcome.reason


def test_every_callable_of_the_files_is_listed() -> None:
    listed = {(entry.file, entry.name) for entry in ENTRIES}
    for file in {entry.file for entry in ENTRIES}:
        found = functions(file)
        assert {name for of, name in listed if of == file} <= found.keys()
        calls = {name for name, given in found.items() if given.startswith("x,w")}
        assert calls - HELPERS <= {name for of, name in listed if of == file}
    assert {entry.name for entry in ENTRIES} >= SOON
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


def test_the_corpus_has_what_it_should_have() -> None:
    cheats = of_kind(CHEAT)
    assert len(cheats) >= 60
    assert {entry.round for entry in cheats} == {1, 2}
    assert len(of_kind(RIGHT)) >= 25
    assert named("answers_early").takes_outputs
    assert not named("right").takes_outputs
    for entry in ENTRIES:
        assert f"def {entry.name}" in entry.text or f"{entry.name} =" in entry.text, entry.name
        expected = entry.expected
        assert (expected is None) == (entry.kind != CHEAT)
        assert expected is None or OutcomeKind.OK not in expected.kinds
