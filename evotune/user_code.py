"""Code of users that evotune executes: kernels in any language, and problems.

Code in the working folder or below it is executed without asking, as a script there would be. Code
from any other folder, and the copies of code in any run's folder, are executed only after the user
has agreed (`Trust.ask`). The user agrees to a file's content, and evotune stores the agreement
(`agreed_hashes`). So neither the copies that a run makes nor a later process need a second
agreement. Code that ships with evotune needs none.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.abc
import importlib.util
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from evotune.errors import UsageError
from evotune.util.files import state_folder


class NotAgreed(UsageError):
    """The user did not agree to execute the file at `path`."""

    def __init__(self, path: Path, others: int) -> None:
        self.path = path
        why = "came with a run's folder" if _came_with_a_run(path) else "lies outside this folder"
        more = f" (and {others} more)" if others else ""
        super().__init__(
            f"this would execute {path.resolve()}, which {why}{more}: read it, then add --trust"
        )


class Trust:
    """Decides which code this process may execute. `ask` decides on files not agreed to yet."""

    def __init__(self) -> None:
        self._agreed: set[str] = set()
        self._trusting = 0
        self._lock = threading.Lock()
        self.ask: Callable[[Sequence[Path]], bool] = lambda paths: False

    @contextlib.contextmanager
    def all_agreed(self) -> Iterator[None]:
        """A block in which `require` never asks, in any thread. Blocks of several threads may
        overlap."""
        with self._lock:
            self._trusting += 1
        try:
            yield
        finally:
            with self._lock:
                self._trusting -= 1

    def agree(self, sha256: str) -> None:
        """Agrees for this process only, because the process that passed the file has asked the
        user."""
        self._agreed.add(sha256)

    def own(self, content: bytes) -> None:
        """Agrees, also for later processes, to code that the caller's own process already has."""
        sha256 = hashlib.sha256(content).hexdigest()
        if sha256 not in agreed_hashes():
            keep_hashes([sha256])
        self.agree(sha256)

    def require(self, files: Mapping[Path, bytes]) -> None:
        """Raises NotAgreed if the user does not agree to execute one of the files, which are given
        by absolute paths."""
        hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
        known = self._agreed | _shipped()
        unknown = {path: sha256 for path, sha256 in hashes.items() if sha256 not in known}
        if not unknown:
            return
        kept = agreed_hashes()
        new = {path: sha256 for path, sha256 in unknown.items() if sha256 not in kept}
        foreign = [path for path in new if not _belongs_here(path)]
        if foreign and not self._trusting and not self.ask([path.resolve() for path in foreign]):
            raise NotAgreed(foreign[0], len(foreign) - 1)
        keep_hashes(dict.fromkeys(new.values()))
        self._agreed.update(unknown.values())


trust = Trust()


def run_content(name: str, file_name: str, content: bytes) -> ModuleType:
    """The module `name` made of exactly these bytes, not of a newer file or of cached bytecode.

    Messages call it `file_name`. Errors of the code propagate. The module is not entered into
    `sys.modules`.
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


def _belongs_here(path: Path) -> bool:
    here = path.resolve().is_relative_to(Path.cwd().resolve())
    return here and not _came_with_a_run(path)


def _came_with_a_run(path: Path) -> bool:
    """Whether the file is one of the copies of sources in a run's folder (`RunFolder`)."""
    folders = (*path.parents, *path.resolve().parents)
    return any(
        folder.name == "sources" and (folder.parent / "store.sqlite").exists() for folder in folders
    )


@functools.cache
def _shipped() -> frozenset[str]:
    """The SHA-256 of each kernel and problem that ships with evotune. Content decides, since a run
    has copies of them."""
    package = Path(__file__).parent
    # The first is the place in an installed package, the second in a working tree.
    places = (package / "shipped" / "kernels", package.parent / "kernels")
    place = next((place for place in places if place.is_dir()), package / "shipped")
    files = (file for file in place.rglob("*.*") if file.is_file())
    return frozenset(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)


# The hashes that the user agreed to, kept from one process to the next.

_HASH = re.compile(r"[0-9a-f]{64}")


def agreed_hashes() -> frozenset[str]:
    """The SHA-256 of each file that the user agreed to, in hexadecimal.

    They are stored in a file in the user's state folder, one a line; other lines are ignored. If
    the file cannot be read or written, evotune asks again.
    """
    path = _file()
    try:
        lines = path.read_text(errors="replace").splitlines() if path is not None else []
    except OSError:
        return frozenset()
    return frozenset(line for line in lines if _HASH.fullmatch(line))


def keep_hashes(hashes: Iterable[str]) -> None:
    """Appends the hashes in one write, so that several processes may append at the same time."""
    path = _file()
    lines = "".join(f"{sha256}\n" for sha256 in hashes)
    if path is None or not lines:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, lines.encode())
        finally:
            os.close(handle)


def _file() -> Path | None:
    folder = state_folder()
    return folder / "agreed" if folder else None
