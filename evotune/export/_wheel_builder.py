"""Builds the wheel and the source distribution of the package in this folder (PEP 517).

It needs only the standard library, so that `pip install FOLDER` works without a network. The same
files always give the same bytes.
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent
_EPOCH = (1980, 1, 1, 0, 0, 0)
_BESIDE = ("README.md", "_build.py", "pyproject.toml")


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    return []


def get_requires_for_build_sdist(config_settings: object = None) -> list[str]:
    return []


def build_wheel(
    wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None
) -> str:
    """Writes the wheel, and returns its file name. Raises RuntimeError for a file that was changed
    after the export."""
    name, certificate = _certificate()
    stem = f"{name}-{certificate['version']}"
    tag = _tag(certificate)
    files = dict(_files(name, certificate))
    info = f"{stem}.dist-info"
    files[f"{info}/METADATA"] = _metadata(name, certificate).encode()
    wheel = f"Wheel-Version: 1.0\nGenerator: evotune\nRoot-Is-Purelib: true\nTag: {tag}\n"
    files[f"{info}/WHEEL"] = wheel.encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    target = Path(wheel_directory) / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return target.name


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    """Writes the source distribution, and returns its file name."""
    name, certificate = _certificate()
    stem = f"{name}-{certificate['version']}"
    files = {each: _content(each) for each in _BESIDE}
    files |= dict(_files(name, certificate))
    files["PKG-INFO"] = _metadata(name, certificate).encode()
    target = Path(sdist_directory) / f"{stem}.tar.gz"
    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{stem}/{path}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return target.name


def _certificate() -> tuple[str, dict[str, Any]]:
    """The name of the package next to this file, and its certificate."""
    (path,) = _ROOT.glob("*/certificate.json")
    name = path.parent.name
    return name, json.loads(_content(f"{name}/certificate.json"))


def _content(file: str) -> bytes:
    """The content of a file next to this one. Raises RuntimeError for a pipe, because reading it
    would block."""
    path = _ROOT / file
    if not path.is_file():
        raise RuntimeError(f"{file} is missing, or no file")
    return path.read_bytes()


def _files(name: str, certificate: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """The package's files, compared with the certificate. Others, such as __pycache__, are left
    out."""
    for file, sha256 in sorted(certificate["files"].items()):
        content = _content(f"{name}/{file}")
        if hashlib.sha256(content).hexdigest() != sha256:
            raise RuntimeError(f"{name}/{file} was changed since it was exported")
        yield f"{name}/{file}", content
    yield f"{name}/certificate.json", _content(f"{name}/certificate.json")


def _tag(certificate: dict[str, Any]) -> str:
    """For one platform if the package has native code for the host."""
    native = any(file.endswith(".so") for file in certificate["files"])
    platform = certificate["platform"].replace("-", "_").replace(".", "_") if native else "any"
    return f"py3-none-{platform}"


def _metadata(name: str, certificate: dict[str, Any]) -> str:
    heads = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {certificate['version']}",
        f"Summary: {certificate['summary']}",
        f"Requires-Python: {certificate['requires']['python']}",
        f"Requires-Dist: torch{certificate['requires']['torch']}",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(heads) + "\n\n" + _content("README.md").decode()


def _record(files: dict[str, bytes], own: str) -> bytes:
    """The table of the files, which ends with `own`, the table itself."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    for path, content in files.items():
        table.writerow((path, _record_hash(content), len(content)))
    table.writerow((own, "", ""))
    return text.getvalue().encode()


def _record_hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"sha256={digest}"
