"""Packages of tensors of several types: exported, imported without evotune, called."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from evotune.errors import UsageError
from evotune.export.exporting import export_runs
from tests.export.runtime.packages import imported, operators

from .several_types import PROBLEM, picked_loss

pytestmark = pytest.mark.filterwarnings("ignore:.*a call is not served:UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("picked")
    export_runs([picked_loss(made)], made / "pkg", "picked_package")
    return made / "pkg" / "picked_package"


@pytest.fixture
def package(folder: Path) -> Iterator[ModuleType]:
    with imported(folder) as module:
        yield module


def inputs(rows: int = 8, classes: int = 64, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "target": torch.randint(classes, (rows,), generator=generator),
        "logits": 3 * torch.randn(rows, classes, generator=generator),
        "bias": torch.randn(classes, generator=generator).to(torch.float8_e5m2),
        "weight": 0.5 + torch.rand(rows, generator=generator),
        "kind": torch.randint(256, (rows,), generator=generator, dtype=torch.uint8),
    }


def agree(found: dict[str, torch.Tensor], given: dict[str, torch.Tensor]) -> None:
    values = given["logits"] + given["bias"].float()
    loss = F.cross_entropy(values, given["target"].long(), reduction="none")
    torch.testing.assert_close(found["loss"], loss * given["weight"] + given["kind"])
    own = values.gather(1, given["target"].long().clamp(min=0)[:, None])
    assert torch.equal(found["rank"], (values > own).sum(-1).to(torch.int32))
    largest = values.abs().amax(-1).clamp(1, 1024)
    assert found["power"].dtype == torch.float8_e5m2
    assert torch.equal(found["power"].float(), largest.log2().floor().exp2())


def test_tensors_of_several_types_reach_the_kernel(package: ModuleType) -> None:
    for rows, classes in ((8, 64), (16, 32), (1, 5)):
        given = inputs(rows, classes)
        agree(package.picked_loss(**given), given)
        agree(package.picked_loss(*given.values()), given)
    assert package.info()["calls"] == 6
    assert package.info()["misses"] == {}


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("target", torch.int32, "target is torch.int32, the kernels take torch.int64"),
        ("bias", torch.float32, "bias is torch.float32, the kernels take torch.float8_e5m2"),
        ("logits", torch.float64, "logits is torch.float64, the kernels take torch.float32"),
    ],
)
def test_a_tensor_of_another_type_goes_to_the_fallback(
    package: ModuleType, name: str, dtype: torch.dtype, words: str
) -> None:
    given = inputs()
    given[name] = given[name].to(dtype)
    if name == "target":  # F.cross_entropy takes int64 only, and says so
        with pytest.raises(RuntimeError, match=r"(to be|type) Long"):
            package.picked_loss(**given)
    else:
        agree(package.picked_loss(**given), given)
    assert package.info()["calls"] == 0
    assert package.info()["misses"] == {"dtype": {"count": 1, "first": words}}


@pytest.mark.parametrize("value", [-1, -(1 << 62), 64, 1 << 40])
def test_a_value_out_of_range_never_reaches_a_kernel(package: ModuleType, value: int) -> None:
    given = inputs()
    given["target"][3] = value
    words = rf"target holds {value}, the kernels take 0 to 63"
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):  # PyTorch's own error
        package.picked_loss(**given)
    package.set_fallback(lambda *tensors: {"loss": tensors[1].sum(-1)})
    assert package.info()["calls"] == 0
    assert package.info()["misses"]["values"] == {"count": 1, "first": words}
    given["target"][3] = 63
    agree(package.picked_loss(**given), given)  # the decision on the sizes stays
    assert package.info()["calls"] == 1


def test_a_value_that_pytorch_ignores_gets_pytorchs_result(package: ModuleType) -> None:
    given = inputs()
    given["target"][3] = -100  # ignore_index of F.cross_entropy
    found = package.picked_loss(**given)
    assert found["loss"][3] == given["kind"][3]
    agree(found, given)
    assert package.info()["misses"]["values"]["count"] == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_the_assertion_of_a_gpu_knows_the_ends(package: ModuleType, dtype: torch.dtype) -> None:
    """On a CPU the same call of PyTorch raises."""
    held = sys.modules[f"{package.__name__}._problem_package"]
    held._assert_on_device(torch.tensor([[5, 9], [7, 8]], dtype=dtype), 5, 9)
    held._assert_on_device(torch.tensor([0, 9], dtype=dtype), 0, 9)
    for least, most in ((5, 8), (6, 9)):
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            held._assert_on_device(torch.tensor([[5, 9], [7, 8]], dtype=dtype), least, most)
    if dtype == torch.int64:
        for value in (-(1 << 63), (1 << 63) - 1):
            with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
                held._assert_on_device(torch.tensor([value]), -3, 9)


def test_gradients_are_those_of_the_fallback(package: ModuleType) -> None:
    given = inputs()
    given["logits"].requires_grad_()
    package.picked_loss(**given)["loss"].sum().backward()
    assert given["logits"].grad is not None
    assert package.info()["misses"]["grad"]["count"] == 1


def test_a_fallback_of_ones_own_comes_first(package: ModuleType) -> None:
    given = inputs()
    given["logits"] = given["logits"].double()
    package.set_fallback(lambda target, logits, *others: {
        "loss": logits[:, 0], "rank": target, "power": target
    })  # fmt: skip
    assert torch.equal(package.picked_loss(**given)["loss"], given["logits"][:, 0])
    package.set_fallback(None)
    agree(package.picked_loss(**given), given)


def test_a_value_beyond_the_largest_of_its_type_is_that(package: ModuleType) -> None:
    given = inputs()
    given["target"][0] = 64  # out of range, so that the fallback gets the call
    large = torch.full((8,), 1e9)
    package.set_fallback(lambda *tensors: {"loss": large, "rank": large * 0, "power": -large})
    found = package.picked_loss(**given)
    assert (found["rank"].dtype, found["power"].dtype) == (torch.int32, torch.float8_e5m2)
    assert torch.equal(found["power"].float(), torch.full((8,), -57344.0))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of PyTorch's
def test_the_operator_keeps_its_promises(package: ModuleType) -> None:
    overload = operators(package).picked_loss.default
    words = str(overload._schema)
    assert "Tensor target, Tensor logits, Tensor bias" in words
    # PyTorch compares no 8-bit floats on a CPU, as opcheck's other tests would have it do.
    tests = ("test_autograd_registration", "test_faketensor")
    wide = {**inputs(), "logits": inputs()["logits"].double()}
    for given in (inputs(), wide):
        torch.library.opcheck(overload, tuple(given.values()), test_utils=tests)


def test_a_compiled_function_gets_each_type(package: ModuleType) -> None:
    compiled = torch.compile(package.picked_loss, fullgraph=True, backend="aot_eager")
    given = inputs()
    agree(compiled(**given), given)
    assert package.info()["calls"] == 1


def test_check_compares_with_the_fallback(package: ModuleType, capsys: Any) -> None:
    assert package.check()
    package.set_fallback(lambda *tensors, **named: {
        **package._loaded._kernels.own_fallback(*tensors),
        "rank": tensors[0].to(torch.int32),
    })  # fmt: skip
    assert not package.check()
    assert "rank differs" in capsys.readouterr().out


def test_the_files_tell_the_types(folder: Path) -> None:
    problem = json.loads((folder / "dispatch.json").read_text())["problem"]
    assert problem["types"] == {
        "target": "int64", "bias": "float8_e5m2", "kind": "uint8", "rank": "int32",
        "power": "float8_e5m2",
    }  # fmt: skip
    classes = {"name": "classes"}
    assert problem["values"] == {
        "target": [0, ["+", classes, -1]], "kind": [0, 255], "weight": [0.5, 2.0]
    }  # fmt: skip
    readme = (folder.parent / "README.md").read_text()
    assert "; target int64; bias float8_e5m2" in readme
    assert "`compute`, in PyTorch" in readme


@pytest.mark.soak
def test_a_package_needs_no_evotune(folder: Path) -> None:
    code = f"""
