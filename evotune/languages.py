"""What a space may say of a kernel in each language. The backends bring their languages along."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from evotune.plugins import BACKENDS


def _takes_none(option: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Template:
    """What `init` makes a folder of: texts in the package `package`, under `templates/`.

    `arguments` follow in a test's call of `evotune compile`, as Python text; `taken` are names
    that the kernel's file cannot have.
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
    """Of its files, with the dot."""
    needs: str = ""
    """What a machine must have to run its kernels, in words."""
    launched: bool = False
    """Whether a space states the launches of a kernel, and may hold what the compiler reports to
    conditions: so it is on a GPU."""
    tensor_maps: bool = False
    """Whether a kernel takes tensor maps as arguments."""
    constant_memory: bool = False
    """Whether a kernel has `__constant__` variables that can be filled."""
    block: Callable[[Container[str]], str] | None = None
    """The threads of a block, as an expression over the space's parameters, where the compiler
    decides them; None where the space states the block."""
    decided: Mapping[str, str] = field(default_factory=dict)
    """Keys of a launch that the space must not state, with the reason. `entry` may be stated, but
    only as the kernel's own."""
    one_entry: bool = False
    """Whether the compiler compiles one function, for arguments of types that are known before."""
    extra_arguments: tuple[str, ...] = ()
    """Types of arguments that the compiler adds behind the kernel's own; all are 0."""
    runs_when_compiled: bool = False
    """Whether compiling a kernel executes its file."""
    takes_option: Callable[[str], bool] = _takes_none
    """Whether the compiler may be given an option."""
    options_in_words: str = "none"
    template: Template | None = None


def own_languages() -> Iterator[Language]:
    """Those of evotune's own backends."""
    for backend in BACKENDS.own().values():
        yield from _of(backend)


def all_languages() -> Iterator[Language]:
    """Evotune's own, then those of installed packages, which are looked for only now. A package
    that is broken is left out."""
    yield from own_languages()
    for _, backend in BACKENDS.loadable():
        yield from _of(backend)


def find_language(name: str) -> Language | None:
    """None for a name that no backend has."""
    return next((found for found in all_languages() if found.name == name), None)


def language(name: str) -> Language:
    """The language of a kernel that was read; KeyError for a name that no backend has."""
    found = find_language(name)
    if found is None:
        raise KeyError(name)
    return found


def _of(backend: object) -> tuple[Language, ...]:
    return tuple(cast("tuple[Language, ...]", getattr(backend, "languages", ())))
