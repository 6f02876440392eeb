"""Reads the registers of each kernel from a cubin, for binaries that came without a compiler's log.

A cubin is an ELF file. Its section `.nv.info` is a row of attributes; the one of registers names a
symbol and its count. (Before CUDA 13 the count was also in the code section's `sh_info`.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from evotune.trial import Json

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ATTRIBUTE = struct.Struct("<BBH")
_PAIR = struct.Struct("<II")
_SIZED = 4  # the format of an attribute whose value follows, with its size in the attribute
_REGISTERS = 0x2F
_INFO = 0x70000000
_SYMBOLS = 2


def with_registers(resources: Mapping[str, Json], binary: Path) -> dict[str, Json]:
    """The compiler's figures of the binary. Where they lack a function's registers, the binary's
    own count stands for them."""
    entries: dict[str, Json] = dict(resources.get("entries", {}))
    for name, count in read_registers(binary).items():
        entries[name] = {"registers": count, **entries.get(name, {})}
    return {**resources, "entries": entries} if entries else dict(resources)


def read_registers(binary: Path) -> dict[str, int]:
    """The registers of a thread of each function; {} where the file is no such cubin."""
    try:
        return dict(_registers(binary.read_bytes()))
    except (OSError, struct.error, IndexError, ValueError):
        return {}


def _registers(data: bytes) -> Iterator[tuple[str, int]]:
    if not data.startswith(_MAGIC):
        return
    header = _HEADER.unpack_from(data)
    start, size, number, names_at = header[6], header[11], header[12], header[13]
    sections = [_SECTION.unpack_from(data, start + each * size) for each in range(number)]
    section_names = sections[names_at][4]
    symbols = next((each for each in sections if each[1] == _SYMBOLS), None)
    info = next(
        (
            each
            for each in sections
            if each[1] == _INFO and _text(data, section_names + each[0]) == ".nv.info"
        ),
        None,
    )
    if info is None or symbols is None:
        return
    symbol_names = sections[symbols[6]][4]
    at, end = info[4], info[4] + info[5]
    while at < end:
        form, name, value = _ATTRIBUTE.unpack_from(data, at)
        at += _ATTRIBUTE.size
        if form != _SIZED:
            continue
        if name == _REGISTERS:
            symbol, count = _PAIR.unpack_from(data, at)
            found = _SYMBOL.unpack_from(data, symbols[4] + symbol * _SYMBOL.size)
            yield _text(data, symbol_names + found[0]), count
        at += value


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()
