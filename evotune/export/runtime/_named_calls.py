"""`NAME.<problem>` and `torch.ops.NAME.<problem>`, if kernels take tensors by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from ._case_sizes import shape_text
from ._loaded_kernels import Refused
from ._named_kernels import Given, NamedKernels, NotServed, there
from ._operators import ANY_DEVICE, needs_grad, open_namespace
from ._own_fallback import rounded
from ._plain_state import below_function_modes, operators_are_seen
from ._tracing import forward_mode

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SERVES = """\
Inputs are contiguous. Sizes that shapes do not tell, and constants, are given by name. A call that
the kernel does not take goes to the fallback; without one it is NotServed, a ValueError of one
line. `misses()` and `info()["misses"]` count such calls. torch.compile keeps the call whole."""


def options_of(description: Mapping[str, Any]) -> dict[str, str]:
    """Sizes and constants that a call may give, with their words in the operator's schema."""
    given = description["cases_from"]
    kinds = dict.fromkeys(given["sizes"], "int") | dict.fromkeys(given.get("ranges", {}), "float")
    kinds |= {flag: "bool" for flag, tensors in given.get("flags", {}).items() if not tensors}
    return {name: f"{kind}? {name}=None" for name, kind in kinds.items()}


def optional_of(description: Mapping[str, Any]) -> list[str]:
    """The inputs that a call may lack."""
    flags: Mapping[str, list[str]] = description["cases_from"].get("flags", {})
    return [name for tensors in flags.values() for name in tensors]


def signature(
    inputs: Sequence[str],
    outputs: Sequence[str],
    options: Mapping[str, str],
    optional: Collection[str] = (),
) -> str:
    """The operator's schema: tensors, then options by keyword. Of the optional tensors only the
    last ones may be omitted; for others pass None."""
    words: list[str] = []
    for name in reversed(inputs):
        default = "=None" if all(word.endswith("=None") for word in words) else ""
        words.append(f"Tensor? {name}{default}" if name in optional else f"Tensor {name}")
    tensors = ", ".join(reversed(words))
    named = "".join(f", {words}" for words in options.values())
    result = ", ".join("Tensor" for _ in outputs)
    keywords = f", *{named}" if named else ""
    return f"({tensors}{keywords}) -> {result if len(outputs) == 1 else f'({result})'}"


