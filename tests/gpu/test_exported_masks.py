"""Packages of tensor core kernels that take masks, on a GPU."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch.nn import functional

from evotune.export.exporting import export_runs
from evotune.problems.attention import Attention
from evotune.problems.problem import Case
from tests.export.making import fabricated
from tests.export.runtime.calling import arguments, is_right, served_since
from tests.export.runtime.packages import imported
from tests.export.runtime.registry import Registry

from .searching import ROOT, shipped

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

DEVICE = "cuda"
PROBLEM, PROBLEM_DTYPE = Attention("float16"), torch.float16
SPACES = sorted(path.stem for path in (ROOT / "search_spaces").glob("attention_*_masks.yaml"))
SIZES = {"batch": 3, "heads": 4, "kv_heads": 2, "seq_len": 256, "head_dim": 64}
VARIANTS: list[dict[str, Any]] = [
    {"mask": "padding"},
    {"mask": "bool", "mask_heads": 1},
    {"mask": "bias", "mask_batch": 1},
    {"mask": "bias", "mask_dtype": "float32"},
]
WAYS = list(itertools.product((1, 3), (1, 4), (1, 256)))


@pytest.fixture(scope="module", params=SPACES)
def package(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModuleType]:
    """The space's default, whose figures are made up, in a package for this GPU."""
    if "wgmma" in request.param and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("wgmma needs a Hopper GPU")
    folder = tmp_path_factory.mktemp(request.param)
    problem = {"name": "attention", "dtype": "float16", "shapes": [SIZES], "variants": VARIANTS}
    (folder / "space.yaml").write_text(
        yaml.safe_dump({**shipped(request.param), "problem": problem})
    )
    run = fabricated(folder / "space.yaml", folder, "cuda:0")
    export_runs([run], folder / "package", request.param)
    with imported(folder / "package" / request.param) as module:
        yield module


@pytest.fixture(autouse=True)
def without_grad() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


@pytest.fixture
def served(package: ModuleType) -> Callable[[], int]:
    """A function that gives the number of served calls since the last time."""
    return served_since(package)


