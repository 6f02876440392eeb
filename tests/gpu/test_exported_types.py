"""Packages of tensors of several types on a GPU: integers are asserted there, without a wait."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from evotune.export.exporting import export_runs
from evotune.runs.spaces import shipped_spaces
from tests.export.making import fabricated
from tests.export.runtime.packages import imported

from .waiting import nothing_waits

pytestmark = pytest.mark.gpu
Open = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name in ("cross-entropy", "add-rms-norm-fp8"):
        folder = tmp_path_factory.mktemp(name)
        run = fabricated(shipped_spaces()[name], folder, "cuda:0")
        exported = export_runs([run], folder / "pkg")
        found[name] = folder / "pkg" / exported.name
    return found


@pytest.fixture
def opened(folders: dict[str, Path]) -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(imported(folders[name]))


def inputs(rows: int = 300, classes: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator, device="cuda")
    target = torch.randint(classes, (rows,), generator=generator, device="cuda")
    return logits.bfloat16(), target


def agree(found: torch.Tensor, logits: torch.Tensor, target: torch.Tensor) -> None:
    wanted = F.cross_entropy(logits.double(), target, reduction="none")
    torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2)


def test_targets_reach_the_kernel(opened: Open) -> None:
    module = opened("cross-entropy")
    for rows, classes in ((300, 1000), (1, 7), (64, 128256)):
        given = inputs(rows, classes)
        agree(module.cross_entropy(*given), *given)
    assert module.info()["calls"] == 3
    assert module.info()["misses"] == {}


def test_a_call_and_a_captured_graph_wait_for_nothing(opened: Open) -> None:
    module = opened("cross-entropy")
    logits, target = inputs()
    module.cross_entropy(logits, target)
    with nothing_waits():
        module.cross_entropy(logits, target)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module.cross_entropy(logits, target)
    target.copy_(target.flip(0))
    graph.replay()
    torch.cuda.synchronize()
    agree(out, logits, target)


ASSERTED = """
import sys
sys.path.insert(0, {folder!r})
import torch
import {name} as package
logits = torch.randn(300, 1000, device="cuda", dtype=torch.bfloat16)
target = torch.zeros(300, dtype=torch.int64, device="cuda")
graph = torch.cuda.CUDAGraph()
package.cross_entropy(logits, target)
with torch.cuda.graph(graph):
    package.cross_entropy(logits, target)
graph.replay()
torch.cuda.synchronize()
target[17] = {value}
try:
    graph.replay() if {replay} else package.cross_entropy(logits, target)
    torch.cuda.synchronize()
except RuntimeError as error:
    print("asserted" if "device-side assert" in str(error) else error)
else:
    print("nothing was said")
"""


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("value", [-1, -100, 1000, 1 << 40])
def test_a_value_out_of_range_ends_in_an_assertion(
    folders: dict[str, Path], value: int, replay: bool
) -> None:
    folder = folders["cross-entropy"]
    code = ASSERTED.format(folder=str(folder.parent), name=folder.name, value=value, replay=replay)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert "asserted" in done.stdout, done.stdout + done.stderr
    assert "illegal memory access" not in done.stderr


def test_outputs_of_several_types(opened: Open) -> None:
    module = opened("add-rms-norm-fp8")
    x, residual = (torch.randn(300, 4096, device="cuda").bfloat16() for _ in range(2))
    weight = torch.rand(4096, device="cuda").bfloat16()
    found = module.add_rms_norm_fp8(x, residual, weight)
    assert [found[name].dtype for name in ("total", "out", "scale")] == [
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float32,
    ]
    total = (x + residual).double()
    norm = F.rms_norm(total, weight.shape, weight.double(), 1e-6)
    restored = found["out"].double() * found["scale"][:, None].double()
    torch.testing.assert_close(restored, norm, rtol=0.08, atol=0.05)
    torch.testing.assert_close(found["total"].double(), total, rtol=1e-2, atol=1e-2)
    assert module.check()
    assert module.info()["calls"] >= 1


@pytest.mark.filterwarnings("ignore:.*a call is not served:UserWarning")
def test_other_types_go_to_pytorch(opened: Open) -> None:
    module = opened("cross-entropy")
    logits, target = inputs()
    agree(module.cross_entropy(logits.half(), target), logits.half(), target)
    assert module.info()["calls"] == 0
    assert module.info()["misses"]["dtype"]["count"] == 1
