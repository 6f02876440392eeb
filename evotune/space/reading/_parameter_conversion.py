"""Converts the parameters of a validated space file, and checks the values that it gives them."""

from __future__ import annotations

from collections.abc import Mapping

from evotune.space.language.expression import parse_expression
from evotune.space.parameters import (
    Boolean,
    Categorical,
    IntegerRange,
    OrderedParameter,
    Parameter,
    PowerOfTwo,
)
from evotune.space.reading._fields import MAX_VALUES
from evotune.space.reading.object_path import DataPath
from evotune.space.reading.schema import MAX_PARAMETERS, ParameterModel, SpaceModelFile
from evotune.space.reading.yaml_source import YamlSource
from evotune.space.specs import ParameterSpec
from evotune.space.suggest import did_you_mean
from evotune.trial import Value

KERNEL = "KERNEL"


class ParameterConverter:
    """Converts the parameters of one file. SpaceError at the place of a mistake."""

    def __init__(self, source: YamlSource, model: SpaceModelFile) -> None:
        self.source = source
        self.model = model

    def parameters(self) -> tuple[ParameterSpec, ...]:
        fields = self.model.parameters or {}
        specs = [self._parameter(name, field) for name, field in fields.items()]
        kernels = self.model.kernels or {}
        if len(kernels) > 1:
            if KERNEL in fields:
                position = self.source.key_position(("parameters", KERNEL))
                raise position.error(
                    "KERNEL names the choice between this space's kernels; rename the parameter"
                )
            names = tuple(kernels)
            position = self.source.position(("kernels",))
            specs.insert(
                0, ParameterSpec(Categorical(KERNEL, names), None, names[0], None, position)
            )
            if len(specs) > MAX_PARAMETERS:
                raise position.error(
                    f"more than {MAX_PARAMETERS} parameters, with KERNEL, the choice of a kernel"
                )
        by_name = {spec.name: spec for spec in specs}
        self._check_values(by_name, self.model.default, ("default",))
        for index, values in enumerate(self.model.try_first):
            self._check_values(by_name, values, ("try_first", index))
        return tuple(specs)

    def _check_values(
        self, by_name: Mapping[str, ParameterSpec], values: Mapping[str, Value], at: DataPath
    ) -> None:
        for name, value in values.items():
            path = (*at, name)
            if name not in by_name:
                if self.model.recorded is not None:
                    continue
                hint = did_you_mean(name, by_name)
                raise self.source.key_position(path).error(f"unknown parameter '{name}'{hint}")
            spec = by_name[name]
            if not _is_member(value, spec.parameter) and not (
                spec.when is not None and _same(value, spec.otherwise)
            ):
                raise self._not_a_value(value, spec.parameter, path)

    def _parameter(
        self, name: str, field: list[bool | int | str] | ParameterModel
    ) -> ParameterSpec:
        path: DataPath = ("parameters", name)
        position = self.source.key_position(path)
        if isinstance(field, list):
            parameter = self._listed(name, field, path)
            return ParameterSpec(parameter, None, parameter.values[0], None, position)
        parameter = self._domain(name, field, path)
        when = None
        if field.when is not None:
            when = parse_expression(field.when, self.source.position((*path, "when")))
        otherwise = parameter.values[0] if field.otherwise is None else field.otherwise
        if type(otherwise) not in {type(value) for value in parameter.values}:
            place = self.source.position((*path, "otherwise"))
            raise place.error(
                f"{otherwise} has another type than the values of {name}, such as "
                f"{parameter.values[0]}"
            )
        if otherwise not in parameter:
            parameter.outside = (otherwise,)
        if field.default is not None and not _is_member(field.default, parameter):
            raise self._not_a_value(field.default, parameter, (*path, "default"))
        return ParameterSpec(parameter, when, otherwise, field.default, position)

    def _not_a_value(self, value: Value, parameter: Parameter, path: DataPath) -> Exception:
        known = [str(known) for known in parameter.values[:50]]
        message = f"{value} is not a value of {parameter.name}{did_you_mean(str(value), known)}"
        return self.source.position(path).error(message)

    def _domain(self, name: str, field: ParameterModel, path: DataPath) -> Parameter:
        if field.bool:
            return Boolean(name)
        if field.range is not None:
            return self._range(name, field.range, (*path, "range"))
        if field.pow2 is not None:
            return self._pow2(name, field.pow2, (*path, "pow2"))
        if field.choices is not None:
            self._refuse_duplicates(field.choices, (*path, "choices"))
            for i, value in enumerate(field.choices):
                if isinstance(value, bool):
                    place = self.source.position((*path, "choices", i))
                    raise place.error("expected an integer or an identifier, found a boolean")
            return Categorical(name, tuple(field.choices))
        assert field.values is not None
        return self._listed(name, field.values, (*path, "values"))

    def _listed(self, name: str, values: list[bool | int | str], path: DataPath) -> Parameter:
        self._refuse_duplicates(values, path)
        kinds = {type(value) for value in values}
        if len(kinds) > 1:
            first = type(values[0])
            odd = next(i for i, value in enumerate(values) if type(value) is not first)
            message = "a list holds only integers, only booleans or only identifiers; use 'choices'"
            raise self.source.position((*path, odd)).error(message)
        if kinds == {bool}:
            return Boolean(name, tuple(values))
        return (OrderedParameter if kinds == {int} else Categorical)(name, tuple(values))

    def _refuse_duplicates(self, values: list[bool | int | str], path: DataPath) -> None:
        seen: set[tuple[type, Value]] = set()
        for i, value in enumerate(values):
            if (type(value), value) in seen:
                raise self.source.position((*path, i)).error(f"duplicate value {value}")
            seen.add((type(value), value))

    def _range(self, name: str, numbers: list[int], path: DataPath) -> Parameter:
        low, high, step = (*numbers, 1)[:3]
        position = self.source.position(path)
        if step < 1:
            raise position.error(f"expected a step of at least 1, found {step}")
        if low > high:
            raise position.error(f"expected [low, high], found {low} > {high}")
        if (high - low) // step >= MAX_VALUES:
            raise position.error(f"more than {MAX_VALUES} values")
        return IntegerRange(name, low, high, step)

    def _pow2(self, name: str, numbers: list[int], path: DataPath) -> Parameter:
        low, high = numbers
        for i, number in enumerate(numbers):
            if number < 1 or number & (number - 1):
                raise self.source.position((*path, i)).error(f"{number} is not a power of two")
        if low > high:
            raise self.source.position(path).error(f"expected [low, high], found {low} > {high}")
        return PowerOfTwo(name, low, high)


def _same(first: Value, second: Value) -> bool:
    return type(first) is type(second) and first == second


def _is_member(value: Value, parameter: Parameter) -> bool:
    return value in parameter.values and type(value) is type(
        parameter.values[parameter.index(value)]
    )
