"""A space made of Python objects, as a folder that every command can work with: `materialize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from evotune.device.sources import read_sources
from evotune.errors import SpaceError, UsageError
from evotune.problems import UserProblem
from evotune.problems.loading import is_file_reference, problem_source
from evotune.regular_file import read_regular
from evotune.space.objects import Space
from evotune.user_code import NotAgreed, trust

_SPACE_FILE = "space.yaml"


def materialize(space: Space, folder: Path, *, compile_only: bool = False) -> Path:
    """Writes the space and its sources into `folder`; returns the space file's path.

    `load_setup` and the commands take that path. A mistake that they find is a SpaceError that
    names the object, not a line of the file. Code that the caller's process holds needs no
    agreement: kernels given as text, a problem given as a class. Files need the same agreement as
    the files that a space file names.

    SpaceError when a source cannot be read, or nobody agreed to execute it. With `compile_only`
    only Python is executed.
    """
    document, written = space.document, space.written_files
    files: dict[str, bytes] = dict(written)
    for kernel in document.kernels:
        source = kernel.source.relative_to(document.root).as_posix()
        try:
            found = read_sources(document.root, source, written)
        except SpaceError as error:
            raise kernel.position.error(error.message) from error
        _agree(document.root, found, written, kernel.position.error, python_only=compile_only)
        files |= found
    problem = document.problem
    if problem is not None and isinstance(space.problem, type):
        if not issubclass(space.problem, UserProblem):
            message = f"{space.problem.__name__} does not derive from evotune.Problem"
            raise problem.position.error(message)
    elif problem is not None and is_file_reference(problem.name):
        try:
            name, content = problem_source(problem.name, document.root)
        except UsageError as error:
            raise problem.position.error(str(error)) from error
        _agree(document.root, {name: content}, written, problem.position.error)
        files[name] = content
    if document.recorded is not None:
        place = document.recorded.file.resolve().relative_to(document.root.resolve())
        files[place.as_posix()] = read_regular(document.recorded.file)
    for content in written.values():
        trust.own(content)
    for name, content in {**files, _SPACE_FILE: space.to_run_yaml().encode()}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / _SPACE_FILE


def _agree(
    root: Path,
    files: Mapping[str, bytes],
    written: Mapping[str, bytes],
    error_at: Callable[[str], Exception],
    *,
    python_only: bool = False,
) -> None:
    """Demands agreement to the files under the root. The caller's process holds the `written`
    ones."""
    executed = {
        root.absolute() / name: content
        for name, content in files.items()
        if name not in written and (name.endswith(".py") or not python_only)
    }
    try:
        trust.require(executed)
    except NotAgreed as error:
        raise error_at(str(error)) from error
