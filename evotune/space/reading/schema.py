"""A space file as pydantic models, which check the data that was read from YAML.

The committed `space.schema.json` is generated from here for editors (`schema_text`), and so are
tables in docs/spaces.md. `document` turns the checked models into the frozen values of `specs`.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
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
from pydantic.annotated_handlers import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from evotune.languages import all_languages, find_language
from evotune.plugins import BACKENDS
from evotune.space.specs import MOST_DIMENSIONS
from evotune.util.words import closest, describe, did_you_mean

# The base of a space file's models, and the types of scalars and short lists in them.
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
FORMULAS = ("score_mod",)
"""Symbols whose values may be expressions, as text that the problem reads."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def _only_formulas_are_text(symbols: dict[str, Any]) -> dict[str, Any]:
    for name, value in symbols.items():
        if isinstance(value, str) and name not in FORMULAS and not _IDENTIFIER.fullmatch(value):
            expected = "expected a number, true, false or an identifier"
            raise at_key(name, f"{expected}, found {describe(value)}")
    return symbols


_Symbol = Annotated[bool | int | float | Text, _one_of("a number, true, false or an identifier")]
Symbols = Annotated[dict[Identifier, _Symbol], AfterValidator(_only_formulas_are_text)]
Values = Annotated[list[ParameterValue], Field(min_length=1, max_length=MAX_VALUES)]
Grid = Annotated[list[ExpressionField], Field(min_length=1, max_length=3)]


class _Language:
    """A backend's language. Installed packages are searched for a name that evotune lacks."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_known_language)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [language.name for language in all_languages()], "type": "string"}


def _known_language(value: Any) -> str:
    if isinstance(value, str) and find_language(value) is not None:
        return value
    names = [language.name for language in all_languages()]
    *others, last = (repr(name) for name in names)
    hint = closest(value, names) if isinstance(value, str) else ""
    broken = "".join(f"; {line}" for line in BACKENDS.broken())
    message = f"expected {', '.join(others)} or {last}, found {describe(value)}{hint}{broken}"
    raise PydanticCustomError("space", "{message}", {"message": message})


LanguageName = Annotated[str, _Language]


class SpaceModel(BaseModel):
    """A mapping of a space file, with strict types and no unknown keys. `what` names it in
    messages."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )
    what: ClassVar[str] = "this mapping"

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key, value in data.items():
                if key not in cls.model_fields:
                    hint = did_you_mean(key, cls.model_fields)
                    raise at_key(key, f"unknown key '{key}' in {cls.what}{hint}")
                if value is None:
                    raise at_key(key, f"'{key}' has no value; leave the key out or give it one")
        return data


def at_key(key: str, message: str) -> PydanticCustomError:
    """An error at the key `key` of the mapping being validated."""
    return PydanticCustomError("space", "{message}", {"message": message, "key": key})


MAX_PARAMETERS = 64
MAX_CONSTRAINTS = 256


def _form(value: object) -> str:
    """The form of a value (mapping, list or text), for fields with a short and a long form."""
    if isinstance(value, dict):
        return "mapping"
    return "list" if isinstance(value, list) else "text"


class ProblemModel(SpaceModel):
    what = "problem"

    name: Text
    """A built-in problem (`attention`, `attention_varlen`, `attention_paged`), or
    `path/to/problem.py:ClassName` under the root."""
    dtype: Identifier = "float32"
    """Element type of every tensor that has none of its own: float16, bfloat16, float32 or float64;
    also the macro DTYPE."""
    shapes: Annotated[list[Symbols], Field(min_length=1, max_length=1000)]
    """Shapes, each a size for each name that the problem has; tuned for all of them at once."""
    variants: Annotated[list[Symbols], Field(min_length=1, max_length=100)] = [{}]
    """More symbols, such as `{causal: true}`; every shape is tuned in each of them."""
    held_out: Annotated[list[Symbols], Field(max_length=1000)] = []
    """Shapes on which the champion is judged; the search never sees them."""


