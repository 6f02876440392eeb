"""Expresses a configuration's launches and limits as functions of the case, from which a package
plans."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from evotune.backends.base.backend import LaunchBounds
from evotune.backends.base.launch import (
    MOST_EXTENT,
    MOST_STRIDE_BYTES,
    Argument,
    ConstantMemory,
    Launch,
    LaunchPlan,
    TensorMap,
    Workspace,
)
from evotune.backends.base.launch import UNIT_BYTES as MAP_UNIT_BYTES
from evotune.errors import EvotuneError
from evotune.export.case_shapes import to_json
from evotune.languages import language
from evotune.problems.problem import ELEMENT_BYTES
from evotune.space.case_scope import CaseScope, evaluate
from evotune.space.language import parse_expression
from evotune.space.language.nodes import EvaluationError, Node, truth
from evotune.space.specs import (
    MOST_BOX,
    ArgumentSpec,
    ConstraintSpec,
    KernelSpec,
    SupportSpec,
    TensorMapSpec,
)
from evotune.trial import Json, Value

Shapes = Mapping[str, Sequence[Node]]
Strides = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """A kernel's launches as functions of the case. `plan`: a LaunchPlan in dicts and lists whose
    numbers are expressions. `guards`: the kernel must not be called if one of them does not hold.
    `compiled_in`: its values choose the binary."""

    scope: CaseScope
    plan: Mapping[str, Any]
    guards: tuple[Node, ...]
    compiled_in: Mapping[str, Node]

    def to_json(self) -> dict[str, Json]:
        """The entries `let`, `plan` and `guards` of a kernel."""
        nodes = [*self.guards, *_nodes(self.plan), *self.compiled_in.values()]
        let = self.scope.needed(nodes)
        for name, node in self.compiled_in.items():
            if not self.scope.is_symbol(name):
                let.setdefault(name, node)  # another name of a symbol, or a constant
        return {
            "let": {name: to_json(node) for name, node in let.items()},
            "plan": _mapped(self.plan, to_json),
            "guards": list(map(to_json, self.guards)),
        }

    def holds(self, symbols: Mapping[str, Value]) -> bool:
        """Whether the kernel may be called on a case with these symbols."""
        return _all_hold(self.guards, self.scope, symbols)

    def keeps(self, constraints: Sequence[ConstraintSpec], symbols: Mapping[str, Value]) -> bool:
        """Whether a case with these symbols satisfies the constraints of the space."""
        bound = [self.scope.bind(spec.expression) for spec in constraints]
        return _all_hold(bound, self.scope, symbols)

    def at(self, symbols: Mapping[str, Value]) -> LaunchPlan:
        """The plan of one case, to be compared with the planner's own. Raises EvotuneError if an
        expression has no value."""
        environment = self.scope.environment(symbols)
        try:
            found = _mapped(self.plan, functools.partial(evaluate, environment=environment))
        except EvaluationError as error:
            raise EvotuneError(f"an expression of the space has no value: {error}") from error
        return LaunchPlan(
            entry=found["entry"],
            arguments=tuple(_argument(a) for a in found["arguments"] if a.get("when", True)),
            workspaces=tuple(
                Workspace(each["name"], int(each["bytes"]), each["init"])
                for each in found["workspaces"]
            ),
            launches=tuple(
                Launch(
                    tuple(map(int, each["grid"])),
                    tuple(map(int, each["block"])),
                    int(each["shared_bytes"]),
                    each["entry"],
                )
                for each in found["launches"]
                if each.get("when", True)
            ),
            constant_memory=tuple(
                ConstantMemory(each["symbol"], each["tensor"], int(each["bytes"]))
                for each in found["constant_memory"]
            ),
        )


def _all_hold(nodes: Sequence[Node], scope: CaseScope, symbols: Mapping[str, Value]) -> bool:
    """Whether each condition is true; False if one has no value."""
    environment = scope.environment(symbols)
    try:
        return all(truth(evaluate(node, environment)) for node in nodes)
    except EvaluationError:
        return False


def kernel_plan(
    kernel: KernelSpec,
    scope: CaseScope,
    *,
    shapes: Shapes,
    strides: Strides,
    optional: Mapping[str, str],
    dtypes: Mapping[str, str],
    types: Sequence[str],
    constraints: Sequence[ConstraintSpec],
    bounds: LaunchBounds | None,
    static_bytes: int,
) -> KernelPlan:
    """The plan of a kernel.

    - `strides`: the symbols of each tensor's strides, if a case may choose them.
    - `optional`: for a tensor that a case may lack, the symbol that says whether the case has it.
    - `dtypes`: the type of each tensor's elements.
    - `types`: the arguments' types, as they were when the kernel was compiled.
    - `bounds`: the device's limits on launches, if it has any.
    - `static_bytes`: the shared memory of a block in addition to what a launch requests.

    Raises EvotuneError if a guard holds in no case.
    """
    writer = _Writer(
        kernel, scope, shapes=shapes, strides=strides, optional=optional, dtypes=dtypes, types=types
    )
    plan = writer.plan()
    guards = [*writer.supported(), *(scope.bind(spec.expression) for spec in constraints)]
    guards += writer.map_guards
    guards += _launch_guards(scope, plan["launches"], bounds, static_bytes)
    kept = []
    for guard in dict.fromkeys(guards):
        always = scope.holds(guard)
        if always is False:
            raise EvotuneError(f"kernel {kernel.name}: a condition of the space holds in no case")
        if always is None:
            kept.append(guard)
    compiled_in = {
        name: scope.bind(parse_expression(name, kernel.position))
        for name in kernel.compiled_in
        if name != "dtype"
    }
    return KernelPlan(scope, plan, tuple(kept), compiled_in)


class _Writer:
    """Makes the parts of one kernel's plan."""

    def __init__(
        self,
        kernel: KernelSpec,
        scope: CaseScope,
        *,
        shapes: Shapes,
        strides: Strides,
        optional: Mapping[str, str],
        dtypes: Mapping[str, str],
        types: Sequence[str],
    ) -> None:
        self._kernel = kernel
        self._scope = scope
        self._shapes = shapes
        self._strides = strides
        self._optional = optional
        self._dtypes = dtypes
        self._types = types
        self.map_guards: list[Node] = []

    def plan(self) -> dict[str, Any]:
        kernel, bind = self._kernel, self._scope.bind
        arguments = [
            self._conditional(argument, kind)
            for argument, kind in zip(kernel.arguments, self._types, strict=False)
        ]
        extra = language(kernel.language).extra_arguments
        arguments += [{"type": kind, "value": self._scope.literal(0)} for kind in extra]
        return {
            "entry": kernel.entry,
            "arguments": arguments,
            "workspaces": [
                {"name": spec.name, "bytes": bind(spec.size_bytes), "init": spec.init}
                for spec in kernel.workspace
            ],
            "launches": list(self._launches()),
            "constant_memory": [
                {"symbol": spec.symbol, "tensor": spec.tensor, "bytes": self._bytes(spec.tensor)}
                for spec in kernel.constant_memory
            ],
        }

    def supported(self) -> Iterator[Node]:
        """The kernel's `supports`, of the symbols that cases have."""
        for support in self._kernel.supports:
            if self._scope.is_symbol(support.symbol):
                yield self._supported(support)

    def _supported(self, support: SupportSpec) -> Node:
        scope = self._scope
        if support.condition is not None:
            return scope.bind(support.condition)
        assert support.values is not None
        symbol = scope.symbol(support.symbol)
        return scope.operation(
            "or", *(scope.operation("==", symbol, scope.literal(v)) for v in support.values)
        )

    def _launches(self) -> Iterator[dict[str, Any]]:
        bind = self._scope.bind
        for spec in self._kernel.launches:
            when = None if spec.when is None else bind(spec.when)
            always = True if when is None else self._scope.holds(when)
            if always is False:
                continue
            launch = {
                "entry": spec.entry,
                "grid": list(map(bind, spec.grid)),
                "block": list(map(bind, spec.block)),
                "shared_bytes": bind(spec.shared_bytes),
            }
            yield launch if always else {**launch, "when": when}

    def _conditional(self, argument: ArgumentSpec, kind: str) -> dict[str, Any]:
        found = self._argument(argument, kind)
        return (
            found if argument.when is None else {**found, "when": self._scope.bind(argument.when)}
        )

    def _argument(self, argument: ArgumentSpec, kind: str) -> dict[str, Any]:
        name = str(argument.name)
        if argument.tensor_map is not None:
            return self._tensor_map(name, argument.tensor_map)
        if argument.value is not None:
            return {"type": kind, "value": self._scope.bind(argument.value)}
        if name in self._optional:
            given = self._scope.symbol(self._optional[name])
            return {"type": "tensor", "name": name, "given": given}
        if kind in ("tensor", "workspace"):
            return {"type": kind, "name": name}
        return {"type": kind, "value": self._scope.bind(parse_expression(name, argument.position))}

    def _tensor_map(self, name: str, spec: TensorMapSpec) -> dict[str, Any]:
        bind = self._scope.bind
        extents, box = list(self._shapes[name]), list(map(bind, spec.box))
        strides = self._strides_of(name, extents)
        self.map_guards += self._map_guards(self._dtypes[name], extents, strides, box)
        return {
            "type": "tensor_map",
            "name": name,
            "tensor_map": {
                "dtype": self._dtypes[name],
                "extents": extents,
                "box": box,
                "strides": strides,
                "swizzle_bytes": bind(spec.swizzle_bytes),
                "l2_promotion_bytes": bind(spec.l2_promotion_bytes),
            },
        }

    def _strides_of(self, name: str, extents: Sequence[Node]) -> list[Node]:
        """The strides of all dimensions in elements; those of a contiguous tensor follow from its
        extents."""
        scope = self._scope
        strides: list[Node] = [scope.literal(1)]
        if symbols := self._strides.get(name):
            return [*map(scope.symbol, symbols), *strides]
        for extent in reversed(extents[1:]):
            one = strides[0] == scope.literal(1)
            strides.insert(0, extent if one else scope.operation("*", extent, strides[0]))
        return strides

    def _map_guards(
        self, dtype: str, extents: Sequence[Node], strides: Sequence[Node], box: Sequence[Node]
    ) -> Iterator[Node]:
        """The driver's limits that depend on the case; `TensorMap.violation` has them all."""
        scope = self._scope
        for sizes, most in ((box, MOST_BOX), (extents, MOST_EXTENT)):
            for size in sizes:
                yield _between(scope, 1, size, most)
        for stride in strides[:-1]:
            in_bytes = scope.operation("*", scope.literal(ELEMENT_BYTES[dtype]), stride)
            rest = scope.operation("%", in_bytes, scope.literal(MAP_UNIT_BYTES))
            yield scope.operation("==", rest, scope.literal(0))
            yield scope.operation("<", in_bytes, scope.literal(MOST_STRIDE_BYTES))

    def _bytes(self, tensor: str) -> Node:
        found: Node = self._scope.literal(ELEMENT_BYTES[self._dtypes[tensor]])
        for extent in self._shapes[tensor]:
            found = self._scope.operation("*", found, extent)
        return found


