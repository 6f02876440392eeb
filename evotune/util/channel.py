"""How messages travel between processes: a 4-byte length, then that many bytes of MessagePack.

It is MessagePack, because JSON has no bytes, infinities or NaN.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

ToWorker = TypeVar("ToWorker")
FromWorker = TypeVar("FromWorker")
Message = TypeVar("Message")
Received = TypeVar("Received")
Sent = TypeVar("Sent")

_HEADER = struct.Struct(">I")
_MAX_BYTES = 64 << 20
_MOST_WORDS = 200  # characters of a decoder's error, which may quote the message


def plain(value: object) -> Any:
    """A hook for msgspec's encoders: turns a NumPy value that is also a Python int, float or str
    into that, and any mapping into a dict. Raises TypeError for anything else."""
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be encoded")


_encoder = msgspec.msgpack.Encoder(enc_hook=plain)


class UnreadableMessage(Exception):
    """Raised if the other side sent something that is not one of its messages."""

    def __init__(self, words: object) -> None:
        text = " ".join(str(words).split())[:_MOST_WORDS]
        super().__init__("".join(each if each.isprintable() else "?" for each in text))


@dataclass(frozen=True, slots=True)
class Wire(Generic[ToWorker, FromWorker]):
    """The types of the messages to and from the worker `python -m <module>`. `worker`: the name of
    the process in error messages."""

    module: str
    worker: str
    to_worker: msgspec.msgpack.Decoder[ToWorker]
    from_worker: msgspec.msgpack.Decoder[FromWorker]


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode(decoder: msgspec.msgpack.Decoder[Message], body: bytes) -> Message:
    """The message in `body`. Raises UnreadableMessage if it cannot be decoded."""
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableMessage(error) from error


def framed(message: msgspec.Struct) -> bytearray:
    """The message, preceded by its length."""
    data = bytearray(_HEADER.size)
    _encoder.encode_into(message, data, _HEADER.size)
    _HEADER.pack_into(data, 0, len(data) - _HEADER.size)
    return data


class Reader(Generic[Message]):
    """Takes bytes as they arrive and returns whole messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()
        self._error: UnreadableMessage | None = None

    @property
    def failed(self) -> bool:
        """Whether an unreadable message has arrived, so that the next `feed` raises."""
        return self._error is not None

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now. Raises UnreadableMessage, but only after all messages
        before the unreadable one have been returned."""
        if self._error is None:
            self._buffer += data
            messages = self._whole_messages()
            if messages or self._error is None:
                return messages
        raise self._error

    def _whole_messages(self) -> list[Message]:
        messages: list[Message] = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > _MAX_BYTES:
                self._error = UnreadableMessage(f"it would be {length} bytes long")
                break
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            try:
                messages.append(decode(self._decoder, body))
            except UnreadableMessage as error:
                self._error = error
                break
        return messages


class BlockingChannel(Generic[Received, Sent]):
    """The worker's side: one message at a time over two file descriptors."""

    def __init__(
        self, read_fd: int, write_fd: int, decoder: msgspec.msgpack.Decoder[Received]
    ) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._reader = Reader(decoder)
        self._ready: list[Received] = []

    def receive(self) -> Received | None:
        """The next message; None if the parent has gone. Raises UnreadableMessage."""
        while not self._ready:
            data = b"" if self._reader.failed else os.read(self._read_fd, 1 << 16)
            if not data and not self._reader.failed:
                return None
            self._ready += self._reader.feed(data)
        return self._ready.pop(0)

    def send(self, message: Sent) -> None:
        assert isinstance(message, msgspec.Struct)
        data = memoryview(framed(message))
        while data:
            data = data[os.write(self._write_fd, data) :]
