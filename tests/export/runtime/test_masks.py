"""A package whose kernels take masks: attention-masks-cpu with attention-cpu, exported."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional

from evotune.problems.attention import Attention
from evotune.runs.given_cases import spaces_for
from evotune.space.reading.case_file import read_cases
from tests.export.making import explained_words, words_of_tables
from tests.export.runtime.calling import is_right
from tests.export.runtime.packages import imported
from tests.export.runtime.states import STATES

BATCH, HEADS, KV_HEADS, LENGTH, HEAD_DIM = 2, 4, 2, 64, 32
WHOLE = (BATCH, HEADS, LENGTH, LENGTH)
GROUPED: dict[str, Any] = {"enable_gqa": True}
SHAPES: list[tuple[int, ...]] = [
    *((2, 1, 1, 64), (1, 1, 1, 64), (1, 64)),  # padding, where the mask is boolean
    *((64, 64), (1, 1, 64, 64), (2, 1, 64, 64), (4, 64, 64), (4, 1, 64), WHOLE),
]


@pytest.fixture(scope="module")
def package(masks_cpu: Path) -> Iterator[ModuleType]:
    with imported(masks_cpu) as module:
        yield module


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def inputs(batch: int = BATCH, length: int = LENGTH) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, heads, length, HEAD_DIM, generator=generator)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]


def mask_of(shape: tuple[int, ...], kind: str = "bool") -> torch.Tensor:
    """Some keys are hidden, and all keys of the first row."""
    generator = torch.Generator().manual_seed(1)
    seen = torch.rand(shape, generator=generator) < 0.6
    seen.view(-1, *shape[-2:])[0, 0] = False
    if kind == "bool":
        return seen
    bias = torch.randn(shape, generator=generator)
    return bias.masked_fill(~seen, -torch.inf if kind == "bias" else torch.finfo(bias.dtype).min)


def sdpa(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch._C._nn.scaled_dot_product_attention(*tensors, **{**GROUPED, **options})


def doors(package: ModuleType) -> list[Callable[..., torch.Tensor]]:
    """All ways to call the package with a mask."""
    operators = getattr(torch.ops, package.info()["operator"].split(".")[2])

    def hook(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        with package.active():
            return functional.scaled_dot_product_attention(*tensors, **options)

    def with_features(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        found: torch.Tensor = operators.attention_with_features(*tensors, **options)[0]
        return found

    return [hook, package.attention, operators.attention, with_features]


@pytest.mark.parametrize("kind", ["bool", "bias", "lowest"])
def test_every_door_serves_masks_however_they_are_broadcast(
    package: ModuleType, served: Callable[[], int], kind: str
) -> None:
    given = inputs()
    for shape in SHAPES:
        mask = mask_of(shape, kind)
        longer = torch.nn.functional.pad(mask, (0, 24))[..., :LENGTH]
        for each in (mask, mask.expand(WHOLE), longer):
            wanted = sdpa(*given, attn_mask=each)
            for call in doors(package):
                found = call(*given, attn_mask=each, **GROUPED)
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
            assert served() == len(doors(package)), (shape, package.info()["misses"])


def test_a_mask_may_change_from_call_to_call(
    package: ModuleType, served: Callable[[], int]
) -> None:
    given, mask = inputs(), mask_of((2, 1, 1, 64))
    for _ in range(3):
        mask.logical_not_()
        found = package.attention(*given, attn_mask=mask, **GROUPED)
        torch.testing.assert_close(found, sdpa(*given, attn_mask=mask), rtol=1e-4, atol=1e-5)
    bias = torch.nn.Parameter(mask_of((4, 64, 64), "bias"))
    found = package.attention(*given, attn_mask=bias, **GROUPED)
    torch.testing.assert_close(found, sdpa(*given, attn_mask=bias), rtol=1e-4, atol=1e-5)
    assert served() == 4


def strided(mask: torch.Tensor) -> torch.Tensor:
    """The same mask, its keys not side by side."""
    return mask.mT.contiguous().mT


MISSES: list[tuple[str, Callable[[], torch.Tensor], dict[str, Any]]] = [
    ("layout", lambda: strided(mask_of((64, 64))), {}),
    ("layout", lambda: mask_of((64, 1)), {}),  # one value for all keys
    ("alignment", lambda: mask_of((64, 80))[:, 7:71], {}),
    ("grad", lambda: mask_of((64, 64), "lowest").requires_grad_(), {}),
    ("dropout", lambda: mask_of((64, 64)), {"dropout_p": 0.5}),
    ("tensor", lambda: torch._neg_view(mask_of((64, 64), "lowest")), {}),
    ("mask", lambda: mask_of((64, 64)), {"is_causal": True}),
]


@pytest.mark.parametrize(
    ("kind", "make", "options"), MISSES, ids=[f"{n}-{kind}" for n, (kind, *_) in enumerate(MISSES)]
)
def test_other_masks_get_the_bits_of_sdpa(
    package: ModuleType,
    served: Callable[[], int],
    kind: str,
    make: Callable[[], torch.Tensor],
    options: dict[str, Any],
) -> None:
    given, mask = inputs(), make()
    before = package.info()["misses"].get(kind, {"count": 0})["count"]
    with torch.enable_grad():
        for _ in range(2):
            found = []
            for function in (functional.scaled_dot_product_attention, sdpa):
                torch.manual_seed(0)
                with package.active():
                    given_options = {"attn_mask": mask, **GROUPED, **options}
                    found.append(functional.scaled_dot_product_attention(*given, **given_options))
                    if function is sdpa:
                        torch.manual_seed(0)
                        found[-1] = sdpa(*given, attn_mask=mask, **options)
            assert torch.equal(*found)
            assert found[0].requires_grad == found[1].requires_grad == mask.requires_grad
    assert package.info()["misses"][kind]["count"] == before + 4
    assert served() == 0


REFUSED = [
    *((torch.ones(64, dtype=torch.bool), {}), (torch.ones(2, 65, dtype=torch.bool), {})),
    *((torch.ones(3, 1, 1, 64, dtype=torch.bool), {}), (torch.ones(1, 2, 4, 64, 64), {})),
    *((torch.ones(64, 64).double(), {}), (torch.ones(64, 64).half(), {})),
    (torch.ones(64, 64).int(), {}),
]


@pytest.mark.parametrize(("mask", "options"), REFUSED)
def test_masks_that_sdpa_refuses_get_its_error(
    package: ModuleType, served: Callable[[], int], mask: torch.Tensor, options: dict[str, Any]
) -> None:
    given = inputs()
    with pytest.raises((RuntimeError, IndexError)) as wanted:
        sdpa(*given, attn_mask=mask, **options)
    for call in doors(package)[:2]:
        with pytest.raises(wanted.type) as found:
            call(*given, attn_mask=mask, **options, **GROUPED)
        assert str(found.value) == str(wanted.value)
    with pytest.raises(ValueError, match="attn_mask must be") as refused:
        package.attention(*given, attn_mask=mask, window=(5, None), **GROUPED)
    assert "\n" not in str(refused.value)
    assert served() == 0


def test_is_causal_and_a_mask_together_are_sdpas(
    package: ModuleType, served: Callable[[], int]
) -> None:
    """PyTorch may refuse them, and on a CPU it does not. A window says the same."""
    given, mask = inputs(), mask_of((64, 64))
    found = package.attention(*given, attn_mask=mask, is_causal=True, **GROUPED)
    assert torch.equal(found, sdpa(*given, attn_mask=mask, is_causal=True))
    both = package.attention(*given, attn_mask=mask, window=(None, 0), **GROUPED)
    torch.testing.assert_close(both, sdpa(*given, attn_mask=mask.tril()), rtol=1e-4, atol=1e-5)
    found = package.attention(*given, attn_mask=mask.tril(), **GROUPED)
    torch.testing.assert_close(both, found, rtol=1e-4, atol=1e-5)
    assert served() == 1


def test_masks_join_features_that_no_kernel_serves(
    package: ModuleType, served: Callable[[], int]
) -> None:
    problem = Attention("float32")
    sizes = {"batch": BATCH, "heads": HEADS, "kv_heads": KV_HEADS, "seq_len": LENGTH}
    for mask in ({"mask": "padding"}, {"mask": "bias", "mask_batch": 1}):
        case = problem.case({**sizes, "head_dim": HEAD_DIM, "softcap": 3.0, **mask}, {})
        made = problem.make_inputs(case, "normal", 0)
        each = made["attn_mask"]
        each = each.bool() if mask["mask"] == "padding" else each
        given = [made[name] for name in "qkv"]
        found = package.attention(*given, attn_mask=each, softcap=3.0, **GROUPED)
        assert is_right(problem, case, made, found)
        assert case in [
            problem.case(each["shape"], each["variant"]) for each in package.misses()
        ], package.misses()
    assert served() == 0


def test_a_miss_is_a_case_that_names_the_space_for_it(
    attention_cpu: Path, served_masks: Callable[..., int], tmp_path: Path
) -> None:
    """A package without masks."""
    problem = Attention("float32")
    with imported(attention_cpu) as module:
        given = inputs(batch=1)
        words = r"\(mask\): no kernel .* takes a padding mask; .* attention-masks-cpu tunes it"
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            with pytest.warns(UserWarning, match=words), module.active():
                functional.scaled_dot_product_attention(*given, mask_of((1, 64)), **GROUPED)
        for shape, kind in (((64, 64), "bool"), ((4, 64, 64), "bias"), ((1, 64), "bool")):
            with module.active():
                functional.scaled_dot_product_attention(*given, mask_of(shape, kind), **GROUPED)
        assert module.info()["misses"]["mask"]["count"] == served_masks(module) == 4
        module.write_misses(tmp_path / "misses.yaml")
    entries = read_cases(tmp_path / "misses.yaml")
    cases = [problem.case(dict(each.shape), dict(each.variant)) for each in entries]
    assert {case.symbols["mask"] for case in cases} == {"padding", "bool", "bias"}
    for entry in entries:
        able = [each.space for each in spaces_for(entry, "cpu") if not each.why]
        assert able == ["attention-masks-cpu"]


@pytest.fixture
def served_masks() -> Callable[[ModuleType], int]:
    """The calls with masks that a package counted."""
    return lambda module: sum(
        each["count"] for each in module.misses() if "mask" in each["variant"]
    )


def test_a_call_without_a_mask_goes_to_no_kernel_that_takes_one(
    package: ModuleType, served: Callable[[], int]
) -> None:
    given = inputs()  # served with masks alone
    assert torch.equal(package.attention(*given, **GROUPED), sdpa(*given))
    plain = [each[:1, :2] for each in inputs()]
    package.attention(*plain)
    package.attention(*plain, is_causal=True)
    assert served() == 2
    found = package.attention(*plain, attn_mask=mask_of((64, 64)))
    assert torch.equal(found, sdpa(*plain, attn_mask=mask_of((64, 64))))
    assert served() == 0


def test_in_every_state_of_pytorch_a_masked_call_gives_what_sdpa_gives(
    package: ModuleType,
) -> None:
    mask = torch.randn(WHOLE)
    call = functools.partial(package.attention, attn_mask=mask, **GROUPED)
    before = functools.partial(sdpa, attn_mask=mask)
    for state in STATES:
        if state.__name__ == "meta":
            continue  # the mask is on the CPU
        found, wanted = state(call, inputs()), state(before, inputs())
        torch.testing.assert_close(found, wanted, msg=state.__name__, rtol=1e-4, atol=1e-4)


def test_a_default_device_and_inference_mode_are_served(
    package: ModuleType, served: Callable[[], int]
) -> None:
    given, mask = inputs(), mask_of((2, 1, 1, 64))
    for state in (torch.device("cpu"), torch.inference_mode()):
        with state, package.active():
            functional.scaled_dot_product_attention(*given, mask, **GROUPED)
    assert served() == 2


def test_autocast_casts_the_mask_as_sdpas(package: ModuleType, served: Callable[[], int]) -> None:
    given = inputs()
    for mask in (mask_of((64, 64)), mask_of((64, 64), "bias")):
        with torch.autocast("cpu", torch.bfloat16):
            wanted = sdpa(*given, attn_mask=mask)
            for call in doors(package):
                found = call(*given, attn_mask=mask, **GROUPED)
                assert found.dtype == torch.bfloat16
                torch.testing.assert_close(found, wanted)
    assert served() == 0


@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler
def test_compiled_functions_are_served(package: ModuleType, served: Callable[[], int]) -> None:
    given = inputs()

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, mask.expand(WHOLE), **GROUPED)

    for mask in (mask_of((2, 1, 1, 64)), mask_of((4, 64, 64), "bias"), strided(mask_of((64, 64)))):
        torch._dynamo.reset()
        compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
        with package.active():
            for _ in range(2):
                found = compiled(*given, mask)
                wanted = sdpa(*given, attn_mask=mask)
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert served() == (2 if mask.stride(-1) == 1 else 0)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler
def test_a_compiled_function_makes_its_own_mask(
    package: ModuleType, served: Callable[[], int]
) -> None:
    lengths = torch.tensor([50, 64])

    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> Any:
        mask = (torch.arange(LENGTH) < lengths[:, None])[:, None, None]
        return package.attention(q, k, v, attn_mask=mask, **GROUPED)

    torch._dynamo.reset()
    wanted = model(*inputs(), lengths)
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(*inputs(), lengths)
    assert torch.equal(found, wanted)
    assert served() == 2
    torch._dynamo.reset()


def test_the_operators_keep_their_promises(package: ModuleType) -> None:
    operator = getattr(torch.ops, package.info()["operator"].split(".")[2])
    given = inputs()
    for mask in (mask_of((2, 1, 1, 64)), mask_of((64, 64), "lowest"), strided(mask_of((64, 64)))):
        with torch.enable_grad():
            torch.library.opcheck(
                operator.attention.default, (*given, False, None, True), {"attn_mask": mask}
            )
            torch.library.opcheck(
                operator.attention_with_features.default, given, {"attn_mask": mask, **GROUPED}
            )
    meta = [each.to("meta") for each in given]
    for mask, words in ((torch.ones(64, 64).int(), "bool, float32"), (torch.ones(3, 64), "scores")):
        with pytest.raises(RuntimeError, match=f"expected a mask .*{words}"):
            operator.attention(*meta, **GROUPED, attn_mask=mask.to("meta"))
    bias = mask_of((64, 64), "lowest").requires_grad_()
    with torch.enable_grad():
        for call in doors(package):
            (found,) = torch.autograd.grad(call(*given, attn_mask=bias, **GROUPED).sum(), bias)
            (wanted,) = torch.autograd.grad(sdpa(*given, attn_mask=bias).sum(), bias)
            assert torch.equal(found, wanted)


def test_check_compares_masked_cases(package: ModuleType, capsys: Any) -> None:
    result = package.check()
    assert result, result
    said = capsys.readouterr().out
    for words in ("padding mask 2x1x1", "bool mask 2x1x64", "bias float32 mask 1x4x64"):
        assert words in said


def test_check_sees_a_kernel_that_ignores_its_mask(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    checking = sys.modules[f"{package.__name__}._checking"]

    def without(call: Any) -> Any:
        return package._loaded._attempted(call._replace(mask=torch.ones(1, 64).bool()))  # type: ignore[attr-defined]

    result = checking.check_attention(package._loaded._kernels, without)  # type: ignore[attr-defined]
    assert [row.fault for row in result.rows if "mask" in row.case] == ["differs"] * 6


def test_the_readme_explains_masks(masks_cpu: Path) -> None:
    readme = (masks_cpu.parent / "README.md").read_text()
    assert "Kernels take masks" in readme
    assert (
        {"mask", "mask_dtype", "mask_sizes"} <= words_of_tables(readme) <= explained_words(readme)
    )
