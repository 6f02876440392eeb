"""The messages between `importing` and `recorder`, the process that runs a Kernel Tuner script.

An expression is text in Python's syntax over the names of tunables.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec.msgpack import Decoder

from evotune.util.channel import Wire

TunableValue: TypeAlias = bool | int | str


class RunScript(msgspec.Struct, frozen=True, tag=True):
    """Run the script's `content` and record a call of tune_kernel.

    - path: the script's absolute path
    - kernel: the name of the kernel whose call is wanted; "": the first call
    - scratch: a folder for what the script writes after it got an invented result
    - memory_bytes: how much memory the script may take
    """

    path: str
    content: bytes
    arguments: tuple[str, ...]
    kernel: str
    scratch: str
    memory_bytes: int


class Array(msgspec.Struct, frozen=True):
    """An array without its data.

    - name: the script's variable; "" if none is found
    - low, high: the smallest and the largest element of an array of integers
    - is_sorted: no element of an array of integers is smaller than the one before
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    all_zero: bool
    low: int = 0
    high: int = 0
    is_sorted: bool = False


class Pointer(msgspec.Struct, frozen=True, tag=True):
    """An argument that is an array; `array` is its place in `TuneCall.arrays`. -1: null."""

    array: int


class Scalar(msgspec.Struct, frozen=True, tag=True):
    value: int | float
    dtype: str


class Variant(msgspec.Struct, frozen=True):
    """The source's text for these values of some tunables."""

    values: dict[str, TunableValue]
    text: str


class TuneCall(msgspec.Struct, frozen=True, tag=True):
    """A recorded call.

    - line: where the script makes it
    - files: the files of the source, the kernel's first; else `variants` has the source as text
    - lang: "" if the script names none
    - problem_size, grid_div: a list of sizes, and of divisors for each axis, None if the script
      gives none
    - answered: places of arguments for which `answer` has a value
    - computed: a torch expression over the arrays' places ("a0 + a1") by the place of an argument
    - defines: macros; None if each tunable is one
    - left_out: the names of arguments of tune_kernel that evotune ignores
    """

    line: int
    kernel_name: str
    files: tuple[str, ...]
    variants: tuple[Variant, ...]
    lang: str
    problem_size: tuple[int | str, ...]
    grid_div: tuple[tuple[int | str, ...] | None, ...]
    block_size_names: tuple[str, ...] | None
    tunables: dict[str, tuple[TunableValue, ...]]
    restrictions: tuple[str, ...]
    arrays: tuple[Array, ...]
    arguments: tuple[Pointer | Scalar, ...]
    constant_memory: dict[str, int]
    shared_bytes: int | str
    answered: tuple[int, ...]
    computed: dict[int, str]
    defines: dict[str, str] | None
    compiler_options: tuple[str, ...]
    left_out: tuple[str, ...]


class NotRecorded(msgspec.Struct, frozen=True, tag=True):
    """No call was recorded, or one that a space cannot express. `line` 0: no particular line.
    `environment`: something is missing on this machine."""

    message: str
    line: int = 0
    environment: bool = False


Recorded: TypeAlias = TuneCall | NotRecorded

RECORDER: Wire[RunScript, Recorded] = Wire(
    "evotune.extras.kernel_tuner.recorder",
    "the script's process",
    Decoder(RunScript),
    Decoder(Recorded),
)
