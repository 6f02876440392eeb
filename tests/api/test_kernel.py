"""`run.best.kernel()`: a champion as a function of the caller's tensors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import evotune
from tests.api.small import kernel, keywords
from tests.export.making import fabricated
from tests.runs.runs import recorded_space
from tests.worked_kernels.expected import SPACES


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two trials, none of them confirmed."""
    folder = tmp_path_factory.mktemp("runs")
    return evotune.tune(kernel(), trials=2, champions=0, runs_dir=folder, **keywords())


def test_it_computes_on_the_callers_tensors(run: Any) -> None:
    scale = run.best.kernel()
    for shape in ((8, 64), (3, 5), (1, 1)):
        x, y = torch.randn(shape), torch.randn(shape[1])
        found = scale(x, y)
        torch.testing.assert_close(found["out"], 2.0 * x + y)
        torch.testing.assert_close(found["sums"], (2.0 * x + y).sum(dim=1))
    assert repr(scale) == "<kernel scale_rows(x, y)>"


def test_tensors_and_constants_go_by_name_too(run: Any) -> None:
    x, y = torch.randn(2, 3), torch.randn(3)
    found = run.best.kernel()(y=y, x=x, factor=3.0)
    torch.testing.assert_close(found["out"], 3.0 * x + y)


@pytest.mark.parametrize(
    ("tensors", "named", "message"),
    [
        ([(2, 3)], {}, r"scale_rows\(x, y\) lacks y"),
        ([(2, 3), (3,), (3,)], {}, "takes 2 tensors, got 3"),
        (
            [(2, 3), (4,)],
            {},
            r"no rows, columns fit the inputs' shapes: x \(2, 3\), y \(4,\)",
        ),
        ([(2, 3), (3, 1)], {}, "no rows, columns fit"),
        ([(2, 3), (3,)], {"rows": 7}, "no rows, columns fit"),
        ([(2, 3), (3,)], {"causal": True}, "unknown size 'causal'"),
        ([(2, 3), (3,)], {"y": None}, "got y twice"),
        ([(2, 3)], {"y": 1.0}, "y: expected a tensor, got a float"),
    ],
)
def test_what_does_not_fit_is_one_line(
    run: Any, tensors: list[tuple[int, ...]], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run.best.kernel()(*(torch.ones(shape) for shape in tensors), **named)


def test_tensors_that_it_must_not_touch_are_refused(run: Any) -> None:
    scale, x, y = run.best.kernel(), torch.ones(4, 4), torch.ones(4)
    with pytest.raises(ValueError, match="x is float64, the kernel takes float32"):
        scale(x.double(), y)
    with pytest.raises(ValueError, match=r"x is not contiguous: call it with x\.contiguous\(\)"):
        scale(torch.ones(4, 8)[:, ::2], y)
    with pytest.raises(ValueError, match="y does not begin at a multiple of 16 bytes"):
        scale(x, torch.ones(5)[1:])
    with pytest.raises(ValueError, match="y is on meta, x on cpu"):
        scale(x, y.to("meta"))
    with pytest.raises(ValueError, match="the tensors are on meta: the kernel was compiled for"):
        scale(x.to("meta"), y.to("meta"))
    with pytest.raises(ValueError, match="x requires grad"):
        scale(x.requires_grad_(), y)
    with torch.no_grad():
        scale(x, y)


def test_a_tensor_that_the_kernel_updates_is_the_callers(tmp_path: Path) -> None:
    shutil.copytree(SPACES / "histogram", tmp_path / "space")
    made = fabricated(tmp_path / "space" / "cpu.yaml", tmp_path, values={"BEHAVIOUR": "right"})
    kernel = evotune.open_run(made.path).best.kernel()
    keys = torch.randint(40, (5000,), dtype=torch.int16)
    counts = torch.full((40,), 7, dtype=torch.int32)
    for times in (1, 2):
        assert kernel(keys, counts) is counts
        wanted = 7 + times * keys.long().bincount(minlength=40)
        assert torch.equal(counts.long(), wanted)


def test_a_recording_has_no_kernel(tmp_path: Path) -> None:
    space = recorded_space(tmp_path / "space")
    run = evotune.tune(space, trials=2, runs_dir=tmp_path / "runs")
    with pytest.raises(evotune.EvotuneError, match="there is no kernel in it"):
        run.best.kernel()
