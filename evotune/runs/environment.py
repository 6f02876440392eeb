"""The record of the machine and of the versions with which a run was made."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from evotune.backends import registry
from evotune.backends.base.launch import DeviceProfile
from evotune.errors import StoreError
from evotune.packages import __version__
from evotune.trial import Json
from evotune.util.files import read_regular
from evotune.workers.compile_worker import compiler_for

_PACKAGES = (
    "torch",
    "numpy",
    "deap",
    "pandas",
    "pyyaml",
    "pydantic",
)


def package_versions() -> dict[str, str]:
    """Versions of the installed packages that times may depend on."""
    versions = {}
    for name in (*_PACKAGES, *(name for backend in registry.own() for name in backend.packages)):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def describe(
    profile: DeviceProfile, command: Sequence[str], languages: Sequence[str]
) -> dict[str, Json]:
    """The record as JSON. It names no user and no host. `languages`: the kernels' languages."""
    record: dict[str, Json] = {
        "evotune": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "device": profile.to_json(),
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command) or [os.path.basename(sys.argv[0]), *sys.argv[1:]],
    }
    if languages:
        versions = (compiler_for(language).version() for language in languages)
        record["compiler"] = "; ".join(versions)
    return record


def read(path: Path, kept: Json = None) -> Mapping[str, Json]:
    """The record that `describe` made when the run began. Raises StoreError if the file is lost, or
    differs from the record `kept` in the run's store."""
    try:
        record: Json = json.loads(read_regular(path))
        _times_depend_on(record)
        if kept not in (None, record):
            raise ValueError("it was changed")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(
            f"{path} is damaged, so evotune cannot tell whether the run was made on this machine; "
            "if it was, continue with --allow-mixed"
        ) from error
    return dict(record)


def changes(before: Mapping[str, Json], now: Mapping[str, Json]) -> list[str]:
    """The differences between two records, in words, in the facts on which times depend."""
    old, new = _times_depend_on(before), _times_depend_on(now)
    return [
        f"{name}: {old.get(name)} then, {new.get(name)} now"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _times_depend_on(record: Mapping[str, Json]) -> dict[str, Json]:
    device = record["device"]
    facts = {"backend": device["backend"], "device": device["name"], **device["attributes"]}
    if device.get("driver"):
        facts["driver"] = device["driver"]
    if device["backend"] != "recorded":
        facts["torch"] = record["packages"].get("torch")
        facts["compiler"] = record.get("compiler")
    return facts
