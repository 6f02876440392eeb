"""Evaluates the space's expressions to find how a configuration is launched on a case."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from evotune.backends.base.launch import (
    FIRST_ARCH,
    Argument,
    CallPlan,
    CallTensor,
    ConstantMemory,
    Launch,
    LaunchPlan,
    TensorMap,
    Workspace,
)
from evotune.errors import SpaceError
from evotune.languages import language
from evotune.problems.problem import Case, Problem, TensorSpec
from evotune.space.bound import BoundSpace, Evaluator
from evotune.space.case_scope import CaseEvaluator
from evotune.space.document import SpaceDocument
from evotune.space.language import Expression, parse_expression
from evotune.space.language.nodes import Environment
from evotune.space.specs import ArgumentSpec, KernelSpec, TensorMapSpec
from evotune.trial import Value
from evotune.util.words import did_you_mean


class Rejected(Exception):
    """Raised if a configuration cannot run, so that it need not be compiled. The message says
    why."""


class NoInteger(Rejected):
    """Raised if a configuration gives a fraction, or too large a number, where an integer is
    required. `error` names the expression."""

    def __init__(self, error: SpaceError) -> None:
        super().__init__(error.message)
        self.error = error


_INTEGER_BITS = {"int32": 32, "int64": 64}

_parsed = functools.lru_cache(parse_expression)


class CasePlanner:
    """Makes launch plans of a kernel on one case. Arguments that are equal in every configuration
    are evaluated once.

    `known` is a configuration in the form that `Evaluator.evaluate` takes.
    """

    def __init__(
        self,
        kernel: KernelSpec,
        case: Case,
        evaluator: Evaluator | CaseEvaluator,
        tensors: Sequence[TensorSpec],
        arch: int,
        *,
        optional: Sequence[str] = (),
    ) -> None:
        """`tensors`: the case's own; `optional`: names of tensors that a case may lack."""
        self._kernel = kernel
        self._case = case
        self._evaluator = evaluator
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._strides = {symbol for tensor in tensors for symbol in tensor.stride_symbols}
        self._arch = arch
        self._absent = set(optional) - self._tensors.keys()
        extra = language(kernel.language).extra_arguments
        self._call = _call_plan(case, tensors) if takes_all(kernel) else None
        self._extra_arguments = tuple(map(Argument, extra))
        self._constant: dict[int, Argument] = {}  # by their place among the arguments

    def plan(self, known: Environment) -> LaunchPlan:
        """The launches of a configuration on the case. Raises SpaceError for a number that is
        invalid in every configuration, and Rejected if it may be valid in another one.
        """
        kernel = self._kernel

        def integer(expression: Expression) -> int:
            return self._integer(expression, known)

        workspaces = tuple(
            Workspace(spec.name, integer(spec.size_bytes), spec.init) for spec in kernel.workspace
        )
        launches = [
            Launch(
                tuple(integer(e) for e in spec.grid),
                tuple(integer(e) for e in spec.block),
                integer(spec.shared_bytes),
                spec.entry,
            )
            for spec in kernel.launches
            if spec.when is None or self._evaluator.evaluate(spec.when, known)
        ]
        return LaunchPlan(
            entry=kernel.entry,
            arguments=(
                *(
                    self._constant.get(place) or self._argument(place, argument, known)
                    for place, argument in enumerate(kernel.arguments)
                    if argument.when is None or self._evaluator.evaluate(argument.when, known)
                ),
                *self._extra_arguments,
            ),
            workspaces=workspaces,
            launches=tuple(launches),
            constant_memory=self._constant_memory,
            call=self._call,
        )

    def _integer(self, expression: Expression, known: Environment, type_name: str = "int64") -> int:
        """The expression's value, which must be an integer of the type."""
        value = _as_number(self._evaluator.evaluate(expression, known))
        whole = int(value) if math.isfinite(value) else 0
        if whole != value:
            why = f"{_short(value)}, expected an integer: round with // or ceil_div"
        elif not -(1 << _INTEGER_BITS[type_name] - 1) <= whole < 1 << _INTEGER_BITS[type_name] - 1:
            why = f"{whole}, which does not fit {type_name}"
        else:
            return whole
        error = expression.error(f"in the case {self._case.label} `{expression.text}` is {why}")
        if self._evaluator.is_constant(expression):
            raise error
        raise NoInteger(error)

    @functools.cached_property
    def _constant_memory(self) -> tuple[ConstantMemory, ...]:
        """Raises SpaceError for a name that is no input tensor."""
        found = []
        for spec in self._kernel.constant_memory:
            tensor = self._tensors.get(spec.tensor)
            if tensor is None or tensor.is_output:
                inputs = [name for name, known in self._tensors.items() if not known.is_output]
                hint = did_you_mean(spec.tensor, inputs)
                raise spec.position.error(
                    f"constant memory {spec.symbol}: '{spec.tensor}' is not an input tensor{hint}"
                )
            found.append(ConstantMemory(spec.symbol, spec.tensor, tensor.nbytes))
        return tuple(found)

    def _argument(self, place: int, argument: ArgumentSpec, known: Environment) -> Argument:
        if argument.tensor_map is not None:
            return self._tensor_map(argument, argument.tensor_map, known)
        found, constant = self._plain_argument(argument, known)
        if constant:
            self._constant[place] = found
        return found

    def _plain_argument(self, argument: ArgumentSpec, known: Environment) -> tuple[Argument, bool]:
        """The argument, and whether every configuration has the same."""
        if argument.value is not None:
            constant = self._evaluator.is_constant(argument.value)
            kind = str(argument.type)
            if kind in _INTEGER_BITS:
                return Argument(kind, value=self._integer(argument.value, known, kind)), constant
            value = self._evaluator.evaluate(argument.value, known)
            return Argument(kind, value=_as_number(value)), constant
        name = str(argument.name)
        if name in self._tensors:
            return Argument("tensor", name), True
        if any(workspace.name == name for workspace in self._kernel.workspace):
            return Argument("workspace", name), True
        if name in self._absent:
            return Argument("null", name), True
        expression = _parsed(name, argument.position)
        value = self._evaluator.evaluate(expression, known)
        if isinstance(value, str):
            raise argument.position.error(f"{name} is {value!r}: expected a tensor or a number")
        number = _as_number(value)
        of_absent = name.startswith(tuple(f"{tensor}_stride_" for tensor in self._absent))
        kind = "int64" if of_absent or name in self._strides else "int32"
        if isinstance(number, float):
            kind = "float32"
        else:
            number = self._integer(expression, known, kind)
        return Argument(kind, value=number), self._evaluator.is_constant(expression)

    def _tensor_map(
        self,
        argument: ArgumentSpec,
        spec: TensorMapSpec,
        known: Environment,
    ) -> Argument:
        """Raises SpaceError for a mistake that every configuration would have; Rejected for a map
        that the driver would refuse."""
        name = str(argument.name)
        tensors = self._tensors
        if name not in tensors:
            hint = did_you_mean(name, tensors)
            message = f"the tensor map names '{name}', which is not a tensor{hint}"
            raise argument.position.error(message)
        shape = tensors[name].shape
        if len(spec.box) != len(shape):
            message = f"the box has {len(spec.box)} sizes, but {name} has {len(shape)} dimensions"
            raise spec.box_position.error(message)
        *box, swizzle_bytes, l2_promotion_bytes = (
            self._integer(expression, known)
            for expression in (*spec.box, spec.swizzle_bytes, spec.l2_promotion_bytes)
        )
        dtype = tensors[name].dtype
        strides = tensors[name].strides
        tensor_map = TensorMap(dtype, shape, tuple(box), swizzle_bytes, l2_promotion_bytes, strides)
        violation = tensor_map.violation()
        if self._arch < FIRST_ARCH:
            violation = f"tensor maps need sm_{FIRST_ARCH} or later, found sm_{self._arch}"
        if violation:
            raise Rejected(f"{self._case.label}: the map of {name}: {violation}")
        return Argument("tensor_map", name, tensor_map=tensor_map)


