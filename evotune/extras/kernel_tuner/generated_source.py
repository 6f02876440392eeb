"""The source of a kernel that a function of the tunables writes, as text with their names in it.

The function gets values that leave a mark where they are written. The text between the marks must
be the same for all values of a tunable; a tunable that changes it gets a text for each value.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

from evotune.extras.kernel_tuner.expression_text import c_text
from evotune.extras.kernel_tuner.messages import Variant
from evotune.extras.kernel_tuner.traced import (
    Combination,
    Given,
    NotWritten,
    Traced,
    Tunables,
    called,
    drawn,
)

_MOST_TEXTS = 512
_MOST_CHARACTERS = 4 << 20
_DRAWN = 20
_MARK = re.compile("\x01([^\x01\x02]*)\x02([^\x01\x02]*)\x01")


class _Marked(Traced):
    """Written, it leaves its expression and its value; asked, it is its value."""

    def __str__(self) -> str:
        return f"\x01{self.text}\x02{self.value}\x01"

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else str(self)

    __repr__ = __str__


_GLUED = re.compile(
    '[A-Za-z0-9_\x01]\x01[^\x01\x02]*\x02|\x02[^\x01\x02]*\x01[A-Za-z0-9_\x01]|"[^"\n]*\x01'
)
"""A mark that is a part of a word, or in a string: no macro is replaced there."""


def variants_of(function: Callable[..., Any], tunables: Tunables) -> tuple[Variant, ...]:
    """The texts that the function writes. NotWritten when these are too many or too long."""
    call = called(function, tunables)

    def text(values: Combination, marked: Combination) -> str:
        given = {n: _Marked(marked[n], n, []) if n in marked else v for n, v in values.items()}
        found = call(Given(given, set()))
        if not isinstance(found, str):
            raise NotWritten(f"it returns a {type(found).__name__}")
        return found

    def pattern(values: Combination, free: list[str]) -> str:
        """The text with the expressions of the free tunables; "" where they change more."""
        try:
            found = text(values, {name: values[name] for name in free})
        except (TypeError, ValueError, AttributeError, NotWritten):
            return ""
        plain = _MARK.sub(lambda mark: mark[2], found)
        whole = plain == text(values, {}) and not _GLUED.search(found)
        return _MARK.sub(_in_c, found) if whole else ""

    first = {name: values[0] for name, values in tunables.items()}
    text(first, {})
    free = []
    for name, values in tunables.items():
        patterns = {pattern({**first, name: value}, [name]) for value in values}
        if len(patterns) == 1 and "" not in patterns:
            free.append(name)
    chosen = [name for name in tunables if name not in free]
    count = math.prod(len(tunables[name]) for name in chosen)
    if count > _MOST_TEXTS:
        words = f"its text differs in {count} ways with {', '.join(chosen)}"
        raise NotWritten(f"{words}; evotune takes {_MOST_TEXTS}")
    made = []
    for values in itertools.product(*(tunables[name] for name in chosen)):
        own = dict(zip(chosen, values, strict=True))
        others = [{**each, **own} for each in ({**first}, *drawn(tunables, _DRAWN))]
        found = {pattern(each, free) for each in others}
        if len(found) > 1 or "" in found:
            raise NotWritten(f"its text depends on {', '.join(free)} in a way that is not seen")
        made.append(Variant({name: own[name] for name in chosen if len(tunables[name]) > 1},
                            found.pop()))  # fmt: skip
    if sum(len(variant.text) for variant in made) > _MOST_CHARACTERS:
        raise NotWritten("its texts are longer than 4 MiB together")
    return tuple(made)


def _in_c(mark: re.Match[str]) -> str:
    return c_text(ast.parse(mark[1], mode="eval").body)
