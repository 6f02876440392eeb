from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Decoder

from evotune.util.channel import (
    BlockingChannel,
    Reader,
    UnreadableMessage,
    decode,
    encode,
    framed,
)


class Number(msgspec.Struct, frozen=True, tag=True):
    value: int | float


class Names(msgspec.Struct, frozen=True, tag=True):
    values: tuple[str, ...]
    figures: Mapping[str, Any] = {}


MESSAGES: Decoder[Number | Names] = Decoder(Number | Names)
messages = st.builds(Number, st.integers(-(2**63), 2**64 - 1)) | st.builds(
    Names, st.lists(st.text(), max_size=3).map(tuple)
)


@settings(derandomize=True, max_examples=100)
@given(st.lists(messages, max_size=5), st.integers(1, 7))
def test_messages_arrive_whole_and_in_order_however_the_bytes_are_cut(
    sent: list[Number | Names], size: int
) -> None:
    data = b"".join(framed(message) for message in sent)
    reader = Reader(MESSAGES)
    received = []
    for start in range(0, len(data), size):
        received += reader.feed(data[start : start + size])
    assert received == sent


def test_figures_that_are_no_finite_number_cross() -> None:
    for value in (math.inf, -math.inf, math.nan):
        (found,) = Reader(MESSAGES).feed(bytes(framed(Number(value))))
        assert isinstance(found, Number)
        assert repr(found.value) == repr(value)


def test_numbers_of_numpy_cross_as_those_that_they_are() -> None:
    numpy = pytest.importorskip("numpy")
    found = decode(MESSAGES, encode(Names((), {"a": numpy.float64(1.5), "b": [numpy.float64(2)]})))
    assert found == Names((), {"a": 1.5, "b": [2.0]})


def packed(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"Segmentation fault\n", "bytes long"),  # its first bytes are read as a length
        (frame(b"hello"), "Expected `object`"),
        (frame(b'{"type":"Number","value":1}'), "Expected `object`"),  # JSON, not MessagePack
        (frame(b""), "truncated"),
        (frame(packed(Number(1))[:-1]), "truncated"),
        (frame(packed(Number(1)) + b"x"), "trailing"),
        (frame(b"\xff" * 4), "Expected `object`"),
        (frame(b"\x91" * 200_000), "Expected `object`"),
        (frame(packed({"type": "Letter", "value": 1})), "Invalid value 'Letter'"),
        (frame(packed({"value": 1})), "missing required field `type`"),
        (frame(packed({"type": "Number"})), "missing required field `value`"),
        (frame(packed({"type": "Number", "value": "1"})), "got `str` - at `$.value`"),
        (frame(packed({"type": "Names", "values": ["a", 1]})), "got `int` - at `$.values[1]`"),
    ],
)
def test_what_is_no_message_is_told_apart_and_why(data: bytes, words: str) -> None:
    with pytest.raises(UnreadableMessage) as found:
        Reader(MESSAGES).feed(data)
    assert words in str(found.value)


def test_words_about_an_unreadable_message_are_one_short_line() -> None:
    forged = packed({"type": "\x1b[2J\n" + 5000 * "x", "value": 1})
    with pytest.raises(UnreadableMessage) as found:
        decode(MESSAGES, forged)
    assert len(str(found.value)) <= 200
    assert str(found.value).isprintable()


def test_a_message_that_is_not_whole_yet_is_waited_for() -> None:
    reader = Reader(MESSAGES)
    data = framed(Number(1))
    assert reader.feed(data[:-1]) == []
    assert reader.feed(data[-1:]) == [Number(1)]


def test_a_child_hears_that_its_parent_has_gone() -> None:
    read_fd, write_fd = os.pipe()
    channel = BlockingChannel[Number | Names, Number | Names](read_fd, write_fd, MESSAGES)
    try:
        channel.send(Number(2))
        channel.send(Names(("next",)))
        assert channel.receive() == Number(2)
        assert channel.receive() == Names(("next",))
        os.close(write_fd)
        assert channel.receive() is None
    finally:
        os.close(read_fd)
