"""Each CUDA header compiles alone, as an editor opens it. Needs NVRTC, no GPU.

A header gets what a kernel that includes it gets: the macros of the default and of the first case
of a shipped space.
"""

from __future__ import annotations

import functools

import msgspec
import pytest

pytest.importorskip("cupy")

from evotune.backends.base.launch import CompileFailure, CompileJob
from evotune.backends.cuda.compiler import NvrtcCompiler
from evotune.errors import EnvironmentProblem
from evotune.runs.setup import KernelSetup, load_setup
from evotune.runs.spaces import find_space, shipped_spaces
from evotune.space.document import load_space

from .emulation import ROOT
from .test_supports import INCLUDE

HEADERS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("kernels/**/*.cuh"))


@functools.cache
def jobs() -> dict[str, CompileJob]:
    """Header -> the job of the kernel that is nearest to it, in includes. Of two that are as near,
    the first by name: the rungs of attention are numbered, and come before the kernels beside
    them."""
    near: dict[str, tuple[int, CompileJob]] = {}
    for job in sorted(_defaults(), key=lambda job: job.source):
        for header, steps in _steps_to_headers(job.source).items():
            if header not in near or steps < near[header][0]:
                near[header] = (steps, job)
    return {header: job for header, (_, job) in near.items()}


def _steps_to_headers(source: str) -> dict[str, int]:
    """Header -> how many includes lead to it."""
    found = {source: 0}
    for name in (queue := [source]):
        folder = (ROOT / name).parent
        for included in INCLUDE.findall((ROOT / name).read_text()):
            path = (folder / included).resolve().relative_to(ROOT).as_posix()
            if path not in found:
                found[path] = found[name] + 1
                queue.append(path)
    return found


def _defaults() -> list[CompileJob]:
    """The first job of each space that a Hopper GPU can run."""
    found = []
    for space in shipped_spaces():
        kernels = load_space(find_space(space)).kernels
        on_hopper = [kernel for kernel in kernels if not kernel.unsupported({"arch": 90})]
        if any(kernel.source.suffix == ".cu" for kernel in on_hopper):
            setup = load_setup(find_space(space), "h200", compile_only=True)
            assert isinstance(setup, KernelSetup)
            assert setup.planner is not None
            found.append(setup.planner.compile_jobs(setup.planner.bound.default())[0])
    return found


def test_there_are_headers() -> None:
    assert len(HEADERS) > 30
    assert set(HEADERS) <= set(jobs()), "a kernel of a shipped space includes each header"


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_compiles_alone(header: str) -> None:
    try:
        NvrtcCompiler().version()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    job = jobs()[header]
    alone = msgspec.structs.replace(job, source=header, entries=(), signature=())
    built = NvrtcCompiler().ptx(alone)
    assert not isinstance(built, CompileFailure), f"{built.reason}\n{built.log}"
