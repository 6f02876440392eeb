"""Packages of tensor core kernels with features of attention, on a GPU."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from evotune.export.exporting import export_runs
from evotune.problems.attention import Attention
from evotune.problems.problem import Case
from tests.export.making import fabricated
from tests.export.runtime.calling import arguments, is_right, served_since
from tests.export.runtime.packages import imported

from .searching import shipped

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

PROBLEM = Attention("float16")
SCORE_MOD = "score - 0.01 * abs(row - column) if head % 2 == 0 else min(score, 4)"
RIGHT: dict[str, Any] = {"alignment": "bottom_right", "causal": True}
VARIANTS: list[dict[str, Any]] = [
    {**RIGHT, "window_left": 255, "sinks": True},
    {**RIGHT, "softcap": 30.0, "alibi": True, "lse": True},
    {"score_mod": SCORE_MOD},
]
SIZES = {"batch": 1, "heads": 8, "kv_heads": 2, "head_dim": 64}


def case_of(queries: int = 600, keys: int = 600, **told: Any) -> Case:
    variant = {"causal": told.pop("causal", False)}
    return PROBLEM.case({**SIZES, "seq_len_q": queries, "seq_len_k": keys, **told}, variant)


@pytest.fixture(scope="module", params=["attention_mma_features", "attention_wgmma_features"])
def package(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModuleType]:
    """The space's default, whose figures are made up, in a package for this GPU."""
    if "wgmma" in request.param and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("wgmma needs a Hopper GPU")
    folder = tmp_path_factory.mktemp(request.param)
    space = shipped(request.param)
    problem = {"dtype": "float16", "shapes": [{**SIZES, "seq_len": 600}], "variants": VARIANTS}
    held_out = [{**SIZES, "seq_len_q": 16, "seq_len_k": 1000}]
    text = yaml.safe_dump(
        {**space, "problem": {"name": "attention", **problem, "held_out": held_out}}
    )
    (folder / "space.yaml").write_text(text)
    run = fabricated(folder / "space.yaml", folder, "cuda:0")
    export_runs([run], folder / "package", request.param)
    with imported(folder / "package" / request.param) as module:
        yield module


@pytest.fixture
def served(package: ModuleType) -> Callable[[], int]:
    """A function that gives the number of served calls since the last time."""
    return served_since(package)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("queries", "keys"), [(600, 600), (16, 1000)])
def test_kernels_serve_the_features_that_they_were_checked_for(
    package: ModuleType,
    served: Callable[[], int],
    variant: dict[str, Any],
    queries: int,
    keys: int,
) -> None:
    case = case_of(queries, keys, **variant)
    given, named, inputs = arguments(PROBLEM, case, "cuda")
    views = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in given]
    for tensors in (given, views):
        assert is_right(PROBLEM, case, inputs, package.attention(*tensors, **named))
        assert served() == 1, package.misses()


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"causal": True},
        {**VARIANTS[0], "window_left": 3, "lse": True},
        {**VARIANTS[1], "window_left": 3},
        {"window_left": 70, "window_right": 5},
        {**VARIANTS[1], "queries": 700, "keys": 300},
    ],
)
def test_pytorch_serves_the_others(
    package: ModuleType, served: Callable[[], int], told: dict[str, Any]
) -> None:
    case = case_of(**told)
    given, named, inputs = arguments(PROBLEM, case, "cuda")
    assert is_right(PROBLEM, case, inputs, package.attention(*given, **named))
    assert served() == 0


@pytest.mark.parametrize("warm", [True, False])
def test_captured_graphs_replay_them(package: ModuleType, warm: bool) -> None:
    for variant in VARIANTS:
        case = case_of(**variant)
        given, named, inputs = arguments(PROBLEM, case, "cuda")
        if warm:
            package.attention(*given, **named)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = package.attention(*given, **named)
        graph.replay()
        torch.cuda.synchronize()
        assert is_right(PROBLEM, case, inputs, found)
        given[0].mul_(-1)
        graph.replay()
        torch.cuda.synchronize()
        assert is_right(PROBLEM, case, inputs, found)  # `inputs` has the same tensors


def test_threads_and_streams_share_a_package(package: ModuleType) -> None:
    case = case_of(**VARIANTS[0])
    given, named, inputs = arguments(PROBLEM, case, "cuda")
    expected = package.attention(*given, **named)
    torch.cuda.synchronize()
    found: list[torch.Tensor] = []

    def work() -> None:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            mine = [package.attention(*given, **named) for _ in range(20)]
        stream.synchronize()
        found.extend(mine)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(torch.equal(out, expected) for out in found)
    assert is_right(PROBLEM, case, inputs, expected)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_functions_are_served(
    package: ModuleType, served: Callable[[], int], mode: str
) -> None:
    torch._dynamo.reset()
    case = case_of(**VARIANTS[1])
    given, named, inputs = arguments(PROBLEM, case, "cuda")
    compiled = torch.compile(package.attention, fullgraph=True, mode=mode)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            found = tuple(tensor.clone() for tensor in compiled(*given, **named))
            assert is_right(PROBLEM, case, inputs, found)
    assert served() >= 1


def test_operators_keep_their_promises(package: ModuleType) -> None:
    operator = getattr(torch.ops, package.__name__).attention_with_features.default
    given, _, inputs = arguments(PROBLEM, case_of(**VARIANTS[0]), "cuda")
    options = {"is_causal": True, "enable_gqa": True, "bottom_right": True, "window_left": 255}
    for tensors in (given, [t.transpose(1, 2).contiguous().transpose(1, 2) for t in given]):
        torch.library.opcheck(operator, (*tensors, None, inputs["sinks"]), options)


def test_check_passes(package: ModuleType) -> None:
    result = package.check()
    assert result, result
    assert len(result.rows) == len(VARIANTS)
