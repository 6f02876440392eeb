"""The version of evotune, the packages that it requires, and the messages if one is missing or no
memory is left.

This module imports no required package, and no module that imports one.
"""

from __future__ import annotations

import errno
import importlib.util
import resource
import sys
from collections.abc import Iterator, Sequence

REQUIRED = {
    "torch": "torch",
    "numpy": "numpy",
    "deap": "deap",
    "threadpoolctl": "threadpoolctl",
    "pandas": "pandas",
    "pyyaml": "yaml",
    "msgspec": "msgspec",
    "pydantic": "pydantic",
    "rich": "rich",
    "click": "click",
}
"""The required packages: the module to import, by the package's name for pip."""

_ENVIRONMENT = 3


def missing() -> list[str]:
    """The required packages whose module is not found. The check imports nothing."""
    return [name for name, module in REQUIRED.items() if not _is_here(module)]


def _is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def version(name: str) -> str:
    """An installed package's version; "" when the package is not installed."""
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def fix(name: str) -> str:
    """The command that installs the package in a version that evotune accepts."""
    return f"pip install '{_requirement(name)}'"


def _requirement(name: str) -> str:
    """The requirement in evotune's own metadata; the bare name if evotune is not installed."""
    import importlib.metadata
    import re

    try:
        declared = importlib.metadata.requires("evotune") or []
    except importlib.metadata.PackageNotFoundError:
        declared = []
    for text in declared:
        found = re.match(r"[A-Za-z0-9._-]+", text)
        if found and found.group().lower() == name and "extra ==" not in text:
            return text
    return name


def provider(module: str | None) -> str | None:
    """Pip's name of the required package that a module belongs to; None for other modules."""
    top = (module or "").partition(".")[0]
    return next((name for name, known in REQUIRED.items() if known == top), None)


def say_missing(name: str) -> int:
    """Prints that the package is missing, and returns the exit code. `doctor` prints more and does
    not use this."""
    text = f"error: not installed: {name}; `evotune doctor` shows how to get it"
    print(text, file=sys.stderr)
    return _ENVIRONMENT


def doctor(names: Sequence[str], arguments: Sequence[str]) -> int:
    """`doctor` without the missing packages: lists them in doctor's own formats, with the commands
    that install them, and returns the exit code."""
    import argparse
    import json

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--format", default="table")
    parser.add_argument("-o", "--output", default="-")
    asked, _ = parser.parse_known_args(arguments)
    findings = [
        {"name": name, "status": "missing", "detail": "not installed", "fix": fix(name)}
        for name in names
    ]
    if asked.format == "json":
        text = json.dumps({"usable": False, "findings": findings}, indent=2)
    else:
        lines = [f"  {found['name']}: {found['fix']}" for found in findings]
        text = "\n".join([f"{len(names)} to fix, before doctor can look at the rest:", *lines])
    if asked.output == "-":
        print(text)
    else:
        with open(asked.output, "w", encoding="utf-8") as file:
            print(text, file=file)
    return _ENVIRONMENT


_ENVIRONMENT_2 = 3
_LOADER_WORDS = ("failed to map segment", "cannot allocate memory")
_WITHOUT_AN_ERROR = "returned NULL without setting an exception"
"""Of a SystemError: C code found no memory even for its MemoryError, or it has a bug."""


def is_no_memory(error: BaseException) -> bool:
    """Whether the error comes from a lack of memory. It may be another error: if a library cannot
    be loaded for lack of memory, for example, Python raises ImportError."""
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or (isinstance(each, ImportError) and any(word in str(each) for word in _LOADER_WORDS))
        or (isinstance(each, SystemError) and _WITHOUT_AN_ERROR in str(each) and _is_limited())
        for each in _chain(error)
    )


def _is_limited() -> bool:
    """Whether the process may have only so much memory (`ulimit -v`)."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def say_no_memory(error: BaseException) -> int:
    """Prints that no memory is left, and returns the exit code."""
    what = str(error).strip() if isinstance(error, MemoryError) else ""
    line = f"error: no memory is left{f': {what}' if what else ''}"
    print("".join(filter(str.isprintable, line)), file=sys.stderr)
    return _ENVIRONMENT_2


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


__version__ = "0.1.0"
