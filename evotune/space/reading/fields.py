"""The scalars and short lists of a space file that many of its parts use."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import (
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from evotune.space.suggest import describe

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
