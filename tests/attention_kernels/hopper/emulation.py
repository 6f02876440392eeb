"""A Hopper kernel compiled for the CPU and run as a space launches it.

The kernel's own files are compiled unchanged, except for the headers that hold only instructions:
`device.hpp` replaces these, with `model.cpp` of the rungs before Hopper's.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evotune.backends.base.launch import Argument, CompileJob, LaunchPlan
from evotune.backends.base.session import c_value
from evotune.problems.attention import Attention
from evotune.problems.problem import Case

HERE = Path(__file__).parent
KERNELS = Path(__file__).parents[3] / "kernels" / "attention"
REPLACED = ("parts/arithmetic.cuh", "parts/blocks.cuh", "wgmma/product.cuh", "wgmma/tma.cuh")
REPLACEMENT = "#pragma once\nusing Element = unsigned short;\n"
COMPILED = ("4_tma.cu", "5_wgmma.cu", "wgmma/*.cuh", "parts/*.cuh")
COMPILED += ("parts/features.h", "parts/mask.h")
COMPILER = (
    *("g++", "-std=c++20", "-Og", "-w", "-Wno-psabi", "-fPIC"),
    # A GPU stops at an address that is no multiple of the access's size, and so does the model.
    *("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"),
)
MODEL = HERE.parent / "warps" / "model.cpp"
_GUARD_BYTES = 4096
_POISON, _BETWEEN = 0xFFFF, 0x7FFA  # NaN in both types

Array = npt.NDArray[np.float32]


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("extents", ctypes.c_int * 4),
        ("box", ctypes.c_int * 4),
        ("swizzle_bits", ctypes.c_int),
        ("strides", ctypes.c_longlong * 4),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("blocks", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("shared_bytes", ctypes.c_int),
        ("seed", ctypes.c_uint),
        ("left_over", ctypes.c_int),
    )


def build(folder: Path, job: CompileJob, mistakes: Mapping[str, str] | None = None) -> Path:
    """A shared library of the job's kernel. `mistakes` maps texts of the kernel to the wrong texts
    that replace them."""
    left = dict(mistakes or {})
    for source in (source for pattern in COMPILED for source in KERNELS.glob(pattern)):
        text = source.read_text()
        for right in [right for right in left if right in text]:
            text = text.replace(right, left.pop(right), 1)
        to = folder / source.relative_to(KERNELS)
        to.parent.mkdir(exist_ok=True)
        to.write_text(text)
    assert not left, f"nowhere in the kernel: {left}"
    for name in REPLACED:
        (folder / name).write_text(REPLACEMENT)
    options = [f"-I{folder}", *job.macros, f'-DKERNEL_FILE="{Path(job.source).name}"']
    return compiled(folder, HERE / "device.hpp", options)


def compiled(folder: Path, header: Path, options: Sequence[str]) -> Path:
    """A shared library in `folder` of the harness beside `header`, which it includes first.

    The header and the model are compiled once for all tests, those of other xdist workers too: no
    option changes them, and they take nine tenths of the time.
    """
    own = folder.parent
    once = (own.parent if own.name.startswith("popen-") else own) / "compiled_once"
    once.mkdir(exist_ok=True)
    included, model = once / f"{header.parent.name}.hpp", once / "model.o"
    _make(once / f"{included.name}.gch", "-x", "c++-header", str(header))
    _make(model, "-O1", "-c", str(MODEL))
    library = Path(tempfile.mkdtemp(dir=folder)) / "kernel.so"  # a folder may get several kernels
    parts = (str(header.parent / "harness.cpp"), str(model))
    _make(library, "-shared", "-include", str(included), f"-I{header.parent}", *options, *parts)
    return library


def _make(file: Path, *options: str) -> None:
    """Compiles a file that does not exist yet. Another process may do so at the same time."""
    if not file.exists():
        unfinished = file.with_name(f"{file.name}.{os.getpid()}")
        subprocess.run([*COMPILER, *options, "-o", str(unfinished)], check=True)
        unfinished.replace(file)


@dataclasses.dataclass(frozen=True)
class Ran:
    """The result of a plan's launches: the output, or the mistake that the model found."""

    out: Array | None
    complaint: str


class Memory:
    """The tensors of a case as it lays them out: NaN between rows, and poison in the output."""

    def __init__(self, case: Case, inputs: dict[str, Array]) -> None:
        self.dtype = str(case.symbols["dtype"])
        self.rooms: dict[str, npt.NDArray[np.uint16]] = {}
        self._views: dict[str, npt.NDArray[np.uint16]] = {}
        for spec in Attention(self.dtype).tensors(case):
            room = np.full(spec.span, _BETWEEN, dtype=np.uint16)
            strides = tuple(2 * stride for stride in spec.all_strides)
            view = np.lib.stride_tricks.as_strided(room, spec.shape, strides)
            view[:] = _POISON if spec.is_output else narrowed(inputs[spec.name], self.dtype)
            self.rooms[spec.name], self._views[spec.name] = room, view
        self._before = {name: room.copy() for name, room in self.rooms.items()}

    @property
    def shape(self) -> tuple[int, ...]:
        return self._views["out"].shape

    def written(self) -> npt.NDArray[np.uint16]:
        """The output. Ends the process if anything else was written."""
        written = self._views["out"].copy()
        self._views["out"][:] = _POISON
        for name, room in self.rooms.items():
            if (room != self._before[name]).any():
                _fail(f"something was written to {name} or between its rows")
        return written


def run(library: Path, plan: LaunchPlan, case: Case, inputs: dict[str, Array], seed: int) -> Ran:
    """Runs a plan in a child process, since the model ends its process at a mistake."""
    memory = Memory(case, inputs)
    return in_child(memory, lambda: _call(library, plan, memory, seed))


