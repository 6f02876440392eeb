"""Reads the package's description and compares its files with the hashes of its certificate."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from ._missed import shown

_CERTIFICATE = "certificate.json"
_DISPATCH = "dispatch.json"
_FORMAT = 1
CALL_SHA256 = "call_sha256"
CALL_PARTS = ("problem", "cases_from", "shapes")


class Damaged(Exception):
    """Raised for a file whose hash differs from the certificate's. The message names the file."""


class Contents:
    """The files of the package in `folder`.

    - `certificate`, `dispatch`: the contents of the two JSON files.
    - `damage`: why no kernel of the package may be used, in words; "" if all may be used.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ImportError, one line, if the description itself cannot be read."""
        self._folder = folder
        self.certificate = _read_json(folder / _CERTIFICATE)
        self.dispatch = _read_json(folder / _DISPATCH)
        for name, found in ((_CERTIFICATE, self.certificate), (_DISPATCH, self.dispatch)):
            if found.get("format") != _FORMAT:
                raise ImportError(f"{folder / name}: expected format {_FORMAT}")
        if not isinstance(self.certificate.get("files"), dict):
            raise ImportError(f"{folder / _CERTIFICATE}: expected `files` with their hashes")
        self.damage = next(filter(None, map(self.fault, self._read_at_import())), "")

    def _read_at_import(self) -> list[str]:
        files = self.certificate["files"]
        return [_DISPATCH, *(name for name in files if name.endswith(".py"))]

    def says_what_is_called(self) -> bool:
        """Whether the inputs, outputs, types and constants in `dispatch` are those of the export,
        even if other parts of it were changed. False for a certificate without a hash of them."""
        expected = self.certificate.get(CALL_SHA256)
        found = self.dispatch
        return expected in (None, call_sha256([found.get(name) for name in CALL_PARTS]))

    def fault(self, name: str) -> str:
        """Says what is wrong with a file; "" if its bytes are those of the certificate."""
        try:
            self.bytes_of(name)
        except Damaged as fault:
            return str(fault)
        return ""

    def bytes_of(self, name: str) -> bytes:
        """The bytes of a file. Raises Damaged if they differ from the certificate's."""
        path = self.path(name)
        try:
            content = _read_file(path)
        except FileNotFoundError:
            raise Damaged(f"{name} is missing") from None
        except OSError as error:
            raise Damaged(f"{name} cannot be read: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != self.certificate["files"].get(name):
            raise Damaged(f"{name} is not the file that {_CERTIFICATE} names")
        return content

    def path(self, name: str) -> Path:
        """The path of a file. Raises Damaged for a name that leads out of the package. The file may
        be a link to anywhere, as some installers make them: its bytes count."""
        named = PurePosixPath(name)
        if named.is_absolute() or ".." in named.parts:
            raise Damaged(f"{name} lies outside the package")
        return self._folder / named

    def has(self, name: str) -> bool:
        return name in self.certificate["files"]


def call_sha256(parts: list[Any]) -> str:
    """The hash of the parts of a description that say what is called: `CALL_PARTS`."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _read_file(path: Path) -> bytes:
    """The bytes of a file. Raises OSError for a pipe or a device, which may have no end."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        return file.read()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_read_file(path))
    except OSError as error:
        raise ImportError(f"{path}: {error.strerror}") from error
    except RecursionError:
        raise ImportError(f"{path}: its lists and objects are nested too deeply") from None
    except ValueError as error:
        raise ImportError(shown(f"{path}: {' '.join(str(error).split())}")) from error
    if not isinstance(found, dict):
        raise ImportError(f"{path}: expected an object")
    return found
