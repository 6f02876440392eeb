"""GPUs by name: their limits as the driver reports them, and their peak figures.

Figures: CUDA C Programming Guide ("Compute Capabilities"), and NVIDIA's data sheets.
"""

from __future__ import annotations

from dataclasses import dataclass

from evotune.backends.base.launch import DeviceProfile
from evotune.trial import Value

_GIB = 1 << 30
_MIB = 1 << 20
_KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class _Model:
    """The figures of one product. `tensor_gflops` are dense FP16 with float32 sums. `variant` is a
    part of the driver's name that distinguishes two products of the same name."""

    product: str
    arch: int
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    memory_gbps: float
    tensor_gflops: float
    variant: str = ""


_MODELS = {
    "l4": _Model("NVIDIA L4", 89, 58, 48 * _MIB, 24 * _GIB, 300.0, 121e3),
    "a100": _Model("NVIDIA A100", 80, 108, 40 * _MIB, 80 * _GIB, 2039.0, 312e3),
    "h100": _Model("NVIDIA H100", 90, 132, 50 * _MIB, 80 * _GIB, 3350.0, 989e3),
    "h200": _Model("NVIDIA H200", 90, 132, 60 * _MIB, 141 * _GIB, 4800.0, 989e3),
    "b200": _Model("NVIDIA B200", 100, 148, 126 * _MIB, 180 * _GIB, 8000.0, 2250e3),
    "a10": _Model("NVIDIA A10", 86, 72, 6 * _MIB, 24 * _GIB, 600.0, 125e3),
    "l40s": _Model("NVIDIA L40S", 89, 142, 96 * _MIB, 48 * _GIB, 864.0, 362e3),
    "rtx4090": _Model("NVIDIA GeForce RTX 4090", 89, 128, 72 * _MIB, 24 * _GIB, 1008.0, 165e3),
    "t4": _Model("Tesla T4", 75, 40, 4 * _MIB, 16 * _GIB, 320.0, 65e3),
    "a100-40": _Model("NVIDIA A100", 80, 108, 40 * _MIB, 40 * _GIB, 1555.0, 312e3, "40GB"),
    "a100-80": _Model("NVIDIA A100", 80, 108, 40 * _MIB, 80 * _GIB, 2039.0, 312e3, "80GB"),
    "a30": _Model("NVIDIA A30", 80, 56, 24 * _MIB, 24 * _GIB, 933.0, 165e3),
    "rtx3090": _Model("NVIDIA GeForce RTX 3090", 86, 82, 6 * _MIB, 24 * _GIB, 936.0, 71e3),
    "l20": _Model("NVIDIA L20", 89, 92, 96 * _MIB, 48 * _GIB, 864.0, 119.5e3),
    "h20": _Model("NVIDIA H20", 90, 78, 60 * _MIB, 96 * _GIB, 4000.0, 148e3),
    "gh200": _Model("NVIDIA GH200", 90, 132, 50 * _MIB, 96 * _GIB, 4000.0, 990e3),
    "b300": _Model("NVIDIA B300", 103, 160, 126 * _MIB, 288 * _GIB, 8000.0, 2250e3),
    "rtx5090": _Model("NVIDIA GeForce RTX 5090", 120, 170, 96 * _MIB, 32 * _GIB, 1792.0, 210e3),
    "rtxpro6000": _Model(
        "NVIDIA RTX PRO 6000 Blackwell", 120, 188, 128 * _MIB, 96 * _GIB, 1792.0, 504e3
    ),
    "gb10": _Model("NVIDIA GB10", 121, 48, 24 * _MIB, 128 * _GIB, 273.0, 125e3),
}

# By architecture: shared memory per block and per multiprocessor (KiB), resident blocks, threads.
_LIMITS = {
    75: (64, 64, 16, 1024),
    80: (163, 164, 32, 2048),
    86: (99, 100, 16, 1536),
    89: (99, 100, 24, 1536),
    90: (227, 228, 32, 2048),
    100: (227, 228, 32, 2048),
    103: (227, 228, 32, 2048),
    120: (99, 100, 24, 1536),
    121: (99, 100, 24, 1536),
}


def names() -> tuple[str, ...]:
    return tuple(_MODELS)


def product(name: str) -> str:
    """The name that the driver reports for a model, or the beginning of it."""
    return _MODELS[name].product


def named(name: str) -> DeviceProfile:
    """The profile of a GPU by its name; the machine need not have one. Raises KeyError for a name
    not in `names`."""
    model = _MODELS[name]
    shared_kib, multiprocessor_kib, blocks, threads = _LIMITS[model.arch]
    attributes: dict[str, Value] = {
        "arch": model.arch,
        "multiprocessors": model.multiprocessors,
        "shared_bytes_per_block": shared_kib * _KIB,
        "shared_bytes_per_multiprocessor": multiprocessor_kib * _KIB,
        "reserved_shared_bytes_per_block": _KIB if model.arch >= 80 else 0,
        "registers_per_multiprocessor": 65_536,
        "registers_per_block": 65_536,
        "threads_per_multiprocessor": threads,
        "threads_per_block": 1024,
        "blocks_per_multiprocessor": blocks,
        "warp_size": 32,
        "l2_bytes": model.l2_bytes,
        "memory_bytes": model.memory_bytes,
        "memory_gbps": model.memory_gbps,
    }
    return DeviceProfile(
        name=model.product,
        backend="cuda",
        arch=target(model.arch),
        attributes=attributes,
        peak_gflops=model.tensor_gflops,
    )


def target(arch: int) -> str:
    """The architecture for which NVRTC compiles. From Hopper on it is sm_XXa, with instructions
    that only this architecture has."""
    return f"sm_{arch}a" if arch >= 90 else f"sm_{arch}"


def matches(name: str, found: str) -> bool:
    """Whether the driver's name `found` ("NVIDIA A100-SXM4-80GB") is the model `name`.

    Board and memory may follow the product, after a blank or a hyphen; an L40 is no L4.
    """
    model = _MODELS[name]
    begins = found == model.product or found.startswith((model.product + " ", model.product + "-"))
    return begins and model.variant in found
