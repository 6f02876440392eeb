"""The base of all models of a space file: strict types and no unknown keys."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from evotune.space.suggest import did_you_mean


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
