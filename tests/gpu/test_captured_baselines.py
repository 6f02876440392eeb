"""Every baseline of attention can be captured into a CUDA graph, and computes the same there."""

from __future__ import annotations

import pytest
import torch
from problems.asked_for import cases

from evotune.problems import Case, create_problem

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("name", "case"), cases("float16"))
def test_a_baseline_is_captured(name: str, case: Case) -> None:
    problem = create_problem(name, "float16")
    inputs = problem.make_inputs(case, "normal", 0, "cuda:0")
    calls = problem.baselines(case, inputs)
    assert calls
    for call in calls.values():
        expected = call()["out"].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = call()["out"]
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(found, expected)
