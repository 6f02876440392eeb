"""Packages of packed and paged attention on a GPU: calls and graphs that wait for nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from evotune.export.exporting import export_runs
from evotune.problems import create_problem
from evotune.problems.problem import Case
from evotune.runs.spaces import shipped_spaces
from tests.export.making import fabricated
from tests.export.runtime.packages import imported

from .waiting import nothing_waits

pytestmark = pytest.mark.gpu
Open = Callable[[str], ModuleType]
SPACES = ("attention-varlen", "attention-varlen-wgmma", "attention-paged")
SHAPES: dict[str, dict[str, Any]] = {
    "attention-varlen": {"sequences": 32, "heads": 16, "tokens_q": 16549, "tokens_k": 16549,
                         "longest_q": 4096, "longest_k": 4096, "head_dim": 128},
    "attention-paged": {"sequences": 8, "queries": 1, "heads": 32, "kv_heads": 8, "longest": 4096,
                        "page_size": 16, "head_dim": 128, "lengths": "even"},
}  # fmt: skip
"""The timed shapes of the problems."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name in SPACES:
        if "wgmma" in name and torch.cuda.get_device_capability()[0] != 9:
            continue
        folder = tmp_path_factory.mktemp(name)
        run = fabricated(shipped_spaces()[name], folder, "cuda:0")
        exported = export_runs([run], folder / "pkg")
        found[name] = folder / "pkg" / exported.name
    return found


@pytest.fixture
def opened(folders: dict[str, Path]) -> Iterator[Open]:
    def entered(name: str) -> ModuleType:
        if name not in folders:
            pytest.skip("wgmma needs a GPU of compute capability 9.0")
        return stack.enter_context(imported(folders[name]))

    with ExitStack() as stack:
        yield entered


def problem_of(space: str) -> str:
    return space.removesuffix("-wgmma")


def made(name: str, kind: str = "normal", seed: int = 0) -> tuple[Any, Case, dict[str, Any]]:
    problem: Any = create_problem(problem_of(name).replace("-", "_"), "float16")
    case = problem.case(SHAPES[problem_of(name)], {"causal": True})
    return problem, case, problem.make_inputs(case, kind, seed, "cuda")


def called(module: ModuleType, name: str, given: dict[str, Any]) -> torch.Tensor:
    if problem_of(name) == "attention-varlen":
        tables = given["cu_seqlens_q"], given["cu_seqlens_k"], 4096, 4096
        tensors = given["q"], given["k"], given["v"]
        out: torch.Tensor = module.attention_varlen(*tensors, *tables, causal=True)
        return out
    pools = given["k_pages"], given["v_pages"], given["seq_lens"], given["page_table"]
    found: torch.Tensor = module.attention_paged(given["q"], *pools, causal=True)
    return found


def agree(out: torch.Tensor, problem: Any, case: Case, given: dict[str, Any]) -> None:
    reference = problem.reference(case, given)
    allowed = problem.tolerances(case, given, reference)["out"]
    assert ((out.double() - reference["out"]).abs() <= allowed).all()


@pytest.mark.parametrize("name", SPACES)
def test_calls_are_served(opened: Open, name: str) -> None:
    module = opened(name)
    for kind in ("normal", "ramp"):
        problem, case, given = made(name, kind)
        agree(called(module, name, given), problem, case, given)
    assert module.info()["calls"] == 2
    assert module.info()["misses"] == {}
    assert module.check()


@pytest.mark.parametrize("asserting", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_graphs_take_other_lengths_and_nothing_waits(
    opened: Open, name: str, asserting: bool
) -> None:
    module = opened(name)
    module.assert_tables(asserting)
    problem, case, given = made(name)
    called(module, name, given)
    with nothing_waits():
        called(module, name, given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = called(module, name, given)
    for kind, seed in (("normal", 1), ("ramp", 2)):
        _, _, others = made(name, kind, seed)
        for key, value in others.items():
            given[key].copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        agree(out, problem, case, given)


@pytest.mark.filterwarnings("ignore:.*a call is not served:UserWarning")
@pytest.mark.parametrize("name", SPACES)
def test_what_no_kernel_serves_can_be_captured_too(opened: Open, name: str) -> None:
    module = opened(name)
    problem, case, given = made(name)
    wide = {key: t.float() if t.dtype == torch.float16 else t for key, t in given.items()}
    eager = called(module, name, wide)
    agree(eager, problem, case, given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = called(module, name, wide)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, eager, rtol=1e-3, atol=1e-3)
    assert module.info()["calls"] == 0


@pytest.mark.parametrize("name", SPACES)
def test_streams_run_side_by_side(opened: Open, name: str) -> None:
    module = opened(name)
    several = [made(name, seed=seed) for seed in range(3)]
    streams = [torch.cuda.Stream() for _ in several]
    torch.cuda.synchronize()
    outs = []
    for _ in range(5):
        for stream, (_, _, given) in zip(streams, several, strict=True):
            with torch.cuda.stream(stream):
                outs.append(called(module, name, given))
    torch.cuda.synchronize()
    for number, out in enumerate(outs):
        agree(out, *several[number % 3])


ASSERTED = """
import sys
sys.path.insert(0, {folder!r})
import torch
import {name} as package
package.assert_tables()
def half(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.float16)
def table(*values):
    return torch.tensor(values, device="cuda", dtype=torch.int32)
try:
    {call}
    torch.cuda.synchronize()
except RuntimeError as error:
    print("asserted" if "device-side assert" in str(error) else error)
else:
    print("nothing was said", package.info()["misses"])
"""
PACKED = (
    "package.attention_varlen(half(16549, 16, 128), half(16549, 16, 128), half(16549, 16, 128), "
    "table(*[0, *range(4096, 16549, 414)][:32], {last}), "
    "table(*[0, *range(4096, 16549, 414)][:32], 16549), 4096, 4096, causal=True)"
)
PAGES = (
    "package.attention_paged(half(8, 1, 32, 128), half(99, 16, 8, 128), half(99, 16, 8, 128), "
    "table(*[40] * 8), table(*[{page}] * 2048).view(8, 256), causal=True)"
)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("attention-varlen", PACKED.format(last=16600)),
        ("attention-varlen", PACKED.format(last=9)),
        ("attention-paged", PAGES.format(page=99)),
        ("attention-paged", PAGES.format(page=-1)),
    ],
)
def test_tables_that_do_not_fit_end_in_an_assertion(
    folders: dict[str, Path], name: str, call: str
) -> None:
    folder = folders[name]
    code = ASSERTED.format(folder=str(folder.parent), name=folder.name, call=call)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert "asserted" in done.stdout, done.stdout + done.stderr
