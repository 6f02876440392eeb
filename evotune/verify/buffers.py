"""The memory a candidate runs on: poisoned outputs, guard bands, inputs that must not change.

Gaps between a tensor's rows hold guard words too. A tensor that launches update in place has two
places: launches get one, and its values before a launch are kept in the other.

For a GPU's host, work on a small tensor costs as much as work on a large one. So one allocation may
have several sets of buffers of equal layout as its rows, for launches on several inputs or at
several addresses; they are filled, poisoned, compared and read together.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch

from evotune.backends.base.launch import LaunchPlan, Workspace
from evotune.backends.base.session import (
    LaunchFailure,
    RestoringSampler,
    Session,
    WatchableSampler,
)
from evotune.problems.problem import (
    ELEMENT_BYTES,
    Tensors,
    TensorSpec,
    comparable,
    is_rounded,
    torch_dtype,
)

_GUARD_BYTES = 128 << 10
_GUARD_WORD = 0x7FFF
"""Guard bands repeat these 16 bits, from even addresses on: a NaN in every type of floats, so that
a read beyond a buffer shows even when it is multiplied by zero. The poison differs."""
POISON_BYTE = 0xFF  # all ones is a NaN in every type of floats
_POISON_OF_INTEGERS = 0xA5
"""A right kernel seldom writes these bits. It often writes -1 or 255, which are all ones."""
_ALIGNMENT = 256
LEAST_ALIGNMENT = 16
"""The least alignment of inputs that an exported package serves, in bytes. In a package PyTorch
allocates outputs and workspaces, at multiples of 64 bytes or more."""
_STAGGER_BYTES = 5 * _ALIGNMENT
"""Each band is longer than the one before by this many bytes: otherwise payloads of 2^n bytes would
lie at distances of 2^m and share the same sets of a cache."""
SPOT_BYTES = 4096
_FREE = 0x0101  # a word of two bytes of 1
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


Memory: TypeAlias = Callable[[int], torch.Tensor]
"""Allocates so many bytes on the device."""


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements reinterpreted as integers, so that equal bits are equal numbers."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def unwritten(output: torch.Tensor) -> torch.Tensor:
    """A mask of the elements of `output` that still hold the poison."""
    word = bytes([_poison_of(output.dtype)] * output.element_size())
    return bits(output) == int.from_bytes(word, "little", signed=True)


def _poison_of(dtype: torch.dtype) -> int:
    return POISON_BYTE if is_rounded(dtype) else _POISON_OF_INTEGERS


@dataclass(frozen=True, slots=True)
class _Segment:
    """The payload of one tensor or workspace, in bytes of its set."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """Layout of one set; the next set begins `nbytes` further. The first `kept_bytes` must stay as
    they are (inputs, zero_once workspaces, and the guard bands around them), so that one
    comparison is enough. Written memory follows. `kept` names, for each input, the segment with its
    values: for an updated tensor not the one that launches get."""

    specs: Mapping[str, TensorSpec]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kept: Mapping[str, str]
    zeroed: tuple[str, ...]
    written: tuple[str, ...]
    segments: Mapping[str, _Segment]
    kept_bytes: int
    nbytes: int

    @property
    def updated(self) -> list[str]:
        """The tensors that are inputs and outputs."""
        return [name for name, place in self.kept.items() if name != place]


@functools.lru_cache(maxsize=1024)
def _layout(
    specs: tuple[TensorSpec, ...], workspaces: tuple[Workspace, ...], is_least_aligned: bool
) -> _Layout:
    updated = {spec.name: f"the kept values of {spec.name}" for spec in specs if spec.is_updated}
    twins = [
        dataclasses.replace(spec, name=updated[spec.name], is_output=False, is_updated=False)
        for spec in specs
        if spec.is_updated
    ]
    kept_in = {spec.name: updated.get(spec.name, spec.name) for spec in specs if spec.is_input}
    specs = (*specs, *twins)
    inputs = tuple(spec.name for spec in specs if not spec.is_output)
    outputs = tuple(spec.name for spec in specs if spec.is_output)
    zeroed = tuple(w.name for w in workspaces if w.init == "zero_once")
    scratch = tuple(w.name for w in workspaces if w.init != "zero_once")
    sizes = {spec.name: spec.span * ELEMENT_BYTES[spec.dtype] for spec in specs}
    sizes |= {workspace.name: workspace.bytes for workspace in workspaces}
    kept, written = (*inputs, *zeroed), (*outputs, *scratch)
    segments: dict[str, _Segment] = {}
    end = 0
    kept_bytes = None
    for index, name in enumerate((*kept, *written)):
        if sizes[name] < 0:
            raise LaunchFailure(f"a buffer of {sizes[name]} bytes")
        # A payload's end has no padding: the first byte past it is guard.
        start = end + _GUARD_BYTES + index * _STAGGER_BYTES
        start += -start % _ALIGNMENT
        if is_least_aligned and (name in inputs or name in updated):
            start += LEAST_ALIGNMENT  # a multiple of that and of no larger power of two
        if index == len(kept):
            kept_bytes = start
        segments[name] = _Segment(name, start, end := start + sizes[name])
    nbytes = end + _GUARD_BYTES + _STAGGER_BYTES
    nbytes += -nbytes % _ALIGNMENT
    return _Layout(
        {spec.name: spec for spec in specs},
        inputs,
        outputs,
        kept_in,
        zeroed,
        written,
        segments,
        nbytes if kept_bytes is None else kept_bytes,
        nbytes,
    )


class Inspection:
    """The forbidden writes that the buffers showed at one moment.

    - `flags`: two bool tensors on the device, with an element for each set of buffers: whether an
      input or a workspace that must stay zero changed, and whether a guard band did.

    The device computes the flags without a wait, but copying them to the host costs a wait. So
    several inspections are copied together.
    """

    def __init__(self, buffers: BufferSets, changed: torch.Tensor, outside: torch.Tensor) -> None:
        self._buffers = buffers
        self._changed = changed
        self._outside = outside
        self.flags = (changed.any(dim=1), outside.any(dim=1))

    def damage(self, number: int = 0) -> str:
        """The forbidden writes in set `number`, in words; "" if there are none, or only writes to a
        zero_once workspace."""
        found = self._buffers._damage(self._wrong(number))
        return found or self._buffers._far_damage(self._outside[number])

    def not_zeroed(self, number: int = 0) -> str:
        """The name of a zero_once workspace that the launch left nonzero; "" if there is none."""
        return self._buffers._not_zeroed(self._wrong(number))

    def _wrong(self, number: int) -> torch.Tensor:
        return self._buffers._wrong(self._changed[number], self._outside[number])


class BufferSets:
    """Fresh memory for every tensor and workspace of one case: one set for each of `inputs`, with
    these inputs copied in. The first dimension of every tensor is the number of the set."""

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        plan: LaunchPlan,
        inputs: Sequence[Mapping[str, torch.Tensor]],
        device: str,
        *,
        is_least_aligned: bool = False,
        memory: Memory | None = None,
    ) -> None:
        """Each payload begins at a multiple of 256 bytes; with `is_least_aligned` each input begins
        at an odd multiple of 16 bytes. `memory` allocates; it defaults to PyTorch's allocator."""
        memory = memory or functools.partial(torch.empty, dtype=torch.uint8, device=device)
        far = [spec for spec in specs if spec.is_far]
        if far and len(inputs) > 1:
            raise LaunchFailure("a tensor whose parts lie gigabytes apart needs a set of its own")
        near = tuple(spec for spec in specs if spec not in far)
        layout = _layout(near, tuple(plan.workspaces), is_least_aligned)
        room = len(inputs) * layout.nbytes + _ALIGNMENT
        storage = memory(room)
        storage.view(torch.int16).fill_(_GUARD_WORD)
        rows = storage[-storage.data_ptr() % _ALIGNMENT :][: room - _ALIGNMENT]
        self._lay(layout, rows.view(len(inputs), layout.nbytes))
        self._far: list[FarTensor] = [FarTensor(spec, _GUARD_WORD, memory) for spec in far]
        for tensor in self._far:
            if not tensor.is_output:
                tensor.fill(inputs[0][tensor.name])
        places: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for name, kept in layout.kept.items():
            places += self._views[kept].unbind()
            values += [each[name] for each in inputs]
        if places:
            torch._foreach_copy_(places, values)
        for name in layout.zeroed:
            self._views[name].zero_()
        self._expected = self._kept.clone()
        self.prepare()

    def _lay(self, layout: _Layout, rows: torch.Tensor) -> None:
        self._layout = layout
        self._far = []
        self._rows = rows
        self._kept = rows[:, : layout.kept_bytes]
        self._views = {name: self._view(name, rows) for name in layout.segments}
        self._poisons = [
            (self._poisoned(name, rows), self._poison(name))
            for name in layout.written
            if name not in layout.kept
        ]
        self._updates = [
            (self._views[name], self._views[layout.kept[name]]) for name in layout.updated
        ]
        """Each updated tensor and its kept values."""
        self._gapped = [name for name in layout.outputs if layout.specs[name].strides]
        ends = [layout.segments[name].end for name in layout.written]
        starts = [layout.segments[name].start for name in layout.written[1:]]
        words = rows.view(torch.int16)
        bounds = list(zip(ends, (*starts, layout.nbytes), strict=False))
        self._bands = [words[:, (end + 1) // 2 : start // 2] for end, start in bounds]
        """The guard band after each written payload."""
        self._odd = [rows[:, end : end + 1] for end in ends if end % 2]
        """First bytes of guard bands that begin in the middle of a word."""

    @property
    def nbytes(self) -> int:
        """The bytes of one set, guard bands included."""
        return self._layout.nbytes

    def __len__(self) -> int:
        return len(self._rows)

    def only(self, number: int) -> BufferSets:
        """A view of set `number` alone, in the same memory."""
        made = object.__new__(BufferSets)
        made._lay(self._layout, self._rows[number : number + 1])
        made._expected = self._expected[number : number + 1]
        return made

    def room(self) -> BufferSets:
        """Unfilled memory of the same size and checks: the target of `copy` for each set."""
        made = object.__new__(BufferSets)
        made._lay(self._layout, torch.empty_like(self._rows))
        made._expected = self._expected
        return made

    def copy(self, sets: BufferSets, number: int) -> None:
        """Copies set `number` of `sets` as it is now, inputs and guard bands too. Later writes do
        not reach the copy."""
        self._rows[number].copy_(sets._rows[number])

    def each(self) -> Iterator[BufferSets]:
        return map(self.only, range(len(self)))

    def guards(self, number: int = 0) -> Guards:
        """All guards of set `number`, which can hold other values during a launch."""
        specs, segments = self._layout.specs, self._layout.segments.values()
        payloads = [(each.start, each.end, specs.get(each.name)) for each in segments]
        return Guards(self._rows[number], payloads, _GUARD_WORD)

    def _payload(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        segment = self._layout.segments[name]
        return rows[:, segment.start : segment.end]

    def _view(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """A tensor in its shape or a workspace in bytes, of the sets or their expected content."""
        payload = self._payload(name, rows)
        spec = self._layout.specs.get(name)
        if spec is None:
            return payload
        if spec.strides:
            return strided_view(payload, spec)
        return payload.view(torch_dtype(spec.dtype)).view(len(rows), *spec.shape)

    def _poisoned(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """The bytes that launches write: not those in gaps."""
        spec = self._layout.specs.get(name)
        if spec is None or not spec.strides:
            return self._payload(name, rows)
        return self._views[name].view(torch.uint8)

    def _gaps(self, name: str) -> torch.Tensor:
        """A mask of the words of a tensor's payload that lie between its rows."""
        return gap_words(self._layout.specs[name], self._rows.device)

    @functools.cached_property
    def _expected_views(self) -> dict[str, torch.Tensor]:
        kept = self._layout.kept.items()
        return {name: self._view(place, self._expected) for name, place in kept}

    def pointers(self, number: int = 0) -> dict[str, int]:
        base = self._rows.data_ptr() + number * self._layout.nbytes
        far = {tensor.name: tensor.pointer for tensor in self._far}
        near = self._layout.segments.items()
        return {**{name: base + segment.start for name, segment in near}, **far}

    def overwrite_inputs(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Writes new input values to the same addresses, the same values in each set."""
        self.expect_inputs(inputs)
        for name, value in inputs.items():
            self._views[self._layout.kept[name]].copy_(value)

    def elements(self, name: str, place: int, count: int = 1) -> torch.Tensor:
        """A view of `count` consecutive elements of a tensor, from the flat index `place` on: one
        row for each set. Of a tensor that is updated they are the kept values. If the tensor has
        gaps, there is one row for each set and each row of the tensor."""
        name = self._layout.kept.get(name, name)
        spec = self._layout.specs[name]
        if spec.strides:
            return run_of(self._views[name], place, count)
        dtype = torch_dtype(spec.dtype)
        return self._payload(name, self._rows).view(dtype)[:, place : place + count]

    def spots(self, place: float) -> list[torch.Tensor]:
        """At most a few kilobytes of each output, as bytes, with one or several rows for each set.
        `place` is where they begin, as a share of the output. Updated tensors are left out."""
        found = []
        for name in self._poisoned_outputs:
            if self._layout.specs[name].strides:
                found.append(spot_of(self._views[name], place, SPOT_BYTES))
                continue
            payload = self._payload(name, self._rows)
            first = int(place * payload.shape[1])
            found.append(payload[:, first : first + SPOT_BYTES])
        return found

    def poison_bytes(self) -> list[int]:
        """The byte that poisons each output, in the order of `spots`."""
        return [self._poison(name) for name in self._poisoned_outputs]

    @property
    def _poisoned_outputs(self) -> list[str]:
        return [name for name in self._layout.outputs if name not in self._layout.kept]

    def _poison(self, name: str) -> int:
        """The byte that poisons an output, or scratch memory."""
        is_tensor = name in self._layout.specs
        return _poison_of(self._views[name].dtype) if is_tensor else POISON_BYTE

    def expect_inputs(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Sets the expected content of the inputs of each set."""
        for name, value in inputs.items():
            self._expected_views[name].copy_(value)

    def prepare(self, number: int | None = None) -> None:
        """Makes the memory that launches write what it is before a launch, in one set or in all:
        the poison, and the values of updated tensors."""
        for payload, byte in self._poisons:
            (payload if number is None else payload[number]).fill_(byte)
        for tensor in self._far:
            if tensor.is_output:
                tensor.poison(_poison_of(tensor.view.dtype))
        self.restore(number)

    def updated(self) -> Tensors:
        """Views of the tensors that launches update, as they are now."""
        return {name: self._views[name] for name in self._layout.updated}

    @property
    def has_updates(self) -> bool:
        """Whether launches update tensors in place."""
        return bool(self._updates)

    def restore(self, number: int | None = None) -> None:
        """Gives updated tensors their values again, in one set or in all."""
        for target, kept in self._updates:
            if number is None:
                target.copy_(kept)
            else:
                target[number].copy_(kept[number])

    def restoring(self, number: int, launch: Callable[[], object]) -> Callable[[], object]:
        """The launch on that set, each time after updated tensors have their values again."""
        if not self._updates:
            return launch
        writes = [writing(kept[number], target[number]) for target, kept in self._updates]
        for write in writes:  # a call must have run before a GPU's graph captures it
            write()

        def made() -> object:
            for write in writes:
                write()
            return launch()

        return made

    def sampler(
        self, session: Session, calls: Sequence[Callable[[], object]], *, untimed: int = 0
    ) -> WatchableSampler:
        """A sampler of launches on these sets, as the session's. Before each run, outside the
        clock, updated tensors get their values again; then there must be one launch on each set."""
        sampler = session.sampler(calls, untimed=untimed)
        return RestoringSampler(sampler, self.restore) if self._updates else sampler

    def untouched(self) -> Tensors:
        """For each output a mask of the elements that are as `prepare` left them."""
        updated = {
            name: bits(comparable(target)) == bits(comparable(kept))
            for name, (target, kept) in zip(self._layout.updated, self._updates, strict=True)
        }
        others = {name: each for name, each in self.outputs().items() if name not in updated}
        return {name: unwritten(value) for name, value in others.items()} | updated

    def inputs(self) -> Tensors:
        """Views, not copies; of updated tensors their kept values."""
        return {name: self._views[place] for name, place in self._layout.kept.items()}

    def outputs(self) -> Tensors:
        """Views, not copies, of `comparable` numbers."""
        far = {tensor.name: tensor.view for tensor in self._far if tensor.is_output}
        return {name: comparable(self._views[name]) for name in self._layout.outputs} | far

    def snapshot(self) -> Tensors:
        """Copies of the outputs as they are now. Later writes do not reach the copies."""
        return {name: value.clone() for name, value in self.outputs().items()}

    def inspect(self) -> Inspection:
        """Compare all memory that launches must not touch with its expected content, bit by bit."""
        changed = torch.ne(self._kept, self._expected)
        bands = self._bands or [self._rows[:, :0]]
        outside = torch.ne(torch.cat(bands, dim=1) if len(bands) > 1 else bands[0], _GUARD_WORD)
        if self._odd:
            odd = torch.cat(self._odd, dim=1)
            outside = torch.cat([outside, torch.ne(odd, _GUARD_WORD >> 8)], dim=1)
        for name in self._gapped:
            words = self._payload(name, self._rows).view(torch.int16)
            written = torch.ne(words, _GUARD_WORD) & self._gaps(name)
            outside = torch.cat([outside, written], dim=1)
        if self._far:
            damaged = torch.cat([tensor.damaged() for tensor in self._far])
            outside = torch.cat([outside, damaged[None]], dim=1)
        return Inspection(self, changed, outside)

    def _wrong(self, changed: torch.Tensor, outside: torch.Tensor) -> torch.Tensor:
        """A mask of the bytes of one set that differ from the expected content."""
        wrong = torch.zeros(self._layout.nbytes, dtype=torch.bool, device=changed.device)
        wrong[: changed.numel()] = changed
        at = 0
        ends = [self._layout.segments[name].end for name in self._layout.written]
        for end, band in zip(ends, self._bands, strict=True):
            start, size = end + end % 2, band.shape[1]
            wrong[start : start + 2 * size] = outside[at : at + size].repeat_interleave(2)
            at += size
        odd = [end for end in ends if end % 2]
        for index, end in enumerate(odd):
            wrong[end] = outside[at + index]
        at += len(odd)
        for name in self._gapped:
            segment = self._layout.segments[name]
            size = (segment.end - segment.start) // 2
            wrong[segment.start : segment.end] = outside[at : at + size].repeat_interleave(2)
            at += size
        return wrong

    def _damage(self, wrong: torch.Tensor) -> str:
        segments = list(self._layout.segments.values())
        for before, after in zip((None, *segments), (*segments, None), strict=True):
            start = before.end if before else 0
            end = after.start if after else wrong.numel()
            places = wrong[start:end].nonzero()
            if not len(places):
                continue
            # The kernel ran over the end of the nearer neighbour.
            is_after = after and end - int(places[-1]) - start < int(places[0])
            near = after if before is None or is_after else before
            return f"wrote outside {near.name}" if near else "wrote outside all"
        for name, spec in self._layout.specs.items():
            segment = self._layout.segments[name]
            places = wrong[segment.start : segment.end]
            gaps = self._gaps(name).repeat_interleave(2) if spec.strides else places[:0]
            if bool((places[: len(gaps)] & gaps).any()):
                return f"wrote between the rows of {name}"
        hit = next(self._hit(self._layout.inputs, wrong), "")
        if hit in self._layout.kept.values() and hit not in self._layout.kept:
            return f"changed {hit}, elsewhere in memory"
        return f"changed its input {hit}" if hit else ""

    def _far_damage(self, outside: torch.Tensor) -> str:
        """The forbidden writes outside far tensors, whose flags come last."""
        for number, tensor in enumerate(self._far):
            at = outside.numel() - 2 * (len(self._far) - number)
            beside, changed = outside[at : at + 2].tolist()
            if beside:
                return f"wrote outside {tensor.name}"
            if changed:
                return f"changed its input {tensor.name}"
        return ""

    def _not_zeroed(self, wrong: torch.Tensor) -> str:
        return next(self._hit(self._layout.zeroed, wrong), "")

    def _hit(self, names: Sequence[str], wrong: torch.Tensor) -> Iterator[str]:
        for name in names:
            segment = self._layout.segments[name]
            if bool(wrong[segment.start : segment.end].any()):
                yield name


# Tensors whose parts lie gigabytes apart, so that 32-bit offsets do not reach them.
#
# The memory between the parts is neither filled nor compared: on a CPU it is never touched, so it
# takes address space only. Each part has its own guard bands.
_BAND_BYTES = 4096


class NoRoom(Exception):
    """Raised if there is no memory for a far tensor. The message says how much it needs."""


class FarTensor:
    """One far tensor in its own memory. `view` is the tensor with a leading dimension of 1."""

    def __init__(self, spec: TensorSpec, guard_word: int, memory: Memory) -> None:
        """NoRoom if it cannot be allocated."""
        itemsize = ELEMENT_BYTES[spec.dtype]
        nbytes = spec.span * itemsize
        try:
            room = memory(nbytes + 3 * _BAND_BYTES)
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
        """Two flags on the device: whether a guard band was written, and whether an input was
        changed."""
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


# Guard bands that hold other values for one launch.
#
# A kernel that reads beyond a buffer may be right although NaN stands there, because a maximum
# ignores it. So equal launches must leave equal outputs whatever stands there, even a large number.
_OTHER_WORDS = (0x7B7B, 0xFBFB - (1 << 16))
"""A large number and a low one in every type of floats, as a byte repeats; of integers too, but
that unsigned ones have no low one."""


class Guards:
    """All guard words of one set of buffers: those between payloads, and those in gaps of
    payloads.
    """

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
            (row[start : end - (end - start) % 2].view(torch.int16), gap_words(spec, row.device))
            for start, end, spec in payloads
            if spec is not None and spec.strides
        ]
        self._word = word

    @contextmanager
    def holding(self, word: int) -> Iterator[None]:
        """Fills the guards with `word` inside the block, and restores them afterwards. A guard word
        that was overwritten inside the block does not become a guard word again, so an inspection
        still finds the write."""
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
    """The word around all tensors in the second launch on inputs of `kind`."""
    return _OTHER_WORDS[(seed + sum(kind.encode())) % len(_OTHER_WORDS)]


def repeats(
    output: torch.Tensor,
    first: torch.Tensor,
    among_others: Callable[[], object],
    launch: Callable[[], object],
) -> bool:
    """Whether the kernel repeats its results when it is launched again: `output`, which the last
    launch left, and `first`, the result of the first launch. False if the two have become equal,
    because then the last launch was only late.
    """
    if torch.equal(output.view(torch.uint8), first.view(torch.uint8)):
        return False
    wanted = (output.clone(), first)
    found = []
    for each, bits in zip((among_others, launch), wanted, strict=True):
        each()
        found.append(torch.equal(output.view(torch.uint8), bits.view(torch.uint8)))
    return all(found)


def writing(value: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
    """A call that copies; both tensors must outlive it. On a GPU a kernel copies, because a graph's
    copy node takes longer for a few bytes. On a CPU torch would take so long that launches no
    longer follow closely; only for several rows it takes less time than a call for each."""
    value = value.view(target.shape)
    if value.element_size() == 1:  # torch multiplies no floats of 8 bits
        value, target = value.view(torch.int8), target.view(torch.int8)
    if not target.is_cuda and target.is_contiguous():
        return functools.partial(ctypes.memmove, target.data_ptr(), value.data_ptr(), target.nbytes)
    return functools.partial(torch.mul, value, 1, out=target)


def strided_view(payload: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A view (count, *shape) of `payload` (count, bytes): `count` tensors with the shape and
    strides of `spec`."""
    elements = payload.view(torch_dtype(spec.dtype))
    shape, strides = (len(elements), *spec.shape), (elements.stride(0), *spec.all_strides)
    return elements.as_strided(shape, strides, elements.storage_offset())


def gap_words(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """A mask of the 16-bit words between a tensor's first and last element that belong to no
    element. A last odd byte has no word."""
    dtype = torch_dtype(spec.dtype)
    nbytes = spec.span * dtype.itemsize
    free = torch.full((1, nbytes + nbytes % 2), 1, dtype=torch.uint8, device=device)
    strided_view(free[:, :nbytes], spec).zero_()
    return free.view(torch.int16)[0, : nbytes // 2] == _FREE


def run_of(view: torch.Tensor, place: int, count: int) -> torch.Tensor:
    """A view of `count` elements from the flat index `place` on, in each of the tensors `view`
    (tensors, *shape).

    `place` and `count` are as `fitted` gives them. The view is (tensors, count) for a part of one
    row, and (tensors, rows, columns) for whole rows of one head.
    """
    *outer, columns = view.shape[1:]
    row, column = divmod(place, columns)
    *at, first = _unravelled(row, outer)
    if column + count <= columns:
        return _part(view, [*at, first, slice(column, column + count)])
    return _part(view, [*at, slice(first, first + count // columns)])


def fitted(spec: TensorSpec, place: int, count: int) -> tuple[int, int]:
    """The place and the count nearest to the given ones that `run_of` accepts: a part of one row,
    or whole rows of one head."""
    columns = spec.shape[-1]
    rows = spec.shape[-2] if len(spec.shape) > 1 else 1
    if count < columns:
        return min(place, (place // columns + 1) * columns - count), count
    wanted = min(rows, count // columns)
    head, row = divmod(place // columns, rows)
    return (head * rows + min(row, rows - wanted)) * columns, wanted * columns


def spot_of(view: torch.Tensor, place: float, nbytes: int) -> torch.Tensor:
    """About `nbytes` bytes of each tensor of `view`: whole rows, beginning at the share `place` of
    all rows."""
    rows = view.view(torch.uint8)
    *outer, width = rows.shape[1:]
    total = rows[0].numel() // width
    *at, first = _unravelled(int(place * total), outer)
    count = max(1, nbytes // width)
    return _part(rows, [*at, slice(first, first + count), slice(nbytes)])


def _part(view: torch.Tensor, indices: Sequence[int | slice]) -> torch.Tensor:
    """The same part of each tensor of `view`."""
    whole: list[int | slice] = [slice(None)]
    return view[tuple(whole + list(indices))]


def _unravelled(number: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The indices of element `number` of a tensor of this shape; at least one."""
    found: list[int] = []
    for size in reversed(shape):
        number, index = divmod(number, size)
        found.append(index)
    return tuple(reversed(found)) or (0,)
