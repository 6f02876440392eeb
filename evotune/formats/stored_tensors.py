"""Tensors in safetensors files, in which FlashInfer-Bench's workloads keep lengths and indices.

The format: eight bytes with the length of a header, the header as JSON (for each tensor its type,
its shape, and where its data begin and end), the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from evotune.errors import UsageError
from evotune.problems.problem import ELEMENT_BYTES, element_type, torch_dtype

if TYPE_CHECKING:
    import torch

_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_MOST_HEADER = 100 << 20


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in its file, in bytes, and its type as evotune calls it."""

    file: str
    start: int
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def find(cls, file: Path, key: str) -> StoredTensor:
        """Reads the header alone. Raises UsageError if the file has no such tensor."""
        try:
            with file.open("rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                header = opened.read(length) if length <= _MOST_HEADER else b""
            size = file.stat().st_size
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror or error}") from error
        try:
            raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
            found = msgspec.json.decode(raw[key], type=_Entry) if key in raw else None
        except ValueError as error:
            raise UsageError(f"{file}: this is no safetensors file") from error
        if found is None:
            raise UsageError(f"{file}: there is no tensor {key!r}")
        if found.dtype not in _TYPES:
            raise UsageError(f"{file}: {key}: evotune does not support {found.dtype}")
        dtype = _TYPES[found.dtype]
        start, end = found.data_offsets
        nbytes = math.prod(found.shape) * ELEMENT_BYTES[dtype]
        if min(found.shape, default=0) < 0 or end - start != nbytes or start < 0:
            raise UsageError(f"{file}: {key}: its shape and its data do not match")
        if 8 + length + end > size:
            raise UsageError(f"{file}: {key}: the file is shorter than it says")
        return cls(str(file.absolute()), 8 + length + start, dtype, found.shape)

    def read(self) -> torch.Tensor:
        """The tensor on the CPU."""
        import torch

        count = math.prod(self.shape)
        with open(self.file, "rb") as opened:
            opened.seek(self.start)
            content = bytearray(opened.read(count * ELEMENT_BYTES[self.dtype]))
        return torch.frombuffer(content, dtype=torch_dtype(self.dtype)).reshape(self.shape)


def safetensors_content(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """A file with these tensors."""
    import torch

    names = {own: theirs for theirs, own in _TYPES.items()}
    header: dict[str, object] = {}
    data = b""
    for name, tensor in tensors.items():
        own = tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        offsets = (len(data), len(data) + len(own))
        dtype = names[element_type(tensor.dtype)]
        header[name] = _Entry(dtype, tuple(tensor.shape), offsets)
        data += own
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data
