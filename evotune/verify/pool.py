"""Seeded input sets with their expected outputs, made once per worker."""

from __future__ import annotations

import hashlib
import math
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from evotune.problems import user_torch
from evotune.problems.problem import (
    ELEMENT_BYTES,
    Case,
    HasParts,
    Problem,
    Tensors,
    TensorSpec,
    comparable,
    is_rounded,
    torch_dtype,
)
from evotune.problems.row_tolerances import tolerances_after, tolerances_by_blocks
from evotune.problems.user import UserProblem
from evotune.verify.accuracy import expected, in_tolerances, is_rounding, tolerance_in
from evotune.verify.buffers import fitted

_CHANGED = "changed"
_MOST_CHANGED = 6  # changed sets; of a problem with many inputs, each set changes several inputs
SHORT_CHANGES = 2  # the number of changed sets with short changes, which come last
_LONGEST_ROW = 1 << 14  # elements
_FEW = 16
"""Changes of an input: a long row of elements, up to this many, or one. Rounding in half precision
cannot hide the first; a kernel that probes a few words misses the last."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """New values for consecutive elements of the input `name`, from a flat index on."""

    name: str
    place: int
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class InputSet:
    """Inputs of one kind and seed, and the `expected` outputs (see `accuracy`), on the pool's
    device. A changed set is the normal set of its seed after `alterations`. If the problem judges
    outputs itself, nothing is `expected`, and `answer` is what its `compute` gives.

    The `checksum` and the `roundings` (`is_rounding` by output) stay on the device: reading them
    waits for it, and a champion has thousands of sets.
    """

    inputs: Mapping[str, torch.Tensor]
    expected: Mapping[str, torch.Tensor]
    alterations: tuple[Alteration, ...] = ()
    checksum: torch.Tensor | None = None
    roundings: Mapping[str, torch.Tensor] = field(default_factory=dict)
    answer: Mapping[str, torch.Tensor] = field(default_factory=dict)
    _read: list[frozenset[str]] = field(default_factory=list)

    @property
    def rounded(self) -> frozenset[str]:
        """The outputs whose tolerances allow for rounding alone."""
        read_roundings([self])
        return self._read[0]

    def intact(self) -> bool:
        """True if its memory is unchanged since it was made."""
        return bool(self.compared())

    def compared(self) -> torch.Tensor:
        """A flag on the device: whether the set's memory is unchanged since it was made."""
        assert self.checksum is not None
        wanted = self.expected or self.answer
        return self.checksum == _checksum(self.inputs, wanted, self.alterations)

    @property
    def nbytes(self) -> int:
        held = [*self.inputs.values(), *self.expected.values(), *self.answer.values()]
        return sum(t.nbytes for t in (*held, *(each.values for each in self.alterations)))


def read_roundings(sets: Sequence[InputSet]) -> None:
    """Reads the roundings of all sets, for `InputSet.rounded`, and waits for the device once."""
    unread = [each for each in sets if not each._read]
    flags = [flag for each in unread for flag in each.roundings.values()]
    found = iter(torch.stack(flags).tolist() if flags else ())
    for each in unread:
        each._read.append(frozenset([name for name in each.roundings if next(found)]))


