"""Seeded input sets with what is expected of them, made once per worker."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from evotune.problems.base import Case, Problem, Tensors, TensorSpec
from evotune.verify.accuracy import expected

_ALTERED = "altered"
# Changes in each variant in turn, with a launch after each. Looked at after 2, 4 and 9 launches, a
# kernel that rests every second or third time rests in one of them, whenever it began; and so it
# does when the variants are made once more, backwards.
_CHANGES = (2, 2, 5)
_SHARE = 1 / 8
"""One changed element may stay below the error limit in half precision, as over 1,024 keys: so each
variant begins with a share of an input's elements, drawn one by one, since what lies together may
be a part that nobody reads; and there is another way to it, which ends with them."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """Elements in a row of the input `name`, from a flat index on, and their new values."""

    name: str
    place: int
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class InputSet:
    """Inputs of one kind and seed, and the `expected` outputs (see `accuracy`), on the pool's
    device. An altered set is the normal one of its seed after its `alterations`."""

    inputs: Mapping[str, torch.Tensor]
    expected: Mapping[str, torch.Tensor]
    alterations: tuple[Alteration, ...] = ()
    checksum: int = 0

    def intact(self) -> bool:
        """Whether nobody wrote into it since it was made."""
        return self.checksum == _checksum(self.inputs, self.expected, self.alterations)

    def backwards(self) -> tuple[Alteration, ...]:
        """As `alterations`, to the same inputs, but the many elements last."""
        many, *single = self.alterations
        final = {name: value.view(-1) for name, value in self.inputs.items()}
        ones = [
            Alteration(each.name, each.place, final[each.name][each.place : each.place + 1])
            for each in reversed(single)
        ]
        return (*ones, Alteration(many.name, 0, final[many.name]))

    @property
    def nbytes(self) -> int:
        held = [*self.inputs.values(), *self.expected.values()]
        return sum(t.nbytes for t in (*held, *(each.values for each in self.alterations)))


class InputPool:
    """Input sets by (case, kind, seed), made and kept on `device`; past `limit_bytes` the least
    recently used leave."""

    def __init__(self, problem: Problem, device: str = "cpu", limit_bytes: int = 1 << 30) -> None:
        self._problem = problem
        self._device = device
        self._limit_bytes = limit_bytes
        self._sets: OrderedDict[tuple[str, str, int], InputSet] = OrderedDict()

    def get(self, case: Case, kind: str, seed: int) -> InputSet:
        key = (case.label, kind, seed)
        if key in self._sets:
            self._sets.move_to_end(key)
            return self._sets[key]
        made = self._make(case, kind, seed)
        self._sets[key] = made
        while len(self._sets) > 1 and self._nbytes() > self._limit_bytes:
            self._sets.popitem(last=False)
        return made

    def set_bytes(self, case: Case) -> int:
        """Of one set: the inputs, and what is expected of the outputs."""
        return sum(map(_nbytes, self._problem.tensors(case)))

    def trial_bytes(self, case: Case) -> int:
        """Of all sets that a trial takes: each kind, new values for the replay, and altered ones
        with their many new elements."""
        variants = self._variants(case)
        sets = len(self._problem.input_kinds) + 1 + variants
        inputs = [spec for spec in self._problem.tensors(case) if not spec.is_output]
        many = sum(_nbytes(inputs[index % len(inputs)]) for index in range(variants))
        single = variants * max(_CHANGES) * _nbytes(TensorSpec("", (), "float32"))
        return sets * self.set_bytes(case) + many + single

    def intact(self) -> bool:
        """Whether nobody wrote into any set: a candidate's stray write may land there."""
        return all(inputs.intact() for inputs in self._sets.values())

    def _nbytes(self) -> int:
        return sum(inputs.nbytes for inputs in self._sets.values())

    def altered(self, case: Case, seed: int) -> list[InputSet]:
        """Variants of the normal set of that seed: in each, many elements of one input have
        changed, then single ones; in all of them together, both of every input."""
        numbers = range(self._variants(case))
        return [self.get(case, f"{_ALTERED} {number}", seed) for number in numbers]

    def _variants(self, case: Case) -> int:
        inputs = sum(not spec.is_output for spec in self._problem.tensors(case))
        return max(len(_CHANGES), inputs)

    def _make(self, case: Case, kind: str, seed: int) -> InputSet:
        alterations: tuple[Alteration, ...] = ()
        if kind.startswith(_ALTERED):
            normal = self.get(case, "normal", seed).inputs
            number = _stream(case, kind, seed)
            others = self._inputs(case, "normal", _stream(case, f"others of {kind}", seed))
            alterations = _alterations(normal, others, int(kind.removeprefix(_ALTERED)), number)
            inputs = _alter(normal, alterations)
        else:
            inputs = self._inputs(case, kind, seed)
        reference = self._problem.reference(case, inputs)
        tolerances = self._problem.tolerances(case, inputs, reference)
        wanted = {
            spec.name: expected(
                reference[spec.name], tolerances[spec.name], getattr(torch, spec.dtype)
            )
            for spec in self._problem.tensors(case)
            if spec.is_output
        }
        return InputSet(inputs, wanted, alterations, _checksum(inputs, wanted, alterations))

    def _inputs(self, case: Case, kind: str, seed: int) -> Tensors:
        return self._problem.make_inputs(case, kind, _stream(case, kind, seed), self._device)


