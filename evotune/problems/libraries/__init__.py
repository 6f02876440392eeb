"""The libraries whose attention can be a baseline, by name. Importing this imports none of them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass


class UnusableBaseline(Exception):
    """Raised if a library cannot compute a case on this machine. The message is the reason, one
    line."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library, by the package that pip installs, the module that has the functions, and the
    module of `evotune.problems.libraries` that calls them."""

    package: str
    module: str
    caller: str
    use: str


LIBRARIES: Mapping[str, Library] = {
    "fa4": Library("flash-attn-4", "flash_attn.cute.interface", "flash", "FlashAttention 4"),
    "fa3": Library("flash-attn-3", "flash_attn_interface", "flash", "FlashAttention 3"),
    "fa2": Library("flash-attn", "flash_attn", "flash", "FlashAttention 2"),
    "flashinfer": Library("flashinfer-python", "flashinfer", "flashinfer", "FlashInfer"),
    "flex": Library("torch", "torch.nn.attention.flex_attention", "flex", "FlexAttention"),
}
"""The libraries by the name of their baseline."""
FAMILY = "library"
"""The family of all libraries: `baseline: library:best` chooses the fastest of them."""


def asked(baseline: str) -> tuple[str, ...]:
    """The libraries that a space's `baseline` asks for. They are tried only then, since some
    compile for seconds. `best` leaves out FlexAttention, which compiles at each run and is always
    installed."""
    if baseline in LIBRARIES:
        return (baseline,)
    if baseline == f"{FAMILY}:best":
        return tuple(LIBRARIES)
    if baseline == "best":
        return tuple(name for name in LIBRARIES if name != "flex")
    return ()


def version(name: str) -> str:
    """The version of the library's package; "" if it is not installed."""
    try:
        return importlib.metadata.version(LIBRARIES[name].package)
    except importlib.metadata.PackageNotFoundError:
        return ""
