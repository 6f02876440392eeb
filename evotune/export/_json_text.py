"""JSON that people can read: what fits into a line stands in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from evotune.trial import Json
from evotune.util.harmless_text import escaped_json

_WIDTH = 100


def json_text(found: Json) -> str:
    """The value as JSON with sorted keys, of characters that a terminal shows."""
    return escaped_json(_text(found, "")) + "\n"


def _text(found: Json, indent: str) -> str:
    line = json.dumps(found, sort_keys=True, ensure_ascii=False)
    if len(indent) + len(line) <= _WIDTH or not isinstance(found, list | Mapping):
        return line
    inner = indent + " "
    begin, end = "[]" if isinstance(found, list) else "{}"
    parts = _parts(found, inner)
    return f"{begin}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{end}"


def _parts(found: Json, indent: str) -> Iterator[str]:
    if isinstance(found, list):
        for each in found:
            yield _text(each, indent)
        return
    for name, value in sorted(found.items()):
        yield f"{json.dumps(name, ensure_ascii=False)}: {_text(value, indent)}"
