"""The instructions of a cubin for Hopper, as far as their order matters here.

An instruction has 16 bytes; the low 12 bits of the first word are its operation. The numbers below
are read off `nvdisasm -c -hex`; NVIDIA documents them nowhere.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

EXP2, MMA, PACK = "MUFU.EX2", "HGMMA", "F2FP"
WAITS = ("wait for all MMA", "wait for all MMA but the last group")

_OPERATIONS = {0x9F0: MMA, 0x23E: PACK}
_MUFU, _MUFU_EXP2 = 0x308, 2
_WARPGROUP, _DEPBAR_BIT = 0x9C5, 1 << 16


def instructions(cubin: bytes, entry: str) -> Iterator[str]:
    """The instructions of a kernel that have a name here, in their order."""
    code = _section(cubin, f".text.{entry}")
    for low, high in struct.iter_unpack("<QQ", code):
        operation = low & 0xFFF
        if operation in _OPERATIONS:
            yield _OPERATIONS[operation]
        elif operation == _MUFU and high >> 10 & 0xF == _MUFU_EXP2:
            yield EXP2
        elif operation == _WARPGROUP and high & _DEPBAR_BIT:
            yield WAITS[high >> 8 & 0xFF]


def _section(elf: bytes, name: str) -> bytes:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + size * i) for i in range(count)]
    names_at = headers[names][4]
    for at, _, _, _, offset, length in headers:
        start = names_at + at
        if elf[start : elf.index(b"\0", start)].decode() == name:
            return elf[offset : offset + length]
    raise AssertionError(f"the cubin has no section {name}")
