"""Messages between evotune and its child processes: 4-byte length, then that much JSON."""

from __future__ import annotations

import json
import os
import struct

from evotune.trial import Json

_HEADER = struct.Struct(">I")
_MAX_BYTES = 64 << 20
# json.dumps makes an encoder each time.
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class GarbledMessage(Exception):
    """The other side sent something that is not a message."""


def encode(message: Json) -> bytes:
    body = _encode(message).encode()
    return _HEADER.pack(len(body)) + body


class Decoder:
    """Takes bytes as they come, gives whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Json]:
        """Raises GarbledMessage on a length or a body that makes no sense."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > _MAX_BYTES:
                raise GarbledMessage(f"a message of {length} bytes")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            try:
                messages.append(json.loads(body))
            except (ValueError, RecursionError) as error:
                raise GarbledMessage(str(error)) from error
        return messages


class BlockingChannel:
    """The child's side: one message at a time over two file descriptors."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._decoder = Decoder()
        self._ready: list[Json] = []

    def receive(self) -> Json | None:
        """The next message; None when the parent has gone."""
        while not self._ready:
            data = os.read(self._read_fd, 1 << 16)
            if not data:
                return None
            self._ready += self._decoder.feed(data)
        return self._ready.pop(0)

    def send(self, message: Json) -> None:
        data = memoryview(encode(message))
        while data:
            data = data[os.write(self._write_fd, data) :]
