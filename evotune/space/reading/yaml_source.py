"""Reads YAML text into plain data, and keeps the position of every key and value.

The data is built from PyYAML's event stream, so nothing recurses before the depth has
been checked. Scalars mean what YAML 1.2's core schema says: only `true` and `false` are
booleans, `1e2` is a float, `no` and dates are text. Anchors, aliases, foreign tags and
duplicate keys are refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from evotune.errors import SpaceError
from evotune.util.files import read_regular
from evotune.util.words import shorten, shorten_names

MAX_BYTES = 1 << 20
MAX_DEPTH = 20
MAX_INTEGER_DIGITS = 18
MAX_MESSAGE = 400

MADE_OF_OBJECTS = (
    "# made of Python objects, which messages name in place of lines: see evotune.Space\n"
)
"""The first line of a file that `evotune.space.objects` wrote for a run."""

_FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, twenty times as fast, where PyYAML was built with it."""
_READ_DIFFERENTLY = re.compile("[?\t\x85\u2028\u2029\ufeff]")
"""Characters at which libyaml accepts more than PyYAML, or counts columns differently."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")  # and surrogates
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_PREFIXED = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LITERALS: dict[str, Scalar] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_TAG_PREFIX = "tag:yaml.org,2002:"
_TAG_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a space file. `line` and `column` count from 1; `line` is 0 if the text comes
    from no file.

    If `inline`, the scalar's text begins at this position in the file character for character, so
    an offset in the text is an offset in the line. In a space made of Python objects, `place` is
    the object's path, and messages name it instead of file, line and column.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    inline: bool = False
    place: str = ""

    def error(self, message: str, offset: int = 0) -> SpaceError:
        message = shorten(shorten_names(message), MAX_MESSAGE)
        if self.place:
            place = f"{self.place}, character {offset + 1}" if offset else self.place
            return SpaceError(message, place=place)
        shift = offset if self.inline else 0
        return SpaceError(message, file=self.file, line=self.line, column=self.column + shift)

    def __str__(self) -> str:
        """For a message about several places of one space."""
        return self.place or f"line {self.line}"


@dataclass(slots=True)
class YamlSource:
    """Plain data and the positions of its values and keys, by path from the top."""

    file: str
    text: str
    data: Data = None
    values: dict[DataPath, Position] = field(default_factory=dict)
    keys: dict[DataPath, Position] = field(default_factory=dict)

    def position(self, path: DataPath) -> Position:
        """The position of the value at `path`, or of the innermost one around it that exists.

        Steps of the path that are not in the file are skipped, because validators add some of their
        own.
        """
        known: DataPath = ()
        for step in path:
            if (*known, step) in self.values:
                known = (*known, step)
        return self.values.get(known, Position(self.file, 1, 1))

    def key_position(self, path: DataPath) -> Position:
        return self.keys.get(path) or self.position(path)


def read_yaml(path: Path) -> YamlSource:
    """Reads one YAML file. Raises SpaceError if it cannot be read, whatever the cause."""
    return parse_yaml(read_text(path, MAX_BYTES, "the space file"), str(path))


def read_text(path: Path, most_bytes: int, what: str) -> str:
    """The text of a file that a user names. `what`: a word for the file in messages. Raises
    SpaceError if it cannot be read."""
    file = str(path)
    try:
        raw = read_regular(path, most_bytes + 1)
    except OSError as error:
        raise SpaceError(f"cannot read it: {error.strerror}", file=file) from error
    except ValueError as error:  # a NUL byte in the path
        raise SpaceError(f"not a usable path: {error}", file=file) from error
    if len(raw) > most_bytes:
        raise SpaceError(f"{what} is larger than {most_bytes >> 20} MiB", file=file)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = _line_and_column(raw[: error.start].decode("utf-8"))
        raise SpaceError("expected UTF-8 text", file=file, line=line, column=column) from error


def parse_yaml(text: str, file: str = "") -> YamlSource:
    """Parses the single document in `text`. Raises SpaceError, with its position, if it is
    malformed."""
    control = _CONTROL.search(text)
    if control:
        line, column = _line_and_column(text[: control.start()])
        message = f"control character U+{ord(control.group()):04X} is not allowed"
        raise SpaceError(message, file=file, line=line, column=column)
    try:
        source = _built(text, file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SpaceError(
            f"not valid YAML: {shorten(error.problem or error.context or 'unreadable', 160)}",
            file=file,
            line=mark.line + 1 if mark else 1,
            column=mark.column + 1 if mark else 1,
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: for "\\UFFFFFFFF"
        raise SpaceError(f"not valid YAML: {shorten(str(error), 160)}", file=file) from error
    if text.startswith(MADE_OF_OBJECTS):
        _name_objects(source)
    return source


def _built(text: str, file: str) -> YamlSource:
    """Raises yaml.YAMLError in the words of PyYAML's own parser."""
    if not _READ_DIFFERENTLY.search(text):
        with contextlib.suppress(yaml.YAMLError):
            return _built_by(_FAST_LOADER, text, file)
    return _built_by(yaml.SafeLoader, text, file)


