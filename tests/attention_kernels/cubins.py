"""Hashes of the machine code of the CUDA rungs, in tests/data/attention_cubins.json.

    python -m tests.attention_kernels.cubins [SPACE ...]

Compiles the rungs of these spaces, or of all, and writes their part of the file anew.

A change that may cost nothing leaves every hash as it is. A change that is meant to change a rung
writes the file anew, and the difference shows which rungs it reached. The hashes are those of one
version of NVRTC, which the file names. They cover the functions' instructions alone, and not the
names of their constants.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from evotune.backends.base.launch import CompileFailure
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.runs.setup import load_setup
from evotune.runs.spaces import find_space
from evotune.space.bound import BoundSpace
from evotune.trial import Configuration, Json
from tests.patience import PATIENCE_S

PATH = Path(__file__).parents[1] / "data" / "attention_cubins.json"
RUNGS = ["attention-scalar", "attention-wmma", "attention-mma", "attention-wgmma"]
RUNGS += ["attention-varlen", "attention-varlen-wgmma", "attention-paged"]
DEVICES = ["l4", "h200"]  # sm_89, sm_90a
_OTHERS = 2  # configurations of each rung beside the default


def hashes(space: str, device: str, values: Json) -> list[str]:
    """The SHA-256 of the instructions for each of the space's variants."""
    planner = load_setup(find_space(space), device, compile_only=True).planner
    assert planner is not None
    found = []
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        for job in planner.compile_jobs(Configuration(values)):
            built = NvrtcCompiler().compile(job, cubin, timeout_s=PATIENCE_S)
            assert not isinstance(built, CompileFailure), built.reason
            found.append(hashlib.sha256(instruction_bytes(cubin.read_bytes())).hexdigest())
    return found


def instruction_bytes(elf: bytes) -> bytes:
    """The contents of all sections named .text.FUNCTION (64-bit ELF, as in elf.h)."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, of_names = struct.unpack_from("<3H", elf, 58)
    headers = [
        struct.unpack_from("<II4Q", elf, table + number * size) for number in range(count)
    ]  # name, type, flags, address, offset, size
    names = headers[of_names][4]
    found = []
    for name, _, _, _, offset, length in headers:
        start = names + name
        if elf.startswith(b".text.", start):
            found.append(elf[start : elf.index(b"\0", start)] + elf[offset : offset + length])
    assert found
    return b"".join(sorted(found))


def _configurations(bound: BoundSpace) -> Iterator[Json]:
    """The default, and others far from it."""
    yield dict(bound.default())
    rng = random.Random(0)
    for _ in range(_OTHERS):
        yield dict(bound.sample(rng))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spaces", nargs="*", metavar="SPACE")
    again = parser.parse_args().spaces or RUNGS
    if unknown := set(again) - set(RUNGS):
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(RUNGS)}")
    kept = json.loads(PATH.read_text()) if PATH.exists() else {}
    version = NvrtcCompiler().version()
    if again != RUNGS and kept["compiler"] != version:
        parser.error(f"the other hashes are those of {kept['compiler']}: write all anew")
    builds = [each for each in kept.get("builds", ()) if each["space"] not in again]
    for space in again:
        for device in DEVICES[space.endswith("-wgmma") :]:
            planner = load_setup(find_space(space), device, compile_only=True).planner
            assert planner is not None
            for values in _configurations(planner.bound):
                found = hashes(space, device, values)
                builds.append({"space": space, "device": device, "configuration": values})
                builds[-1] |= {"sha256": found}
    builds.sort(key=lambda build: RUNGS.index(build["space"]))
    whole = {"compiler": version, "builds": builds}
    PATH.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
