"""`BoundSpace`: a space bound to a problem and a device, which the search explores."""

from __future__ import annotations

import functools
import math
import random
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from evotune.errors import SpaceError
from evotune.space.case_scope import BoundConstraint, CaseScope, Gene, Names, Scope
from evotune.space.counting import Members
from evotune.space.counting.blame import (
    ConstraintReport,
    blame_crowd,
    blame_empty,
    find_crowd,
    not_found,
    report_constraints,
)
from evotune.space.counting.expansion import FULL, SHOWN_S, Deadline, Variable
from evotune.space.counting.rules import Rules, fixed_by_one_change, neighbours
from evotune.space.language import Expression
from evotune.space.language.nodes import (
    BOOL,
    Environment,
    Evaluate,
    EvaluationError,
    Interner,
    Literal,
    Node,
    Operation,
    compile_scalar,
    truth,
)
from evotune.space.search_space import Parameter, SpaceSize
from evotune.space.specs import ConstraintSpec, ParameterSpec
from evotune.trial import Configuration, Value
from evotune.util.words import did_you_mean

if TYPE_CHECKING:
    from evotune.space.document import SpaceDocument
    from evotune.space.reading.yaml_source import Position


LARGE_DIAGRAM = 200_000  # transitions; a walk through all of them takes milliseconds


