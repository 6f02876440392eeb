"""A CUDA rung before Hopper's compiled for the CPU and run as a space launches it.

The files are compiled unchanged, except for the headers that hold only instructions, and for two
lines: where shared memory is declared, and the one instruction of parts/strides.cuh.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

from evotune.backends.base.launch import LaunchPlan
from evotune.backends.base.session import c_value
from evotune.workers.executor import CaseJob
from tests.attention_kernels.hopper.emulation import (
    KERNELS,
    REPLACEMENT,
    Array,
    Memory,
    Ran,
    compiled,
    in_child,
)

HERE = Path(__file__).parent
REPLACED = ("parts/arithmetic.cuh", "parts/async_copy.cuh", "parts/blocks.cuh", "mma.h")
_SHARED = ("1024", "128", "16")
INSTRUCTION = (
    'asm("mad.wide.s32 %0, %1, %2, %3;\\n" : "=l"(to) : "r"(row_bytes), "r"(rows), "l"(from));'
)
SUM = "to = reinterpret_cast<unsigned long long>(from) + static_cast<long long>(row_bytes) * rows;"


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_int * 3),
        ("threads", ctypes.c_int),
        ("shared_bytes", ctypes.c_int),
        ("seed", ctypes.c_uint),
        ("left_over", ctypes.c_int),
    )


def build(folder: Path, job: CaseJob, mistakes: Mapping[str, str] | None = None) -> Path:
    """A shared library of the job's kernel. `mistakes` maps texts of the kernel to wrong ones."""
    left = dict(mistakes or {})
    replaced = {INSTRUCTION: SUM}
    for alignment in _SHARED:
        declared = f"extern __shared__ __align__({alignment}) unsigned char shared_memory[];\n"
        replaced[declared] = ""
    for source in (*KERNELS.rglob("*.cu*"), *KERNELS.rglob("*.h")):
        text = source.read_text()
        for old, new in replaced.items():
            text = text.replace(old, new)
        for right in [right for right in left if right in text]:
            text = text.replace(right, left.pop(right), 1)
        to = folder / source.relative_to(KERNELS)
        to.parent.mkdir(exist_ok=True)
        to.write_text(text)
    assert not left, f"nowhere in the kernel: {left}"
    for name in REPLACED:
        (folder / name).write_text(REPLACEMENT)
    (folder / "kernel.cu").write_text((folder / Path(job.compile.source).name).read_text())
    return compiled(folder, HERE / "launching.hpp", [f"-I{folder}", *job.compile.macros])


def run(library: Path, job: CaseJob, inputs: dict[str, Array], seed: int) -> Ran:
    """Runs the job's plan in a child process, since the model ends its process at a mistake."""
    memory = Memory(job.case, inputs)
    return in_child(memory, lambda: _call(library, job.plan, memory, seed))


def _call(library: Path, plan: LaunchPlan, memory: Memory, seed: int) -> None:
    launch(library, plan, {name: room.ctypes.data for name, room in memory.rooms.items()}, seed)


def launch(
    library: Path,
    plan: LaunchPlan,
    tensors: Mapping[str, int],
    seed: int,
    left_over: int = 0xFF,
) -> None:
    """Makes the plan's launches on tensors at these addresses. `left_over`: the bytes of shared
    memory before a block writes them."""
    pointers = dict(tensors)
    scratch = []
    for workspace in plan.workspaces:
        fill = 0 if workspace.init == "zero_once" else 0xFF
        scratch.append((ctypes.c_ubyte * (workspace.bytes + 16))(*[fill] * workspace.bytes))
        pointers[workspace.name] = (
            ctypes.addressof(scratch[-1]) + -ctypes.addressof(scratch[-1]) % 16
        )
    kinds = ("tensor", "workspace")
    values = [
        ctypes.c_void_p(pointers[each.name]) if each.type in kinds else c_value(each)
        for each in plan.arguments
    ]
    addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    functions = ctypes.CDLL(str(library))
    for each in plan.launches:
        grid = (*each.grid, 1, 1)[:3]
        given = _Launch((ctypes.c_int * 3)(*grid), each.threads, each.shared_bytes, seed, left_over)
        functions[f"run_{each.entry}"](ctypes.byref(given), addresses)
