"""Joins a document, problem symbols and device limits into a searchable space: `bind`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from evotune.errors import SpaceError
from evotune.space._naming import Names
from evotune.space.bound import BoundSpace
from evotune.space.case_scope import BoundConstraint, Gene, Scope
from evotune.space.language.expression import Expression
from evotune.space.language.interning import Interner
from evotune.space.language.nodes import BOOL
from evotune.space.specs import ConstraintSpec, ParameterSpec
from evotune.space.suggest import did_you_mean
from evotune.trial import Value

if TYPE_CHECKING:
    from evotune.space.document import SpaceDocument


def bind(
    document: SpaceDocument,
    environments: Sequence[Mapping[str, Value]],
    device: Mapping[str, Value],
) -> BoundSpace:
    """The search space for these problem symbols (one mapping for each shape x variant) and this
    device. A SpaceError names the first name or expression that has no meaning there."""
    if document.recorded is not None:
        raise SpaceError("a recorded space has nothing to bind", file=str(document.path))
    if not environments:
        raise SpaceError("the problem has no shapes to bind to", file=str(document.path))
    names = Names(document, environments, device)
    interner = Interner()
    scopes = [Scope(names, interner, environment) for environment in environments]
    _check_when_cycles(document, names)
    genes = [_gene(spec, names, scopes[0], interner) for spec in document.parameters]
    constraints = [_constraint(spec, names, scopes) for spec in document.constraints]
    _check_kernels(document, names)
    compiled = names.after_compile(document) if document.after_compile else names
    for condition in document.after_compile:
        _require_condition(condition.expression, compiled, "a constraint")
    return BoundSpace(
        document, names, interner, tuple(genes), tuple(constraints), compiled=compiled
    )


def _require_condition(expression: Expression, names: Names, what: str) -> None:
    kinds = names.check(expression)
    if kinds != BOOL:
        word = "text" if kinds == {str} else "a number"
        raise expression.error(
            f"{what} is true or false, but `{expression.text}` is {word}; "
            "compare it with something, as in `… == 0`"
        )


def _gene(spec: ParameterSpec, names: Names, scope: Scope, interner: Interner) -> Gene:
    domain = spec.parameter.values
    if spec.when is None:
        return Gene(spec, domain, None, None)
    _require_condition(spec.when, names, "'when'")
    varying = names.varying_in(spec.when)
    if varying is not None:
        message = (
            f"'when' must not depend on the shape, but '{varying.name}' differs between shapes"
        )
        raise spec.when.error(message, varying.offset)
    when = scope.bind(spec.when)
    value, otherwise = interner.name(spec.name), interner.literal(spec.otherwise)
    if spec.otherwise in domain:
        rule = interner.operation("or", (when, interner.operation("==", (value, otherwise))))
        return Gene(spec, domain, when, rule)
    in_domain = interner.operation("!=", (value, otherwise))
    rule = interner.operation("==", (when, in_domain))
    return Gene(spec, (*domain, spec.otherwise), when, rule)


def _constraint(spec: ConstraintSpec, names: Names, scopes: Sequence[Scope]) -> BoundConstraint:
    _require_condition(spec.expression, names, "a constraint")
    nodes = dict.fromkeys(scope.bind(spec.expression) for scope in scopes)
    return BoundConstraint(spec, tuple(nodes))


def _check_when_cycles(document: SpaceDocument, names: Names) -> None:
    conditions = {spec.name: spec.when for spec in document.parameters if spec.when is not None}
    finished: set[str] = set()
    trail: list[str] = []

    def visit(name: str) -> None:
        if name in finished:
            return
        if name in trail:
            cycle = " -> ".join([*trail[trail.index(name) :], name])
            raise conditions[name].error(f"'when' depends on itself: {cycle}")
        trail.append(name)
        for used in names.all_names_in(conditions[name]):
            if used in conditions:
                visit(used)
        trail.pop()
        finished.add(name)

    for name in conditions:
        visit(name)


def _check_kernels(document: SpaceDocument, names: Names) -> None:
    """SpaceError when a launch would meet an unknown name, or a value of a wrong type."""
    for kernel in document.kernels:
        for symbol, position in zip(kernel.compiled_in, kernel.compiled_in_positions, strict=True):
            if symbol not in names.symbols and symbol not in names.let:
                hint = did_you_mean(symbol, {*names.symbols, *names.let})
                raise position.error(f"unknown symbol '{symbol}'{hint}")
            if symbol in kernel.specialise and symbol not in names.let:
                raise position.error(f"expected a name of 'let', found '{symbol}'")
            if [name.upper() for name in kernel.compiled_in].count(symbol.upper()) > 1:
                raise position.error(f"'{symbol}' is compiled in twice")
            for used in names.all_names_in(names.let[symbol]) if symbol in names.let else ():
                if used in names.parameters:
                    raise position.error(
                        f"'{symbol}' depends on the parameter {used}: only values that follow from "
                        "the case can be compiled in"
                    )
        for expression in kernel.expressions():
            kinds = names.check(expression)
            if kinds == {str}:
                raise expression.error("expected a number, found an identifier")
        whens = [launch.when for launch in kernel.launches]
        whens += [argument.when for argument in kernel.arguments]
        for when in whens:
            if when is not None:
                _require_condition(when, names, "'when'")
