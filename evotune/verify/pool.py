"""Seeded input sets with their reference and limits, made once per worker.

The yardstick's error on one small input set is partly luck: with a single row of large logits
it rests on how a few products happen to round. So the limit of a case and input kind takes the
worst of the yardstick's errors over as many further sets as make some thousand output rows.
Those are looked at only for errors beyond the limit of the set itself: most kernels never are.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from evotune.problems.base import Case, Problem, Tensors
from evotune.verify.accuracy import Errors, Limits, errors_against, limits_for

# Held to 512 rows, 1 in 1,200 checks refused PyTorch's own backends in float32 (head sizes whose
# scale is no power of two); to 8192, none of 43,200.
_YARDSTICK_ROWS = 8192
_YARDSTICK_SETS = 64
_ALTERED = "altered"
_ALTERED_ELEMENTS = 8


@dataclass(frozen=True, slots=True)
class InputSet:
    """Inputs of one kind and seed, the float64 outputs (on the pool's device), and the error
    limits."""

    inputs: Mapping[str, torch.Tensor]
    reference: Mapping[str, torch.Tensor]
    own_limits: Mapping[str, Limits]
    typical_limits: Callable[[], Mapping[str, Limits]]

    def limits(self, name: str, errors: Errors) -> Limits:
        """What `errors` of output `name` are held to."""
        own = self.own_limits[name]
        return own if own.hold(errors) else own.widest(self.typical_limits()[name])

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.inputs.values(), *self.reference.values()))


class InputPool:
    """Input sets by (case, kind, seed), made and kept on `device`; past `limit_bytes` the least
    recently used leave."""

    def __init__(self, problem: Problem, device: str = "cpu", limit_bytes: int = 1 << 30) -> None:
        self._problem = problem
        self._device = device
        self._limit_bytes = limit_bytes
        self._typical: dict[tuple[str, str], dict[str, Errors]] = {}
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

    def _nbytes(self) -> int:
        return sum(inputs.nbytes for inputs in self._sets.values())

    def altered(self, case: Case, seed: int) -> InputSet:
        """The normal set of that seed with a few elements of each input changed."""
        return self.get(case, _ALTERED, seed)

    def _make(self, case: Case, kind: str, seed: int) -> InputSet:
        inputs, reference, yardstick = self._evaluate(case, kind, seed)
        own = {
            name: limits_for(errors_against(value, reference[name]), reference[name], value.dtype)
            for name, value in yardstick.items()
        }

        dtypes = {name: value.dtype for name, value in yardstick.items()}

        def typical() -> dict[str, Limits]:
            return {
                name: limits_for(errors, reference[name], dtypes[name])
                for name, errors in self._typical_errors(case, kind).items()
            }

        return InputSet(inputs, reference, own, typical)

    def _evaluate(self, case: Case, kind: str, seed: int) -> tuple[Tensors, Tensors, Tensors]:
        # The kind and the case are part of the stream: no two sets share values.
        digest = hashlib.sha256(f"{case.label}/{kind}/{seed}".encode()).digest()
        number = int.from_bytes(digest[:6], "big")
        if kind == _ALTERED:
            inputs = _alter(self.get(case, "normal", seed).inputs, number)
        else:
            inputs = self._problem.make_inputs(case, kind, number, self._device)
        return inputs, self._problem.reference(case, inputs), self._problem.yardstick(case, inputs)

    def _typical_errors(self, case: Case, kind: str) -> dict[str, Errors]:
        """The yardstick's worst errors over sets that no candidate is tested on."""
        key = (case.label, kind)
        if key not in self._typical:
            worst: dict[str, Errors] = {}
            outputs = [spec for spec in self._problem.tensors(case) if spec.is_output]
            rows = min(math.prod(spec.shape[:-1]) for spec in outputs)
            for index in range(max(0, min(_YARDSTICK_SETS, math.ceil(_YARDSTICK_ROWS / rows) - 1))):
                _, reference, yardstick = self._evaluate(case, kind, -1 - index)
                for name, value in yardstick.items():
                    errors = errors_against(value, reference[name])
                    worst[name] = errors.worst(worst.get(name, errors))
            none = Errors(0.0, 0.0)
            self._typical[key] = {spec.name: worst.get(spec.name, none) for spec in outputs}
        return self._typical[key]


def _alter(inputs: Mapping[str, torch.Tensor], seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    altered = {name: value.clone() for name, value in inputs.items()}
    for value in altered.values():
        places = torch.randint(value.numel(), (_ALTERED_ELEMENTS,), generator=generator)
        fresh = 3.0 * torch.randn(_ALTERED_ELEMENTS, generator=generator)
        value.view(-1)[places.to(value.device)] = fresh.to(value)
    return altered
