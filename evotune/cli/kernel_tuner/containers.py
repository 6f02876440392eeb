"""Lists, dictionaries, files and paths of a script: how they are made, and their methods."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Mapping, MutableMapping, Sequence

from evotune.cli.kernel_tuner import numpy_functions
from evotune.cli.kernel_tuner.numpy_functions import NotRead
from evotune.cli.kernel_tuner.values import (
    Array,
    File,
    Formula,
    Listed,
    Nothing,
    Number,
    Table,
    Text,
    Unknown,
    Value,
)

Names = MutableMapping[str, Value]
Arguments = Sequence[Value]

MOST_ITEMS = 100_000
_MOST_CHARACTERS = 4 << 20
READING = ("keys", "values", "items", "get", "copy", "index", "count", "format", "join")
"""Methods that do not change their object."""

_SUMS = ("sum", "max", "min", "mean")
_SAME_PATH = ("resolve", "absolute", "strip")


class TooLarge(NotRead):
    """A list has more values than this module reads."""


def bind(target: ast.expr, value: Value, names: Names) -> None:
    """Assigns the value to the target's name, or its parts to the target's names."""
    if isinstance(target, ast.Name):
        names[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        items = value.items if isinstance(value, Listed) else []
        why = "it is one of several values that cannot be told apart"
        line = target.lineno
        if isinstance(value, Unknown) and value.why:
            why, line = value.why, value.line or line
        for place, part in enumerate(target.elts):
            fits = len(items) == len(target.elts)
            bind(part, items[place] if fits else Unknown(line, why), names)


def truth_of(value: Value) -> bool:
    """Whether a condition with this value holds; NotRead where that is not known."""
    if isinstance(value, Number):
        return bool(value.value)
    raise NotRead(value.why if isinstance(value, Unknown) else "a condition is not known")


def put(table: Table, key: Value, value: Value) -> None:
    """Stores the value under the key. A list remembers its key, which may be a tunable's name."""
    if not isinstance(key, Text):
        raise NotRead("a key of the dictionary is not known")
    if isinstance(value, Listed):
        value = Listed(value.items, key.text)
    table.items[key.text] = value


def spread(value: Value) -> list[Value]:
    if isinstance(value, Listed):
        return value.items
    if isinstance(value, Table):
        return [Text(key) for key in value.items]
    raise NotRead(value.why if isinstance(value, Unknown) else "it is not a list")


def table_of(first: Value | None, keywords: Mapping[str, Value]) -> Table:
    """The table that `dict(first, **keywords)` makes."""
    made = Table({})
    if isinstance(first, Table):
        made.items.update(first.items)
    elif first is not None:
        for item in spread(first):
            if not isinstance(item, Listed) or len(item.items) != 2:
                raise NotRead("the dictionary is not made of pairs")
            put(made, item.items[0], item.items[1])
    for key, value in keywords.items():
        put(made, Text(key), value)
    return made


def path_call(name: str, arguments: Arguments) -> Value:
    """The result of a function of `os.path`; NotRead when it is not followed."""
    parts = [part.text for part in arguments if isinstance(part, Text)]
    if len(parts) == len(arguments) > 0:
        if name == "join":
            return Text(posixpath.join(*parts))
        if name == "dirname":
            return Text(posixpath.dirname(parts[0]))
        if name in ("abspath", "realpath", "normpath"):
            return Text(parts[0])
    raise NotRead(f"the result of os.path.{name}() is not followed")


def call_method(
    owner: Value, name: str, arguments: Arguments, keywords: Mapping[str, Value]
) -> Value:
    """The result of a method; NotRead when the method is not followed."""
    found: Value | None = None
    match owner:
        case File() if name == "read":
            found = Text(file=owner.path)
        case Text() if name == "read_text":
            found = Text(file=owner.text)
        case Text() if name in _SAME_PATH:
            found = owner
        case Array():
            found = _array_method(owner, name, arguments, keywords)
        case Listed():
            found = _list_method(owner, name, arguments)
        case Table():
            found = _table_method(owner, name, arguments, keywords)
    if found is None:
        raise NotRead(f"the result of .{name}() is not followed")
    return found


def _array_method(
    owner: Array, name: str, arguments: Arguments, keywords: Mapping[str, Value]
) -> Value | None:
    if name in numpy_functions.METHODS:
        return numpy_functions.METHODS[name](owner, arguments, keywords)
    if name in _SUMS and not (arguments or keywords):
        return Array((), owner.dtype, "computed", Formula(name, (owner,)))
    return None


def _list_method(owner: Listed, name: str, arguments: Arguments) -> Value | None:
    if name == "copy":
        return Listed(list(owner.items), owner.tunable)
    if name not in ("append", "extend") or not arguments:
        if name not in READING:
            change(owner, f"it is changed by .{name}()")
        return None
    added = [arguments[0]] if name == "append" else spread(arguments[0])
    if len(owner.items) + len(added) > MOST_ITEMS:
        raise TooLarge(f"a list has more than {MOST_ITEMS} values")
    owner.items += added
    return Nothing()


def _table_method(
    owner: Table, name: str, arguments: Arguments, keywords: Mapping[str, Value]
) -> Value | None:
    first = arguments[0] if arguments else None
    found: Value | None = None
    match name:
        case "update":
            for key, value in table_of(first, keywords).items.items():
                put(owner, Text(key), value)
            found = Nothing()
        case "copy":
            found = Table(dict(owner.items))
        case "keys":
            found = Listed(spread(owner))
        case "values":
            found = Listed(list(owner.items.values()))
        case "items":
            found = Listed([Listed([Text(key), value]) for key, value in owner.items.items()])
        case "get" if isinstance(first, Text):
            found = owner.items.get(first.text)
        case _ if name not in READING:
            change(owner, f"it is changed by .{name}()")
    return found


def change(value: Value, why: str) -> None:
    """Makes every item of a container unknown, since the script may have changed it."""
    unknown = Unknown(0, why)
    if isinstance(value, Table):
        value.items.update(dict.fromkeys(value.items, unknown))
    elif isinstance(value, Listed):
        value.items[:] = [unknown for _ in value.items]


def item_of(owner: Value, key: Value) -> Value:
    """`owner[key]`. A number from a tunable's list knows its tunable."""
    if isinstance(owner, Table) and isinstance(key, Text) and key.text in owner.items:
        return owner.items[key.text]
    if isinstance(owner, Listed) and isinstance(key, Number) and isinstance(key.value, int):
        place = key.value
        if -len(owner.items) <= place < len(owner.items):
            item = owner.items[place]
            if owner.tunable and isinstance(item, Number) and item.is_constant:
                return numpy_functions.tunable_number(owner.tunable, item.value)
            return item
    if isinstance(owner, Array):
        raise NotRead("parts of arrays are not followed")
    raise NotRead("the place in the list or dictionary is not known")


def joined_texts(operator: str, first: Text, second: Text) -> Value:
    """Two texts joined by `+`, or two paths by `/`. NotRead for anything else."""
    if operator == "/":  # paths of pathlib
        return Text(posixpath.join(first.text, second.text))
    if operator != "+" or first.file or second.file:
        raise NotRead("the text is put together in a way that evotune does not follow")
    if len(first.text) + len(second.text) > _MOST_CHARACTERS:
        raise NotRead("the text is too long")
    return Text(first.text + second.text)


def sort_key(value: Value) -> float:
    """The key by which `sorted` orders values. NotRead for anything but numbers."""
    if isinstance(value, Number):
        return value.value
    raise NotRead("only numbers are sorted")
