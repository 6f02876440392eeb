"""Lists what this machine has (devices, shipped spaces, strategies), and what is missing."""

from __future__ import annotations

import platform
import sys
import tempfile

from evotune import packages, plugins
from evotune.backends import registry
from evotune.backends.base.backend import Finding, Status, optional
from evotune.packages import __version__
from evotune.problems.libraries import LIBRARIES, version
from evotune.runs.spaces import shipped_spaces
from evotune.search.catalog import strategy_names
from evotune.util.files import default_cache_dir
from evotune.util.processes import interruptible

__all__ = ["Finding", "device_names", "examine", "shipped_spaces", "strategy_names"]


def device_names() -> list[str]:
    """The values that a device may have: `auto`, and the names that each backend offers."""
    offered = (each for backend in registry.every() for each in backend.completions())
    return [registry.AUTO, *offered]


def examine() -> list[Finding]:
    """All findings of `doctor`, in the order in which they are shown. Does not import torch."""
    with interruptible():
        found = [backend.doctor() for backend in registry.every()]
    return [
        Finding("python", Status.OK, f"{platform.python_version()} ({sys.executable})"),
        Finding("evotune", Status.OK, __version__),
        *(_package(name) for name in packages.REQUIRED),
        optional("pyarrow", "parquet", "only `report --format parquet` needs it"),
        *(_library(name) for name in LIBRARIES if name != "flex"),
        *(finding for needed, _ in found for finding in needed),
        *(finding for _, rest in found for finding in rest),
        *(_broken(line) for line in plugins.broken()),
        _cache(),
    ]


def _package(name: str) -> Finding:
    version = packages.version(name)
    if version:
        return Finding(name, Status.OK, version)
    return Finding(name, Status.MISSING, "not installed", packages.fix(name))


def _library(name: str) -> Finding:
    """The finding on a library whose attention can be a baseline."""
    library, found = LIBRARIES[name], version(name)
    if found:
        return Finding(library.package, Status.OK, f"{found} (`baseline: {name}`)")
    detail = f"not installed; only `baseline: {name}` needs it"
    return Finding(library.package, Status.ABSENT, detail)


def _broken(line: str) -> Finding:
    """The finding for a plugin that cannot be loaded."""
    what, _, fix = line.partition("; fix: ")
    return Finding("plugin", Status.BROKEN, what, fix)


def _cache() -> Finding:
    folder = default_cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-"):
            pass
    except OSError as error:
        fix = "make it writable, or set EVOTUNE_CACHE_DIR to a folder that is"
        return Finding("build cache", Status.BROKEN, f"{folder}: {error.strerror}", fix)
    return Finding("build cache", Status.OK, f"{folder} (writable)")
