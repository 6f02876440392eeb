"""How a configuration is launched on a case: the space's expressions, evaluated."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from evotune.device.launch import Argument, Launch, LaunchPlan, Workspace
from evotune.device.profile import DeviceProfile
from evotune.device.tensor_map import FIRST_ARCH, TensorMap
from evotune.problems.base import Case, Problem
from evotune.space.bound import BoundSpace
from evotune.space.language.expression import Expression, parse_expression
from evotune.space.specs import ArgumentSpec, KernelSpec, TensorMapSpec
from evotune.space.suggest import did_you_mean
from evotune.trial import Configuration, Value


class Rejected(Exception):
    """Why a configuration need not be compiled."""


_TRITONS_SCRATCH = (Argument("int64"), Argument("int64"))
"""Pointers that Triton's kernels take after their own arguments, to scratch memory that none of
those that the compiler lets pass has use for. CUDA reads as many arguments as the kernel takes, so
more than an older Triton has do no harm."""


_parsed = functools.lru_cache(parse_expression)


class LaunchPlanner:
    """Makes launch plans for one bound space on one device."""

    def __init__(self, bound: BoundSpace, problem: Problem, profile: DeviceProfile) -> None:
        self._bound = bound
        self._problem = problem
        self._profile = profile

    def plan(self, kernel: KernelSpec, configuration: Configuration, case: Case) -> LaunchPlan:
        def integer(expression: Expression) -> int:
            return int(self._bound.evaluate(expression, configuration, case.symbols))

        workspaces = tuple(
            Workspace(spec.name, integer(spec.size_bytes), spec.init) for spec in kernel.workspace
        )
        buffers = {spec.name for spec in self._problem.tensors(case)}
        launches = [
            Launch(
                tuple(integer(e) for e in spec.grid),
                tuple(integer(e) for e in spec.block),
                integer(spec.shared_bytes),
                spec.entry,
            )
            for spec in kernel.launches
            if spec.when is None or self._bound.evaluate(spec.when, configuration, case.symbols)
        ]
        return LaunchPlan(
            entry=kernel.entry,
            arguments=(
                *(
                    self._argument(argument, kernel, buffers, configuration, case)
                    for argument in kernel.arguments
                ),
                *(_TRITONS_SCRATCH if kernel.language == "triton" else ()),
            ),
            workspaces=workspaces,
            launches=tuple(launches),
        )

    def _argument(
        self,
        argument: ArgumentSpec,
        kernel: KernelSpec,
        buffers: Iterable[str],
        configuration: Configuration,
        case: Case,
    ) -> Argument:
        if argument.value is not None:
            value = self._bound.evaluate(argument.value, configuration, case.symbols)
            return Argument(str(argument.type), value=_as_number(value))
        name = str(argument.name)
        if argument.tensor_map is not None:
            return self._tensor_map(argument, argument.tensor_map, configuration, case)
        if name in buffers:
            return Argument("tensor", name)
        if any(workspace.name == name for workspace in kernel.workspace):
            return Argument("workspace", name)
        expression = _parsed(name, argument.position)
        value = self._bound.evaluate(expression, configuration, case.symbols)
        if isinstance(value, str):
            raise argument.position.error(f"{name} is {value!r}: expected a tensor or a number")
        number = _as_number(value)
        return Argument("float32" if isinstance(number, float) else "int32", value=number)

    def _tensor_map(
        self,
        argument: ArgumentSpec,
        spec: TensorMapSpec,
        configuration: Configuration,
        case: Case,
    ) -> Argument:
        """SpaceError for what no configuration can mend; rejected where the driver would refuse."""
        name = str(argument.name)
        tensors = {tensor.name: tensor for tensor in self._problem.tensors(case)}
        if name not in tensors:
            hint = did_you_mean(name, tensors)
            raise argument.position.error(f"a tensor map of '{name}', which is no tensor{hint}")
        shape = tensors[name].shape
        if len(spec.box) != len(shape):
            message = f"the box has {len(spec.box)} sizes, but {name} has {len(shape)} dimensions"
            raise spec.box_position.error(message)
        box, swizzle_bytes, l2_promotion_bytes = (
            tuple(int(self._bound.evaluate(e, configuration, case.symbols)) for e in expressions)
            for expressions in (spec.box, (spec.swizzle_bytes,), (spec.l2_promotion_bytes,))
        )
        dtype = tensors[name].dtype
        tensor_map = TensorMap(dtype, shape, box, *swizzle_bytes, *l2_promotion_bytes)
        violation = tensor_map.violation()
        arch = int(self._profile.attributes.get("arch", 0))
        if arch < FIRST_ARCH:
            violation = f"tensor maps need arch >= {FIRST_ARCH}, found arch = {arch}"
        if violation:
            raise Rejected(f"{case.label}: the map of {name}: {violation}")
        return Argument("tensor_map", name, tensor_map=tensor_map)


def _as_number(value: Value) -> int | float:
    if isinstance(value, bool):
        return int(value)
    assert not isinstance(value, str)
    return value
