"""The languages of kernels, and what a space may state of a kernel in each. Backends bring them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from evotune.plugins import BACKENDS


def _takes_none(option: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Template:
    """The texts from which `init` makes a folder. They lie in `package`, under `templates/`.

    - kernel, space: the files' names.
    - arguments: additional arguments, as Python text, for the call of `evotune compile` in a test.
    - taken: names that the kernel's file cannot have.
    """

    package: str
    kernel: str
    space: str
    arguments: str = ""
    taken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Language:
    """A language that kernels are written in; its backend compiles and runs them."""

    name: str
    suffixes: tuple[str, ...]
    """The suffixes of its files, with the dot."""
    stated_suffixes: tuple[str, ...] = ()
    """Suffixes of files that could also be in another language, so that a space must state
    `language:`.
    """
    needs: str = ""
    """What a machine needs to run kernels of the language, in words."""
    launched: bool = False
    """Whether a space states a kernel's launches and may have conditions on the compiler's figures,
    as on a GPU."""
    tensor_maps: bool = False
    """Whether a kernel takes tensor maps as arguments."""
    constant_memory: bool = False
    """Whether a kernel has `__constant__` variables that can be filled."""
    block: Callable[[Container[str]], str] | None = None
    """The threads of a block, as an expression over the space's parameters, if the compiler decides
    them; None if the space states the block."""
    decided: Mapping[str, str] = field(default_factory=dict)
    """Keys of a launch that the space must not state, with the reason. `entry` may be stated, but
    only as the kernel's own."""
    one_entry: bool = False
    """Whether the compiler compiles one function, for argument types known beforehand."""
    taken_macros: tuple[str, ...] = ()
    """Macros that would change the compiler's own headers; no parameter can have such a name."""
    extra_arguments: tuple[str, ...] = ()
    """The types of arguments that the compiler adds after the kernel's own; all are passed as 0."""
    runs_when_compiled: bool = False
    """Whether compiling a kernel executes its file."""
    builds_each_case: bool = False
    """Whether the worker builds the kernel for each case: from the configuration's own values and
    all symbols of the case, and with all tensors by name. A space then states no arguments."""
    takes_option: Callable[[str], bool] = _takes_none
    """Whether a space may give the compiler an option."""
    options_in_words: str = "none"
    template: Template | None = None


def own_languages() -> Iterator[Language]:
    """The languages of evotune's own backends."""
    for backend in BACKENDS.own().values():
        yield from _of(backend)


def all_languages() -> Iterator[Language]:
    """The languages of evotune's own backends, then those of installed packages. Packages are
    looked for only when the caller asks for more than evotune's own; a broken package is left
    out."""
    yield from own_languages()
    for _, backend in BACKENDS.loadable():
        yield from _of(backend)


def find_language(name: str) -> Language | None:
    """The language `name`; None if no backend has it."""
    return next((found for found in all_languages() if found.name == name), None)


def language(name: str) -> Language:
    """The language `name` of a valid space. Raises KeyError if no backend has it."""
    found = find_language(name)
    if found is None:
        raise KeyError(name)
    return found


def _of(backend: object) -> tuple[Language, ...]:
    return tuple(cast("tuple[Language, ...]", getattr(backend, "languages", ())))