def comparable(plan: LaunchPlan) -> Json:
    """The plan as plain values that can be compared. The strides of contiguous tensors are written
    out in tensor maps."""
    arguments = tuple(map(_with_strides, plan.arguments))
    return msgspec.to_builtins(msgspec.structs.replace(plan, arguments=arguments))


def _with_strides(argument: Argument) -> Argument:
    made = argument.tensor_map
    if made is None:
        return argument
    strides = (*(stride // made.element_bytes for stride in made.strides_bytes()), 1)
    made = msgspec.structs.replace(made, strides=strides)
    return msgspec.structs.replace(argument, tensor_map=made)


def _launch_guards(
    scope: CaseScope,
    launches: Sequence[Mapping[str, Any]],
    bounds: LaunchBounds | None,
    static_bytes: int,
) -> Iterator[Node]:
    """At least one launch, and each of them within the device's limits."""
    whens = [launch["when"] for launch in launches if "when" in launch]
    if whens and len(whens) == len(launches):
        yield scope.operation("or", *whens)
    for launch in launches if bounds is not None else ():
        assert bounds is not None
        threads: Node = scope.literal(1)
        found: list[Node] = []
        for sizes, limits in ((launch["grid"], bounds.grid), (launch["block"], bounds.block)):
            for size, limit in zip(sizes, limits, strict=False):
                found.append(_between(scope, 1, size, limit))
        for size in launch["block"]:
            threads = scope.operation("*", threads, size)
        found.append(scope.operation("<=", threads, scope.literal(bounds.threads)))
        most_bytes = bounds.shared_bytes - static_bytes
        found.append(_between(scope, 0, launch["shared_bytes"], most_bytes))
        if "when" in launch:
            unless = scope.operation("not", launch["when"])
            found = [scope.operation("or", unless, guard) for guard in found]
        yield from found


def _between(scope: CaseScope, low: int, node: Node, high: int) -> Node:
    above = scope.operation(">=", node, scope.literal(low))
    return scope.operation("and", above, scope.operation("<=", node, scope.literal(high)))


def _argument(found: Mapping[str, Any]) -> Argument:
    if "tensor_map" in found:
        given = found["tensor_map"]
        sizes = {name: tuple(map(int, given[name])) for name in ("extents", "box", "strides")}
        swizzle_bytes, l2_promotion_bytes = given["swizzle_bytes"], given["l2_promotion_bytes"]
        made = TensorMap(given["dtype"], **sizes, swizzle_bytes=int(swizzle_bytes),
                         l2_promotion_bytes=int(l2_promotion_bytes))  # fmt: skip
        return Argument("tensor_map", found["name"], tensor_map=made)
    if "name" in found:
        return Argument(found["type"] if found.get("given", True) else "null", found["name"])
    value = found["value"]
    return Argument(found["type"], value=int(value) if isinstance(value, bool) else value)


def _mapped(found: Any, change: Callable[[Node], Json]) -> Any:
    """A copy of nested dicts and lists in which each expression is changed."""
    if isinstance(found, Node):
        return change(found)
    if isinstance(found, Mapping):
        return {name: _mapped(each, change) for name, each in found.items()}
    if isinstance(found, list):
        return [_mapped(each, change) for each in found]
    return found


def _nodes(found: Any) -> Iterator[Node]:
    if isinstance(found, Node):
        yield found
    elif isinstance(found, Mapping):
        for each in found.values():
            yield from _nodes(each)
    elif isinstance(found, list):
        for each in found:
            yield from _nodes(each)
