"""Tensors whose parts lie gigabytes apart, so that offsets of 32 bits do not reach them.

The memory between the parts is neither filled nor compared: on a CPU it is never touched, so it
takes address space only. Each part has guard bands of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from evotune.problems.element_types import ELEMENT_BYTES
from evotune.problems.problem import TensorSpec
from evotune.verify._strided import strided_view

_BAND_BYTES = 4096


class NoRoom(Exception):
    """There is no memory for a far tensor; the message says how much it would take."""


class FarTensor:
    """One far tensor in memory of its own: `view` is the tensor, after a first dimension of 1."""

    def __init__(self, spec: TensorSpec, device: str, guard_word: int) -> None:
        """NoRoom if it cannot be allocated."""
        itemsize = ELEMENT_BYTES[spec.dtype]
        nbytes = spec.span * itemsize
        try:
            room = torch.empty(nbytes + 3 * _BAND_BYTES, dtype=torch.uint8, device=device)
        except RuntimeError as error:  # torch's error for too little memory is one
            raise NoRoom(f"{nbytes / 2**30:.1f} GiB for {spec.name}") from error
        first = _BAND_BYTES + -room.data_ptr() % _BAND_BYTES
        payload = room[first : first + nbytes]
        self.name, self.is_output = spec.name, spec.is_output
        self.pointer = payload.data_ptr()
        self._guard_word = guard_word
        self._parts: list[torch.Tensor] = []
        self._bands: list[torch.Tensor] = []
        for start, end in _parts(spec, itemsize):
            whole = room[first + start - _BAND_BYTES : first + end + _BAND_BYTES]
            whole.view(torch.int16).fill_(guard_word)
            self._parts.append(whole[_BAND_BYTES:-_BAND_BYTES])
            self._bands += [whole[:_BAND_BYTES], whole[-_BAND_BYTES:]]
        self.view = strided_view(payload[None], spec)
        self._expected = list(self._parts)

    def fill(self, value: torch.Tensor) -> None:
        self.view.copy_(value)
        self._expected = [part.clone() for part in self._parts]

    def poison(self, byte: int) -> None:
        for part in self._parts:
            part.fill_(byte)

    def damaged(self) -> torch.Tensor:
        """Two flags on the device: a band was written; an input was changed."""
        bands = (torch.ne(band.view(torch.int16), self._guard_word) for band in self._bands)
        outside = torch.stack([each.any() for each in bands]).any()
        changed = torch.zeros_like(outside)
        if not self.is_output:
            pairs = zip(self._parts, self._expected, strict=True)
            changed = torch.stack([torch.ne(*pair).any() for pair in pairs]).any()
        return torch.stack([outside, changed])


def _parts(spec: TensorSpec, itemsize: int) -> Iterator[tuple[int, int]]:
    """The bytes from the first to the last element of each part, in which all is near."""
    far = [stride >= 1 << 31 for stride in spec.strides]
    steps = list(zip(spec.shape, spec.all_strides, far, strict=True))
    span = 1 + sum((size - 1) * stride for size, stride, is_far in steps if not is_far)
    counts = [range(size) if is_far else range(1) for size, _, is_far in steps]
    for index in itertools.product(*counts):
        start = sum(i * stride for i, (_, stride, _) in zip(index, steps, strict=True))
        yield start * itemsize, (start + span) * itemsize
