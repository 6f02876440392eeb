"""Packages of small integers, bools and doubles; and the problems that a package does not serve."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from evotune.errors import UsageError
from evotune.export.exporting import export_runs
from tests.export.runtime.packages import imported
from tests.worked_kernels.expected import SPACES

from .making import fabricated

pytestmark = pytest.mark.filterwarnings("ignore:.*a call is not served:UserWarning")
PROBLEM = """
from evotune.problems import Tensor, UserProblem


class Masked(UserProblem):
    sizes = ("rows", "columns")
    dtypes = ("float64",)
    constants = {"step": 3}
    ranges = {"step": range(1, 100)}

    def inputs(self, rows, columns):
        return {
            "x": (rows, columns),
            "seen": Tensor((rows, columns), "bool"),
            "codes": Tensor((columns,), "int8", range(-128, 128)),
        }

    def outputs(self, rows, columns):
        return {"out": (rows,), "any": Tensor((rows,), "bool"), "top": Tensor((rows,), "int16")}

    def operations(self, rows, columns):
        return rows * columns

    def compute(self, x, seen, codes, step):
        import torch

        return {
            "out": step * (x * codes * seen).sum(-1),
            "any": seen.any(-1),
            "top": torch.where(seen, codes.short(), -1000).amax(-1),
        }
"""
SPACE = """
name: masked
root: .
problem:
  name: problem.py:Masked
  dtype: float64
  shapes: [{rows: 8, columns: 64}]
kernels:
  masked:
    source: masked.cpp
    entry: masked
    arguments: [x, seen, codes, out, any, top, rows, columns, step]
parameters: {UNROLL: [1, 2]}
baseline: torch:best
"""
KERNEL = """
#include <cstdint>
extern "C" void masked(const double* x, const bool* seen, const std::int8_t* codes, double* out,
                       bool* any, std::int16_t* top, int rows, int columns, int step) {
  for (int r = 0; r < rows; ++r) {
    double sum = 0;
    int count = 0, highest = -1000;
    for (int i = 0; i < columns; ++i) {
      if (!seen[r * columns + i]) continue;
      sum += x[r * columns + i] * codes[i], ++count;
      if (codes[i] > highest) highest = codes[i];
    }
    out[r] = step * sum, any[r] = count > 0, top[r] = static_cast<std::int16_t>(highest);
  }
}
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("masked")
    for name, text in (("problem.py", PROBLEM), ("space.yaml", SPACE), ("masked.cpp", KERNEL)):
        (folder / name).write_text(text)
    export_runs([fabricated(folder / "space.yaml", folder)], folder / "pkg", "masked_package")
    with imported(folder / "pkg" / "masked_package") as module:
        yield module


def test_small_integers_bools_and_doubles_reach_the_kernel(package: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 64, generator=generator, dtype=torch.float64)
    seen = torch.rand(8, 64, generator=generator) < 0.5
    codes = torch.randint(-128, 128, (64,), generator=generator).to(torch.int8)
    for step, options in ((3, {}), (7, {"step": 7})):
        found = package.masked(x, seen, codes, **options)
        torch.testing.assert_close(found["out"], step * (x * codes * seen).sum(-1))
        assert torch.equal(found["any"], seen.any(-1))
        assert torch.equal(found["top"], torch.where(seen, codes.short(), -1000).amax(-1))
    assert package.info()["misses"] == {}
    assert package.info()["calls"] == 2
    assert package.check()


def test_another_type_goes_to_the_fallback(package: ModuleType) -> None:
    x, seen = torch.ones(8, 64, dtype=torch.float64), torch.ones(8, 64)
    codes = torch.ones(64, dtype=torch.int8)
    assert package.masked(x, seen.bool(), codes)["out"][0] == 192
    with pytest.raises(RuntimeError, match="boolean"):  # PyTorch's own error, of torch.where
        package.masked(x, seen, codes)
    assert "seen is torch.float32, the kernels take torch.bool" in str(package.info()["misses"])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("adamw", "problem AdamW cannot be exported: a package takes no tensors that are updated"),
        ("top_k", "problem TopK cannot be exported: a package takes no problem with `same`"),
        ("numbers", "problem Numbers cannot be exported: a package takes no complex numbers"),
    ],
)
def test_what_a_package_does_not_serve_is_said_in_one_line(
    tmp_path: Path, name: str, why: str
) -> None:
    shutil.copytree(SPACES / name, tmp_path / name)
    run = fabricated(tmp_path / name / "cpu.yaml", tmp_path, values={"BEHAVIOUR": "right"})
    with pytest.raises(UsageError, match=why) as caught:
        export_runs([run], tmp_path / "pkg")
    assert "\n" not in str(caught.value)


def test_a_compute_that_lists_sizes_is_no_fallback(tmp_path: Path) -> None:
    text = PROBLEM.replace("codes, step):", "codes, step, rows):")
    for name, content in (("problem.py", text), ("space.yaml", SPACE), ("masked.cpp", KERNEL)):
        (tmp_path / name).write_text(content)
    exported = export_runs([fabricated(tmp_path / "space.yaml", tmp_path)], tmp_path / "pkg")
    assert not (tmp_path / "pkg" / exported.name / "_problem_compute.py").exists()