class BoundSpace:
    """Implements `SearchSpace` for a space file.

    Constructing it is cheap. The first call that needs counts computes them, and raises SpaceError
    if no configuration is valid.
    """

    def __init__(
        self,
        document: SpaceDocument,
        names: Names,
        interner: Interner,
        genes: tuple[Gene, ...],
        constraints: tuple[BoundConstraint, ...],
        *,
        compiled: Names,
    ) -> None:
        """`compiled`: the names and the compiled figures, for `after_compile`."""
        self.document = document
        self.genes = genes
        self.constraints = constraints
        self._names = names
        self._compiled = compiled
        self._interner = interner
        self._rules = Rules(genes, constraints, interner)
        self._variables = tuple(Variable(gene.name, gene.values) for gene in genes)
        self._named_values = tuple((gene.name, gene.values) for gene in genes)
        self._parameters = tuple(gene.spec.parameter for gene in genes)
        self._closures: dict[object, Evaluate] = {}
        self._binding = threading.Lock()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self._parameters

    @functools.cached_property
    def _members(self) -> Members:
        crowd = find_crowd(
            self._variables, [node for constraint in self.constraints for node in constraint.nodes]
        )
        if crowd is not None:
            raise blame_crowd(self.constraints, crowd)
        members = Members(self._variables, self._rules.conditions, self._interner)
        if members.is_empty:
            deadline = Deadline.after(SHOWN_S)
            raise blame_empty(
                self._variables, self.genes, self.constraints, self._interner, deadline
            )
        if members.count == 0:
            raise not_found(self.constraints, str(self.document.path), FULL.steps)
        return members

    def size(self) -> SpaceSize:
        cartesian = math.prod(parameter.cardinality for parameter in self._parameters)
        return SpaceSize(cartesian, self._members.count, self._members.exact)

    def is_valid(self, configuration: Mapping[str, Value]) -> bool:
        values = _plain(configuration)
        return self._rules.is_canonical(values) and self._rules.satisfied(values)

    def active(self, configuration: Mapping[str, Value]) -> tuple[str, ...]:
        active = self._rules.active(_plain(configuration))
        return tuple(
            gene.name
            for gene in self.genes
            if gene.spec.parameter.cardinality > 1 and gene.name in active
        )

    def default(self) -> Configuration:
        return self._default

    @functools.cached_property
    def _default(self) -> Configuration:
        document = self.document
        named = {
            spec.name: spec.default for spec in document.parameters if spec.default is not None
        }
        named.update(document.default)
        if not named:
            return self._first()
        start = self._rules.canonical(named)
        if self.is_valid(start):
            return Configuration(start)
        if document.default.keys() >= {gene.name for gene in self.genes}:
            raise document.default_position.error(f"the default is not valid: {self._why(start)}")
        return self._near(start, named)

    def starts(self) -> list[Configuration]:
        document = self.document
        found = {self.default(): None}
        for named, position in zip(document.try_first, document.try_first_positions, strict=True):
            found[self._start(named, position)] = None
        return list(found)

    def _start(self, named: Mapping[str, Value], position: Position) -> Configuration:
        """The default with the `named` values. If that is not valid, other values change too."""
        start = self._rules.canonical({**self.default(), **named})
        made = Configuration(start)
        if not (self.is_valid(start) and _holds(made, named)):
            made = self._near({**start, **named}, named)
            for name in [gene.name for gene in self.genes if gene.name not in named]:
                nearer = self._rules.canonical({**made, name: start[name]})
                if self.is_valid(nearer) and _holds(nearer, named):
                    made = Configuration(nearer)
        if not _holds(made, named):
            why = f": {self._why(start)}" if named.keys() >= start.keys() else ""
            raise position.error(f"no valid configuration has these values{why}")
        return made

    def _why(self, start: Mapping[str, Value]) -> str:
        return "; ".join(self.violations(start)) or "a parameter is not in canonical form"

    def _near(self, start: Mapping[str, Value], named: Mapping[str, Value]) -> Configuration:
        """A valid configuration near `start`, with the values the user named if there is one."""
        rng = random.Random(0)
        repaired = self.repair(start, rng)
        if repaired is not None and _holds(repaired, {name: start[name] for name in named}):
            return repaired
        wanted = [
            self._rules.index(name, start[name]) if name in named else -1
            for name in self._rules.names
        ]
        return self._configuration(self._members.nearest(wanted, rng))

    def _first(self) -> Configuration:
        """The first configuration in order if finding it takes no search; else a sampled one."""
        if self._members.in_order:
            return next(self.enumerate())
        return self.sample(random.Random(0))

    def sample(self, rng: random.Random) -> Configuration:
        return self._configuration(self._members.sample(rng))

    def repair(self, values: Mapping[str, Value], rng: random.Random) -> Configuration | None:
        canonical = self._rules.canonical(_plain(values))
        if self._rules.satisfied(canonical):
            return Configuration(canonical)
        members = self._members
        if not members.exact or members.transitions > LARGE_DIAGRAM:
            fixed = fixed_by_one_change(self._rules, canonical, rng)
            if fixed is not None:
                return Configuration(fixed)
        wanted = [self._rules.index(name, canonical[name]) for name in self._rules.names]
        return self._configuration(members.nearest(wanted, rng))

    def neighbours(self, configuration: Configuration) -> Sequence[Configuration]:
        values = configuration.to_json()
        found = [Configuration(values) for values in neighbours(self._rules, values)]
        return tuple(dict.fromkeys(found))

    def enumerate(self) -> Iterator[Configuration]:
        return map(self._configuration, self._members.enumerate())

    def violations(self, configuration: Mapping[str, Value]) -> list[str]:
        """The constraints that do not hold, in the words of the space file."""
        return [
            f"{constraint.spec}: no value, {why}" if why else str(constraint.spec)
            for constraint, why in self._rules.violated(configuration)
        ]

    def violated_after_compile(
        self,
        configuration: Mapping[str, Value],
        environment: Mapping[str, Value],
        figures: Mapping[str, Value],
    ) -> str:
        """The first `after_compile` constraint that does not hold, with the compiled figures in it;
        "" if all hold."""
        if not self.document.after_compile:
            return ""
        values = {**configuration, **figures}
        for spec in self.document.after_compile:
            try:
                if truth(self._value(spec.expression, values, environment, self._compiled)):
                    continue
            except SpaceError as error:
                return error.message
            names = dict.fromkeys(name.name for name in spec.expression.names)
            found = [f"{name} = {_short(figures[name])}" for name in names if name in figures]
            return f"{spec}; found {', '.join(found)}" if found else str(spec)
        return ""

    def constraint_report(self, deadline: Deadline | None = None) -> list[ConstraintReport]:
        """For each constraint, how many configurations it removes alone, and how many only it
        removes."""
        deadline = deadline or Deadline.after(SHOWN_S)
        return report_constraints(
            self._variables, self.genes, self.constraints, self._interner, deadline
        )

    def check(self, expression: Expression, *, beside: Collection[str] = ()) -> None:
        """Raises SpaceError, at the expression's position, if a name or a type in it is wrong.
        `beside`: names of tensors and workspaces that may stand in place of the expression, so the
        error may propose them."""
        self._names.check(expression, beside)

    def evaluate(
        self,
        expression: Expression,
        configuration: Mapping[str, Value],
        environment: Mapping[str, Value],
    ) -> Value:
        """The value of an expression of a launch, workspace or argument, for one configuration and
        the symbols of one shape x variant. Raises SpaceError if it has none."""
        return self._value(expression, configuration, environment, self._names)

    def _value(
        self,
        expression: Expression,
        configuration: Mapping[str, Value],
        environment: Mapping[str, Value],
        names: Names,
    ) -> Value:
        try:
            closure = self._closure(expression, environment, names)
            if isinstance(configuration, Configuration):  # dict() would call Python methods
                return closure(configuration.to_json())
            return closure(dict(configuration))
        except EvaluationError as error:
            raise expression.error(f"{error} in `{expression.text}`") from error

    def evaluator(self, environment: Mapping[str, Value]) -> Evaluator:
        """An evaluator for many expressions in one environment."""
        scope = Scope(self._names, self._interner, environment)
        return Evaluator(scope, self._names, self._binding)

    def case_scope(
        self, configuration: Mapping[str, Value], known: Mapping[str, Value]
    ) -> CaseScope:
        """Folds one configuration into the space's expressions, which are then functions of a
        case's symbols. `known` symbols are folded too."""
        return CaseScope(self._names, _plain(configuration), known)

    def _closure(
        self, expression: Expression, environment: Mapping[str, Value], names: Names
    ) -> Evaluate:
        place = tuple((name, type(value), value) for name, value in environment.items())
        key = (expression.text, place, names is self._compiled)
        if key not in self._closures:
            with self._binding:  # a run plans in one thread and reviews builds in another
                names.check(expression)
                scope = Scope(names, self._interner, environment)
                self._closures[key] = compile_scalar(scope.bind(expression))
        return self._closures[key]

    def _configuration(self, indices: Sequence[int]) -> Configuration:
        return Configuration(
            {name: values[i] for (name, values), i in zip(self._named_values, indices, strict=True)}
        )