def in_child(memory: Memory, launch: Callable[[], None]) -> Ran:
    """What a launch in a child process writes."""
    read_end, write_end = os.pipe()
    error_end, error_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(error_write, 2)
        launch()
        with os.fdopen(write_end, "wb") as stream:
            stream.write(memory.written().tobytes())
        os._exit(0)
    os.close(write_end)
    os.close(error_write)
    with os.fdopen(read_end, "rb") as stream, os.fdopen(error_end, "rb") as errors:
        data, words = stream.read(), errors.read().decode()
    _, status = os.waitpid(child, 0)
    if status:
        return Ran(None, words.strip() or f"status {status}")
    bits = np.frombuffer(data, dtype=np.uint16).reshape(memory.shape)
    return Ran(_widened(bits, memory.dtype), "")


def _call(library: Path, plan: LaunchPlan, memory: Memory, seed: int) -> None:
    launch(library, plan, {name: room.ctypes.data for name, room in memory.rooms.items()}, seed)


def launch(
    library: Path,
    plan: LaunchPlan,
    tensors: Mapping[str, int],
    seed: int,
    left_over: int = 0xFF,
) -> None:
    """Makes the plan's launches on tensors at these addresses. Each workspace is poisoned, and so
    are the guards before and behind it. `left_over`: the bytes of shared memory before a block
    writes them."""
    scratch = {
        workspace.name: np.full(workspace.bytes + 2 * _GUARD_BYTES, 0xFF, dtype=np.uint8)
        for workspace in plan.workspaces
    }
    pointers = dict(tensors)
    pointers |= {name: room.ctypes.data + _GUARD_BYTES for name, room in scratch.items()}
    addresses, kept = addresses_of(plan, pointers)
    assert kept
    functions = ctypes.CDLL(str(library))
    for each in plan.launches:
        blocks = _Launch(each.grid[0], each.threads, each.shared_bytes, seed, left_over)
        functions[f"run_{each.entry}"](ctypes.byref(blocks), addresses)
    for room in scratch.values():
        if (room[:_GUARD_BYTES] != 0xFF).any() or (room[-_GUARD_BYTES:] != 0xFF).any():
            _fail("something was written beside the workspace")


def addresses_of(plan: LaunchPlan, pointers: Mapping[str, int]) -> tuple[Any, list[object]]:
    """The addresses of the plan's arguments, as an array, and the objects that lie there.
    `pointers` are the addresses of tensors and workspaces by name."""
    mapped = [each for each in plan.arguments if each.tensor_map is not None]
    # A map has 128 bytes, aligned to 64; its first word is the address of a _Tensor.
    maps = np.zeros((len(mapped) + 1, 16), dtype=np.uint64)
    place = maps.ctypes.data + -maps.ctypes.data % 64
    kept: list[Any] = [maps]
    addresses = (ctypes.c_void_p * len(plan.arguments))()
    for number, argument in enumerate(plan.arguments):
        pointer = pointers.get(argument.name)
        if argument.tensor_map is not None:
            kept.append(_tensor(argument, pointers[argument.name]))
            ctypes.c_void_p.from_address(place).value = ctypes.addressof(kept[-1])
            addresses[number] = place
            place += 128
        else:
            kept.append(c_value(argument) if pointer is None else ctypes.c_void_p(pointer))
            addresses[number] = ctypes.addressof(kept[-1])
    return addresses, kept


def _tensor(argument: Argument, address: int) -> _Tensor:
    """Up to four dimensions; the outermost ones that are missing have one element."""
    tensor_map = argument.tensor_map
    assert tensor_map is not None
    missing = (1,) * (4 - len(tensor_map.box))
    tensor = _Tensor()
    tensor.data = address
    tensor.extents[:] = (*tensor_map.extents[::-1], *missing)
    tensor.box[:] = (*tensor_map.box[::-1], *missing)
    strides = (1, *(stride // 2 for stride in tensor_map.strides_bytes()[::-1]))
    tensor.strides[:] = (*strides, *missing)
    tensor.swizzle_bits = {0: 0, 64: 2, 128: 3}[tensor_map.swizzle_bytes]
    return tensor


def _fail(words: str) -> None:
    sys.stderr.write(words)
    sys.stderr.flush()
    os._exit(3)


def narrowed(values: Array, dtype: str) -> npt.NDArray[np.uint16]:
    """The bits of the values in a 16-bit type; bfloat16 is truncated."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16).view(np.uint16)


def _widened(bits: npt.NDArray[np.uint16], dtype: str) -> Array:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


def reference(case: Case, inputs: dict[str, Array]) -> npt.NDArray[np.float64]:
    """The expected output in float64, from the rounded inputs."""
    dtype = str(case.symbols["dtype"])
    q, k, v = (_widened(narrowed(inputs[name], dtype), dtype).astype(np.float64) for name in "qkv")
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = float(case.symbols["softmax_scale"]) * q @ k.swapaxes(-1, -2)
    if case.symbols["causal"]:
        scores[..., ~np.tri(q.shape[2], k.shape[2], dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: npt.NDArray[np.float64] = (weights / weights.sum(axis=-1, keepdims=True)) @ v
    return result


def inputs_of(case: Case, seed: int) -> dict[str, Array]:
    """Normal values; the queries are so large that the weights differ."""
    rng = np.random.default_rng(seed)
    s = {name: int(value) for name, value in case.symbols.items() if isinstance(value, int)}
    shapes = {
        "q": (s["batch"], s["heads"], s["seq_len_q"], s["head_dim"]),
        "k": (s["batch"], s["kv_heads"], s["seq_len_k"], s["head_dim"]),
    }
    shapes["v"] = shapes["k"]
    found = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    found["q"] *= 3.0
    return found
