"""The shape of a space file, as pydantic models: the border where YAML is checked.

The committed `space.schema.json` is generated from here for editors (`schema_text`).
What the models accept is turned into the frozen values of `specs` by `document`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from evotune.space.suggest import describe, did_you_mean
from evotune.space.tensor_map_limits import MOST_DIMENSIONS

MAX_PARAMETERS = 64
MAX_CONSTRAINTS = 256
MAX_VALUES = 100_000

ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$", max_length=64)]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


def _one_of(expected: str) -> WrapValidator:
    """One message for a union of scalars, instead of one for each of its members."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError(
                "space",
                "expected {expected}, found {found}",
                {"expected": expected, "found": describe(value)},
            ) from None

    return WrapValidator(validate)


ExpressionField = Annotated[str | int | bool | float, _one_of("an expression")]
ParameterValue = Annotated[
    bool | int | Identifier, _one_of("an integer, true, false or an identifier")
]
SymbolValue = Annotated[
    bool | int | float | Identifier, _one_of("a number, true, false or an identifier")
]
Symbols: TypeAlias = dict[Identifier, SymbolValue]
Values = Annotated[list[ParameterValue], Field(min_length=1, max_length=MAX_VALUES)]
Grid = Annotated[list[ExpressionField], Field(min_length=1, max_length=3)]


def _form(value: object) -> str:
    """Which alternative of a field that has a short and a long form `value` is."""
    if isinstance(value, dict):
        return "mapping"
    return "list" if isinstance(value, list) else "text"