class Evaluator:
    """Evaluates expressions for the symbols of one shape x variant, for one configuration after
    another. Only one thread may use it."""

    def __init__(self, scope: Scope, names: Names, binding: threading.Lock) -> None:
        self._scope = scope
        self._names = names
        self._binding = binding
        self._nodes: dict[str, Node] = {}
        self._closures: dict[str, Evaluate] = {}

    def is_constant(self, expression: Expression) -> bool:
        """Whether the expression has the same value in all configurations."""
        return isinstance(self._bound(expression), Literal)

    def evaluate(self, expression: Expression, known: Environment) -> Value:
        """Like `BoundSpace.evaluate`. `known` is a configuration as a dict. The values of
        subexpressions are added to it, so that a `let`, or the same expression in another
        environment, is evaluated once."""
        closure = self._closures.get(expression.text)
        if closure is None:
            node = self._bound(expression)
            shared = (node, *self._scope.lets)
            closure = compile_scalar(node, frozenset(n for n in shared if isinstance(n, Operation)))
            self._closures[expression.text] = closure
        try:
            return closure(known)
        except EvaluationError as error:
            raise expression.error(f"{error} in `{expression.text}`") from error

    def _bound(self, expression: Expression) -> Node:
        node = self._nodes.get(expression.text)
        if node is None:
            with self._binding:
                self._names.check(expression)
                node = self._nodes[expression.text] = self._scope.bind(expression)
        return node


def _plain(values: Mapping[str, Value]) -> dict[str, Value]:
    """The values as a dict, as reading it calls no Python methods."""
    return values.to_json() if isinstance(values, Configuration) else dict(values)


def _short(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _holds(values: Mapping[str, Value], wanted: Mapping[str, Value]) -> bool:
    return all(values[name] == value for name, value in wanted.items())


# Joins a document, problem symbols and device limits into a searchable space: `bind`.
def bind(
    document: SpaceDocument,
    environments: Sequence[Mapping[str, Value]],
    device: Mapping[str, Value],
) -> BoundSpace:
    """The search space for these problem symbols (one mapping for each shape x variant) and this
    device. Raises SpaceError for the first name or expression that has no meaning with them."""
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
    """Raises SpaceError if a launch would meet an unknown name, or a value of a wrong type."""
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