def _built_by(loader: Any, text: str, file: str) -> YamlSource:
    source = YamlSource(file, text)
    _Builder(source, yaml.parse(text, Loader=loader)).build()
    return source


def _name_objects(source: YamlSource) -> None:
    """Gives every position the path of the Python object that its value came from."""
    for positions in (source.values, source.keys):
        for path, position in positions.items():
            place = object_path(path, source.data)
            positions[path] = replace(position, inline=False, place=place)


def _line_and_column(before: str) -> tuple[int, int]:
    lines = before.split("\n")
    return len(lines), len(lines[-1]) + 1


class _Builder:
    """Turns events into data; the recursion is as deep as the document, at most MAX_DEPTH."""

    def __init__(self, source: YamlSource, events: Iterator[yaml.Event]) -> None:
        self.source = source
        self.events = events

    def build(self) -> None:
        event = self._next_content()
        if event is None:
            raise SpaceError("the file is empty; expected a mapping", file=self.source.file)
        self.source.data = self._node(event, (), 1)
        extra = self._next_content()
        if extra is not None:
            raise self._at(extra).error("expected one YAML document, found a second")

    def _next_content(self) -> yaml.NodeEvent | None:
        for event in self.events:
            if isinstance(event, yaml.NodeEvent):
                return event
        return None

    def _at(self, event: yaml.Event) -> Position:
        line, column = _place(event.start_mark)
        return Position(self.source.file, line + 1, column + 1)

    def _node(self, event: yaml.NodeEvent, path: DataPath, depth: int) -> Data:
        self.source.values[path] = position = self._at(event)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise position.error("anchors and aliases are not allowed; repeat the value")
        if depth > MAX_DEPTH:
            raise position.error(f"nested deeper than {MAX_DEPTH} levels")
        tag = self._core_tag(event, position)
        if isinstance(event, yaml.ScalarEvent):
            self.source.values[path] = _text_position(event, position)
            return _scalar(event, tag, position)
        expected = "seq" if isinstance(event, yaml.SequenceStartEvent) else "map"
        if tag not in (None, expected):
            raise position.error(f"the tag !!{tag} does not fit this value")
        if expected == "seq":
            return self._sequence(path, depth)
        return self._mapping(path, depth)

    def _sequence(self, path: DataPath, depth: int) -> list[Data]:
        items: list[Data] = []
        while isinstance(event := next(self.events), yaml.NodeEvent):
            items.append(self._node(event, (*path, len(items)), depth + 1))
        return items

    def _mapping(self, path: DataPath, depth: int) -> dict[str, Data]:
        mapping: dict[str, Data] = {}
        while isinstance(event := next(self.events), yaml.NodeEvent):
            position = self._at(event)
            if not isinstance(event, yaml.ScalarEvent) or event.anchor is not None:
                raise position.error("expected a plain name as key")
            key = _scalar(event, self._core_tag(event, position), position)
            if not isinstance(key, str):
                raise position.error(f"expected text as key, found {event.value!r}; quote it")
            if key in mapping:
                first = self.source.keys[(*path, key)]
                raise position.error(f"duplicate key '{key}', first used in line {first.line}")
            self.source.keys[(*path, key)] = position
            value = next(self.events)
            assert isinstance(value, yaml.NodeEvent)
            mapping[key] = self._node(value, (*path, key), depth + 1)
        return mapping

    def _core_tag(self, event: yaml.NodeEvent, position: Position) -> str | None:
        tag: str | None = getattr(event, "tag", None)  # an alias has none
        if tag is None:
            return None
        if tag == "!":
            return "str"
        name = tag.removeprefix(_TAG_PREFIX)
        if name == tag or name not in {"str", "seq", "map", *_TAG_TYPES}:
            raise position.error(f"the tag {shorten(tag)} is not allowed")
        return name


def _place(mark: Any) -> tuple[int, int]:
    """Line and column of a mark, from 0; the event stream marks everything."""
    return mark.line, mark.column


def _text_position(event: yaml.ScalarEvent, position: Position) -> Position:
    """Marks a scalar as inline when its text stands in the file as it is."""
    (line, column), (end_line, end_column) = _place(event.start_mark), _place(event.end_mark)
    quote = 1 if event.style in ("'", '"') else 0
    one_line = line == end_line and event.style not in ("|", ">")
    if not one_line or end_column - column - 2 * quote != len(event.value):
        return position
    return Position(position.file, position.line, position.column + quote, inline=True)