def _nbytes(spec: TensorSpec) -> int:
    """An input's, or of what is expected of an output."""
    size = int(getattr(torch, spec.dtype).itemsize)
    if spec.is_output:
        size = 2 * (8 if spec.dtype == "float32" else 4)
    return math.prod(spec.shape) * size


def _checksum(
    inputs: Mapping[str, torch.Tensor],
    wanted: Mapping[str, torch.Tensor],
    alterations: Sequence[Alteration],
) -> int:
    """Finds any one changed value, on the tensors' own device."""
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    values = (each.values for each in alterations)
    tensors = (*inputs.values(), *wanted.values(), *values)
    return sum(int(t.contiguous().view(words[t.element_size()]).sum()) for t in tensors)


def _stream(case: Case, kind: str, seed: int) -> int:
    """The kind and the case are part of the stream: no two sets share values."""
    digest = hashlib.sha256(f"{case.label}/{kind}/{seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def _alterations(
    inputs: Mapping[str, torch.Tensor],
    others: Mapping[str, torch.Tensor],
    index: int,
    seed: int,
) -> tuple[Alteration, ...]:
    """First a share of an input's elements become those of `others`; then single ones of the
    inputs in turn change. Each variant begins with another input."""
    generator = torch.Generator().manual_seed(seed)
    names = list(inputs)
    made = []
    for step in range(_CHANGES[index % len(_CHANGES)]):
        name = names[(index + step) % len(names)]
        flat = inputs[name].view(-1)
        place = int(torch.randint(len(flat), (1,), generator=generator))
        if step == 0:
            there = torch.Generator(flat.device).manual_seed(seed)
            chosen = torch.rand(len(flat), generator=there, device=flat.device) < _SHARE
            chosen[place] = True
            made.append(Alteration(name, 0, torch.where(chosen, others[name].view(-1), flat)))
            continue
        # Far from the old value: one element among thousands must show in the output.
        value = -math.copysign(
            2.0 + abs(float(torch.randn(1, generator=generator))), float(flat[place])
        )
        made.append(Alteration(name, place, torch.full_like(flat[:1], value)))
    return tuple(made)


def _alter(inputs: Mapping[str, torch.Tensor], alterations: Sequence[Alteration]) -> Tensors:
    altered = {name: value.clone() for name, value in inputs.items()}
    for each in alterations:
        altered[each.name].view(-1)[each.place : each.place + len(each.values)] = each.values
    return altered
