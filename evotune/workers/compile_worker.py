"""The child process that compiles one job at a time, or takes its binary from the build cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import tempfile
import time
from pathlib import Path

from evotune.backends import registry
from evotune.backends.base.launch import Binary, CompileFailure, CompileJob
from evotune.backends.base.session import Compiler
from evotune.backends.base.sources import fingerprint, read_sources
from evotune.errors import EnvironmentProblem, SpaceError
from evotune.trial import OutcomeKind
from evotune.util.processes import lower_limit
from evotune.workers.build_cache import BuildCache
from evotune.workers.entry import open_channel
from evotune.workers.messages import (
    COMPILE_WORKER,
    Compile,
    LoadCompiler,
    MachineProblem,
    Started,
)

_BESIDE_DEVICES = 5
_MEMORY_BYTES = 8 << 30  # a runaway template or constexpr must not use up the machine's memory


def compiler_for(language: str) -> Compiler:
    """The language's compiler. Raises ValueError for a language that no backend has."""
    return registry.speaking(language).compiler(language)


def build(
    job: CompileJob, cache: BuildCache, scratch: Path, timeout_s: float
) -> Binary | CompileFailure:
    """The job's binary, compiled (in a folder under `scratch`) only if it is not cached."""
    key, compiler = _key(job), compiler_for(job.language)
    if kept := cache.get(key):
        return kept
    with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as folder:
        output = Path(folder) / "kernel.bin"
        started = time.monotonic()
        result = compiler.compile(job, output, timeout_s)
        if isinstance(result, CompileFailure):
            return result
        seconds = time.monotonic() - started
        if not _sources_unchanged(job):
            reason = "the kernel's sources changed while the run was going on"
            return CompileFailure(OutcomeKind.COMPILE_ERROR, reason, "", seconds)
        return cache.put(key, output.read_bytes(), result, seconds)


def cached(job: CompileJob, cache: BuildCache) -> Binary | None:
    """The job's binary if the cache has it."""
    return cache.get(_key(job))


def _key(job: CompileJob) -> str:
    version = compiler_for(job.language).version()
    return hashlib.sha256(f"{job.key}\0{version}".encode()).hexdigest()


def _sources_unchanged(job: CompileJob) -> bool:
    """Whether the sources are still the job's: an edited file must not enter the cache under the
    key of its old content."""
    try:
        return fingerprint(read_sources(Path(job.root), job.source)) == job.sources_sha256
    except SpaceError:
        return False


def main() -> None:
    with open_channel(COMPILE_WORKER, owns_processes=True) as channel:
        lower_limit(resource.RLIMIT_AS, _MEMORY_BYTES)
        channel.send(Started())
        while (message := channel.receive()) is not None:
            if isinstance(message, LoadCompiler):
                _warm(message.language)
            else:
                channel.send(_answer(message))


def _warm(language: str) -> None:
    """Loads the compiler, and lowers this process's priority: it will run while devices work, and
    the processes that feed the devices have precedence."""
    os.nice(_BESIDE_DEVICES)
    with contextlib.suppress(EnvironmentProblem):  # the first job will say so
        compiler_for(language).version()


def _answer(told: Compile) -> Binary | CompileFailure | MachineProblem:
    try:
        return build(told.job, BuildCache(Path(told.cache)), Path(told.scratch), told.timeout_s)
    except EnvironmentProblem as error:
        return MachineProblem(str(error))
    except OSError as error:  # a full disk, a cache that cannot be written
        return MachineProblem(f"cannot compile: {error}; repair that, then resume the run")


if __name__ == "__main__":
    main()
