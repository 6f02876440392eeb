"""Counts instructions by class, in a function and in its innermost loops.

A loop is a natural loop of the control flow: a branch back to a block that dominates it. So code
that the compiler moved behind a function's end, and that branches back into it, makes no loop.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a function.

    - `kind`: its class.
    - `target`: the number of the instruction that it may branch to; None for no branch, and for a
      branch out of the function or to nobody knows where.
    - `falls_through`: whether the next instruction may follow.
    """

    kind: str
    target: int | None = None
    falls_through: bool = True


def count(code: Sequence[Instruction]) -> dict[str, int]:
    """Class -> number of instructions."""
    return dict(collections.Counter(each.kind for each in code))


def innermost_loops(
    code: Sequence[Instruction], is_waiting: Callable[[Sequence[Instruction]], bool]
) -> list[list[int]]:
    """The numbers of the instructions of each innermost loop.

    A loop for which `is_waiting` says yes is no loop: a wait for a barrier polls in a loop, in the
    middle of the loop that does the work.
    """
    blocks = _blocks(code)
    loops = {
        header: body
        for header, body in _natural_loops(blocks).items()
        if not is_waiting([code[number] for number in _numbers(blocks, body)])
    }
    return [
        sorted(_numbers(blocks, body))
        for header, body in sorted(loops.items())
        if not any(other in body for other in loops if other != header)
    ]


@dataclass(frozen=True, slots=True)
class _Block:
    first: int
    end: int
    successors: tuple[int, ...]


def _numbers(blocks: Sequence[_Block], body: set[int]) -> list[int]:
    return [number for block in body for number in range(blocks[block].first, blocks[block].end)]


def _blocks(code: Sequence[Instruction]) -> list[_Block]:
    """The basic blocks in the order of the code; successors are places in this list."""
    if not code:
        return []
    starts = {0}
    for number, each in enumerate(code):
        if each.target is not None:
            starts.add(each.target)
        if each.target is not None or not each.falls_through:
            starts.add(number + 1)
    firsts = sorted(start for start in starts if start < len(code))
    place = {first: index for index, first in enumerate(firsts)}
    blocks = []
    for first, end in zip(firsts, [*firsts[1:], len(code)], strict=True):
        last = code[end - 1]
        following = [end] if last.falls_through and end in place else []
        if last.target is not None and last.target in place:
            following.append(last.target)
        blocks.append(_Block(first, end, tuple(place[number] for number in following)))
    return blocks


def _natural_loops(blocks: Sequence[_Block]) -> dict[int, set[int]]:
    """Header -> the blocks of its loop, the header included."""
    predecessors: dict[int, list[int]] = collections.defaultdict(list)
    for index, block in enumerate(blocks):
        for successor in block.successors:
            predecessors[successor].append(index)
    order, dominator = _dominators(blocks, predecessors)
    loops: dict[int, set[int]] = {}
    for index in order:
        for header in blocks[index].successors:
            if not _dominates(header, index, dominator):
                continue
            body = loops.setdefault(header, {header})
            waiting = [index]
            while waiting:
                inside = waiting.pop()
                if inside not in body:
                    body.add(inside)
                    waiting += [each for each in predecessors[inside] if each in dominator]
    return loops


def _dominates(header: int, block: int, dominator: Mapping[int, int]) -> bool:
    while block != header:
        if block == dominator[block]:
            return False
        block = dominator[block]
    return True


def _dominators(
    blocks: Sequence[_Block], predecessors: Mapping[int, Sequence[int]]
) -> tuple[list[int], dict[int, int]]:
    """The reachable blocks in reverse postorder, and the immediate dominator of each; the entry is
    its own. Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm"."""
    order = _reverse_postorder(blocks)
    rank = {block: number for number, block in enumerate(order)}
    dominator = {0: 0} if order else {}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [each for each in predecessors[block] if each in dominator]
            found = known[0]
            for other in known[1:]:
                found = _common(found, other, dominator, rank)
            if dominator.get(block) != found:
                dominator[block] = found
                changed = True
    return order, dominator


def _common(one: int, other: int, dominator: Mapping[int, int], rank: Mapping[int, int]) -> int:
    while one != other:
        while rank[one] > rank[other]:
            one = dominator[one]
        while rank[other] > rank[one]:
            other = dominator[other]
    return one


def _reverse_postorder(blocks: Sequence[_Block]) -> list[int]:
    if not blocks:
        return []
    done: list[int] = []
    seen = {0}
    stack = [(0, iter(blocks[0].successors))]
    while stack:
        block, successors = stack[-1]
        following = next((each for each in successors if each not in seen), None)
        if following is None:
            done.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(blocks[following].successors)))
    return done[::-1]
