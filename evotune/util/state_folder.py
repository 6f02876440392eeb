"""The folder for facts that outlive a run: a user's agreements, a device's ceilings."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path | None:
    """$EVOTUNE_STATE_DIR, else evotune/ under $XDG_STATE_HOME or ~/.local/state.

    None for a relative path, since it would lead to files that came with the working folder.
    """
    folder = os.environ.get("EVOTUNE_STATE_DIR")
    if not folder:
        base = os.environ.get("XDG_STATE_HOME", "")
        base = base if os.path.isabs(base) else os.path.expanduser("~/.local/state")
        folder = os.path.join(base, "evotune")
    return Path(folder) if os.path.isabs(folder) else None
