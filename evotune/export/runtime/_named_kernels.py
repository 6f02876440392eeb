"""Kernels that take contiguous tensors by name: the parts that several kinds of packages share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ._attention_package import ALIGNMENT
from ._certificate import Contents
from ._dispatch import CONTIGUOUS, OUTSIDE, Choice, Dispatch
from ._loaded_kernels import DEVICE, LoadedKernels, Refused
from ._missed import Misses
from ._own_fallback import own_fallback

_MOST_DECISIONS = 4096
Given = Sequence[torch.Tensor | None]
"""The inputs of a call in their order; None for one that the call lacks."""
Examine = Callable[[Given], Refused | None]


class Ready(NamedTuple):
    """A case and its kernel. `outputs` are their shapes and types; `examine`, if there is one,
    checks the values of each call's inputs.
    """

    launch: Callable[..., None]
    outputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    examine: Examine | None

    def empty(self, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """New outputs without values, on the device of `like`."""
        return tuple([like.new_empty(shape, dtype=dtype) for shape, dtype in self.outputs])


class NotServed(ValueError):
    """Raised if no kernel serves a call. The message is the reason, one line."""


class NamedKernels(ABC):
    """Decides on calls, remembers the decisions, and makes the launches.

    `said` has the inputs' names as callers know them.
    """

    anywhere = True
    """Whether a kernel serves all cases that it was checked on, won or not."""

    def __init__(self, contents: Contents, kernels: LoadedKernels, misses: Misses) -> None:
        description = contents.dispatch
        problem = description["problem"]
        self.call_name: str = problem["call"]
        self.inputs: Sequence[str] = problem["inputs"]
        self.said = self.inputs
        self.outputs: Sequence[str] = problem["outputs"]
        self.dispatch = Dispatch(description)
        self.kernels = kernels
        self.misses = misses
        self.own_fallback: Callable[..., Any] | None = own_fallback(contents)
        self.fallback: Callable[..., Any] | None = self.own_fallback
        self.calls = 0
        self.dtype: torch.dtype = getattr(torch, problem["dtype"])
        self._types = {n: getattr(torch, dtype) for n, dtype in problem.get("types", {}).items()}
        self._momentary = kernels.launcher.momentary_refusal
        self._decisions: dict[Any, Ready | Refused] = {}
        self.age = object()
        """Another one after each `forget`, for callers that keep a decision."""

    def run(
        self,
        tensors: Given,
        options: Mapping[str, Any],
        any_version: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """The outputs in their order. Raises NotServed if no kernel serves the call. With
        `any_version` the versions here do not matter, and nothing is remembered."""
        if any_version:
            decision = self.decide(tensors, options, any_version)
        else:
            decision = self.decided(tensors, options)
        if isinstance(decision, Refused):
            raise self.refuse(decision)
        return self.launched(decision, tensors)

    def launched(self, decision: Ready, tensors: Given) -> tuple[torch.Tensor, ...]:
        """`run` with the remembered decision on calls like this one. Raises NotServed because of
        PyTorch's state, or of anything else on which no decision depends."""
        if self._momentary is not None and (words := self._momentary(self.anywhere)):
            raise self.refuse(Refused(DEVICE, words))
        here = there(tensors)
        for tensor in here:
            if tensor.data_ptr() % ALIGNMENT:
                raise self.refuse(self._misaligned(tensors))
        if decision.examine is not None and (refused := decision.examine(tensors)):
            raise self.refuse(refused)
        outputs = decision.empty(here[0])
        decision.launch(*here, *outputs)
        with self.misses.lock:
            self.calls += 1
        return outputs

    def decided(self, tensors: Given, options: Mapping[str, Any]) -> Ready | Refused:
        """The decision on calls with these shapes, types and options, which is remembered. It does
        not depend on the tensors' values.
        """
        try:
            key = (*map(_facts, tensors), *options.items())
        except RuntimeError:  # nested tensors and some sparse ones have no such facts
            return self.decide(tensors, options)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self.decide(tensors, options)
            if len(self._decisions) >= _MOST_DECISIONS:
                self.forget()
            decision = self._decisions.setdefault(key, decision)
        return decision

    def forget(self) -> None:
        """Forgets the decisions."""
        self._decisions.clear()
        self.age = object()

    def decide(
        self,
        tensors: Given,
        options: Mapping[str, Any],
        any_version: bool = False,
    ) -> Ready | Refused:
        device = there(tensors)[0].device
        refused = self.kernels.refused(device, any_version) or self._unfit(tensors, device)
        if refused:
            return refused
        try:
            symbols = self.symbols(tensors, options)
        except ValueError as error:
            return Refused(OUTSIDE, str(error))
        choice = self.dispatch.choose(symbols, CONTIGUOUS, anywhere=self.anywhere)
        if not isinstance(choice, Choice):
            return self.outside(symbols, choice)
        pairs = zip(self.inputs, tensors, strict=True)
        names = [*(name for name, tensor in pairs if tensor is not None), *self.outputs]
        launch = self.kernels.bound(choice, names, device)
        if isinstance(launch, Refused):
            return launch
        outputs = zip(self.shapes(symbols), map(self.type_of, self.outputs), strict=True)
        return Ready(launch, tuple(outputs), self.examining(symbols, tensors))

    def _unfit(self, tensors: Given, device: torch.device) -> Refused | None:
        """Why the kernels take no such tensors, whatever their sizes."""
        for name, said, tensor in zip(self.inputs, self.said, tensors, strict=True):
            if tensor is None:
                continue
            if tensor.is_nested or tensor.layout is not torch.strided:
                kind = "nested" if tensor.is_nested else tensor.layout
                return Refused("layout", f"{said} has the layout {kind}")
            if tensor.dtype != (wanted := self.type_of(name)):
                return Refused("dtype", f"{said} is {tensor.dtype}, the kernels take {wanted}")
            if tensor.device != device:
                return Refused(DEVICE, f"{said} is on {tensor.device}, the first on {device}")
            if not tensor.is_contiguous():
                words = f"{said} is not contiguous: use {said}.contiguous()"
                return Refused("layout", words)
        return None

    def _misaligned(self, tensors: Given) -> Refused:
        pairs = zip(self.said, tensors, strict=True)
        name = next(n for n, t in pairs if t is not None and t.data_ptr() % ALIGNMENT)
        words = f"{name} does not begin at a multiple of {ALIGNMENT} bytes: use {name}.clone()"
        return Refused("alignment", words)

    @abstractmethod
    def symbols(self, tensors: Given, options: Mapping[str, Any]) -> dict[str, Any]:
        """The symbols of the call's case. Raises ValueError, one line, if it has none."""

    @abstractmethod
    def examining(self, symbols: Mapping[str, Any], tensors: Given) -> Examine | None:
        """A function that refuses inputs of this case for their values; None if all values are
        allowed."""

    @abstractmethod
    def outside(self, symbols: Mapping[str, Any], kind: str) -> Refused:
        """The miss of a case that no kernel serves."""

    def promised(self, tensors: Given, options: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """The outputs without their values, whatever serves the call. Raises ValueError if it has
        no case, or other types than the kernels take: then only the fallback knows its outputs."""
        if self.fallback is not None and not self.have_types(tensors):
            raise ValueError("the inputs have other types than the kernels take")
        return self.empty(tensors, self.shapes(self.symbols(tensors, options)))

    def shapes(self, symbols: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
        """The shapes of the outputs."""
        return tuple(self.dispatch.extents(name, symbols) for name in self.outputs)

    def type_of(self, name: str) -> torch.dtype:
        """The type of a tensor's elements."""
        found: torch.dtype = self._types.get(name, self.dtype)
        return found

    def have_types(self, tensors: Given) -> bool:
        """Whether all inputs have the types that the kernels take."""
        pairs = zip(self.inputs, tensors, strict=True)
        return all(t is None or t.dtype == self.type_of(name) for name, t in pairs)

    def empty(self, tensors: Given, shapes: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, ...]:
        """New outputs without values, on the device of the inputs.

        An output of the problem's own dtype gets the dtype that the call's inputs have in its
        place: a fallback may serve a call in another dtype than the kernels take.
        """
        found = [
            (name, tensor)
            for name, tensor in zip(self.inputs, tensors, strict=True)
            if tensor is not None
        ]
        own = next((t.dtype for name, t in found if name not in self._types), self.dtype)
        return tuple(
            found[0][1].new_empty(shape, dtype=self._types.get(name, own))
            for name, shape in zip(self.outputs, shapes, strict=True)
        )

    def refuse(self, refused: Refused) -> NotServed:
        """Counts a miss, and returns the error with its reason."""
        counted = self.misses.missed(refused.kind, refused.case, refused.words)
        if self.fallback is None:
            self.misses.told.add(refused.kind)  # the error says it
        counted.count()
        return NotServed(f"{self.call_name} ({refused.kind}): {refused.words}")


def _facts(tensor: torch.Tensor | None) -> Any:
    """The properties of a tensor that a decision depends on."""
    if tensor is None:
        return None
    return tensor.shape, tensor.dtype, tensor.layout, tensor.device, tensor.is_contiguous()


def there(tensors: Given) -> list[torch.Tensor]:
    """The inputs of a call without the missing ones."""
    return [tensor for tensor in tensors if tensor is not None]