class SpaceModel(BaseModel):
    """Strict types, no unknown keys. `what` names it in messages."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    what: ClassVar[str] = "this mapping"

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key, value in data.items():
                if key not in cls.model_fields:
                    hint = did_you_mean(key, cls.model_fields)
                    raise _at(key, f"unknown key '{key}' in {cls.what}{hint}")
                if value is None:
                    raise _at(key, f"'{key}' has no value; leave the key out or give it one")
        return data


def _at(key: str, message: str) -> PydanticCustomError:
    """An error at the key `key` of the mapping being validated."""
    return PydanticCustomError("space", "{message}", {"message": message, "key": key})


class ProblemModel(SpaceModel):
    what = "problem"

    name: Text
    dtype: Identifier = "float32"
    shapes: Annotated[list[Symbols], Field(min_length=1, max_length=1000)]
    variants: Annotated[list[Symbols], Field(min_length=1, max_length=100)] = [{}]
    held_out: Annotated[list[Symbols], Field(max_length=1000)] = []


class ArgumentModel(SpaceModel):
    what = "an argument"

    value: ExpressionField
    type: Literal["int32", "int64", "float32", "float64"]


class TensorMapModel(SpaceModel):
    """A tensor as the copy engine sees it, passed by value; bytes of 0 for none."""

    what = "a tensor map"

    tensor_map: Identifier
    box: Annotated[list[ExpressionField], Field(min_length=1, max_length=MOST_DIMENSIONS)]
    swizzle: ExpressionField = 0
    l2_promotion: ExpressionField = 0


def _is_map(value: object) -> bool:
    """Whether an argument, or what its writer meant, is a tensor map."""
    keys = value.keys() if isinstance(value, dict) else getattr(value, "model_fields_set", ())
    return "tensor_map" in keys or "box" in keys


class WorkspaceModel(SpaceModel):
    what = "a workspace buffer"

    bytes: ExpressionField
    init: Literal["poison", "zero_once"] = "poison"


class LaunchModel(SpaceModel):
    what = "a launch"

    grid: Grid
    block: Grid
    shared_bytes: ExpressionField = 0
    entry: Identifier | None = None
    when: ExpressionField | None = None


Argument = Annotated[
    Annotated[Identifier, Tag("text")]
    | Annotated[ArgumentModel, Tag("mapping")]
    | Annotated[TensorMapModel, Tag("map")],
    Discriminator(lambda value: "map" if _is_map(value) else _form(value)),
]
SupportValues = Annotated[list[SymbolValue], Field(min_length=1)]
Support = Annotated[
    Annotated[Text, Tag("text")] | Annotated[SupportValues, Tag("list")],
    Discriminator(_form),
]


class KernelModel(SpaceModel):
    what = "a kernel"

    source: Text
    entry: Identifier
    language: Literal["cpp", "cuda"] | None = None
    supports: dict[Identifier, Support] = {}
    define: list[Identifier] = []
    arguments: list[Argument] = []
    workspace: dict[Identifier, WorkspaceModel] = {}
    options: list[Text] = []
    launches: Annotated[list[LaunchModel], Field(max_length=64)] = []
    deterministic: bool | None = None
    alternative: Text | None = None


class ParameterModel(SpaceModel):
    what = "a parameter"
    forms: ClassVar[tuple[str, ...]] = ("values", "range", "pow2", "choices", "bool")

    values: Values | None = None
    range: Annotated[list[int], Field(min_length=2, max_length=3)] | None = None
    pow2: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    choices: Values | None = None
    bool: Literal[True] | None = None
    when: ExpressionField | None = None
    otherwise: ParameterValue | None = None
    default: ParameterValue | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_form(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if not data.keys() <= cls.model_fields.keys():
            return data  # `_known_keys` refuses it, with a hint
        given = [key for key in data if key in cls.forms]
        if not given:
            raise PydanticCustomError(
                "space", "expected one of {forms}", {"forms": ", ".join(cls.forms)}
            )
        if len(given) > 1:
            raise _at(given[1], f"'{given[0]}' and '{given[1]}' exclude each other")
        if "otherwise" in data and "when" not in data:
            raise _at("otherwise", "'otherwise' needs a 'when'")
        return data


class ConstraintModel(SpaceModel):
    what = "a constraint"

    expr: ExpressionField
    reason: Text | None = None


ParameterField = Annotated[
    Annotated[Values, Tag("list")] | Annotated[ParameterModel, Tag("mapping")],
    Discriminator(lambda value: "mapping" if _form(value) == "mapping" else "list"),
]
ConstraintField = Annotated[
    Annotated[ExpressionField, Tag("text")] | Annotated[ConstraintModel, Tag("mapping")],
    Discriminator(lambda value: "mapping" if _form(value) == "mapping" else "text"),
]


class SearchModel(SpaceModel):
    what = "search"

    strategy: Text = "evolution"
    population: Annotated[int, Field(ge=2, le=100_000)] = 32
    elites: Annotated[int, Field(ge=1, le=100_000)] = 8
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    lookahead: Annotated[int, Field(ge=0, le=10_000)] = 16


class BudgetModel(SpaceModel):
    what = "budget"

    trials: Annotated[int, Field(ge=1, le=10**9)] = 1000
    minutes: Annotated[float, Field(gt=0, le=10**6)] | None = None


class TimeoutsModel(SpaceModel):
    """Seconds after which a compiler or a whole trial on the device is killed."""

    what = "timeouts"

    compile_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    trial_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0


class RecordedModel(SpaceModel):
    what = "recorded"

    file: Text
    delay_ms: Annotated[float, Field(ge=0, le=10**6)] = 0.0


class SpaceModelFile(SpaceModel):
    """A search space: a kernel, its tunables, and the problem it solves."""

    what = "a space file"
    model_config = ConfigDict(title="evotune search space")
    full_form: ClassVar[tuple[str, ...]] = ("problem", "kernels", "parameters")
    only_full: ClassVar[tuple[str, ...]] = (
        *full_form,
        "let",
        "constraints",
        "after_compile",
        "timeouts",
    )

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    description: str = ""
    root: Text | None = None
    recorded: RecordedModel | None = None
    problem: ProblemModel | None = None
    kernels: Annotated[dict[Identifier, KernelModel], Field(min_length=1, max_length=64)] | None = (
        None
    )
    let: Annotated[dict[Identifier, ExpressionField], Field(max_length=256)] = {}
    parameters: (
        Annotated[
            dict[ParameterName, ParameterField], Field(min_length=1, max_length=MAX_PARAMETERS)
        ]
        | None
    ) = None
    constraints: Annotated[list[ConstraintField], Field(max_length=MAX_CONSTRAINTS)] = []
    after_compile: Annotated[list[ConstraintField], Field(max_length=MAX_CONSTRAINTS)] = []
    baseline: Text = "sdpa:best"
    objective: Literal["geomean_speedup"] = "geomean_speedup"
    deterministic: bool = True
    default: dict[ParameterName, ParameterValue] = {}
    search: SearchModel = SearchModel()
    budget: BudgetModel = BudgetModel()
    timeouts: TimeoutsModel = TimeoutsModel()

    @model_validator(mode="before")
    @classmethod
    def _recorded_or_full(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if "recorded" in data:
            for key in cls.only_full:
                if key in data:
                    raise _at(key, f"a recorded space has no '{key}': its recording has it")
            return data
        missing = [key for key in cls.full_form if key not in data]
        if missing:
            raise PydanticCustomError(
                "space", "missing key '{key_missing}'", {"key_missing": missing[0]}
            )
        return data


def schema_text() -> str:
    """The JSON schema of a space file, as committed beside this module."""
    schema = SpaceModelFile.model_json_schema()
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
