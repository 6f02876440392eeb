"""What the device worker and the processes of callables say to each other.

Messages go over Unix sockets that keep their bounds (SOCK_SEQPACKET), as MessagePack; descriptors
travel beside them. Calls take a shorter way, since they are timed: the worker writes a word into a
page of shared memory, and the host answers with DONE, the word's number, and the addresses of the
results, if the function returned them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from evotune.backends.base.launch import CallPlan
from evotune.trial import Value

WAKE, READY, DONE = b"W", b"R", b"D"
"""First bytes that no MessagePack map has. A host that was woken answers READY, and spins."""
CALL, REST, RUN = 1, 2, 3
"""What a word asks for: one call, the end of all threads of PyTorch's pool, or some calls of a row.
"""
WORD, AWAKE, CHOSEN = 0, 8, 16
"""Places of 64-bit words in the page, of cache lines apart: the word, 1 while the host spins, and
the segments of a row that are to run, one a bit.
"""
PAGE_BYTES = 4096
NUMBER_BIT = 24
"""A word's release number begins here; the slot is below it, and the request in the last two bits.
"""


def word(number: int, slot: int, request: int) -> int:
    """The word of release `number`, for the call that was bound as `slot`."""
    return number << NUMBER_BIT | slot << 2 | request


def segments(count: int) -> list[range]:
    """The parts of a row of `count` calls: 1, 2, 4, ... calls, and what is left. Some parts have
    any number of calls together."""
    sizes: list[int] = []
    while 2 * sum(sizes) + 1 <= count:
        sizes.append(sum(sizes) + 1)
    sizes += [count - sum(sizes)] if sum(sizes) < count else []
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def chosen(wanted: int, count: int, *, complement: bool = False) -> int:
    """The segments of a row of `count` calls that have `wanted` calls together, one a bit. With
    `complement` they are those that other segments leave, so that calls differ."""
    if complement:
        return chosen(count, count) & ~chosen(count - wanted, count)
    bits = 0
    for number, calls in sorted(enumerate(segments(count)), key=lambda each: -len(each[1])):
        if len(calls) <= wanted:
            bits |= 1 << number
            wanted -= len(calls)
    assert not wanted
    return bits


class Fork(msgspec.Struct, frozen=True, tag=True):
    """To the zygote, with the host's socket, its page and the file for its output: starts a host.
    It may take `memory_bytes` more than now, write files of `file_bytes`, and use a GPU if it may
    take a `gpu_share` of its memory."""

    threads: int
    memory_bytes: int
    file_bytes: int
    gpu_share: float = 0.0


class End(msgspec.Struct, frozen=True, tag=True):
    """To the zygote: kills the host, after it had `grace_s` to end by itself, and all processes
    that hosts left behind."""

    pid: int
    grace_s: float = 0.0


class Forked(msgspec.Struct, frozen=True, tag=True):
    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """`status`: as subprocess gives it; negative for a signal."""

    status: int


ToZygote: TypeAlias = Fork | End
FromZygote: TypeAlias = Forked | Ended


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Memory of a tensor: the number of a shared block, and the offset in bytes."""

    block: int
    offset: int


class Attach(msgspec.Struct, frozen=True, tag=True):
    """Maps the block whose descriptor comes along, or that of a GPU with this `handle`."""

    block: int
    nbytes: int
    handle: bytes = b""


class Load(msgspec.Struct, frozen=True, tag=True):
    """Imports `module` from `folder`; its function `entry` makes callables. `graphs`: on a GPU,
    rows of calls are to be captured."""

    folder: str
    module: str
    entry: str
    configuration: tuple[tuple[str, Value], ...]
    graphs: bool = False


class Build(msgspec.Struct, frozen=True, tag=True):
    """Makes the callable for a case, and calls it once on copies of the inputs, which lie at the
    places of all tensors of the plan. An output's place means nothing. `captures`: also tries to
    capture a call."""

    number: int
    plan: CallPlan
    places: tuple[Place, ...]
    captures: bool = False


class Bind(msgspec.Struct, frozen=True, tag=True):
    """Prepares calls of the callable `build` on these tensors. `build` -1: of one that does
    nothing, which takes the outputs if `given`. `copies`: results are copied into the outputs as a
    part of the call. `dropped`: blocks that are not used any more."""

    slot: int
    build: int
    plan: CallPlan
    places: tuple[Place, ...]
    given: bool = False
    copies: bool = False
    dropped: tuple[int, ...] = ()


class Row(msgspec.Struct, frozen=True, tag=True):
    """Prepares rows of calls that were bound as `calls`, as the slot `slot`: its word makes the
    calls of the segments in CHOSEN, the last segment first, and one answer has all results. On a
    GPU results stay in the host, or a part of each call `copies` them into the outputs."""

    slot: int
    calls: tuple[int, ...]
    copies: bool = False


class Answer(msgspec.Struct, frozen=True, tag=True):
    """A message was obeyed. To a Build: whether the callable takes the outputs by name (`given`),
    and whether a `graph` could be captured. To a Row: whether it is made of graphs, and the places
    of all calls' results in memory with these `handles`."""

    given: bool = False
    graph: bool = False
    handles: tuple[bytes, ...] = ()
    results: tuple[Place, ...] = ()


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The candidate raised an error, in one line. `lack`: what it lacked, if that was `memory`,
    `file` room, `room` on the GPU, or a valid `address` there."""

    words: str
    lack: str = ""


ToHost: TypeAlias = Attach | Load | Build | Bind | Row
FromHost: TypeAlias = Answer | Raised

TO_ZYGOTE: msgspec.msgpack.Decoder[ToZygote] = msgspec.msgpack.Decoder(ToZygote)
FROM_ZYGOTE: msgspec.msgpack.Decoder[FromZygote] = msgspec.msgpack.Decoder(FromZygote)
TO_HOST: msgspec.msgpack.Decoder[ToHost] = msgspec.msgpack.Decoder(ToHost)
FROM_HOST: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)