class ArgumentModel(SpaceModel):
    what = "an argument"

    value: ExpressionField
    """An expression over parameters, sizes, `let` and `device.*`."""
    type: Literal["int32", "int64", "float32", "float64"]
    """The C type of the argument."""


class TensorMapModel(SpaceModel):
    """A tensor map (TMA) of a tensor, passed by value."""

    what = "a tensor map"

    tensor_map: Identifier
    """The tensor."""
    box: Annotated[list[ExpressionField], Field(min_length=1, max_length=MOST_DIMENSIONS)]
    """The box that one copy moves, in elements, outermost dimension first."""
    swizzle: ExpressionField = 0
    """Bytes of the swizzle's span: 0 (none), 32, 64 or 128."""
    l2_promotion: ExpressionField = 0
    """Bytes that L2 fetches at once: 0 (no promotion), 64, 128 or 256."""


def _is_map(value: object) -> bool:
    """Whether an argument is a tensor map, or was meant as one."""
    keys = value.keys() if isinstance(value, dict) else getattr(value, "model_fields_set", ())
    return "tensor_map" in keys or "box" in keys


class FurtherArgumentsModel(SpaceModel):
    what = "further arguments"

    when: ExpressionField
    """A condition on the case: the function takes these arguments if it holds."""
    names: Annotated[list[Identifier], Field(min_length=1)]
    """Tensors, workspaces or symbols."""


class WorkspaceModel(SpaceModel):
    what = "a workspace buffer"

    bytes: ExpressionField
    """Size of the buffer, an expression."""
    init: Literal["poison", "zero_once"] = "poison"
    """poison: filled with NaN before every launch. zero_once: zeroed once; every launch must leave
    it zero."""


class LaunchModel(SpaceModel):
    what = "a launch"

    grid: Grid
    """Blocks in x, y and z, one to three expressions."""
    block: Grid | None = None
    """CUDA: threads of a block in x, y and z. A Triton kernel has NUM_WARPS instead."""
    shared_bytes: ExpressionField | None = None
    """CUDA: dynamic shared memory of a block, defaults to 0. Triton's compiler computes its own."""
    entry: Identifier | None = None
    """The function to launch, if it is another one of the same source."""
    when: ExpressionField | None = None
    """A condition: the launch runs only if it holds."""


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
    """The kernel's file, under the root."""
    entry: Identifier
    """The function to call: `extern "C"`, and `__global__` in CUDA; in Triton `@triton.jit`; in
    python `make(configuration, case)`, which returns the function."""
    language: LanguageName | None = None
    """cpp, cuda, triton or python; if not given, by the suffix (.cpp, .cc, .cxx; .cu; .py for
    triton). Must be given for python, for .h and .hpp, for .cuh (cuda) and for .c (cpp, compiled as
    C++)."""
    supports: dict[Identifier, Support] = {}
    """Symbol -> values it takes, or what must hold of it, as `">= 80"` or `"% 64 == 0"`; other
    shapes are left out."""
    define: list[Identifier] = []
    """Symbols that are compiled in, as -DHEAD_DIM=64 (Triton: a constexpr), instead of passed; also
    a `let` of symbols alone. Each combination of values is a binary."""
    specialise: list[Identifier] = []
    """`let`s that are compiled in for measured cases only. One binary with 0 for each of them
    serves the other cases."""
    arguments: list[Argument] = []
    """The function's arguments in order: tensors, workspaces, symbols, or `{value, type}`."""
    further_arguments: FurtherArgumentsModel | None = None
    """Additional arguments in some cases, `{when, names}`: those of a separate binary."""
    workspace: dict[Identifier, WorkspaceModel] = {}
    """Buffers of scratch memory by name."""
    constant_memory: dict[Identifier, Identifier] = {}
    """CUDA: `__constant__` variable -> input tensor that is copied into it, before the launches of
    each call and as part of its time."""
    options: list[Text] = []
    """Compiler options, from a list of allowed ones; `-O{LEVEL}` has a parameter's value in it."""
    launches: Annotated[list[LaunchModel], Field(max_length=64)] = []
    """On a GPU: the launches, one after the other, all with the same arguments."""
    deterministic: bool | None = None
    """false: two launches may differ in bits."""
    alternative: Text | None = None
    """The space to use on a device that this kernel does not support."""


