"""The red team of Python callables: they patch, search, cache, delay and forge.

A host executes them, and another process judges and times them. So what they patch changes
nothing, and what they leave undone is found by the gate that judges native kernels. The callables
are those of data/callables/cheating.py. `make test` takes those in SOON; `make soak` takes all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from evotune.trial import OutcomeKind
from tests.callables import CallableTrials, callable_trials

DATA = Path(__file__).parent / "data" / "callables"

WRONG, NAN = OutcomeKind.WRONG_RESULT, OutcomeKind.NAN
BOUNDS, LAUNCH = OutcomeKind.OUT_OF_BOUNDS, OutcomeKind.LAUNCH_ERROR
ERROR, CRASH = OutcomeKind.COMPILE_ERROR, OutcomeKind.COMPILE_CRASH
OFF, NEVER = "out is off by", "never written"
STALE = "(watched|altered in place|replayed normal) inputs"

LATE = (
    (NAN, WRONG, LAUNCH, OutcomeKind.NONDETERMINISTIC),
    f"{NEVER}|{OFF}|after it had returned|differ between two equal launches",
)

REFUSED: dict[str, tuple[tuple[OutcomeKind, ...], str]] = {
    "patches_comparisons": ((WRONG,), OFF),
    "searches_for_the_reference": ((WRONG, NAN), "out"),
    "forges_a_verdict": ((ERROR,), "SystemExit: 0"),
    "half_precision": ((WRONG,), OFF),
    "remembers_by_shape": ((WRONG,), OFF),
    "remembers_by_address": ((WRONG,), STALE),
    "works_every_third_time": ((WRONG,), OFF),
    "remembers_by_value": ((OutcomeKind.TOO_FAST,), "on those of the launch before"),
    "works_in_a_thread": LATE,
    "works_in_a_quick_thread": LATE,
    "works_when_a_signal_comes": LATE,
    "works_ahead": ((WRONG, NAN, LAUNCH), f"{OFF}|{NEVER}|busy"),
    "changes_its_input": ((BOUNDS,), "changed its input x"),
    "returns_its_input": ((BOUNDS,), "changed its input x"),
    "writes_past_the_end": ((BOUNDS, CRASH), "wrote outside out|SIGABRT"),
    "replaces_the_loop": ((WRONG,), STALE),
    "answers_early": ((LAUNCH,), "its process (sent|answered) what|after it had returned"),
}
SLOW = {"patches_clocks", "patches_torch", "patches_events", "returns_lazy_tensors"}
"""Right and slow, or with all work in the copy of their result: nothing makes them look faster."""
RIGHT = {"right", "takes_outputs", "returns_a_view", "keeps_scratch"}
SOON = {"patches_comparisons", "works_in_a_thread", "changes_its_input", "answers_early"}


@pytest.fixture(scope="module")
def cheats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallableTrials]:
    """One session for all: none may help or harm a later one."""
    with callable_trials(DATA / "cheating.yaml", tmp_path_factory.mktemp("cheats")) as trials:
        yield trials


@pytest.mark.parametrize(
    "behaviour",
    [pytest.param(b, marks=() if b in SOON else pytest.mark.soak) for b in REFUSED],
)
def test_a_cheat_is_refused_and_the_reason_says_why(cheats: CallableTrials, behaviour: str) -> None:
    kinds, reason = REFUSED[behaviour]
    outcome = cheats.run(BEHAVIOUR=behaviour)
    assert outcome.kind in kinds, outcome.reason
    assert re.search(reason, outcome.reason), outcome.reason
    assert outcome.fitness is None


@pytest.mark.soak
@pytest.mark.parametrize("behaviour", sorted(SLOW))
def test_what_a_callable_patches_makes_it_no_faster(cheats: CallableTrials, behaviour: str) -> None:
    """Both do the work at least once more than the baseline, or in a slower way."""
    outcome = cheats.run(BEHAVIOUR=behaviour)
    assert outcome.ok, outcome.reason
    assert all(each.speedup_low < 1.0 for each in outcome.measurements)


@pytest.mark.soak
@pytest.mark.parametrize("behaviour", sorted(RIGHT))
def test_a_right_callable_passes(cheats: CallableTrials, behaviour: str) -> None:
    outcome = cheats.run(BEHAVIOUR=behaviour)
    assert outcome.ok, outcome.reason


def test_every_callable_of_the_space_is_here(cheats: CallableTrials) -> None:
    (parameter,) = cheats.setup.space.parameters
    assert {*REFUSED, *SLOW, *RIGHT} == set(parameter.values)
