"""The base of a space file's models, and the types of scalars and short lists in them."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.annotated_handlers import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from evotune.languages import all_languages, find_language
from evotune.plugins import BACKENDS
from evotune.space.suggest import closest, describe, did_you_mean

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


# --- The base of all models -----------------------------------------------------------------------


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
