"""Guard bands that hold other values for one launch.

A kernel that reads beyond a buffer may be right beside the NaN that stands there: a maximum passes
over it. So equal launches must leave equal outputs whatever stands there, a large number too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from evotune.problems.problem import TensorSpec
from evotune.verify._strided import gap_words

_OTHER_WORDS = (0x7B7B, 0xFBFB - (1 << 16))
"""A large number and a low one in every type of floats, as a byte repeats; of integers too, but
that unsigned ones have no low one."""


class Guards:
    """All guard words of one set of buffers: between its payloads and in gaps of these."""

    def __init__(
        self, row: torch.Tensor, payloads: Sequence[tuple[int, int, TensorSpec | None]], word: int
    ) -> None:
        """`row`: the bytes of the set, with the first byte and the end of each payload in order,
        and its tensor, if it has gaps. All guards are `word` now."""
        words = row.view(torch.int16)
        ends = [0, *(end for _, end, _ in payloads)]
        starts = [*(start for start, _, _ in payloads), row.numel()]
        self._bands = [
            words[(end + 1) // 2 : start // 2] for end, start in zip(ends, starts, strict=True)
        ]
        self._odd = [row[end : end + 1] for end in ends if end % 2]
        self._gaps = [
            (row[start:end].view(torch.int16), gap_words(spec, row.device))
            for start, end, spec in payloads
            if spec is not None and spec.strides
        ]
        self._word = word

    @contextmanager
    def holding(self, word: int) -> Iterator[None]:
        """Fills the guards with `word`, and restores them. What was written to them meanwhile
        remains seen: it becomes another word than the guards'."""
        self._exchange(word ^ self._word)
        yield
        self._exchange(word ^ self._word)

    def _exchange(self, difference: int) -> None:
        """An exclusive or, which maps the two words to each other and no other one to them."""
        for band in self._bands:
            band.bitwise_xor_(difference)
        for byte in self._odd:
            byte.bitwise_xor_(difference >> 8 & 0xFF)
        for words, mask in self._gaps:
            words.bitwise_xor_(mask.to(torch.int16) * difference)


def other_word(kind: str, seed: int) -> int:
    """What lies outside all tensors in the second launch on inputs of that kind."""
    return _OTHER_WORDS[(seed + sum(kind.encode())) % len(_OTHER_WORDS)]


def repeats(
    output: torch.Tensor,
    first: torch.Tensor,
    among_others: Callable[[], object],
    launch: Callable[[], object],
) -> bool:
    """Whether launches repeat their results: `output`, which the last one left, and `first`. Not if
    the two have become equal: then the last launch was only late."""
    if torch.equal(output.view(torch.uint8), first.view(torch.uint8)):
        return False
    wanted = (output.clone(), first)
    found = []
    for each, bits in zip((among_others, launch), wanted, strict=True):
        each()
        found.append(torch.equal(output.view(torch.uint8), bits.view(torch.uint8)))
    return all(found)
