"""Which code of a space will be executed, and that somebody agreed to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evotune.engine.kernel_sources import source_path
from evotune.errors import UsageError
from evotune.languages import language
from evotune.problems.loading import is_file_reference, problem_source
from evotune.space.document import SpaceDocument
from evotune.space.reading.yaml_source import Position
from evotune.user_code import NotAgreed, trust


def require_agreement(
    document: SpaceDocument, sources: Mapping[str, Mapping[str, bytes]], *, compile_only: bool
) -> None:
    """SpaceError, at the kernel or the problem, when nobody agreed to execute one of their files.

    `sources`: the files of each kernel. C++ and CUDA that is compiled only is not executed. A
    problem's file is Python, which runs when it is read; a Triton kernel's, when it is compiled.
    """
    files: dict[Path, bytes] = {}
    positions: dict[Path, Position] = {}
    root, problem = document.root.absolute(), document.problem
    if problem is not None and is_file_reference(problem.name):
        try:
            name, content = problem_source(problem.name, root)
        except UsageError as error:
            raise problem.position.error(str(error)) from error
        files[root / name], positions[root / name] = content, problem.position
    for kernel in document.kernels:
        if language(kernel.language).runs_when_compiled or not compile_only:
            own = source_path(document, kernel)  # named first; the rest it includes
            for name in sorted(sources[kernel.name], key=lambda name: name != own):
                files[root / name] = sources[kernel.name][name]
                positions.setdefault(root / name, kernel.position)
    try:
        trust.require(files)
    except NotAgreed as error:
        raise positions[error.path].error(str(error)) from error
