"""Kernels as people have them, each right in some ways and wrong in others: the gate and the checks
of timed launches tell them apart.

`data` has a folder for each, with its problem, its kernels and their spaces. The kernels are small
versions, written for these tests, of those that Kernel Tuner's examples and llm.c are known for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.red_team.in_process import InProcess, in_process

from .expected import EXPECTED, RIGHT, SPACES

_DEEP = {"counts_in_16_bits": 40}
"""Kernels that are wrong only on long inputs, and how many random tests a champion has had then."""
Open = Callable[[str], InProcess]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    known: dict[str, InProcess] = {}
    with ExitStack() as stack:

        def found(name: str) -> InProcess:
            if name not in known:
                space = str(SPACES / name / "cpu.yaml")
                folder = tmp_path_factory.mktemp(name)
                known[name] = stack.enter_context(in_process(folder, space))
            return known[name]

        yield found


@pytest.mark.parametrize("name", EXPECTED)
def test_every_kernel_is_expected_to_be_right_or_wrong(opened: Open, name: str) -> None:
    assert {*opened(name).choices} == {*RIGHT[name], *EXPECTED[name]}


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("name", "behaviour"), [(n, b) for n in RIGHT for b in RIGHT[n]])
def test_a_right_kernel_passes(opened: Open, name: str, behaviour: str) -> None:
    verdict = opened(name).judge(behaviour, timed=True, random_tests=4)
    assert verdict.passed, verdict.reason


@pytest.mark.sweep(5)
@pytest.mark.parametrize(("name", "behaviour"), [(n, b) for n in EXPECTED for b in EXPECTED[n]])
def test_a_wrong_kernel_is_refused(opened: Open, name: str, behaviour: str) -> None:
    kinds, reason = EXPECTED[name][behaviour]
    tests = _DEEP.get(behaviour, 0)
    verdict = opened(name).judge(behaviour, timed=not tests, random_tests=tests)
    assert verdict.kind in kinds, verdict.reason
    assert re.search(reason, verdict.reason), verdict.reason
