"""torch.export and torch.compile of calls whose lengths stay open: no length becomes a constant."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from evotune.export.exporting import export_runs
from evotune.export.runtime._case_expressions import solved
from evotune.export.runtime._case_sizes import CaseSizes
from evotune.runs.folder import RunFolder
from tests.export.runtime.packages import imported

LENGTH = torch.export.Dim("length", min=2, max=4096)


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def softmax(softmax_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("softmax")
    export_runs([softmax_run], folder, "dynamic_softmax")
    return folder / "dynamic_softmax"


class Layer(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


def check_open(
    function: Callable[..., Any],
    made: Callable[[int], tuple[torch.Tensor, ...]],
    axis: int,
    *,
    is_strict: bool,
) -> None:
    """The exported program takes other lengths than that of the example."""
    given = made(16)
    shapes = (tuple({axis: LENGTH} for _ in given),)
    with torch.no_grad():
        program = torch.export.export(
            Layer(function), given, dynamic_shapes=shapes, strict=is_strict
        )
        for length in (16, 2, 21, 100):
            again = made(length)
            torch.testing.assert_close(
                program.module()(*again), function(*again), rtol=1e-4, atol=1e-5
            )
    ends = [(int(each.lower), int(each.upper)) for each in program.range_constraints.values()]
    assert (2, 4096) in ends


@pytest.mark.parametrize("is_strict", [False, True])
def test_an_exported_program_keeps_the_rows_of_a_problem_open(
    softmax: Path, is_strict: bool
) -> None:
    with imported(softmax) as module:
        check_open(module.softmax, lambda rows: (torch.randn(rows, 64),), 0, is_strict=is_strict)
        assert module.info()["calls"] > 0


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 3.0}, {"is_causal": True, "window": (5, None)}]
)
def test_an_exported_program_keeps_the_lengths_of_attention_open(
    attention_cpu: Path, options: dict[str, Any], is_strict: bool
) -> None:
    with imported(attention_cpu) as module:
        check_open(
            lambda q, k, v: module.attention(q, k, v, **options),
            lambda length: tuple(torch.randn(3, 1, 2, length, 32).unbind()),
            2,
            is_strict=is_strict,
        )


def test_a_compiled_function_is_compiled_once_for_all_rows(softmax: Path) -> None:
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with imported(softmax) as module, torch.no_grad():
        compiled = torch.compile(module.softmax, backend=backend, dynamic=True)
        for rows in (16, 21, 100):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(compiled(x), x.softmax(-1))
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("expression", "value", "found"),
    [
        ({"name": "n"}, 12, ("n", 12)),
        (["*", 2, {"name": "n"}], 12, ("n", 6)),
        (["+", ["*", {"name": "n"}, 2], 2], 12, ("n", 5)),
        (["-", {"name": "n"}, 1], 12, ("n", 13)),
        (["-", 1, {"name": "n"}], 12, None),
        (["*", {"name": "n"}, {"name": "m"}], 12, None),
        (["*", {"name": "n"}, 0], 12, None),
        (["ceil_div", {"name": "n"}, 2], 12, None),
        (3, 12, None),
    ],
)
def test_an_extent_tells_its_size(expression: Any, value: int, found: Any) -> None:
    assert solved(expression, value) == found


def test_sizes_that_nothing_tells_are_those_of_timed_cases() -> None:
    sizes = CaseSizes(
        {
            "problem": {"dtype": "float32", "inputs": ["x"]},
            "shapes": {"x": [{"name": "rows"}, ["*", 2, {"name": "columns"}]]},
            "cases_from": {
                "sizes": ["rows", "columns", "groups", "bins"],
                "tuned": [
                    {"rows": 1, "columns": 1, "groups": 4, "bins": 5},
                    {"rows": 2, "columns": 2, "groups": 4, "bins": 6},
                ],
            },
        }
    )
    found = sizes.open_symbols({"x": (7, 12)}, {})
    assert found == {"rows": 7, "columns": 6, "groups": 4, "dtype": "float32"}
    assert sizes.open_symbols({"x": (7, 12)}, {"bins": 9})["bins"] == 9
    with pytest.raises(ValueError, match=r"x must be \(rows, 2 \* columns\)"):
        sizes.open_symbols({"x": (7,)}, {})
