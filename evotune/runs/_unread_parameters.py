"""Parameters of a space that change nothing: no kernel and no launch reads them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from evotune.runs._space_files import read_kernel_sources
from evotune.space.document import SpaceDocument
from evotune.space.language.expression import Expression
from evotune.space.specs import parameters_in

_WORD = re.compile(rb"\w+")
_CHOICE_OF_A_KERNEL = "KERNEL"


def unread_parameters(document: SpaceDocument) -> list[str]:
    """Those whose name is neither a word of a kernel's files, nor in a compiler option, nor in an
    expression of a kernel's arguments, workspaces or launches. A recorded space has no kernel, and
    so none."""
    if not document.kernels:
        return []
    words = {
        word.decode()
        for kernel in document.kernels
        for content in read_kernel_sources(document, kernel).values()
        for word in _WORD.findall(content)
    }
    words |= _names(document.kernels)
    options = (option for kernel in document.kernels for option in kernel.options)
    words.update(*map(parameters_in, options))
    read = {_CHOICE_OF_A_KERNEL, *words}
    lets = list(document.let.items())
    for _ in lets:  # a let may use others
        for name, expression in lets:
            if name in read:
                read |= {each.name for each in expression.names}
    return [spec.parameter.name for spec in document.parameters if spec.parameter.name not in read]


def _names(found: object) -> set[str]:
    return {name.name for expression in _expressions(found) for name in expression.names}


def _expressions(found: object) -> Iterator[Expression]:
    if isinstance(found, Expression):
        yield found
    elif dataclasses.is_dataclass(found):
        for each in dataclasses.fields(found):
            yield from _expressions(getattr(found, each.name))
    elif isinstance(found, tuple | list):
        for each in found:
            yield from _expressions(each)
    elif isinstance(found, Mapping):
        yield from _expressions(list(found.values()))
