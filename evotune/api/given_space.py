"""Turns a space given as a path, a shipped name or objects into a space file with its sources."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

from evotune.backends.base.sources import read_sources
from evotune.errors import SpaceError, UsageError
from evotune.problems import UserProblem
from evotune.problems.loading import BUILT_IN, is_file_reference, problem_source
from evotune.space.objects import Constraint, Domain, Kernel, Space
from evotune.space.objects.kernel_objects import Expression
from evotune.space.reading.case_file import CaseEntry, given_cases, read_cases
from evotune.trial import Value
from evotune.user_code import NotAgreed, trust
from evotune.util.files import read_regular, scratch_folder
from evotune.util.words import describe

AnySpace: TypeAlias = "str | Path | Space | Kernel"
"""The path of a space file, the name of a shipped space, a `Space`, or a kernel: `CppKernel`,
`CudaKernel`, `TritonKernel`, `Callable`. A kernel needs the other arguments of `Space` as keywords.
With a problem of your own its baseline is `torch:best`, unless you name another."""


AnyCases: TypeAlias = "str | Path | Sequence[Mapping[str, Value]]"
"""The path of a file of cases, or the cases: symbols of a shape and a variant, and a `count`."""


def case_entries(cases: AnyCases | None) -> list[CaseEntry]:
    """Converts the given cases to entries of a case file. Raises SpaceError for a mistake."""
    if cases is None:
        return []
    return read_cases(Path(cases)) if isinstance(cases, str | Path) else given_cases(cases)


class SpaceKeywords(TypedDict, total=False):
    """The arguments of `Space` other than its kernel."""

    name: str
    description: str
    root: str | Path
    problem: str | type
    dtype: object
    shapes: Sequence[Mapping[str, Value]]
    variants: Sequence[Mapping[str, Value]]
    held_out: Sequence[Mapping[str, Value]]
    let: Mapping[str, Expression]
    parameters: Mapping[str, Sequence[Value] | Domain | Mapping[str, object]]
    constraints: Sequence[Expression | Constraint | Mapping[str, Expression]]
    after_compile: Sequence[Expression | Constraint | Mapping[str, Expression]]
    baseline: str
    objective: str | Sequence[str]
    deterministic: bool
    default: Mapping[str, Value]
    try_first: Sequence[Mapping[str, Value]]
    search: Mapping[str, str | int]
    budget: Mapping[str, int | float]
    stop: Mapping[str, int]
    timeouts: Mapping[str, float]


@contextlib.contextmanager
def space_file(
    space: AnySpace, keywords: Mapping[str, Any], *, compile_only: bool = False
) -> Iterator[str]:
    """The path of the space's file, or its shipped name. A file made of objects is deleted at the
    end.

    Raises UsageError if `space` is not a space. Raises SpaceError for a mistake in it.
    """
    if isinstance(space, Kernel):
        usual = {} if keywords.get("problem") in BUILT_IN else {"baseline": "torch:best"}
        given: dict[str, Any] = {**usual, **keywords}
        space = Space(kernel=space, **given)
    elif keywords:
        names = ", ".join(keywords)
        raise UsageError(
            f"{names}: only with a kernel object; state it in the space itself, or pass a kernel"
        )
    if isinstance(space, Space):
        with scratch_folder() as folder:
            yield str(materialize(space, folder, compile_only=compile_only))
    elif isinstance(space, str | Path):
        yield os.fspath(space)
    else:
        expected = "a path, a shipped name, a Space or a kernel"
        raise UsageError(f"expected {expected}, found {describe(space)}")


@contextlib.contextmanager
def trusting(given: bool) -> Iterator[None]:
    """If `given`, executes all code in the block without asking, as the command line's --trust
    does."""
    with trust.all_agreed() if given else contextlib.nullcontext():
        yield


_SPACE_FILE = "space.yaml"


def materialize(space: Space, folder: Path, *, compile_only: bool = False) -> Path:
    """Writes the space and its sources into `folder`; returns the space file's path.

    `load_setup` and the commands take that path. A mistake that they find is a SpaceError that
    names the object, not a line of the file. Code in the caller's process needs no agreement:
    kernels passed as text, and a problem passed as a class. Files need the same agreement as the
    files of a space file.

    Raises SpaceError if a source cannot be read, or the user has not agreed to execute it. With
    `compile_only` only Python is executed.
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