class ParameterModel(SpaceModel):
    what = "a parameter"
    forms: ClassVar[tuple[str, ...]] = ("values", "range", "pow2", "choices", "bool")

    values: Values | None = None
    """A list of values of one type."""
    range: Annotated[list[int], Field(min_length=2, max_length=3)] | None = None
    """[first, last] or [first, last, step], integers, the last one included."""
    pow2: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    """[first, last]: the powers of two in between, both included."""
    choices: Values | None = None
    """Words; `NAME` is a number and `NAME_WORD` its constants in the source."""
    bool: Literal[True] | None = None
    """true: the values false and true."""
    when: ExpressionField | None = None
    """A condition: the parameter matters only if it holds."""
    otherwise: ParameterValue | None = None
    """Its value if `when` does not hold; defaults to the first one."""
    default: ParameterValue | None = None
    """Its value in the configuration that the search starts from."""

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
            raise at_key(given[1], f"'{given[0]}' and '{given[1]}' exclude each other")
        if "otherwise" in data and "when" not in data:
            raise at_key("otherwise", "'otherwise' needs a 'when'")
        return data


class ConstraintModel(SpaceModel):
    what = "a constraint"

    expr: ExpressionField
    """The condition that must hold."""
    reason: Text | None = None
    """The reason, in words, for reports."""


ParameterField = Annotated[
    Annotated[Values, Tag("list")] | Annotated[ParameterModel, Tag("mapping")],
    Discriminator(lambda value: "mapping" if _form(value) == "mapping" else "list"),
]
ConstraintField = Annotated[
    Annotated[ExpressionField, Tag("text")] | Annotated[ConstraintModel, Tag("mapping")],
    Discriminator(lambda value: "mapping" if _form(value) == "mapping" else "text"),
]


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise PydanticCustomError("space", "an objective is listed twice; list each one once")
    return names


ObjectiveList = Annotated[
    list[Literal["speedup", "error"]], Field(min_length=2), AfterValidator(_distinct)
]
ObjectiveField = Annotated[
    Annotated[Literal["geomean_speedup"], Tag("text")] | Annotated[ObjectiveList, Tag("list")],
    Discriminator(lambda value: "list" if _form(value) == "list" else "text"),
]


class SearchModel(SpaceModel):
    what = "search"

    strategy: Text | None = None
    """evolution, local, random, exhaustive or nsga2. Defaults to evolution, or to nsga2 for several
    objectives (the others look at the speedup alone)."""
    population: Annotated[int, Field(ge=2, le=100_000)] = 32
    """Trials of a generation."""
    elites: Annotated[int, Field(ge=1, le=100_000)] = 8
    """How many of the best are kept."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Decides every random choice."""
    lookahead: Annotated[int, Field(ge=0, le=10_000)] = 16
    """How many proposals are made ahead of the outcomes; fixed for a run."""


class BudgetModel(SpaceModel):
    what = "budget"

    trials: Annotated[int, Field(ge=1, le=10**9)] = 1000
    """The run ends after this many trials."""
    minutes: Annotated[float, Field(gt=0, le=10**6)] | None = None
    """The run ends after this many minutes of work, over all sessions: 70% of them are for
    searching, the rest for confirming, which may take longer."""
    compiles: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """The run ends after this many compilations."""
    speedup: Annotated[float, Field(gt=0, le=10**6)] | None = None
    """The run ends when a candidate reaches this speedup over the baseline."""