@pytest.fixture
def registry(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A stand-in for transformers, with which the package is registered."""
    made = Registry(monkeypatch)
    package.register_transformers()
    return made


def case_of(variant: dict[str, Any], **sizes: int) -> Case:
    return PROBLEM.case({**SIZES, **sizes}, variant)


def call_of(variant: dict[str, Any]) -> tuple[Case, list[torch.Tensor], torch.Tensor, Any]:
    """A case, q, k and v, the mask, and the inputs by name."""
    case = case_of(variant)
    given, named, inputs = arguments(PROBLEM, case, DEVICE)
    return case, given, named["attn_mask"], inputs


def doors(package: ModuleType) -> list[Callable[..., torch.Tensor]]:
    operators = getattr(torch.ops, package.info()["operator"].split(".")[2])

    def hook(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        with package.active():
            return functional.scaled_dot_product_attention(*tensors, **options)

    return [hook, package.attention, operators.attention]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_door_serves_masks(
    package: ModuleType, served: Callable[[], int], variant: dict[str, Any]
) -> None:
    case, given, mask, inputs = call_of(variant)
    views = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in given]
    expanded = mask.expand(3, 4, 256, 256)
    for call in doors(package):
        for tensors, each in ((given, mask), (views, mask), (given, expanded)):
            found = call(*tensors, attn_mask=each, enable_gqa=True)
            assert is_right(PROBLEM, case, inputs, found)
            assert served() == 1, package.misses()


@pytest.mark.parametrize("kind", ["bool", "bias"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_of_broadcasting_is_served(
    package: ModuleType, served: Callable[[], int], kind: str, way: tuple[int, int, int]
) -> None:
    names = ("mask_batch", "mask_heads", "mask_rows")
    case, given, mask, inputs = call_of({"mask": kind, **dict(zip(names, way, strict=True))})
    found = package.attention(*given, attn_mask=mask, enable_gqa=True)
    assert is_right(PROBLEM, case, inputs, found)
    assert served() == 1, package.misses()


def test_native_code_makes_the_launch(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = package._loaded._calls  # type: ignore[attr-defined]
    if calls._direct is None:
        pytest.skip("this PyTorch has no native function")
    monkeypatch.setattr(calls, "_native", None)
    monkeypatch.setattr(package._loaded._kernels, "serve", None)  # type: ignore[attr-defined]
    for variant in VARIANTS:
        case, given, mask, inputs = call_of(variant)
        for _ in range(2):
            found = calls._direct(*given, mask, 0.0, False, None, True)
            assert is_right(PROBLEM, case, inputs, found)


@pytest.mark.parametrize("warm", [True, False])
def test_captured_graphs_replay_other_masks(package: ModuleType, warm: bool) -> None:
    for variant in VARIANTS:
        case, given, mask, inputs = call_of(variant)
        if warm:
            package.attention(*given, attn_mask=mask, enable_gqa=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = package.attention(*given, attn_mask=mask, enable_gqa=True)
        for _ in range(2):
            graph.replay()
            torch.cuda.synchronize()
            assert is_right(PROBLEM, case, inputs, found)
            mask.copy_(mask.flip(-1))  # `inputs` has the same memory


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_functions_make_their_masks(
    package: ModuleType, served: Callable[[], int], mode: str
) -> None:
    case, given, _, inputs = call_of(VARIANTS[0])
    lengths = torch.tensor([256, 100, 7], device=DEVICE)
    inputs["attn_mask"] = (torch.arange(256, device=DEVICE) < lengths[:, None])[:, None, None]
    inputs["attn_mask"] = inputs["attn_mask"].to(torch.uint8)

    def model(*tensors: torch.Tensor) -> torch.Tensor:
        q, k, v, lengths = tensors
        mask = (torch.arange(256, device=DEVICE) < lengths[:, None])[:, None, None]
        return functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    compiled = torch.compile(model, fullgraph=True, mode=mode)
    with package.active():
        for _ in range(4):
            found = compiled(*given, lengths).clone()
            assert is_right(PROBLEM, case, inputs, found)
    assert served() >= 1


def test_autocast_casts_the_mask(package: ModuleType, served: Callable[[], int]) -> None:
    for variant in VARIANTS[:3]:
        case, given, mask, inputs = call_of(variant)
        wide = [tensor.float() for tensor in given]
        each = mask if mask.dtype == torch.bool else mask.float()
        with torch.autocast(DEVICE, torch.float16):
            for call in doors(package):
                found = call(*wide, attn_mask=each, enable_gqa=True)
                assert is_right(PROBLEM, case, inputs, found)
                assert served() == 1, package.misses()


def outcome(call: Callable[..., torch.Tensor], *given: torch.Tensor, **options: Any) -> Any:
    """The result, or the error in words."""
    try:
        return call(*given, **options)
    except RuntimeError as error:
        return str(error)


def test_other_masks_are_sdpas(package: ModuleType, served: Callable[[], int]) -> None:
    _, given, mask, _ = call_of({"mask": "bool", "mask_batch": 1, "mask_heads": 1})
    sdpa = torch._C._nn.scaled_dot_product_attention
    q, k, v = (tensor[:, :2].contiguous() for tensor in given)
    unaligned = functional.pad(mask, (8, 8))[..., 8:264]
    bias = torch.randn(256, 256, device=DEVICE, dtype=PROBLEM_DTYPE, requires_grad=True)
    calls: list[tuple[torch.Tensor, dict[str, Any]]] = [
        *((mask.mT, {}), (unaligned, {}), (bias, {}), (mask, {"is_causal": True})),
        *((mask[..., :255], {}), (bias.detach().double(), {})),
    ]
    with torch.enable_grad():
        for each, options in calls:
            wanted = outcome(sdpa, q, k, v, attn_mask=each, **options)
            for call in doors(package)[:2]:
                found = outcome(call, q, k, v, attn_mask=each, **options)
                assert type(found) is type(wanted)
                if isinstance(wanted, torch.Tensor):
                    assert torch.equal(found, wanted)
                    assert found.requires_grad == wanted.requires_grad
                else:
                    assert found == wanted
    assert served() == 0


@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_of_t5_is_served(
    package: ModuleType, registry: Registry, served: Callable[[], int], compiled: bool
) -> None:
    """Its bias has heads side by side, and joins padding."""
    module = SimpleNamespace(is_causal=False, num_key_value_groups=2)
    case, given, _, inputs = call_of({"mask": "bias"})
    bias = torch.randn(256, 256, 4, device=DEVICE, dtype=PROBLEM_DTYPE).permute(2, 0, 1)[None]
    padding = torch.arange(256, device=DEVICE) < torch.tensor([[256], [100], [7]], device=DEVICE)
    mask = padding[:, None, None].expand(3, 1, 256, 256)
    lowest = torch.finfo(PROBLEM_DTYPE).min
    inputs["attn_mask"] = torch.where(mask, bias, lowest).contiguous()

    def layer(*tensors: torch.Tensor) -> torch.Tensor:
        return registry.forward(module, *tensors, mask, position_bias=bias)[0]

    called = torch.compile(layer, fullgraph=True) if compiled else layer
    found = called(*given).transpose(1, 2)
    assert is_right(PROBLEM, case, inputs, found)
    assert (served(), registry.left_to_sdpa) == (1, 0)


def test_threads_and_streams_share_a_package(package: ModuleType) -> None:
    case, given, mask, inputs = call_of(VARIANTS[1])
    expected = package.attention(*given, attn_mask=mask, enable_gqa=True)
    torch.cuda.synchronize()
    found: list[torch.Tensor] = []

    def work() -> None:
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            mine = [package.attention(*given, attn_mask=mask, enable_gqa=True) for _ in range(20)]
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


def test_operators_keep_their_promises(package: ModuleType) -> None:
    operators = getattr(torch.ops, package.info()["operator"].split(".")[2])
    _, given, mask, _ = call_of(VARIANTS[1])
    torch.library.opcheck(
        operators.attention.default, (*given, False, None, True), {"attn_mask": mask}
    )


def test_check_passes(package: ModuleType) -> None:
    result = package.check()
    assert result, result
    assert len(result.rows) == len(VARIANTS)


def test_a_package_is_written_with_its_masks(package: ModuleType) -> None:
    assert package.__file__ is not None
    readme = (Path(package.__file__).parents[1] / "README.md").read_text()
    assert "Kernels take masks" in readme
