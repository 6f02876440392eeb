from __future__ import annotations

from tests.export.runtime.conftest import binaries, opened

__all__ = ["binaries", "opened"]
