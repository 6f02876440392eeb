"""Finds a space by its path or by the name of a shipped one, and collects its files."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from evotune.backends import registry
from evotune.backends.base.backend import Backend
from evotune.backends.base.sources import read_sources
from evotune.errors import SpaceError, StoreError, UsageError
from evotune.languages import language
from evotune.problems.loading import is_file_reference, problem_source
from evotune.runs.folder import FAMILY, RunFolder, write_durably
from evotune.space.document import SpaceDocument
from evotune.space.reading.yaml_source import Position
from evotune.space.specs import KernelSpec, ProblemSpec
from evotune.store import RunStore
from evotune.user_code import NotAgreed, trust
from evotune.util.files import open_regular

_PACKAGE = Path(__file__).parents[1]
_RECORDINGS = (".json", ".json.gz", ".t4", ".t4.gz")


def shipped_spaces() -> dict[str, Path]:
    """The paths of the shipped spaces by name, in the installed package or in the working tree."""
    for folder in (_PACKAGE / "shipped" / "search_spaces", _PACKAGE.parent / "search_spaces"):
        if folder.is_dir():
            return {path.stem.replace("_", "-"): path for path in sorted(folder.glob("*.yaml"))}
    return {}


def shipped_name(path: Path) -> str | None:
    """The name of a shipped space by which `find_space` finds it; None for a user's own file."""
    return next((name for name, known in shipped_spaces().items() if known == path), None)


def find_space(text: str) -> Path:
    """The file that a SPACE argument names. Raises UsageError if there is none."""
    path = Path(text)
    if path.is_file():
        return path
    shipped = shipped_spaces()
    name = text.replace("_", "-")
    if name in shipped:
        return shipped[name]
    if text == FAMILY:
        raise UsageError(
            f"{FAMILY} is not a space but all shipped attention spaces: run, check, compile and "
            "portfolio take it with --cases FILE; in Python, evotune.tune_family(cases)"
        )
    if path.suffix or "/" in text or os.path.lexists(path):
        inside = path / "space.yaml"  # in a folder that `init` made
        meant = f"; did you mean {inside}?" if inside.is_file() else ""
        raise UsageError(f"{text}: {_why_unreadable(path)}{meant}")
    close = difflib.get_close_matches(name, shipped, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; shipped: {', '.join(shipped)}"
    raise UsageError(f"no space {text!r}: neither a file nor the name of a shipped space{hint}")


def _why_unreadable(path: Path) -> str:
    try:
        open_regular(path).close()
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return str(error.strerror)
    return "does not exist"  # it does by now


def is_recording(path: Path) -> bool:
    """Whether the file is a recorded space (a cache, T4 results, a report) rather than YAML."""
    return path.name.endswith(_RECORDINGS)


def flagship(device: str, looking: Callable[[Backend], None] = lambda backend: None) -> Path:
    """The space that `evotune run` tunes if none is named: that of attention for the device.
    `looking`: see `registry.choose`."""
    backend = registry.choose(device, looking)
    if not backend.flagship:
        raise UsageError(f"--device {device}: name the space to tune; none is for {backend.name}")
    return find_space(backend.flagship)


def source_path(document: SpaceDocument, kernel: KernelSpec) -> str:
    """The kernel's file, relative to the root."""
    return kernel.source.relative_to(document.root).as_posix()


def read_kernel_sources(document: SpaceDocument, kernel: KernelSpec) -> dict[str, bytes]:
    """The contents of the kernel's files by their path under the root. Raises SpaceError, at the
    kernel's position, if one cannot be read."""
    source = source_path(document, kernel)
    try:
        return read_sources(document.root, source)
    except SpaceError as error:
        raise kernel.position.error(error.message) from error


def space_file_name(document: SpaceDocument) -> str:
    """The space file's path under its root; its bare name if it lies elsewhere."""
    path, root = document.path.resolve(), document.root.resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else Path(path).name


def problem_file(document: SpaceDocument, problem: ProblemSpec) -> dict[str, bytes]:
    """The content of a user's problem file by its path under the root; empty for a problem of
    evotune. Raises SpaceError, at the problem's position, if it cannot be read."""
    if not is_file_reference(problem.name):
        return {}
    try:
        name, content = problem_source(problem.name, document.root.absolute())
    except UsageError as error:
        raise problem.position.error(str(error)) from error
    return {name: content}


def require_agreement(
    document: SpaceDocument,
    problem: ProblemSpec,
    python: Mapping[str, bytes],
    sources: Mapping[str, Mapping[str, bytes]],
    *,
    compile_only: bool,
) -> None:
    """Raises SpaceError, at the kernel or the problem, if the user did not agree to execute one of
    its files.

    `python`: the problem's file. `sources`: the files of each kernel. With `compile_only` C++ and
    CUDA code is not executed and needs no agreement. A problem's file is Python, which runs when it
    is imported, and a Triton kernel's file runs when it is compiled.
    """
    root = document.root.absolute()
    files = {root / name: content for name, content in python.items()}
    positions: dict[Path, Position] = dict.fromkeys(files, problem.position)
    for kernel in document.kernels:
        if language(kernel.language).runs_when_compiled or not compile_only:
            own = source_path(document, kernel)  # the file that is named first, then its includes
            for name in sorted(sources[kernel.name], key=lambda name: name != own):
                files[root / name] = sources[kernel.name][name]
                positions.setdefault(root / name, kernel.position)
    try:
        trust.require(files)
    except NotAgreed as error:
        raise positions[error.path].error(str(error)) from error


def snapshot(run: RunFolder, files: Mapping[str, bytes]) -> None:
    """Copies a space's files into the run."""
    for relative, content in files.items():
        target = run.sources / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        write_durably(target, content)


def fingerprints(run: RunFolder) -> dict[str, str]:
    """SHA-256 of every file under `sources/`, by its path there."""
    return {
        path.relative_to(run.sources).as_posix(): _sha256(path)
        for path in sorted(run.sources.rglob("*"))
        if path.is_file()
    }


def space_path(run: RunFolder, store: RunStore) -> Path:
    """The run's own copy of its space.

    Raises StoreError if a file under `sources/` is missing, changed or new, because one leaderboard
    would then have outcomes of two kernels. Stores before version 3 do not record their files; for
    these only the space must exist.
    """
    with store.trusting_facts():
        name = str(store.meta("space_file"))
        known = store.meta("sources")
        if known is not None:
            _require_unchanged(run, known)
            known[name]
        path = run.sources / name
        own = path.resolve().is_relative_to(run.sources.resolve())
        if not (own and path.is_file()):
            raise ValueError(f"it names {name!r:.80} as its space, which is not in {run.sources}")
    return path


def _require_unchanged(run: RunFolder, known: Mapping[str, str]) -> None:
    found = fingerprints(run)
    for name in sorted({*known, *found}):
        if found.get(name) != known.get(name):
            happened = {name not in found: "is missing", name not in known: "was added"}
            raise StoreError(
                f"{run.sources / name} {happened.get(True, 'was changed')} since the run began; "
                "put it back as it was, or start a new run"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
