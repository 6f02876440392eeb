"""varlen/walk.cuh on the CPU: every tile once, those with the most keys first."""

from __future__ import annotations

import ctypes
import itertools
import random
import shutil
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tests.shipped_kernels import emulation

from .hopper.emulation import KERNELS, compiled

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

GROUPS, BLOCK_N, HEADS, HEAD_SECTION = 2, 96, 5, 2
BLOCK_M = 64 * GROUPS
LISTING = """
#include "varlen/walk.cuh"

extern "C" void list_tiles(const int* q, const int* k, int sequences, int heads, int heads_log2,
                           int* counter, int* found, int* count) {
  PackedWalk walk(q, k, sequences, heads, {heads_log2}, counter);
  for (; walk.has(); walk.next()) {
    const PackedTile tile = walk.find();
    if (threadIdx.x) continue;
    const int words[8] = {int(blockIdx.x), tile.first_q, tile.rows,        tile.first_k,
                          tile.keys,       tile.head,    tile.first_query, walk.number};
    for (int i = 0; i < 8; ++i) found[8 * *count + i] = words[i];
    ++*count;
  }
}
"""
Lengths = Sequence[tuple[int, int]]
Listed = tuple[int, ...]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[bool, str], ctypes.CDLL]:
    folder, found = tmp_path_factory.mktemp("walk"), {}
    source = folder / "list_tiles.cu"
    source.write_text(LISTING)
    macros = {"BLOCK_N": BLOCK_N, "CONSUMER_WARPGROUPS": GROUPS}
    macros |= {"HEAD_SECTION": HEAD_SECTION, "WALK_SNAKE": 1, "WALK_QUEUE": 2}
    for causal, walk in itertools.product((False, True), ("SNAKE", "QUEUE")):
        options = [f"-D{name}={value}" for name, value in macros.items()]
        options += [f"-DCAUSAL={int(causal)}", f"-DWALK=WALK_{walk}", "-DENTRIES=RUN(list_tiles)"]
        options += [f"-I{KERNELS}", f'-DKERNEL_FILE="{source}"']
        library = compiled(folder, emulation.HERE / "device.hpp", options)
        found[causal, walk] = ctypes.CDLL(str(library))
    return found


def listed(library: ctypes.CDLL, lengths: Lengths, blocks: int, heads_log2: int) -> list[Listed]:
    """Of each tile in turn: its block, rows, keys, head, first query and number."""
    tables = [np.cumsum([0, *each], dtype=np.int32) for each in zip(*lengths, strict=True)]
    rows = (sum(n for n, _ in lengths) * 64 + len(lengths) * BLOCK_M) * HEADS
    counter, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
    found = np.zeros((rows // BLOCK_M + 1, 8), np.int32)
    arrays = [*tables, counter, found, count]
    q, k, *others = (ctypes.c_void_p(array.ctypes.data) for array in arrays)
    numbers = [ctypes.c_int(n) for n in (len(lengths), HEADS, heads_log2)]
    values = [q, k, *numbers, *others]
    addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
    launch = emulation._Launch((ctypes.c_int * 3)(blocks, 1, 1), 32, 0, 0, 0xFF)
    library.run_list_tiles(ctypes.byref(launch), addresses)
    assert counter[0] == 0
    return [tuple(map(int, words)) for words in found[: count[0]]]


def expected(lengths: Lengths, causal: bool, heads_log2: int) -> Iterator[Listed]:
    """All tiles in their order: first row of q, rows, first key, keys, head, first query."""
    queries = BLOCK_M >> heads_log2
    tiles, first_q, first_k = [], 0, 0
    for number, (rows, keys) in enumerate(lengths):
        for first in range(0, rows, queries):
            last = min(first + queries, rows) - 1
            seen = max(keys - rows + 1 + last, 0) if causal else keys
            level = max(-(-seen // BLOCK_N), 1)
            tiles.append(((-level, number, first), (first_q, rows, first_k, keys), first))
        first_q, first_k = first_q + rows, first_k + keys
    for section in range(0, HEADS, HEAD_SECTION):
        for (_, where, first), head in itertools.product(
            sorted(tiles), range(section, min(section + HEAD_SECTION, HEADS))
        ):
            yield (*where, head << heads_log2, first)


def check(library: ctypes.CDLL, lengths: Lengths, causal: bool, blocks: int, log2: int) -> None:
    found = listed(library, lengths, blocks, log2)
    by_number = {each[7]: each[1:7] for each in found}
    assert len(by_number) == len(found)
    assert [by_number[n] for n in sorted(by_number)] == list(expected(lengths, causal, log2))


@pytest.mark.parametrize("walk", ["SNAKE", "QUEUE"])
@pytest.mark.parametrize("causal", [False, True])
def test_every_tile_comes_once_and_long_ones_first(
    causal: bool, walk: str, libraries: dict[tuple[bool, str], ctypes.CDLL]
) -> None:
    library = libraries[causal, walk]
    rng = random.Random(0)
    for sequences, blocks, heads_log2 in ((1, 1, 6), (32, 3, 0), (40, 1, 0)):
        few = [
            (rng.randrange(2) * rng.randrange(400), rng.randrange(500)) for _ in range(sequences)
        ]
        check(library, few, causal, blocks, heads_log2)


def test_no_rows_at_all_are_no_tiles(libraries: dict[tuple[bool, str], ctypes.CDLL]) -> None:
    assert not listed(libraries[True, "QUEUE"], [(0, 5), (0, 0)], 4, 0)


def test_thousands_of_sequences(libraries: dict[tuple[bool, str], ctypes.CDLL]) -> None:
    """One of them is so long that most levels have no tile."""
    rng = random.Random(0)
    many = [(n % 9 == 0, rng.randrange(200)) for n in range(2000)]
    many[1234] = (1, 1_000_000)
    check(libraries[True, "QUEUE"], many, True, 7, 0)