import sys
sys.modules["evotune"] = None  # an import of it is an error
sys.path.insert(0, {str(folder.parent)!r})
import torch, picked_package
logits = torch.randn(8, 64)
bias = torch.zeros(64).to(torch.float8_e5m2)
ones, zeros = torch.ones(8), torch.zeros(8, dtype=torch.uint8)
found = picked_package.picked_loss(torch.arange(8), logits, bias, ones, zeros)
torch.testing.assert_close(found["loss"], -logits.log_softmax(-1).diagonal())
print(picked_package.info()["calls"])
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("range(classes)", "range(classes * classes)", "both ends of their range must be sums"),
        ("range(classes)", "range(0, classes, 2)", "a package takes no integers of a range with"),
        ("range(classes)", '"indices"', 'no tensors of "indices", whose values must fit together'),
        ('"uint8", range(256)', '"uint8" if rows < 9 else "int32", range(256)', "type depends on"),
    ],
)
def test_other_integers_are_refused_in_one_line(
    tmp_path: Path, before: str, after: str, words: str
) -> None:
    assert before in PROBLEM
    indices = (
        "\n    def make_indices(self, kind, generator, rows, classes):\n        import torch\n"
        '        return {"target": torch.zeros(rows, dtype=torch.int64)}\n'
    )
    run = picked_loss(tmp_path, PROBLEM.replace(before, after) + indices)
    with pytest.raises(UsageError, match=words) as caught:
        export_runs([run], tmp_path / "pkg")
    assert "\n" not in str(caught.value)
