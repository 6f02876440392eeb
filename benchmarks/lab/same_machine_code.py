"""Shows that a change of the kernels' text leaves their machine code as it was. Needs no GPU.

    python benchmarks/lab/same_machine_code.py --save DIR [--only SPACE ...] [--random 6]
    python benchmarks/lab/same_machine_code.py --compare DIR [--only SPACE ...]

`--save` compiles every shipped space whose kernel has a file of kernels/attention, for an A100
(sm_80), an L4 (sm_89) and an H200 (sm_90a), or for this machine's CPU: the default configuration
with the cases that only a champion is checked on, and `--random` valid configurations, divided
among the space's devices. It writes each compiler run to DIR/builds.json, with the SHA-256 of its
output.

`--compare` repeats these runs with the sources of this checkout and lists the runs whose output
differs. The exit code is 1 if there is one. Two figures are compared:

- `file`: of a GPU the whole cubin. Its names of internal symbols have the name of the kernel's
  file in them, but of no header. Of a CPU the whole shared library, which is stripped.
- `code`: the machine code alone, which is the sections `.text*`.

A run that does not compile has its reason instead, and must fail for the same reason. Triton's
kernels are left out: each is one file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import msgspec
from tuning import ROOT

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.base.sources import read_sources
from evotune.errors import EvotuneError
from evotune.runs.setup import KernelSetup, load_setup
from evotune.runs.spaces import find_space, shipped_spaces
from evotune.space.document import load_space
from evotune.trial import Configuration
from evotune.workers.compile_worker import compiler_for

FOLDER = "kernels/attention/"
GPUS = {"a100": 80, "l4": 89, "h200": 90}
TIMEOUT_S = 600.0


class Build(msgspec.Struct):
    """A compiler run of a space on a device, and what it made."""

    space: str
    device: str
    job: CompileJob
    made: dict[str, str] = {}

    @property
    def label(self) -> str:
        return f"{self.space} {self.device} {self.job.source}"


def planned(space: str, count: int) -> Iterator[Build]:
    """The compiler runs of a space: of its default, and of `count` random configurations."""
    document = load_space(find_space(space))
    sources = {kernel.source.relative_to(ROOT).as_posix() for kernel in document.kernels}
    languages = {kernel.language for kernel in document.kernels}
    if languages == {"triton"} or not any(_is_of_the_folder(each) for each in sources):
        return
    devices = ["cpu"]
    if languages == {"cuda"}:
        devices = [
            name
            for name, arch in GPUS.items()
            if any(not kernel.unsupported({"arch": arch}) for kernel in document.kernels)
        ]
    for number, device in enumerate(devices):
        setup = load_setup(find_space(space), device, compile_only=True)
        assert isinstance(setup, KernelSetup)
        planner, rng = setup.planner, random.Random(f"{space} {device}")
        share = len(range(number, count, len(devices)))
        wanted = [Configuration(dict(planner.bound.default()))]
        tries = 0
        while len(wanted) <= share and (tries := tries + 1) <= 100:
            drawn = Configuration(dict(planner.bound.sample(rng)))
            if drawn not in wanted and not planner.proposal(0, drawn).rejection:
                wanted.append(drawn)
        for configuration in wanted:
            proposal = planner.proposal(0, configuration, confirm=configuration == wanted[0])
            for job in proposal.compile_jobs.values():
                yield Build(space, device, job)


def _is_of_the_folder(source: str) -> bool:
    return any(name.startswith(FOLDER) for name in read_sources(ROOT, source))


def identity(job: CompileJob) -> str:
    """The job without the content of its sources."""
    return msgspec.json.encode(at(job, "", "")).decode()


def at(job: CompileJob, root: str, sources_sha256: str) -> CompileJob:
    return msgspec.structs.replace(job, root=root, sources_sha256=sources_sha256)


def made_by(job: CompileJob) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "kernel.bin"
        built = compiler_for(job.language).compile(at(job, str(ROOT), ""), output, TIMEOUT_S)
        if isinstance(built, CompileFailure):
            return {"failed": built.reason}
        file = output.read_bytes()
        return {
            "file": hashlib.sha256(file).hexdigest(),
            "code": hashlib.sha256(machine_code(file)).hexdigest(),
        }


def machine_code(elf: bytes) -> bytes:
    """The names and contents of all sections `.text*` (64-bit ELF, as in elf.h)."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, of_names = struct.unpack_from("<3H", elf, 58)
    headers = [struct.unpack_from("<II4Q", elf, table + number * size) for number in range(count)]
    names = headers[of_names][4]  # of name, type, flags, address, offset, size
    found = []
    for name, _, _, _, offset, length in headers:
        start = names + name
        if elf.startswith(b".text", start):
            found.append(elf[start : elf.index(b"\0", start)] + elf[offset : offset + length])
    assert found
    return b"".join(sorted(found))


def compiled(builds: Sequence[Build], processes: int) -> list[Build]:
    """The builds with what their jobs make now. A job that several spaces have is compiled once."""
    jobs = {identity(build.job): build.job for build in builds}
    started = time.monotonic()
    found: dict[str, dict[str, str]] = {}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running = {pool.submit(made_by, job): name for name, job in jobs.items()}
        for number, done in enumerate(as_completed(running), start=1):
            found[running[done]] = done.result()
            if number % 20 == 0 or number == len(jobs):
                seconds = time.monotonic() - started
                print(f"{number} of {len(jobs)}, {seconds:.0f} s", file=sys.stderr)
    return [
        msgspec.structs.replace(build, job=at(build.job, "", ""), made=found[identity(build.job)])
        for build in builds
    ]


def differences(before: Sequence[Build], after: Sequence[Build]) -> Iterator[str]:
    for was, now in zip(before, after, strict=True):
        if was.made == now.made:
            continue
        names = [
            name for name in ("failed", "code", "file") if was.made.get(name) != now.made.get(name)
        ]
        macros = " ".join(f"{name}={value}" for name, value in was.job.defines)
        yield f"{was.label} [{macros}]: another {', '.join(names)} {now.made.get('failed', '')}"


def summary(builds: Sequence[Build]) -> Mapping[str, int]:
    jobs = {identity(build.job): build for build in builds}.values()
    return {
        "spaces": len({build.space for build in builds}),
        "runs": len(jobs),
        "runs for GPUs": sum(build.device != "cpu" for build in jobs),
        "runs that fail": sum("failed" in build.made for build in jobs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--save", type=Path, metavar="DIR")
    action.add_argument("--compare", type=Path, metavar="DIR")
    parser.add_argument("--only", nargs="*", metavar="SPACE")
    parser.add_argument("--random", type=int, default=6)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    path = (given.save or given.compare) / "builds.json"
    if given.save:
        spaces = given.only or [space for space in shipped_spaces()]
        builds = [build for space in spaces for build in planned(space, given.random)]
        builds = compiled(builds, given.processes)
        given.save.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(builds)))
        print(json.dumps(summary(builds)))
        return
    before = msgspec.json.decode(path.read_bytes(), type=list[Build])
    if given.only:
        before = [build for build in before if build.space in given.only]
    after = compiled(before, given.processes)
    found = list(differences(before, after))
    for line in found:
        print(line)
    print(json.dumps({**summary(after), "differ": len(found)}))
    sys.exit(bool(found))


if __name__ == "__main__":
    try:
        main()
    except EvotuneError as error:
        sys.exit(f"{error}")
