"""Finds damage in the log (WAL) that a writer which was killed left beside a store.

SQLite reads a log up to the first frame whose checksum fails, and takes the rest for the remains of
an earlier use of the file. So one changed byte ends the history early, without an error. But frames
carry the salts of their use of the log: frames of the present use behind the failed one show that
something was lost. Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from evotune.errors import StoreError
from evotune.store._checksums import has_log, seal_fits, tail
from evotune.util.files import read_regular

Sums: TypeAlias = tuple[int, int]
_HEADER = struct.Struct(">8I")  # magic, version, bytes a page, use, two salts, checksum
_FRAME = struct.Struct(">6I")  # page, pages of the store after a commit or 0, salts, checksum
_MAGIC = 0x377F0682  # 1 more where the checksums are over big-endian words
_CHECKED_BYTES = 24  # of the header, by its checksum
_CHECKED_FRAME_BYTES = 8  # of a frame's header, by the frame's checksum, with the page
_PAGE_SIZES = frozenset(1 << power for power in range(9, 17))
_PAGE_BYTES_AT = 16  # where a main file says how large its pages are
_JOURNAL_MODE_AT = slice(18, 20)  # of a main file: 2 with a log, 1 without
_WORD = 0xFFFFFFFF
_MOST_LOOKS = 5


@dataclass(frozen=True, slots=True)
class _Frame:
    """A page in the log. `whole`: its checksum fits it and the frame before it."""

    start: int
    page: int
    commit: bool
    salts: tuple[int, int]
    whole: bool
    content: memoryview

    def is_of(self, salts: tuple[int, int]) -> bool:
        """Whether it belongs to this use of the log: each use has two new salts, and a changed byte
        leaves one of them."""
        return self.salts[0] == salts[0] or self.salts[1] == salts[1]


@dataclass(frozen=True, slots=True)
class _Log:
    readable: bool
    """Whether the header is as it was written; else SQLite ignores the log."""
    salts: tuple[int, int]
    frames: tuple[_Frame, ...]


def check_log(store: Path, connection: sqlite3.Connection) -> None:
    """StoreError where the log is not this store's, or where changes in it that were committed can
    no longer be read. A store that somebody writes to passes."""
    # A writer that closes the store at this moment removes the log, then makes the seal.
    if has_log(store) and seal_fits(store) and has_log(store):
        raise StoreError(
            f"{store}-wal belongs to another store: {store.name} was closed without a log; "
            f"nothing was changed: move {store.name}-wal and {store.name}-shm out of the folder, "
            "or copy both from one moment"
        )
    found = _damage(_content(store), _page_bytes(store))
    if found is not None:
        log, place = found
        held, seen = _outcomes_in(store, log), _outcomes(connection)
        gone = "the last changes may be gone"
        if held is not None and seen is not None and held > seen:
            gone = f"{held - seen} of {held} outcomes are surely lost"
        raise StoreError(
            f"the log {store}-wal is damaged near byte {place}: {gone}; "
            "nothing was changed: copy the run's folder; in the copy "
            f"`sqlite3 {store.name} 'PRAGMA wal_checkpoint(TRUNCATE)'` keeps what lies before it"
        )


def _content(store: Path) -> bytes:
    """The log as it was at one moment; empty where there is none, or a writer never rests."""
    path = Path(f"{store}-wal")
    before: bytes | None = None
    for _ in range(_MOST_LOOKS):
        try:
            content = read_regular(path)
        except FileNotFoundError:
            return b""
        if content == before:
            return content
        before = content
    return b""


def _page_bytes(store: Path) -> int:
    """The size of the main file's pages."""
    head = read_regular(store, _PAGE_BYTES_AT + 2)
    size = int.from_bytes(head[_PAGE_BYTES_AT:], "big")
    return 65536 if size == 1 else size


def _damage(content: bytes, page_bytes: int) -> tuple[_Log, int] | None:
    """The log and the place of its first damage; None for any log that a killed writer leaves.

    Such a log may end with a transaction that was not committed or with half a frame, which may
    lie over an older frame, and frames of an earlier use may follow.
    """
    log = _parsed(content, page_bytes)
    if log is None:
        return None
    if not log.readable:
        return log, 0
    intact = itertools.takewhile(lambda each: each.salts == log.salts and each.whole, log.frames)
    rest = log.frames[len(list(intact)) :]
    present = [frame for frame in rest if frame.is_of(log.salts)]
    torn = len(present) == 1 and len(rest) > 1
    if present and not torn and (len(rest) == 1 or any(frame.commit for frame in present)):
        return log, rest[0].start
    return None


def _parsed(content: bytes, page_bytes: int) -> _Log | None:
    """None for a log without a frame. `page_bytes` is what the main file says; a log with an
    undamaged header knows better."""
    if len(content) < _HEADER.size + _FRAME.size:
        return None
    magic, version, told_bytes, _, *rest = _HEADER.unpack_from(content)
    salts, sums = (rest[0], rest[1]), (rest[2], rest[3])
    order = ">" if magic & 1 else "<"
    readable = (magic & ~1, version) == (_MAGIC, 3007000) and sums == _summed(
        content[:_CHECKED_BYTES], (0, 0), order
    )
    if readable:
        page_bytes = told_bytes
    else:  # the first frame tells what the header should
        order = "<" if struct.pack("=I", 1)[0] else ">"
        first = _FRAME.unpack_from(content, _HEADER.size)
        salts = (first[2], first[3])
    size = _FRAME.size + page_bytes
    if page_bytes not in _PAGE_SIZES or len(content) < _HEADER.size + size:
        return None
    return _Log(readable, salts, tuple(_frames(content, size, sums, order)))


def _frames(content: bytes, size: int, before: Sums, order: str) -> Iterator[_Frame]:
    view = memoryview(content)
    for start in range(_HEADER.size, len(content) - size + 1, size):
        page, pages, one, other, *sums = _FRAME.unpack_from(content, start)
        body = view[start + _FRAME.size : start + size]
        found = _summed(view[start : start + _CHECKED_FRAME_BYTES], before, order)
        found = _summed(body, found, order)
        before = (sums[0], sums[1])
        yield _Frame(start, page, pages > 0, (one, other), found == before, body)


def _summed(content: bytes | memoryview, before: Sums, order: str) -> Sums:
    """SQLite's checksum of the content, which goes on from another one."""
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    one, other = before
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + other) & _WORD
        other = (other + second + one) & _WORD
    return one, other


# --- How many outcomes are gone ------------------------------------------------------------------


def _outcomes(connection: sqlite3.Connection) -> int | None:
    """The number of outcomes that the store says it holds; None where it cannot be read."""
    try:
        return tail(connection, "outcomes")[0]
    except sqlite3.Error:
        return None


def _outcomes_in(store: Path, log: _Log) -> int | None:
    """The outcomes that the store held, as far as the undamaged frames tell."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / store.name
        shutil.copyfile(store, copy)
        with copy.open("r+b") as file:
            for frame in log.frames:
                if frame.whole and frame.is_of(log.salts):
                    file.seek((frame.page - 1) * len(frame.content))
                    file.write(frame.content)
            file.seek(_JOURNAL_MODE_AT.start)
            file.write(b"\1\1")
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            return _outcomes(connection)