def _scalar(event: yaml.ScalarEvent, tag: str | None, position: Position) -> Scalar:
    text: str = event.value
    check_text(text, position)
    if tag == "str" or (tag is None and event.style):
        return text
    value = plain_value(text, position)
    if tag is not None and type(value) not in _TAG_TYPES.get(tag, ()):
        raise position.error(f"{text!r} does not fit its tag !!{tag}")
    return value


def check_text(text: str, position: Position) -> None:
    """Raises SpaceError for a control character other than a line end or a tab."""
    if _CONTROL.search(text):
        raise position.error("control characters are not allowed")


def check_number(number: float, position: Position, text: str = "") -> None:
    """Raises SpaceError for a number that no expression can use. `text` is its spelling in the
    file."""
    if isinstance(number, int):
        if abs(number) >= 10**MAX_INTEGER_DIGITS:
            raise position.error(f"an integer has at most {MAX_INTEGER_DIGITS} digits")
    elif not math.isfinite(number):
        raise position.error(f"expected a finite number, found {shorten(text or str(number))}")


def plain_value(text: str, position: Position) -> Scalar:
    """The value of a plain scalar under YAML 1.2's core schema."""
    if text in _LITERALS:
        return _LITERALS[text]
    if _DECIMAL.fullmatch(text):
        digits = text.lstrip("+-")
        if len(digits) > MAX_INTEGER_DIGITS:
            raise position.error(f"an integer has at most {MAX_INTEGER_DIGITS} digits")
        if len(digits) > 1 and digits[0] == "0":
            raise position.error(f"{text} has leading zeros; write {int(text)} or 0o… for octal")
        return int(text)
    if _PREFIXED.fullmatch(text):
        value = int(text[:200], 0)
        check_number(value, position)
        return value
    if _NOT_FINITE.fullmatch(text):
        raise position.error(f"expected a finite number, found {text}")
    if _FLOAT.fullmatch(text):
        number = float(text)
        check_number(number, position, text)
        return number
    return text


Scalar: TypeAlias = bool | int | float | str | None
Data: TypeAlias = "Scalar | list[Data] | dict[str, Data]"
DataPath: TypeAlias = tuple[str | int, ...]

_NAMED_BY_THE_USER = ("supports", "workspace", "constant_memory")
_RENAMED = {"tensor_map": "tensor"}
_DOMAINS = ("values", "range", "pow2", "choices", "bool")


def object_path(path: DataPath, data: Data) -> str:
    """The path of the object that gave the value at `path` in `data`, the space's plain data."""
    match path:
        case ():
            start, rest = "Space", ""
        case ("problem",) | ("problem", "name"):
            start, rest = "Space.problem", ""
        case ("problem", str(field), *steps):
            start, rest = f"Space.{field}", _subscripts(steps)
        case ("kernels", str(name), *steps):
            start, rest = _kernel(name, data), _attributes(steps)
        case ("parameters", str(name), *steps):
            start, rest = f"Space.parameters[{json.dumps(name)}]", _in_parameter(steps)
        case ("constraints" | "after_compile" as field, int(index), *steps):
            start, rest = f"Space.{field}[{index}]", _attributes(steps)
        case (field, *steps):
            start, rest = f"Space.{field}", _subscripts(steps)
    return start + rest


def class_name(language: str) -> str:
    """The name of the class for kernels of a language: `CudaKernel` for cuda."""
    return "Callable" if language == "python" else f"{language.capitalize()}Kernel"


def _kernel(name: str, data: Data) -> str:
    """`CudaKernel` for an only kernel, `Space.kernels[1]` for one of several."""
    kernels = data.get("kernels") if isinstance(data, dict) else None
    if not isinstance(kernels, dict) or name not in kernels:
        return "Space.kernels"
    kernel = kernels[name]
    if len(kernels) > 1 or not isinstance(kernel, dict):
        return f"Space.kernels[{list(kernels).index(name)}]"
    return class_name(str(kernel.get("language", "")))


def _in_parameter(steps: Sequence[str | int]) -> str:
    """The path inside a parameter: `[0]` for the 1 of `ints(1, 4)`. The space file's key of these
    numbers (`range`) is left out."""
    return _subscripts(steps[1:]) if steps and steps[0] in _DOMAINS else _attributes(steps)


def _subscripts(path: Sequence[str | int]) -> str:
    return "".join(f"[{json.dumps(step)}]" for step in path)


def _attributes(path: Sequence[str | int]) -> str:
    """The path inside an object. Keys that the user chose, as in `workspace`, are subscripts."""
    text, before = "", None
    for step in path:
        if isinstance(step, int) or before in _NAMED_BY_THE_USER:
            text += _subscripts([step])
        else:
            text += f".{_RENAMED.get(step, step)}"
        before = step
    return text
