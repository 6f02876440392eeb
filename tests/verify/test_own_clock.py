"""The second clock of calls in another process: rows of calls that are released together."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from evotune.backends.base.session import Timed
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.backends.python.host_messages import chosen, segments
from evotune.trial import OutcomeKind
from evotune.verify import own_clock
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.own_clock import Round, check_times, compare
from evotune.verify.pool import InputPool
from tests.patience import PATIENCE_S

from .kernels import PROBLEM, exact, kernel, make_case, plan

CASE = make_case(33, causal=False)


@pytest.fixture(scope="module")
def pool() -> InputPool:
    return InputPool(PROBLEM)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 15, 16, 64, 100])
def test_parts_of_a_row_have_any_number_of_its_calls(count: int) -> None:
    parts = segments(count)
    assert [call for part in parts for call in part] == list(range(count))
    for wanted in range(count + 1):
        for complement in (False, True):
            bits = chosen(wanted, count, complement=complement)
            assert bits < 1 << len(parts)
            assert sum(len(p) for n, p in enumerate(parts) if bits >> n & 1) == wanted


class FakeRow:
    """Makes the calls in this process. A row takes 50 us, and `call_us` for each of its calls."""

    def __init__(
        self, launches: Sequence[Callable[[], object]], call_us: float, *, skips: bool = False
    ) -> None:
        self._launches = launches
        self._call_us = call_us
        self._skips = skips
        self.rows: list[list[int]] = []

    def at_once(self, wanted: int, *, complement: bool) -> Timed:
        bits = chosen(wanted, len(self._launches), complement=complement)
        parts = segments(len(self._launches))
        places = [call for n, part in enumerate(parts) if bits >> n & 1 for call in part]
        for place in places[: -1 if self._skips else None]:
            self._launches[place]()
        self.rows.append(places)
        return Timed(50.0 + self._call_us * len(places), places)

    def one_by_one_us(self, places: Sequence[int]) -> float:
        for place in places:
            self._launches[place]()
        return 10.0


def checked(
    pool: InputPool,
    monkeypatch: pytest.MonkeyPatch,
    call_us: float = 10.0,
    *,
    skips: bool = False,
    about_us: float = 10.0,
) -> tuple[Verdict, list[list[int]]]:
    session, verdict = CpuSession(), Verdict()
    gate = Gate(session, PROBLEM, pool, deterministic=True)
    made: list[FakeRow] = []

    def row(launches: Sequence[Callable[[], object]]) -> FakeRow:
        made.append(FakeRow(launches, call_us, skips=skips))
        return made[0]

    monkeypatch.setattr(session, "row", row)
    monkeypatch.setattr(own_clock, "_PAUSES_S", (0.0, 0.0, 0.0))
    subject = Subject(CASE, plan(), kernel(CASE, exact))
    check_times(
        *(gate, session, pool, subject),
        seed=0,
        verdict=verdict,
        call_us=about_us,
        limit_s=PATIENCE_S,
    )
    return verdict, made[0].rows


def test_a_right_kernel_passes_and_its_rows_differ(
    pool: InputPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, rows = checked(pool, monkeypatch)
    assert verdict.passed, verdict.reason
    assert [(c.inputs, c.status) for c in verdict.checks if c.inputs == "own clock"] == [
        ("own clock", "passed")
    ]
    assert len(rows) == 10
    assert {len(row) for row in rows} <= {1, 2, 3, 12, 13, 14, 15}
    assert any(14 in row for row in rows)


def test_rows_that_leave_a_call_out_are_wrong(
    pool: InputPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, _ = checked(pool, monkeypatch, skips=True)
    assert verdict.kind in (OutcomeKind.NAN, OutcomeKind.WRONG_RESULT)
    assert "never written" in verdict.reason


def test_calls_that_take_longer_in_rows_are_refused(
    pool: InputPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, rows = checked(pool, monkeypatch, call_us=13.0)
    assert verdict.kind is OutcomeKind.TOO_FAST
    assert verdict.reason.endswith(
        "a call takes 13.0 us in rows that are released together but 10.0 us by itself"
    )
    assert len(rows) == 30


def test_long_calls_have_short_rows(pool: InputPool, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict, rows = checked(pool, monkeypatch, about_us=5000.0)
    assert verdict.passed, verdict.reason
    assert {len(row) for row in rows} == {0, 3}


def rounds(found: Sequence[Round]) -> Callable[[], Round]:
    left: Iterator[Round] = iter(found)
    return lambda: next(left)


def taken(slope_us: float, single_us: float) -> Round:
    return Round((2, 50 + 2 * slope_us), (14, 50 + 14 * slope_us), single_us)


SLOWER, EQUAL = taken(20.0, 10.0), taken(10.5, 10.0)
DISTURBED = Round(None, None, 10.0)


@pytest.mark.parametrize(
    ("made", "answer"),
    [
        ([EQUAL] * 5, ("", True)),
        ([SLOWER, SLOWER, EQUAL, EQUAL, EQUAL], ("", True)),
        ([SLOWER] * 5 + [EQUAL] * 5, ("", True)),  # other work on the machine had slowed rows down
        ([DISTURBED] * 15, (None, False)),
        ([DISTURBED, EQUAL] * 5, ("", True)),
        # A round may have a disturbed row, and one that counts.
        ([EQUAL._replace(few=None), EQUAL._replace(many=None)] * 5, ("", True)),
        ([taken(1.9, 1.0)] * 5, ("", True)),  # a call is known to a microsecond
    ],
)
def test_a_bout_that_shows_no_difference_clears(
    made: list[Round], answer: tuple[str | None, bool]
) -> None:
    assert compare(rounds(made), lambda: True, lambda: True, rest=lambda s: None) == answer


def test_bouts_that_do_not_all_tell_leave_it_undecided() -> None:
    made = rounds([SLOWER] * 5 + [DISTURBED] * 15)
    words, is_sure = compare(made, lambda: True, lambda: True, rest=lambda s: None)
    assert words
    assert not is_sure


def test_without_time_the_least_number_of_rounds_tells() -> None:
    count = 0

    def made() -> Round:
        nonlocal count
        count += 1
        return EQUAL

    assert compare(made, lambda: True, lambda: False) == ("", True)
    assert count == 3


def test_which_calls_a_row_makes_cannot_be_foreseen() -> None:
    rng = random.Random(3)
    made = {chosen(rng.randint(1, 15), 15, complement=rng.random() < 0.5) for _ in range(60)}
    assert len(made) > 10
