"""Refuses compiler options that are not on the list of their language."""

from __future__ import annotations

from collections.abc import Iterator

from evotune.languages import language
from evotune.space.document import SpaceDocument
from evotune.space.specs import KernelSpec, filled, parameters_in
from evotune.util.words import did_you_mean


def refuse_options(document: SpaceDocument) -> None:
    """Compiler options come from a list: others can load plugins or write files."""
    for kernel in document.kernels:
        for option in kernel.options:
            for form in _forms(document, kernel, option):
                known = language(kernel.language)
                if not known.takes_option(form):
                    message = f"option {form!r} is not allowed; allowed: {known.options_in_words}"
                    raise kernel.position.error(message)


def _forms(document: SpaceDocument, kernel: KernelSpec, option: str) -> Iterator[str]:
    """The option for each value of the parameter that it names."""
    names = list(dict.fromkeys(parameters_in(option)))
    if len(names) > 1:
        found = " and ".join(names)
        raise kernel.position.error(f"option {option!r} names {found}; it may name one parameter")
    if not names:
        yield option
        return
    known = {spec.name: spec for spec in document.parameters}
    if names[0] not in known:
        hint = did_you_mean(names[0], known)
        raise kernel.position.error(f"option {option!r} names no parameter: {names[0]}{hint}")
    spec = known[names[0]]
    for value in (*spec.parameter.values, spec.otherwise):
        yield filled(option, {spec.name: value})
