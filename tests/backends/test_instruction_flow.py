"""Innermost loops are found by control flow, not by the order of the code."""

from __future__ import annotations

from collections.abc import Sequence

from evotune.backends.base.evidence import Instruction, count, innermost_loops


def never(loop: Sequence[Instruction]) -> bool:
    return False


def op(kind: str = "alu") -> Instruction:
    return Instruction(kind)


def branch(target: int, *, always: bool = False) -> Instruction:
    return Instruction("branch", target, not always)


END = Instruction("branch", None, False)


def test_only_the_innermost_of_nested_loops_counts() -> None:
    code = [op(), op("fma"), op("fma"), branch(2), branch(1), END]
    assert innermost_loops(code, never) == [[2, 3]]


def test_two_loops_one_after_the_other_both_count() -> None:
    code = [op(), branch(0), op(), op(), branch(2), END]
    assert innermost_loops(code, never) == [[0, 1], [2, 3, 4]]


def test_code_without_a_branch_back_has_no_loop() -> None:
    assert innermost_loops([branch(2), op(), op(), END], never) == []
    assert innermost_loops([], never) == []


def test_a_part_moved_behind_the_end_belongs_to_its_loop_and_makes_none() -> None:
    # 1: the loop's head; 2 branches to the part at 6, which goes back into the middle of the loop.
    code = [op(), op(), branch(6), op("fma"), branch(1), END, op("barrier"), branch(3, always=True)]
    assert innermost_loops(code, never) == [[1, 2, 3, 4, 6, 7]]
    # The same without a loop around: the branch back dominates nothing.
    straight = [branch(3), op(), END, op(), branch(1, always=True)]
    assert innermost_loops(straight, never) == []


def test_a_loop_that_waits_is_part_of_the_loop_around_it() -> None:
    code = [op(), op("barrier"), branch(1), op("tensor"), branch(0), END]

    def waits(loop: Sequence[Instruction]) -> bool:
        return {each.kind for each in loop} == {"barrier", "branch"}

    assert innermost_loops(code, never) == [[1, 2]]
    assert innermost_loops(code, waits) == [[0, 1, 2, 3, 4]]


def test_unreachable_code_makes_no_loop() -> None:
    assert innermost_loops([END, op(), branch(1)], never) == []


def test_instructions_are_counted_by_class() -> None:
    assert count([op(), op("fma"), op()]) == {"alu": 2, "fma": 1}