def takes_all(kernel: KernelSpec) -> bool:
    """Whether the kernel gets all symbols and tensors of a case (`Language.builds_each_case`)."""
    return language(kernel.language).builds_each_case


def _call_plan(case: Case, tensors: Sequence[TensorSpec]) -> CallPlan:
    passed = (
        CallTensor(spec.name, spec.dtype, spec.shape, spec.all_strides, spec.is_output)
        for spec in tensors
    )
    return CallPlan(tuple(case.symbols.items()), tuple(passed))


def _as_number(value: Value) -> int | float:
    if isinstance(value, bool):
        return int(value)
    assert not isinstance(value, str)
    return value


def _short(value: float) -> str:
    """Six digits, or more if these would look like an integer."""
    text = f"{value:.6g}"
    return repr(value) if float(text).is_integer() else text


def refuse_unknown_arguments(
    document: SpaceDocument, bound: BoundSpace, problem: Problem, cases: Sequence[Case]
) -> None:
    """Raises SpaceError for an argument that is neither a tensor, nor a workspace, nor an
    expression."""
    buffers = {spec.name for case in cases for spec in problem.tensors(case)} | set(
        problem.optional
    )
    for kernel in document.kernels:
        for workspace in kernel.workspace:
            if workspace.name in buffers:
                what = f"workspace {workspace.name} has the name of a tensor"
                raise workspace.size_bytes.error(what)
        known = buffers | {workspace.name for workspace in kernel.workspace}
        for argument in kernel.arguments:
            if argument.tensor_map is not None:
                continue
            if argument.name is not None and argument.name not in known:
                expression = parse_expression(argument.name, argument.position)
                bound.check(expression, beside=known)
