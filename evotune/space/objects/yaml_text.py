"""Plain data as the text of a space file: the same text for the same data, on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from evotune.errors import SpaceError
from evotune.space.reading.object_path import Data
from evotune.space.reading.yaml_source import Position, plain_value

_WIDTH = 100


class _Dumper(yaml.SafeDumper):
    """Writes lists and mappings of scalars on one line, and quotes text that YAML 1.2 would not
    read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _reads_as_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _reads_as_text(text: str) -> bool:
    try:
        return isinstance(plain_value(text, Position()), str)
    except SpaceError:
        return False


_Dumper.add_representer(str, _text)


def yaml_text(data: Mapping[str, Data]) -> str:
    """A document that `evotune.space.reading` reads as `data`."""
    text: str = yaml.dump(
        dict(data),
        Dumper=_Dumper,
        default_flow_style=None,
        sort_keys=False,
        allow_unicode=True,
        width=_WIDTH,
    )
    return text
