"""The files of a space's kernels and of its problem, by their path under the root."""

from __future__ import annotations

from pathlib import Path

from evotune.device.sources import read_sources
from evotune.errors import SpaceError
from evotune.problems.loading import is_file_reference, problem_source
from evotune.space.document import SpaceDocument
from evotune.space.specs import KernelSpec


def source_path(document: SpaceDocument, kernel: KernelSpec) -> str:
    """Under the root."""
    return kernel.source.relative_to(document.root).as_posix()


def read_kernel_sources(document: SpaceDocument, kernel: KernelSpec) -> dict[str, bytes]:
    """The kernel's files by their path under the root; SpaceError at the kernel's position."""
    source = source_path(document, kernel)
    try:
        return read_sources(document.root, source)
    except SpaceError as error:
        raise kernel.position.error(error.message) from error


def source_files(document: SpaceDocument) -> dict[str, bytes]:
    """Every kernel's files and the problem's, for a run's snapshot."""
    files: dict[str, bytes] = {}
    for kernel in document.kernels:
        files |= read_kernel_sources(document, kernel)
    if document.problem is not None and is_file_reference(document.problem.name):
        path, content = problem_source(document.problem.name, document.root)
        files[path] = content
    return files


def space_file_name(document: SpaceDocument) -> str:
    """Where the space lies under its root (at the top if it lies elsewhere)."""
    path, root = document.path.resolve(), document.root.resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else Path(path).name
