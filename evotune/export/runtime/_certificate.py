"""Reads the package's description and holds its files to the hashes of its certificate."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Any

_CERTIFICATE = "certificate.json"
_DISPATCH = "dispatch.json"
_FORMAT = 1


class Damaged(Exception):
    """A file whose bytes are not those that the certificate names. The message names the file."""


class Contents:
    """The files of the package in `folder`.

    - `certificate`, `dispatch`: the contents of the two JSON files.
    - `damage`: why no kernel of the package may be used, in words; "" when all may.
    """

    def __init__(self, folder: Path) -> None:
        """ImportError, one line, where the description itself cannot be read."""
        self._folder = folder
        self.certificate = _read_json(folder / _CERTIFICATE)
        self.dispatch = _read_json(folder / _DISPATCH)
        for name, found in ((_CERTIFICATE, self.certificate), (_DISPATCH, self.dispatch)):
            if found.get("format") != _FORMAT:
                raise ImportError(f"{folder / name}: expected format {_FORMAT}")
        if not isinstance(self.certificate.get("files"), dict):
            raise ImportError(f"{folder / _CERTIFICATE}: expected `files` with their hashes")
        self.damage = next(filter(None, map(self._fault, self._read_at_import())), "")

    def _read_at_import(self) -> list[str]:
        files = self.certificate["files"]
        return [_DISPATCH, *(name for name in files if name.endswith(".py"))]

    def _fault(self, name: str) -> str:
        try:
            self.bytes_of(name)
        except Damaged as fault:
            return str(fault)
        return ""

    def bytes_of(self, name: str) -> bytes:
        """The bytes of a file; Damaged where they are others than the certificate's."""
        path = self.path(name)
        try:
            content = path.read_bytes()
        except OSError:
            raise Damaged(f"{name} is missing") from None
        if hashlib.sha256(content).hexdigest() != self.certificate["files"].get(name):
            raise Damaged(f"{name} is not the file that {_CERTIFICATE} names")
        return content

    def path(self, name: str) -> Path:
        """Where a file lies. Damaged for a name that leads out of the package. The file may be a
        link to anywhere, as some installers make them: its bytes count."""
        named = PurePosixPath(name)
        if named.is_absolute() or ".." in named.parts:
            raise Damaged(f"{name} lies outside the package")
        return self._folder / named

    def has(self, name: str) -> bool:
        return name in self.certificate["files"]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ImportError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ImportError(f"{path}: expected an object")
    return found