class StopModel(SpaceModel):
    """When to give up before the budget is spent."""

    what = "stop"

    no_improvement: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """The run ends when this many trials in a row found nothing better."""


class TimeoutsModel(SpaceModel):
    """Seconds after which a compiler or a whole trial on the device is killed."""

    what = "timeouts"

    compile_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """For one run of the compiler."""
    trial_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    """For a trial on the device, without its references."""


class RecordedModel(SpaceModel):
    what = "recorded"

    file: Text
    """A measured space in Kernel Tuner's cache format, under the root."""
    delay_ms: Annotated[float, Field(ge=0, le=10**6)] = 0.0
    """How long each trial pretends to take."""


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
        "try_first",
    )

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    """The space's name in runs and reports."""
    description: str = ""
    """One line for readers."""
    root: Text | None = None
    """The folder of the sources; defaults to the nearest folder above that contains kernels/."""
    recorded: RecordedModel | None = None
    """Instead of problem, kernels and parameters: a space that was measured before."""
    problem: ProblemModel | None = None
    """The computation, and the shapes to tune it for."""
    kernels: Annotated[dict[Identifier, KernelModel], Field(min_length=1, max_length=64)] | None = (
        None
    )
    """One or more by name; with several, KERNEL is a parameter like any other."""
    let: Annotated[dict[Identifier, ExpressionField], Field(max_length=256)] = {}
    """Names for expressions, usable in all others."""
    parameters: (
        Annotated[
            dict[ParameterName, ParameterField], Field(min_length=1, max_length=MAX_PARAMETERS)
        ]
        | None
    ) = None
    """The tunable parameters: each is compiled in as a macro of its name."""
    constraints: Annotated[list[ConstraintField], Field(max_length=MAX_CONSTRAINTS)] = []
    """Expressions that must hold for a configuration to be tried."""
    after_compile: Annotated[list[ConstraintField], Field(max_length=MAX_CONSTRAINTS)] = []
    """The same over figures that the compiler reports: registers, spill_bytes, occupancy, …"""
    baseline: Text = "sdpa:best"
    """The baseline to beat: its name, `family:best` for the fastest of a family that is correct, or
    `best` for the fastest of all. fa4, fa3, fa2, flashinfer and flex are optional libraries, and
    `library:best` the fastest of them."""
    objective: ObjectiveField = "geomean_speedup"
    """The geometric mean of the speedups over all cases; or [speedup, error]: both it and the
    largest error as a share of its limit, searched by nsga2, with a Pareto front in reports."""
    deterministic: bool = True
    """false: two launches of any kernel may differ in bits."""
    default: dict[ParameterName, ParameterValue] = {}
    """The configuration that the search starts from, whole or in part."""
    try_first: list[dict[ParameterName, ParameterValue]] = []
    """Configurations to propose right after `default`; omitted values are the default's, or near
    it."""
    search: SearchModel = SearchModel()
    """The strategy and its settings."""
    budget: BudgetModel = BudgetModel()
    """The most that the run may spend, or the speedup that ends it."""
    stop: StopModel = StopModel()
    """When to end the run before its budget is spent."""
    timeouts: TimeoutsModel = TimeoutsModel()
    """When to end a candidate that takes too long."""

    @model_validator(mode="before")
    @classmethod
    def _recorded_or_full(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if "recorded" in data:
            for key in cls.only_full:
                if key in data:
                    raise at_key(key, f"a recorded space has no '{key}'")
            return data
        missing = [key for key in cls.full_form if key not in data]
        # A misspelt key is named as such by the validator of all models.
        if missing and all(key in cls.model_fields for key in data):
            raise PydanticCustomError(
                "space", "missing key '{key_missing}'", {"key_missing": missing[0]}
            )
        return data


def schema_text() -> str:
    """The JSON schema of a space file, as committed next to this module."""
    schema = SpaceModelFile.model_json_schema()
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
