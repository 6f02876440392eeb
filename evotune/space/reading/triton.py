"""What is different about a launch whose kernel Triton compiles."""

from __future__ import annotations

from collections.abc import Container

from evotune.space.reading.object_path import DataPath
from evotune.space.reading.schema import KernelModel, LaunchModel
from evotune.space.reading.yaml_source import YamlSource

_NUM_WARPS = "NUM_WARPS"  # Triton's own name for it, and its own value where nobody says another
_DEFAULT_WARPS = 4


def block_size(parameters: Container[str]) -> str:
    """Threads of a block, as an expression over the space's `parameters`."""
    return f"32 * {_NUM_WARPS if _NUM_WARPS in parameters else _DEFAULT_WARPS}"


def refuse_what_triton_decides(
    source: YamlSource, kernel: KernelModel, launch: LaunchModel, place: DataPath
) -> None:
    """SpaceError for what its compiler decides, and for a second function, which it compiles
    apart."""
    reasons = {
        "block": (launch.block, f"Triton makes its blocks itself, of {_NUM_WARPS} warps"),
        "shared_bytes": (launch.shared_bytes, "Triton knows its shared memory itself"),
        "entry": (
            None if launch.entry == kernel.entry else launch.entry,
            "a Triton kernel is one function: all launches are of it",
        ),
    }
    for key, (value, reason) in reasons.items():
        if value is not None:
            raise source.key_position((*place, key)).error(reason)
