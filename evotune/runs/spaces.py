"""Finding a space by path or by the name of one that ships with evotune."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from evotune.backends import registry
from evotune.errors import UsageError
from evotune.util.files import open_regular

_PACKAGE = Path(__file__).parents[1]
_RECORDINGS = (".json", ".json.gz", ".t4", ".t4.gz")


def shipped_spaces() -> dict[str, Path]:
    """Name -> path: in an installed package, or in the working tree it is run from."""
    for folder in (_PACKAGE / "shipped" / "search_spaces", _PACKAGE.parent / "search_spaces"):
        if folder.is_dir():
            return {path.stem.replace("_", "-"): path for path in sorted(folder.glob("*.yaml"))}
    return {}


def shipped_name(path: Path) -> str | None:
    """The name by which `find_space` finds the file; None for a user's own."""
    return next((name for name, known in shipped_spaces().items() if known == path), None)


def find_space(text: str) -> Path:
    """The file a SPACE argument means; UsageError when there is none."""
    path = Path(text)
    if path.is_file():
        return path
    shipped = shipped_spaces()
    name = text.replace("_", "-")
    if name in shipped:
        return shipped[name]
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


def flagship(device: str) -> Path:
    """The space that `evotune run` tunes when none is named: attention, for the device."""
    backend = registry.choose(device)
    if not backend.flagship:
        raise UsageError(f"--device {device}: name the space to tune; none is for {backend.name}")
    return find_space(backend.flagship)
