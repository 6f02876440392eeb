"""Keeps the measured ceilings of devices, in the user's state folder.

ceilings/1234abcd….json    the ceilings; the name is a hash of all on which they depend
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from evotune.backends.base.evidence import Ceilings
from evotune.trial import Value
from evotune.util.files import state_folder

_READER = msgspec.json.Decoder(Ceilings)


def kept(facts: Sequence[Value]) -> Ceilings | None:
    """The ceilings that were kept under these facts; None where there are none."""
    path = _path(facts)
    try:
        return _READER.decode(path.read_bytes()) if path else None
    except (OSError, ValueError):
        return None


def keep(facts: Sequence[Value], ceilings: Ceilings) -> None:
    """Keeps them for later processes; does nothing where the folder cannot be written."""
    path = _path(facts)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(ceilings))
        os.replace(aside, path)


def _path(facts: Sequence[Value]) -> Path | None:
    folder = state_folder()
    name = hashlib.sha256(json.dumps(list(facts)).encode()).hexdigest()[:32]
    return folder / "ceilings" / f"{name}.json" if folder else None