class NamedCalls:
    """Serves calls with a problem's inputs, in their order or by name."""

    def __init__(
        self,
        name: str,
        description: Mapping[str, Any],
        inputs: Sequence[str],
        options: Mapping[str, str],
        optional: Collection[str] = (),
    ) -> None:
        """- `options`: what calls may pass in addition to inputs, each with its declaration in the
        operator's schema.
        - `optional`: the inputs that a call may lack.
        """
        problem = description["problem"]
        self._description = description
        self._operator: str = problem["call"]
        self._inputs = inputs
        self._outputs: list[str] = problem["outputs"]
        self._options = list(options)
        self._required = [name for name, words in options.items() if "=" not in words]
        self._optional = optional
        schema = signature(inputs, self._outputs, options, optional)
        self._library, self.namespace = open_namespace(name, self._operator, schema)
        operators = getattr(torch.ops, self.namespace)
        self.overload: Any = getattr(operators, self._operator).default
        self._kernels: NamedKernels

    def implement(self, kernels: NamedKernels) -> None:
        self._kernels = kernels
        library, overload, single = self._library, self.overload, len(self._outputs) == 1

        def result(outputs: tuple[torch.Tensor, ...]) -> Any:
            return outputs[0] if single else outputs

        def whole(tensors: Given) -> Given:
            """PyTorch leaves out the last ones that are None."""
            return [*tensors, *[None] * (len(self._inputs) - len(tensors))]

        def run(*tensors: torch.Tensor | None, **named: Any) -> Any:
            options = {name: value for name, value in named.items() if value is not None}
            return result(self._run(whole(tensors), options))

        def autograd(*tensors: torch.Tensor | None, **named: Any) -> Any:
            if forward_mode() or (torch.is_grad_enabled() and needs_grad(*there(tensors))):
                options = {name: value for name, value in named.items() if value is not None}
                return result(self._without_kernel(self._no_gradient(), whole(tensors), options))
            with torch._C._AutoDispatchBelowAutograd():
                return overload(*tensors, **named)

        def fake(*tensors: torch.Tensor | None, **named: Any) -> Any:
            options = {name: value for name, value in named.items() if value is not None}
            try:
                outputs = kernels.promised(whole(tensors), options)
            except ValueError as error:
                outputs = self._without_kernel(error, whole(tensors), options)
            return result(outputs)

        library.impl(self._operator, run, ANY_DEVICE)
        library.impl(self._operator, autograd, "Autograd")
        library._register_fake(self._operator, fake)

    def _help(self) -> str:
        """The help of `function`."""
        problem, shapes = self._description["problem"], self._description["shapes"]
        types = problem.get("types", {})
        lines = [
            f"- {name} {shape_text(shapes[name])}, {types.get(name, problem['dtype'])}"
            for name in (*self._inputs, *self._outputs)
        ]
        what = self._outputs[0] if len(self._outputs) == 1 else "a dict of the outputs by name"
        return f"Computes {what} with the tuned kernel, without gradients.\n\n" + "\n".join(
            [*lines, "", _SERVES]
        )

    def function(self) -> Callable[..., Any]:
        """`call` with the name, the arguments and the help of the problem's own function."""
        call = self.call

        def function(*tensors: torch.Tensor | None, **named: Any) -> Any:
            return call(*tensors, **named)

        kind, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        none_from = len(self._inputs)
        while none_from and self._inputs[none_from - 1] in self._optional:
            none_from -= 1
        empty = inspect.Parameter.empty
        parameters = [
            inspect.Parameter(name, kind, default=None if place >= none_from else empty)
            for place, name in enumerate(self._inputs)
        ]
        parameters += [inspect.Parameter(n, keyword, default=None) for n in self._options]
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        function.__name__ = self._operator
        function.__doc__ = self._help()
        return function

    def call(self, /, *tensors: torch.Tensor | None, **named: Any) -> Any:
        """The output, or a dict of outputs by name if there are several. Pass sizes that shapes do
        not imply, and constants, by name. Raises NotServed (a ValueError, one line) if no kernel
        serves the call and there is no fallback."""
        inputs, options = self._given(tensors, named)
        if torch.compiler.is_compiling():
            outputs = None
        else:
            with below_function_modes():
                outputs = self._attempt(inputs, options)
        if isinstance(outputs, NotServed):
            outputs = self._without_kernel(outputs, inputs, options)
        elif outputs is None:
            found = self.overload(*inputs, **options)
            outputs = (found,) if len(self._outputs) == 1 else tuple(found)
        if len(outputs) == 1:
            return outputs[0]
        return dict(zip(self._outputs, outputs, strict=True))

    def _attempt(
        self, tensors: Given, options: Mapping[str, Any]
    ) -> tuple[torch.Tensor, ...] | NotServed | None:
        """The outputs of a kernel, or why there are none. None for a call that the operator must
        serve."""
        here = there(tensors)
        if _need_operator(here):
            return None
        if forward_mode() or (torch.is_grad_enabled() and needs_grad(*here)):
            return self._no_gradient()
        try:
            return self._kernels.run(tensors, options)
        except NotServed as error:
            return error

    def set_fallback(self, function: Callable[..., Any] | None) -> None:
        """Sets the function that serves the calls that no kernel serves. `function(*tensors,
        **named)` gets the call's arguments, and returns the output, or a dict of outputs by name.
        None restores the package's own fallback. For inputs of other types than the kernels take,
        torch.compile calls it on tensors without values, to know the outputs' types."""
        kernels = self._kernels
        kernels.fallback = kernels.own_fallback if function is None else function

    def _given(
        self, tensors: tuple[torch.Tensor | None, ...], named: Mapping[str, Any]
    ) -> tuple[list[torch.Tensor | None], dict[str, Any]]:
        call = f"{self._operator}({', '.join(self._inputs)})"
        if len(tensors) > len(self._inputs):
            raise TypeError(f"{call} takes {len(self._inputs)} tensors, got {len(tensors)}")
        given = [*tensors, *[named.get(name) for name in self._inputs[len(tensors) :]]]
        for name, tensor in zip(self._inputs, given, strict=True):
            if tensor is None and name not in self._optional:
                raise TypeError(f"{call} lacks {name}")
        options = {}
        for name, value in named.items():
            if name in self._options:
                if value is not None:
                    # Decisions are remembered by value; a tensor counts as itself there.
                    options[name] = value.item() if isinstance(value, torch.Tensor) else value
                    if not torch.compiler.is_compiling() and not _is_number(value):
                        raise TypeError(f"{call}: {name} must be a number, got {value!r}")
            elif name not in self._inputs[len(tensors) :]:
                known = ", ".join((*self._inputs, *self._options))
                raise TypeError(f"{call} got {name!r}; known: {known}")
        for name in self._required:
            if name not in options:
                raise TypeError(f"{call} lacks {name}")
        return given, options

    def _run(self, tensors: Given, options: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        try:
            return self._kernels.run(tensors, options)
        except NotServed as error:
            return self._without_kernel(error, tensors, options)

    def _no_gradient(self) -> NotServed:
        words = "an input requires grad, and a kernel has no gradient: use torch.no_grad()"
        return self._kernels.refuse(Refused("grad", words))

    def _without_kernel(
        self, error: ValueError, tensors: Given, options: Mapping[str, Any]
    ) -> tuple[torch.Tensor, ...]:
        """The fallback's outputs, as a kernel's would be: contiguous, in their own memory, and of
        the kernels' types if the inputs are. A graph of torch.compile relies on all three. Raises
        the error if there is no fallback."""
        kernels = self._kernels
        if kernels.fallback is None:
            raise error
        found = kernels.fallback(*tensors, **options)
        named = {self._outputs[0]: found} if isinstance(found, torch.Tensor) else found
        outputs = [named[name] for name in self._outputs]
        if kernels.have_types(tensors):
            pairs = zip(self._outputs, outputs, strict=True)
            outputs = [rounded(output, kernels.type_of(name)) for name, output in pairs]
        return _in_own_memory([output.contiguous() for output in outputs], there(tensors))


def _in_own_memory(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The outputs. An output that lies in the memory of an input or of another output is copied."""
    taken = {_memory_of(tensor) for tensor in inputs}
    found = []
    for output in outputs:
        own = output.clone() if _memory_of(output) in taken else output
        taken.add(_memory_of(own))
        found.append(own)
    return tuple(found)


def _memory_of(tensor: torch.Tensor) -> int:
    """A number for the memory that a tensor shares with its views."""
    try:
        found: int = tensor.untyped_storage()._cdata
    except NotImplementedError:  # sparse ones, and those of transforms, do not tell
        found = id(tensor)
    return found


def _is_number(value: Any) -> bool:
    """Whether it is a number, or an integer that a tracer leaves open, which is no float."""
    return hasattr(value, "__float__") or isinstance(value, torch.SymInt)


def _need_operator(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a mode or transform observes operators, or the tensors' memory may not hold their
    values.
    """
    for tensor in tensors:  # `any` of a generator takes twice as long
        if type(tensor) not in _PLAIN or tensor.is_neg() or tensor._is_zerotensor():
            return True
    return operators_are_seen()
