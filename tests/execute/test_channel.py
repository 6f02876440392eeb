from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evotune.execute.channel import BlockingChannel, Decoder, GarbledMessage, encode

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@settings(derandomize=True, max_examples=100)
@given(st.lists(json_values, max_size=5), st.integers(1, 7))
def test_messages_arrive_whole_and_in_order_however_the_bytes_are_cut(
    messages: list[object], size: int
) -> None:
    data = b"".join(encode(message) for message in messages)
    decoder = Decoder()
    received = []
    for start in range(0, len(data), size):
        received += decoder.feed(data[start : start + size])
    assert received == messages


@pytest.mark.parametrize(
    "data",
    [
        b"Segmentation fault\n",  # its first bytes are a length beyond every message
        struct.pack(">I", 5) + b"hello",
        struct.pack(">I", 2) + b"\xff\xfe",
        struct.pack(">I", 0),
        struct.pack(">I", 200_000) + b"[" * 200_000,
    ],
)
def test_what_is_no_message_is_told_apart(data: bytes) -> None:
    with pytest.raises(GarbledMessage):
        Decoder().feed(data)


def test_a_message_that_is_not_whole_yet_is_waited_for() -> None:
    decoder = Decoder()
    data = encode({"a": 1})
    assert decoder.feed(data[:-1]) == []
    assert decoder.feed(data[-1:]) == [{"a": 1}]


def test_a_child_hears_that_its_parent_has_gone() -> None:
    read_fd, write_fd = os.pipe()
    channel = BlockingChannel(read_fd, write_fd)
    try:
        channel.send([1, 2])
        channel.send("next")
        assert channel.receive() == [1, 2]
        assert channel.receive() == "next"
        os.close(write_fd)
        assert channel.receive() is None
    finally:
        os.close(read_fd)