class InputPool:
    """Input sets by (case, kind, seed), made and kept on `device`. If they exceed `limit_bytes`,
    the least recently used ones are dropped."""

    def __init__(
        self,
        problem: Problem,
        device: str = "cpu",
        limit_bytes: int = 1 << 30,
        secret: str = "",
    ) -> None:
        """All values and places are drawn from `secret`, which a kernel's author cannot know."""
        self._problem = problem
        self._secret = secret
        self._device = device
        self._limit_bytes = limit_bytes
        self._sets: OrderedDict[tuple[str, str, int], InputSet] = OrderedDict()
        self._nbytes = 0

    def get(self, case: Case, kind: str, seed: int) -> InputSet:
        key = (case.label, kind, seed)
        if key in self._sets:
            self._sets.move_to_end(key)
            return self._sets[key]
        made = self._make(case, kind, seed)
        self._sets[key] = made
        self._nbytes += made.nbytes
        while len(self._sets) > 1 and self._nbytes > self._limit_bytes:
            self._nbytes -= self._sets.popitem(last=False)[1].nbytes
        return made

    def once(self, case: Case, kind: str, seed: int) -> InputSet:
        """A set for a single launch. The pool does not keep it, and it has no checksum."""
        inputs = self._inputs(case, kind, seed)
        return InputSet(inputs, self._wanted(case, inputs), answer=self._answer(case, inputs))

    def following(self, case: Case, inputs: Tensors) -> InputSet | None:
        """A set like that of `once` of inputs that a launch updated; None if they are not valid."""
        assert isinstance(self._problem, UserProblem)
        if not user_torch.can_follow(self._problem, case, inputs):
            return None
        return InputSet(inputs, self._wanted(case, inputs), answer=self._answer(case, inputs))

    def set_bytes(self, case: Case) -> int:
        """The bytes of one set: its inputs and the expected outputs."""
        return sum(map(_nbytes, self._problem.tensors(case)))

    def trial_bytes(self, case: Case) -> int:
        """The bytes of all sets of a trial: each kind, new values for the replay, and changed sets
        with their new elements."""
        changed = self._changed_sets(case)
        sets = len(self._problem.input_kinds) + 1 + changed
        inputs = sum(spec.is_input for spec in self._problem.tensors(case))
        elements = (changed + 1) * (inputs * _FEW + _LONGEST_ROW)
        return sets * self.set_bytes(case) + elements * _nbytes(TensorSpec("", (), "float32"))

    def intact(self) -> bool:
        """True if all sets in the pool are unchanged. A candidate's stray write may change them."""
        found = [each.compared() for each in self._sets.values()]
        return not found or bool(torch.stack(found).all())

    def stream(self, case: Case, what: str, seed: int) -> int:
        """A seed for the purpose `what` on a case. Each has its own seed, so no two sets share
        values.
        """
        text = f"{self._secret}/{case.label}/{what}/{seed}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")

    def changed(self, case: Case, seed: int) -> list[InputSet]:
        """Variants of the normal set of `seed`. For each input there is one with a long row of
        changed elements (one variant for all steady inputs together). The last two have a few
        changed elements in every input, and a single one in every input."""
        numbers = range(self._changed_sets(case))
        return [self.get(case, f"{_CHANGED} {number}", seed) for number in numbers]

    def _changed_sets(self, case: Case) -> int:
        inputs = sum(spec.is_input for spec in self._problem.tensors(case))
        return min(inputs + SHORT_CHANGES, _MOST_CHANGED)

    def _make(self, case: Case, kind: str, seed: int) -> InputSet:
        alterations: tuple[Alteration, ...] = ()
        if kind.startswith(_CHANGED):
            number = int(kind.removeprefix(_CHANGED))
            alterations, inputs, wanted = self._make_changed(case, number, seed)
        else:
            inputs = self._inputs(case, kind, seed)
            wanted = self._wanted(case, inputs)
        roundings = {
            spec.name: is_rounding(wanted[spec.name], torch_dtype(spec.dtype))
            for spec in self._problem.tensors(case)
            if spec.name in wanted
        }
        answer = self._answer(case, inputs)
        checksum = _checksum(inputs, wanted or answer, alterations)
        return InputSet(inputs, wanted, alterations, checksum, roundings, answer)

    def _make_changed(
        self, case: Case, number: int, seed: int
    ) -> tuple[tuple[Alteration, ...], Tensors, Tensors]:
        """The alterations of changed set `number`, its inputs and its expected outputs."""
        normal = self.get(case, "normal", seed).inputs
        alterations = self._alterations(case, number, seed)
        inputs = _alter(normal, alterations)
        wanted = self._wanted_after(case, inputs, alterations, seed)
        if number < self._changed_sets(case) - 1 or self._fits(case, inputs, wanted):
            return alterations, inputs, wanted
        others = self._inputs(case, "normal", self.stream(case, f"others {number}", seed))
        alterations = tuple(
            replace(each, values=others[each.name].view(-1)[each.place].reshape(1).clone())
            for each in alterations
        )
        inputs = _alter(normal, alterations)
        return alterations, inputs, self._wanted_after(case, inputs, alterations, seed)

    def _wanted_after(
        self, case: Case, inputs: Tensors, alterations: Sequence[Alteration], seed: int
    ) -> Tensors:
        """The expected outputs. For a changed set only the parts that the alterations affect are
        computed, because limits of long sequences take most of a champion's preparation."""
        touched = [(each.name, each.place, len(each.values)) for each in alterations]
        parts = None
        if touched and isinstance(self._problem, HasParts):
            parts = self._problem.parts(case, touched)
        if parts is None:
            return self._wanted(case, inputs, self.get(case, "normal", seed))
        own = {
            name: torch.stack([value[region] for region in parts.regions[name]])
            for name, value in inputs.items()
        }
        normal = self.get(case, "normal", seed).expected
        wanted = {name: value.clone() for name, value in normal.items()}
        for name, values in self._wanted(parts.case, own).items():
            for number, region in enumerate(parts.regions[name]):
                wanted[name][(slice(None), *region)] = values[:, number]
        return wanted

    def _wanted(self, case: Case, inputs: Tensors, normal: InputSet | None = None) -> Tensors:
        """The expected outputs. `normal`: the set from which these inputs were changed."""
        problem = self._problem
        if self._has_same:
            return {}
        reference = problem.reference(case, inputs)
        if not isinstance(problem, UserProblem):
            tolerances = problem.tolerances(case, inputs, reference)
        elif normal is None:
            tolerances = tolerances_by_blocks(problem, case, inputs, reference)
        else:
            of_normal = problem.reference(case, dict(normal.inputs))
            known = {
                name: torch.view_as_complex(of_parts) if reference[name].is_complex() else of_parts
                for name, each in normal.expected.items()
                for of_parts in [tolerance_in(each)]
            }
            tolerances = tolerances_after(problem, case, inputs, reference, (of_normal, known))
        return {
            spec.name: expected(
                reference[spec.name],
                tolerances[spec.name],
                torch_dtype(spec.dtype),
                may_be_infinite=spec.may_be_infinite,
            )
            for spec in self._problem.tensors(case)
            if spec.is_output
        }

    @property
    def _has_same(self) -> bool:
        return isinstance(self._problem, UserProblem) and self._problem.has_same

    def _answer(self, case: Case, inputs: Tensors) -> Tensors:
        """What `compute` gives, for a problem that judges outputs itself."""
        return self._problem.reference(case, inputs) if self._has_same else {}

    def _fits(self, case: Case, inputs: Tensors, wanted: Tensors) -> bool:
        """False if an output's type does not hold a result. Far values of several inputs together
        may have such results, since no kind of inputs has all of them."""
        if isinstance(self._problem, UserProblem) and self._problem.has_same:
            return user_torch.fits(self._problem, case, self._answer(case, inputs))
        for spec in self._problem.tensors(case):
            dtype = torch_dtype(spec.dtype)
            if spec.name in wanted and is_rounded(dtype):
                largest = torch.finfo(dtype).max * wanted[spec.name][1]
                if not bool((in_tolerances(wanted[spec.name], dtype) <= largest).all()):
                    return False
        return True

    def _alterations(self, case: Case, number: int, seed: int) -> tuple[Alteration, ...]:
        """Alterations for `changed`; the sets with few and with single elements come last."""
        normal = self.get(case, "normal", seed).inputs
        specs = {spec.name: spec for spec in self._problem.tensors(case)}
        names = list(normal)
        loose = [name for name in names if not specs[name].is_steady]
        steady = [name for name in names if specs[name].is_steady]
        sets = self._changed_sets(case)
        rng = random.Random(self.stream(case, f"{_CHANGED} {number}", seed))
        if number == sets - 1:
            plain = self.plain_inputs(case)
            return tuple(self._single(case, name, seed, rng) for name in plain)
        others = self._inputs(case, "normal", self.stream(case, f"others {number}", seed))
        longest = _FEW if number == sets - 2 else _LONGEST_ROW
        made = []
        # Steady inputs have a set of their own, the last long one: see `watch`.
        long = sets - SHORT_CHANGES - bool(steady)
        own = steady if number == long else loose[number :: max(1, long)]
        for name in names if number == sets - 2 else own:
            if specs[name].is_index:
                other = self._problem.altered_indices(case, dict(normal), name, longest, rng)
                if other:
                    place, values = other
                    made.append(Alteration(name, place, values.to(normal[name].device)))
                continue
            count = min(normal[name].numel(), rng.randint(longest // 8, longest))
            place = rng.randrange(normal[name].numel() - count + 1)
            if specs[name].strides:
                place, count = fitted(specs[name], place, count)
            values = others[name].view(-1)[place : place + count].clone()
            made.append(Alteration(name, place, values))
        return tuple(made)

    def _single(self, case: Case, name: str, seed: int, rng: random.Random) -> Alteration:
        """Give one element the value farthest from its own among the problem's kinds of inputs: the
        change must show in an output that depends on thousands of elements."""
        flat = self.get(case, "normal", seed).inputs[name].view(-1)
        place = rng.randrange(len(flat))
        kinds = self._problem.input_kinds
        values = [_numbers(self._known_inputs(case, kind, seed)[name]) for kind in kinds]
        ends = torch.cat([end for each in values for end in torch.aminmax(each, dim=0)])
        ends = ends.view(-1, values[0].shape[1])
        off = (ends.double() - _numbers(flat[place : place + 1]).double()).abs()
        far = ends.gather(0, off.argmax(0, keepdim=True)).to(comparable(flat).dtype)
        return Alteration(name, place, far.contiguous().view(flat.dtype).reshape(1).clone())

    def steady_inputs(self, case: Case) -> frozenset[str]:
        """The inputs that never change while a launch may run."""
        return frozenset(s.name for s in self._problem.tensors(case) if s.is_steady)

    def plain_inputs(self, case: Case, *, ranged: bool = True) -> tuple[str, ...]:
        """The inputs in which single elements may get the value of another set. Leaves out lengths
        and indices that depend on each other, and without `ranged` all integer inputs.
        """
        inputs = (spec for spec in self._problem.tensors(case) if spec.is_input)
        return tuple(
            spec.name for spec in inputs if (ranged and spec.is_ranged) or not spec.is_index
        )

    def _known_inputs(self, case: Case, kind: str, seed: int) -> Mapping[str, torch.Tensor]:
        """The inputs of a set. If the set is not stored, makes them without the reference, which
        takes longer."""
        made = self._sets.get((case.label, kind, seed))
        return self._inputs(case, kind, seed) if made is None else made.inputs

    def _inputs(self, case: Case, kind: str, seed: int) -> Tensors:
        return self._problem.make_inputs(case, kind, self.stream(case, kind, seed), self._device)


def _nbytes(spec: TensorSpec) -> int:
    """The bytes of an input, and of the *expected* tensor of an output."""
    size = ELEMENT_BYTES[spec.dtype]
    numbers = 2 if spec.dtype == "complex64" else 1
    wanted = numbers * (3 if spec.may_be_infinite else 2) * (8 if size >= 4 else 4)
    return math.prod(spec.shape) * (size * spec.is_input + wanted * spec.is_output)


def _checksum(
    inputs: Mapping[str, torch.Tensor],
    wanted: Mapping[str, torch.Tensor],
    alterations: Sequence[Alteration],
) -> torch.Tensor:
    """A checksum that shows any single changed value; on the tensors' device."""
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    values = (each.values for each in alterations)
    tensors = (*inputs.values(), *wanted.values(), *values)
    return torch.stack([t.contiguous().view(words[t.element_size()]).sum() for t in tensors]).sum()


def elements_of(source: InputSet, each: Alteration) -> torch.Tensor:
    """The elements of `source` that the alteration `each` changes."""
    return source.inputs[each.name].view(-1)[each.place : each.place + len(each.values)]


def _numbers(values: torch.Tensor) -> torch.Tensor:
    """The values as rows, each with one number or with the two parts of a complex one. They have 0
    for NaN, which stands where no kernel may read. 8-bit floats become float32, because torch
    cannot compare them."""
    short = values.element_size() == 1 and values.is_floating_point()
    found = (values.float() if short else comparable(values)).nan_to_num(0.0)
    return found.reshape(values.numel(), -1)


def _alter(inputs: Mapping[str, torch.Tensor], alterations: Sequence[Alteration]) -> Tensors:
    altered = {name: value.clone() for name, value in inputs.items()}
    for each in alterations:
        altered[each.name].view(-1)[each.place : each.place + len(each.values)] = each.values
    return altered
