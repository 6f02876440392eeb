"""Inputs with a structure that `make_input` makes: no launch finds it broken, whatever else the
problem has."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from evotune.backends.base.launch import Argument, LaunchPlan
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.errors import ProblemMistake
from evotune.problems import InOut, Tensor, UserProblem, create_problem
from evotune.problems.examination import examine
from evotune.problems.problem import index_bytes
from evotune.verify.gate import Gate, Subject, Verdict
from evotune.verify.pool import InputPool
from tests.red_team.timed import judge_timed

N, M = 200, 50


class Places(UserProblem):
    """The place of each query among sorted keys, added to a sum of weights of a fixed total."""

    sizes = ("n", "m")
    dtypes = ("float32",)
    constants: ClassVar = {"by": 2}
    ranges: ClassVar = {"by": range(1, 5)}

    def inputs(self, n: int, m: int) -> dict[str, Tensor]:
        return {
            "keys": Tensor((n,), "int32", "structured"),
            "weights": Tensor((n,), "float64", "structured"),
            "queries": Tensor((m,), "int32", range(-1000, 1000)),
            "sums": InOut((m,), "float64"),
        }

    def outputs(self, n: int, m: int) -> dict[str, Tensor]:
        return {"places": Tensor((m,), "int64", range(n + 1))}

    def operations(self, n: int, m: int) -> int:
        return m

    def make_input(
        self, name: str, shape: tuple[int, ...], kind: str, generator: torch.Generator
    ) -> torch.Tensor:
        if name == "keys":
            return torch.randint(-1000, 1000, shape, generator=generator).sort().values
        drawn = super().make_input(name, shape, kind, generator)
        return drawn.abs() / drawn.abs().sum() if name == "weights" else drawn

    def compute(  # noqa: PLR0917
        self,
        keys: torch.Tensor,
        weights: torch.Tensor,
        queries: torch.Tensor,
        sums: torch.Tensor,
        n: int,
        by: int,
    ) -> dict[str, torch.Tensor]:
        places = torch.searchsorted(keys, queries)
        return {"sums": sums + by * weights.sum() * n, "places": places}

    def same(self, outputs: dict, reference: dict, inputs: dict) -> bool:
        keys, queries, places = inputs["keys"], inputs["queries"], outputs["places"]
        n = inputs["n"]
        not_after = (places == n) | (keys[places.clamp(max=n - 1)] >= queries)
        not_before = (places == 0) | (keys[(places - 1).clamp(min=0)] <= queries)
        near = (outputs["sums"] - reference["sums"]).abs() <= 1e-9 * n
        return bool((not_after & not_before & near).all())


def _at(pointer: ctypes.c_void_p, kind: type, count: int) -> np.ndarray:
    assert pointer.value is not None
    return np.ctypeslib.as_array((kind * count).from_address(pointer.value))


class Kernel:
    """Right, and from either side of equal keys. It notes keys that are not sorted, and weights of
    another total than 1."""

    def __init__(self, side: str) -> None:
        self.broken: list[str] = []
        self.seen: set[bytes] = set()
        self._side = side

    def __call__(self, *given: ctypes.c_void_p | ctypes.c_int32) -> None:
        *pointers, by = given
        kinds = (ctypes.c_int32, ctypes.c_double, ctypes.c_int32, ctypes.c_double, ctypes.c_int64)
        keys, weights, queries, sums, places = (
            _at(pointer, kind, count)  # type: ignore[arg-type]
            for pointer, kind, count in zip(pointers, kinds, (N, N, M, M, M), strict=True)
        )
        if (np.diff(keys) < 0).any():
            self.broken.append("keys")
        if abs(weights.sum() - 1.0) > 1e-9:
            self.broken.append("weights")
        self.seen.add(keys.tobytes())
        places[:] = np.searchsorted(keys, queries, self._side)
        sums += by.value * weights.sum() * N


PLAN = LaunchPlan(
    "f",
    (
        *(Argument("tensor", n) for n in ("keys", "weights", "queries", "sums", "places")),
        Argument("int32", value=2),
    ),
    (),
    (),
)


@pytest.mark.parametrize("side", ["left", "right"])
def test_no_launch_finds_a_broken_structure(side: str) -> None:
    problem, kernel, session = Places("float32"), Kernel(side), CpuSession()
    pool = InputPool(problem)
    gate, verdict = Gate(session, problem, pool, deterministic=True), Verdict()
    case = problem.case({"n": N, "m": M}, {})
    subject = Subject(case, PLAN, kernel)
    gate.examine(subject, problem.input_kinds, 0, verdict)
    judge_timed(session, gate, pool, subject, seed=0, verdict=verdict, calls=6, watched_runs=8)
    assert verdict.passed, verdict.reason
    assert not kernel.broken
    assert len(kernel.seen) > 4
    examine(problem, case)
    weights = pool.get(case, "normal", 0).inputs["weights"]
    assert (weights.float() != weights).double().mean() > 0.9


def test_structured_values_of_any_type_reach_other_processes(tmp_path: Path) -> None:
    """Tools that count or sanitize launches get them as bytes."""
    for dtype in ("bfloat16", "float8_e4m3", "float64", "bool", "int16"):
        text = WRITTEN.replace('"int32"', f'"{dtype}"').replace(
            "    def operations",
            "    def make_input(self, name, shape, kind, generator):\n"
            "        import torch\n"
            "        made = torch.randint(2, shape, generator=generator)\n"
            f"        return made.bool() if {dtype!r} == 'bool' else made\n\n"
            "    def operations",
        )
        (tmp_path / "own.py").write_text(text)
        problem = create_problem("own.py:Own", "float32", tmp_path)
        case = problem.case({"rows": 300}, {})
        made = problem.make_inputs(case, "normal", 0)["x"]
        (data,) = index_bytes(problem, case).values()
        assert len(data) == 300 * made.element_size()
        assert set(data) > {0}


WRITTEN = """
from evotune.problems import Tensor, UserProblem

class Own(UserProblem):
    sizes = ("rows",)

    def inputs(self, rows):
        return {"x": Tensor((rows,), "int32", "structured")}

    def outputs(self, rows):
        return {"y": (rows,)}

    def operations(self, rows):
        return rows

    def compute(self, x):
        return {"y": x.double()}
"""


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('"structured"', '"structured"', "make_input gave x as float32, expected int32"),
        ("Tensor((rows,)", "InOut((rows,)", 'an InOut, whose values cannot be "structured"'),
        ('{"y": (rows,)}', '{"y": Tensor((rows,), "int32", "structured")}', "which has no values"),
        ('"structured"', '"sorted"', "two positive numbers, 'indices' or 'structured'"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, before: str, after: str, why: str) -> None:
    text = WRITTEN.replace("import Tensor,", "import InOut, Tensor,").replace(before, after)
    (tmp_path / "own.py").write_text(text)
    problem = create_problem("own.py:Own", "float32", tmp_path)
    assert isinstance(problem, UserProblem)
    with pytest.raises(ProblemMistake, match=why):
        examine(problem, problem.case({"rows": 3}, {}))
