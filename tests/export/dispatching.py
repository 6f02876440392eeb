"""Which kernel an exported package takes for a case, by its dispatch.json; nothing is imported from
the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evotune.export.runtime._dispatch import Choice, Dispatch


class Dispatched(Dispatch):
    def kernel_of(
        self, symbols: Mapping[str, Any], layout: str = "contiguous", *, anywhere: bool = False
    ) -> Choice | None:
        """The package's choice; None where it leaves the case to PyTorch."""
        choice = self.choose(symbols, layout, anywhere=anywhere)
        return choice if isinstance(choice, Choice) else None
