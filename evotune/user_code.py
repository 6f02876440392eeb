"""Python files of users: problems, and Triton kernels. Reading a space that names one runs it.

That is done without asking for files in or under the folder that evotune works in, and for those
that ship with it; for any other only after somebody agreed to (`Trust.ask`). Agreement is to the
file's content: a run's own copy of it, or of one that ships with evotune, needs no second one.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.abc
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import evotune
from evotune.errors import UsageError


class Trust:
    """Which files may be run in this process. `ask` decides about the others."""

    def __init__(self) -> None:
        self._agreed: set[str] = set()
        self.ask: Callable[[Path], bool] = lambda path: False

    def agree(self, sha256: str) -> None:
        self._agreed.add(sha256)

    def require(self, path: Path, sha256: str) -> None:
        """UsageError when nobody agreed to run the file."""
        known = sha256 in self._agreed or _belongs_here(path) or sha256 in _shipped()
        if known or self.ask(path):
            self._agreed.add(sha256)
            return
        raise UsageError(
            f"the space would run the Python file {path}, which lies outside this folder: read it, "
            "then add --trust-problem"
        )


trust = Trust()


def run_content(name: str, file_name: str, content: bytes) -> ModuleType:
    """The module `name` made of these very bytes, not of a newer file or of cached bytecode.

    `file_name` is what messages call it. Whatever the code raises, this raises; the module is not
    entered into `sys.modules`.
    """
    loader = _ContentLoader(file_name, content)
    spec = importlib.util.spec_from_file_location(name, file_name, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class _ContentLoader(importlib.abc.SourceLoader):
    def __init__(self, file_name: str, content: bytes) -> None:
        self._file_name = file_name
        self._content = content

    def get_filename(self, fullname: str) -> str:
        return self._file_name

    def get_data(self, path: str) -> bytes:
        return self._content


_PACKAGE = Path(evotune.__file__).parent
# The first in an installed package, the second beside it in a working tree.
_SHIPPED = (_PACKAGE / "shipped", _PACKAGE.parent / "kernels")


def _belongs_here(path: Path) -> bool:
    return any(path.resolve().is_relative_to(place) for place in (Path.cwd().resolve(), *_SHIPPED))


@functools.cache
def _shipped() -> frozenset[str]:
    """The files that ship with evotune, by content: a run elsewhere has copies of them."""
    files = (file for place in _SHIPPED for file in place.rglob("*.py"))
    return frozenset(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
