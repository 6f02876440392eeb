"""Calls of an exported package: which kernel serves them, and what serves the rest."""

from __future__ import annotations

import copy
import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from evotune.backends.cpu import _cpu_launcher
from evotune.backends.cuda import _cuda_driver
from evotune.export.runtime import _tracing
from tests.export.runtime.packages import (
    CASE,
    HEAD_DIM,
    attention_package,
    description,
    imported,
    region,
    strided_kernel,
    strided_region,
)
from tests.export.runtime.states import STATES, State
from tests.patience import PATIENCE_S

Open = Callable[..., ModuleType]
GROUPED: dict[str, Any] = {"enable_gqa": True}


def inputs(
    length: int = 40, batch: int = 1, heads: int = 4, kv_heads: int = 2, dtype: Any = torch.float32
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, count, length, HEAD_DIM, generator=generator).to(dtype)
        for count in (heads, kv_heads, kv_heads)
    ]


def sdpa(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch._C._nn.scaled_dot_product_attention(*tensors, **options)


def test_the_words_of_a_miss_tell_a_scale_of_its_own(opened: Open) -> None:
    module = opened(served=[region(**CASE, softmax_scale=[0.2, 0.26])])
    with pytest.warns(UserWarning, match=r"head_dim \d+, causal False, scale 0\.3;"):
        module.attention(*inputs(), **GROUPED, scale=0.3)


def none_without_elements(*tensors: torch.Tensor, **options: Any) -> torch.Tensor | None:
    """SDPA as it is where cuDNN's kernels serve it."""
    return None if any(t.numel() == 0 for t in tensors[:3]) else sdpa(*tensors, **options)


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """The kernel's results differ from SDPA's in the last bits, but hardly more."""
    off = (found - expected).abs().max()
    return 0 < off < 1e-5


@pytest.fixture
def silent() -> Any:
    """Warnings of misses are not what the test is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [40, 37])
def test_a_case_in_a_served_region_runs_the_kernel(opened: Open, causal: bool, length: int) -> None:
    module = opened(served=[region(**CASE), region(**CASE, causal=True), near(), near(causal=True)])
    tensors = inputs(length)
    out = module.attention(*tensors, is_causal=causal, **GROUPED)
    assert close(out, sdpa(*tensors, is_causal=causal, **GROUPED))
    assert module.info()["calls"] == 1
    assert module.misses() == []


def near(**changes: Any) -> dict[str, Any]:
    sizes = {**CASE, "seq_len_q": [36, 44], "seq_len_k": [36, 44]}
    return region(near=True, **sizes, **changes)


MISSES: list[tuple[str, Callable[[], tuple[list[torch.Tensor], dict[str, Any]]]]] = [
    ("not measured to win", lambda: (inputs(50), GROUPED)),
    ("not measured to win", lambda: (inputs(40, heads=2), {})),
    ("outside the domain", lambda: (inputs(201), GROUPED)),
    ("dtype", lambda: (inputs(dtype=torch.bfloat16), GROUPED)),
    ("layout", lambda: ([t.transpose(2, 3).contiguous().mT for t in inputs()], GROUPED)),
    ("layout", lambda: ([across(t) for t in inputs()], GROUPED)),
    ("alignment", lambda: ([shifted(t) for t in inputs()], GROUPED)),
    ("grad", lambda: ([t.requires_grad_() for t in inputs()], GROUPED)),
    ("outside the domain", lambda: ([t[0] for t in inputs(heads=2)], {})),
    ("not measured to win", lambda: (inputs(), {**GROUPED, "scale": 0.3})),
    ("tensor", lambda: ([torch.nn.Parameter(t, False) for t in inputs()], GROUPED)),
]


def across(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, heads beside each other in memory, as models hand them over."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    room = torch.empty(tensor.numel() + 1)
    room[1:] = tensor.flatten()
    return room[1:].view(tensor.shape)


@pytest.mark.parametrize(
    ("kind", "call"), MISSES, ids=[f"{i}-{kind}" for i, (kind, _) in enumerate(MISSES)]
)
def test_other_calls_get_the_bits_of_sdpa(opened: Open, kind: str, call: Any) -> None:
    scales = {"softmax_scale": [0.2, 0.26]}
    module = opened(served=[region(**CASE, **scales)])
    tensors, options = call()
    with pytest.warns(UserWarning, match=rf"not served \({kind}\): .*attention serves it") as said:
        out = module.attention(*tensors, **options)
    assert said[0].filename == __file__
    expected = sdpa(*tensors, **options)
    assert torch.equal(out, expected)
    assert out.stride() == expected.stride()
    assert out.requires_grad == expected.requires_grad
    module.attention(*tensors, **options)  # the first of its kind is said, the second is not
    assert module.info()["misses"][kind]["count"] == 2
    assert module.info()["calls"] == 0


def test_a_strided_kernel_takes_tensors_as_models_hand_them_over(opened: Open) -> None:
    module = opened(served=[strided_region()], kernels=[strided_kernel()])
    wide = torch.randn(2, 40, 8, HEAD_DIM)
    packed = tuple(
        wide[:, :, heads].transpose(1, 2) for heads in (slice(4), slice(4, 6), slice(6, 8))
    )
    for tensors in ([across(t) for t in inputs()], inputs(), packed):
        out = module.attention(*tensors, **GROUPED)
        assert out.stride() == torch.empty_like(tensors[0]).stride()
        torch.testing.assert_close(out, sdpa(*tensors, **GROUPED))
        overload = getattr(torch.ops, module.__name__).attention.default
        torch.library.opcheck(overload, (*tensors, False, None, True))
    assert module.misses() == []


def test_a_view_that_is_not_served_says_nothing_of_contiguous_tensors(
    opened: Open, silent: None
) -> None:
    near = [strided_region(q_stride_row=[HEAD_DIM, HEAD_DIM])]
    module = opened(kernels=[strided_kernel()], served=near, domain=near)
    module.attention(*(across(t) for t in inputs()), **GROUPED)
    assert module.info()["misses"]["outside the domain"]["count"] == 1
    for _ in range(2):
        module.attention(*inputs(), **GROUPED)
    assert module.info()["calls"] == 2


@pytest.mark.parametrize(("row", "kind"), [(1 << 29, None), (1 << 30, "layout")])
def test_rows_that_lie_too_far_apart_are_left_to_sdpa(
    opened: Open, row: int, kind: str | None
) -> None:
    module = opened(served=[strided_region()], kernels=[strided_kernel()])
    q, k, v = inputs()
    # No memory is needed: a decision reads shapes, strides and dtypes only.
    far = torch.empty_strided(q.shape, (HEAD_DIM, HEAD_DIM, row, 1), dtype=q.dtype, device="meta")
    kernels = module._loaded._kernels
    call = sys.modules[f"{module.__name__}._attention_package"].Call
    choice = kernels.chosen(call(far, k, v, False, None, True), torch.device("cpu"))
    assert getattr(choice, "kind", None) == kind, choice


def test_wrong_shapes_get_sdpas_error(opened: Open, silent: None) -> None:
    module = opened()
    q, k, v = inputs()
    with pytest.raises(RuntimeError, match="must match the size"):
        module.attention(q, k, v)  # a group of heads without enable_gqa


def test_a_usual_scale_is_the_usual_case(opened: Open) -> None:
    module = opened()
    module.attention(*inputs(), scale=HEAD_DIM**-0.5, **GROUPED)
    assert module.info()["calls"] == 1


def test_a_guard_that_fails_leaves_the_call_to_sdpa(opened: Open, silent: None) -> None:
    kernels = copy.deepcopy(description("any")["kernels"])
    kernels[0]["guards"] = [["==", ["//", 1, ["-", {"name": "rows"}, 160]], 0]]  # 1 // 0 for CASE
    module = opened(kernels=kernels)
    assert torch.equal(module.attention(*inputs(), **GROUPED), sdpa(*inputs(), **GROUPED))


def test_pickle_finds_the_function(opened: Open) -> None:
    function = opened().attention
    assert pickle.dumps(function)  # as a name of the package


def test_misses_are_listed_by_case_and_written(opened: Open, tmp_path: Path, silent: None) -> None:
    module = opened()
    for length in (50, 60, 60):
        module.attention(*inputs(length), is_causal=True, **GROUPED)
    cases = module.misses()
    assert [(case["count"], case["shape"]["seq_len_q"]) for case in cases] == [(2, 60), (1, 50)]
    path = tmp_path / "cases.json"
    module.write_misses(path)
    first = json.loads(path.read_text())[0]
    shape = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 60, "seq_len_k": 60}
    assert first["shape"] == {**shape, "head_dim": HEAD_DIM}
    assert first["variant"] == {"causal": True}
    assert first["dtype"] == "float32"


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ({"name": "Another Processor"}, "the kernels are for Another Processor"),
        ({"threads": 4096}, "measured with 4096"),
        ({"arch": "riscv-rvv"}, "the kernels are for riscv-rvv"),
    ],
)
def test_on_another_device_everything_falls_back_and_is_said_once(
    opened: Open, device: dict[str, Any], reason: str
) -> None:
    module = opened(device={**description("any")["device"], **device})
    with pytest.warns(UserWarning, match=rf"not served \(device\).*{reason}"):
        out = module.attention(*inputs(), **GROUPED)
    assert torch.equal(out, sdpa(*inputs(), **GROUPED))
    module.attention(*inputs(), **GROUPED)
    assert module.info()["misses"]["device"]["count"] == 2
    assert not module.check()


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of PyTorch's threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_more_threads_than_measured_are_another_device(
    opened: Open, threads: Callable[[int], None]
) -> None:
    """PyTorch's attention is faster with more of them, the kernel is not."""
    module = opened(device={**description("any")["device"], "threads": 1})
    threads(2)
    with pytest.warns(
        UserWarning,
        match=r"has 2 threads here, the kernels were measured with 1: `torch.set_num_threads\(1\)`",
    ):
        out = module.attention(*inputs(), **GROUPED)
    assert torch.equal(out, sdpa(*inputs(), **GROUPED))
    threads(1)
    module.attention(*inputs(), **GROUPED)
    assert module.info()["calls"] == 1


@pytest.mark.parametrize("init", ["poison", "zero_once"])
def test_a_workspace_is_memory_whatever_the_default_device_is(init: str) -> None:
    given: list[int | None] = []
    library = types.SimpleNamespace(kernel=lambda workspace: given.append(workspace.value))
    launcher = _cpu_launcher.Launcher({"name": "", "threads": torch.get_num_threads()}, {})
    plan = {
        "entry": "kernel",
        "arguments": [{"type": "workspace", "name": "scratch"}],
        "workspaces": [{"name": "scratch", "bytes": 64, "init": init}],
    }
    with torch.device("meta"):
        launcher.bind(library, plan, [], 0)()
    assert given != [None]  # null


@pytest.mark.parametrize("file", ["binary", "dispatch.json", "_dispatch.py"])
def test_changed_bytes_are_not_loaded(
    tmp_path: Path, binaries: Path, file: str, silent: None
) -> None:
    package = attention_package(tmp_path, binaries, f"changed_{len(file)}")
    path = next(package.glob("binaries/*")) if file == "binary" else package / file
    path.write_bytes(path.read_bytes() + b"\n")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with imported(package) as module:
            for causal in (False, True):
                out = module.attention(*inputs(), is_causal=causal, **GROUPED)
                expected = sdpa(*inputs(), is_causal=causal, **GROUPED)
            if file != "binary":
                assert torch.equal(out, expected)
            assert module.info()["misses"]["damaged file"]["count"] >= 1
    assert any(path.name in str(warning.message) for warning in said)


def test_a_package_without_a_description_is_refused_in_one_line(
    tmp_path: Path, binaries: Path
) -> None:
    package = attention_package(tmp_path, binaries, "undescribed")
    (package / "dispatch.json").write_text("{")
    with pytest.raises(ImportError, match=r"dispatch\.json: Expecting"), imported(package):
        pass
    (package / "dispatch.json").write_text('{"format": 1}')
    with (
        pytest.raises(ImportError, match=r"dispatch\.json is not the file"),
        pytest.warns(UserWarning, match="no kernel is used"),
        imported(package),
    ):
        pass
    (package / "certificate.json").write_text('{"format": 1, "files": []}')
    words = r"certificate\.json: expected `files`"
    with pytest.raises(ImportError, match=words), imported(package):
        pass


def test_files_may_be_links_to_another_place(tmp_path: Path, binaries: Path) -> None:
    """So uv installs a package with `--link-mode symlink`."""
    package = attention_package(tmp_path / "cache", binaries, "linked")
    installed = tmp_path / "linked"
    for path in package.rglob("*"):
        target = installed / path.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            target.symlink_to(path)
    with imported(installed) as module:
        module.attention(*inputs(), **GROUPED)
        assert module.info()["calls"] == 1
        contents = module._loaded._contents
        for name in ("../cache/linked/dispatch.json", str(package / "dispatch.json")):
            with pytest.raises(Exception, match="lies outside the package"):
                contents.bytes_of(name)


def test_the_operator_keeps_its_promises(opened: Open, silent: None) -> None:
    module = opened()
    overload = getattr(torch.ops, module.__name__).attention.default
    served = inputs()
    for tensors in (served, inputs(50), [across(t) for t in served]):
        torch.library.opcheck(overload, (*tensors, False, None, True))
    with_grad = [t.clone().requires_grad_() for t in served]
    torch.library.opcheck(overload, (*with_grad, True, None, True))


def no_memory(tensor: torch.Tensor) -> torch.Tensor:
    return torch._efficientzerotensor(tensor.shape)


def test_negated_views_are_not_read_as_they_lie_in_memory(opened: Open, silent: None) -> None:
    module = opened()
    operator = getattr(torch.ops, module.__name__).attention
    q, k, v = inputs()
    for call in (module.attention, operator):
        out = call(torch._neg_view(q), k, v, **GROUPED)
        torch.testing.assert_close(out, sdpa(-q, k, v, **GROUPED))


def test_zeros_without_memory_are_not_read_from_it(opened: Open, silent: None) -> None:
    """SDPA on a CPU gives any numbers for such tensors; a kernel would end the process."""
    module = opened()
    operator = getattr(torch.ops, module.__name__).attention
    q, k, v = inputs()
    zeros = torch._efficientzerotensor(q.shape)
    module.attention(zeros, k, v, **GROUPED)
    assert module.info()["calls"] == 0
    out = operator(zeros, k, v, **GROUPED)
    torch.testing.assert_close(out, sdpa(zeros + 0, k, v, **GROUPED))


def test_forward_mode_gradients_are_not_lost(opened: Open, silent: None) -> None:
    module = opened()
    operator = getattr(torch.ops, module.__name__).attention
    q, k, v = inputs()
    tangents = []
    with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        for call in (sdpa, operator):
            tangents.append(forward_ad.unpack_dual(call(dual, k, v, **GROUPED)).tangent)
    assert torch.equal(tangents[1], tangents[0])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="forward AD"):  # SDPA's error
            module.attention(dual, k, v, **GROUPED)
    assert module.info()["calls"] == 0


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_that_is_no_finite_number_is_sdpas(
    opened: Open, silent: None, scale: float
) -> None:
    module = opened()
    operator = getattr(torch.ops, module.__name__).attention
    for call in (module.attention, operator):
        out = call(*inputs(), scale=scale, **GROUPED)
        assert torch.equal(out.isnan(), sdpa(*inputs(), scale=scale, **GROUPED).isnan())
        ours = [t.requires_grad_() for t in inputs()]
        assert call(*ours, scale=scale, **GROUPED).isnan().all()


def test_the_operator_under_autocast_is_the_function(opened: Open, silent: None) -> None:
    module = opened()
    operator = getattr(torch.ops, module.__name__).attention
    for tensors in (inputs(), inputs(dtype=torch.bfloat16)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = operator(*tensors, **GROUPED)
            assert torch.equal(out, sdpa(*tensors, **GROUPED))
            assert out.dtype == torch.bfloat16


def test_the_operator_takes_what_sdpa_broadcasts(opened: Open, silent: None) -> None:
    module = opened()
    operator = getattr(torch.ops, module.__name__).attention
    q, k, v = inputs(batch=2, heads=2)
    for tensors in ((q[0], k, v), (q[:1], k, v), (q, k[:1], v[:1]), (q, k, v[0])):
        torch.testing.assert_close(operator(*tensors), sdpa(*tensors))
        meta = operator(*(t.to("meta") for t in tensors))
        assert meta.shape == sdpa(*tensors).shape
    q, k, v = inputs(batch=2)
    assert torch.equal(operator(q, k[:0], v[:0], **GROUPED), sdpa(q, k[:0], v[:0], **GROUPED))
    for tensors in ((q[0], k, v), (q, k[:1], v[:1]), (q, k[0], v[0])):
        expected = sdpa(*tensors, **GROUPED)
        torch.testing.assert_close(operator(*tensors, **GROUPED), expected)
        assert operator(*(t.to("meta") for t in tensors), **GROUPED).shape == expected.shape


def test_the_operator_takes_nested_tensors(opened: Open, silent: None) -> None:
    module = opened()
    operator = getattr(torch.ops, module.__name__).attention
    nested = [torch.nested.nested_tensor(list(t)) for t in inputs(heads=2, batch=2)]
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            pairs = zip(operator(*nested), sdpa(*nested), strict=True)
            assert all(torch.equal(out, expected) for out, expected in pairs)


def test_a_mode_that_looks_at_calls_sees_sdpa(
    opened: Open, silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.utils, "_device", raising=False)  # a program may not have imported it
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    module = opened()
    with Mode():
        out = module.attention(*inputs(), **GROUPED)
    assert torch.equal(out, sdpa(*inputs(), **GROUPED))
    assert torch._C._nn.scaled_dot_product_attention in seen


def test_the_fake_operator_refuses_what_sdpa_refuses(opened: Open) -> None:
    operator = getattr(torch.ops, opened().__name__).attention
    q, k, v = (t.to("meta") for t in inputs(heads=2))
    refused = [
        ("the same device", (q, inputs()[1], v), {}),
        ("the same dtype", (q, k.double(), v), {}),
        ("expected scalar type", (q.int(), k.int(), v.int()), {}),
        ("the same size of heads", (q, k[..., :8], v), {}),
        ("divide those of q", (q, k.expand(1, 2, 40, 16)[:, :1].expand(1, 3, 40, 16), v), GROUPED),
    ]
    for words, tensors, options in refused:
        with pytest.raises(RuntimeError, match=words):
            operator(*tensors, **options)


def test_the_fake_operator_takes_the_dtypes_that_sdpa_takes(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = opened()
    package = sys.modules[f"{module.__name__}._attention_package"]
    monkeypatch.setattr(package, "sdpa", lambda q, *_, **__: q.float())  # as PyTorch 2.11 on meta
    meta = [t.to("meta").int() for t in inputs(heads=2)]
    assert getattr(torch.ops, module.__name__).attention(*meta).dtype == torch.float32


WITHOUT_ELEMENTS = {
    "batch": lambda q, k, v: (q[:0], k[:0], v[:0]),
    "head": lambda q, k, v: (q[:, :0], k[:, :0], v[:, :0]),
    "query": lambda q, k, v: (q[:, :, :0], k, v),
    "key": lambda q, k, v: (q, k[:, :, :0], v[:, :, :0]),
    "column": lambda q, k, v: (q[..., :0], k[..., :0], v[..., :0]),
}


@pytest.mark.parametrize("lacking", WITHOUT_ELEMENTS)
@pytest.mark.parametrize("grad", [False, True])
def test_a_call_gives_a_tensor_where_sdpa_gives_none(
    opened: Open, silent: None, monkeypatch: pytest.MonkeyPatch, lacking: str, grad: bool
) -> None:
    module = opened()
    package = sys.modules[f"{module.__name__}._attention_package"]
    monkeypatch.setattr(package, "sdpa", none_without_elements)
    operators = getattr(torch.ops, module.__name__)
    given = [across(t).requires_grad_(grad) for t in inputs(heads=2)]
    tensors = WITHOUT_ELEMENTS[lacking](*given)
    outs = [operators.attention(*tensors), module.attention(*tensors)]
    if not grad:
        outs.append(operators._served(*tensors, False, float("nan"), False))
    for out in outs:
        assert torch.equal(out, sdpa(*tensors))
        assert out.requires_grad == grad
        if grad:
            torch.autograd.grad(out.sum(), given, allow_unused=True)
    assert outs[0].stride() == torch.empty_like(tensors[0]).stride()
    with torch.autocast("cpu", torch.bfloat16):
        assert module.attention(*tensors).dtype == torch.bfloat16


def test_tensors_that_do_not_agree_are_refused_where_sdpa_gives_none(
    opened: Open, silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = opened()
    package = sys.modules[f"{module.__name__}._attention_package"]
    monkeypatch.setattr(package, "sdpa", none_without_elements)
    q, k, v = inputs(heads=2)
    for call in (module.attention, getattr(torch.ops, module.__name__).attention):
        with pytest.raises(RuntimeError):
            call(q[..., :0], k, v)


def test_gradients_are_those_of_sdpa(opened: Open, silent: None) -> None:
    module = opened()
    operator = getattr(torch.ops, module.__name__).attention
    for call in (
        lambda *t: operator(*t, False, None, True),
        lambda *t: module.attention(*t, **GROUPED),
    ):
        ours, theirs = ([t.clone().requires_grad_() for t in inputs()] for _ in range(2))
        call(*ours).sum().backward()
        sdpa(*theirs, **GROUPED).sum().backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))


def test_the_operator_leaves_other_devices_to_sdpa(opened: Open, silent: None) -> None:
    kernels = copy.deepcopy(description("any")["kernels"])
    module = opened(kernels=kernels)
    meta = [t.to("meta") for t in inputs()]
    assert getattr(torch.ops, module.__name__).attention(*meta, False, None, True).shape[2] == 40


def test_grad_mode_off_and_inference_mode_are_served(opened: Open) -> None:
    module = opened()
    tensors = [t.requires_grad_() for t in inputs()]
    with torch.no_grad():
        module.attention(*tensors, **GROUPED)
    with torch.inference_mode():
        out = module.attention(*inputs(), **GROUPED)
    assert out.is_inference()
    assert module.info()["calls"] == 2


def test_autocast_casts_as_sdpa_does(opened: Open, silent: None) -> None:
    module = opened()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = module.attention(*inputs(), **GROUPED)
        expected = sdpa(*inputs(), **GROUPED)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, expected)
    assert module.info()["misses"]["dtype"]["count"] == 1


def test_transforms_and_modes_get_what_sdpa_gives(opened: Open, silent: None) -> None:
    module = opened()
    q, k, v = (torch.stack([t, t + 1]) for t in inputs())
    out = torch.vmap(lambda *t: module.attention(*t, **GROUPED))(q, k, v)
    expected = torch.vmap(lambda *t: sdpa(*t, **GROUPED))(q, k, v)
    assert torch.equal(out, expected)
    assert module.attention(*(t.to("meta") for t in inputs()), **GROUPED).device.type == "meta"


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_in_every_state_of_pytorch_a_call_gives_what_sdpa_gives(
    opened: Open, state: State, silent: None
) -> None:
    module = opened()
    found = state(functools.partial(module.attention, **GROUPED), inputs())
    expected = state(functools.partial(sdpa, **GROUPED), inputs())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_calls_the_kernel(opened: Open, backend: str) -> None:
    module = opened()

    @torch.compile(fullgraph=True, backend=backend)
    def compiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return module.attention(q, k, v, **GROUPED) * 2

    tensors = inputs()
    with torch.no_grad():
        assert torch.equal(compiled(*tensors), module.attention(*tensors, **GROUPED) * 2)
    assert module.info()["calls"] == 2


def test_a_traced_call_is_no_exported_one_where_pytorch_says_so(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In PyTorch 2.11 torch.compile takes `is_exporting` for true wherever it traces it."""
    monkeypatch.setattr(torch.compiler, "is_exporting", torch.compiler.is_dynamo_compiling)
    module = opened()
    compiled = torch.compile(
        lambda *t: module.attention(*t, **GROUPED), fullgraph=True, backend="eager"
    )
    with torch.no_grad():
        assert close(compiled(*inputs()), sdpa(*inputs(), **GROUPED))
    assert module.info()["calls"] == 1


TRACED: list[tuple[str, Callable[..., Any]]] = [
    ("mask", lambda attempt, q, k, v: attempt(q, k, v, q, 0.0, False, None, True)),
    ("dropout", lambda attempt, q, k, v: attempt(q, k, v, None, 0.5, False, None, True)),
    ("grad", lambda attempt, q, k, v: attempt(q, k, v, None, 0.0, False, None, True)),
    ("outside the domain", lambda attempt, *t: attempt(*(x[0] for x in t), None, 0.0, *OPTIONS)),
    ("not measured to win", lambda attempt, *t: attempt(*t, None, 0.0, True, 0.3, True)),
]
OPTIONS = (False, None, True)


@pytest.mark.parametrize(("kind", "call"), TRACED, ids=[kind for kind, _ in TRACED])
def test_no_miss_of_a_traced_call_is_silent(
    opened: Open, silent: None, kind: str, call: Callable[..., Any]
) -> None:
    module = opened(served=[region(**CASE, softmax_scale=[0.2, 0.26])])
    attempt = module._loaded._calls.attempt  # type: ignore[attr-defined]

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(*tensors: torch.Tensor) -> tuple[bool, torch.Tensor]:
        return call(attempt, *tensors) is None, tensors[0] + 1

    assert compiled(*(t.requires_grad_(kind == "grad") for t in inputs()))[0]
    assert module.info()["misses"][kind]["count"] == 1


LOOKED_AT: dict[str, Callable[..., Any]] = {
    "gradient": lambda call, q, k, v: torch.func.grad(lambda x: call(x, k, v).sum())(q),
    "mapped": lambda call, *tensors: torch.vmap(call)(*(tensor[None] for tensor in tensors)),
    "subclass": lambda call, q, k, v: call(q.as_subclass(_Own), k, v),
}


class _Own(torch.Tensor):
    pass


@pytest.mark.parametrize("call", LOOKED_AT.values(), ids=LOOKED_AT)
def test_a_traced_call_that_somebody_looks_at_is_sdpas(
    opened: Open, silent: None, call: Callable[..., Any]
) -> None:
    module = opened()
    compiled = torch.compile(
        lambda *tensors: call(functools.partial(module.attention, **GROUPED), *tensors),
        fullgraph=True,
        backend="eager",
    )
    expected = call(functools.partial(sdpa, **GROUPED), *inputs())
    with torch.no_grad():
        assert torch.equal(compiled(*inputs()), expected)
    assert module.info()["misses"]["tensor"]["count"] == 1


def test_a_traced_call_keeps_its_tangent(opened: Open, silent: None) -> None:
    """SDPA's fused kernels have none, and say so."""
    module = opened()
    compiled = torch.compile(
        lambda *t: module.attention(*t, **GROUPED), fullgraph=True, backend="eager"
    )
    q, k, v = inputs()
    with torch.no_grad():
        compiled(q, k, v)
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward AD"):
            compiled(forward_ad.make_dual(q, q), k, v)
        with pytest.raises(NotImplementedError, match="forward AD"):
            torch.compile(
                lambda q: torch.func.jvp(
                    lambda x: module.attention(x, k, v, **GROUPED), (q,), (q,)
                ),
                backend="eager",
            )(q)
    assert module.info()["calls"] == 1


def test_autocast_while_tracing_is_a_miss(opened: Open, silent: None) -> None:
    module = opened()
    compiled = torch.compile(
        lambda *t: module.attention(*t, **GROUPED), fullgraph=True, backend="eager"
    )
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        compiled(*inputs())
    assert module.info()["misses"]["autocast"]["count"] == 1


def test_a_compiled_function_leaves_other_shapes_to_sdpa(opened: Open, silent: None) -> None:
    module = opened()

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def compiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return module.attention(q, k, v, **GROUPED) * 2

    for length in (40, 50):
        tensors = inputs(length)
        assert torch.equal(compiled(*tensors), sdpa(*tensors, **GROUPED) * 2)
    assert module.info()["calls"] == 0
    assert "symbolic shape" in module.info()["misses"]


@pytest.mark.parametrize("compiles", [False, True])
def test_a_pytorch_without_a_word_for_exports_says_whether_it_compiles(
    monkeypatch: pytest.MonkeyPatch, compiles: bool
) -> None:
    """PyTorch 2.6 has no torch.compiler.is_exporting."""
    old = types.SimpleNamespace(is_compiling=lambda: compiles)
    monkeypatch.setattr(_tracing, "torch", types.SimpleNamespace(compiler=old))
    assert _tracing.is_exporting() == compiles


def test_a_compiled_function_leaves_numbers_that_change_to_sdpa(opened: Open, silent: None) -> None:
    module = opened()

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(scale: float, *tensors: torch.Tensor) -> torch.Tensor:
        return module.attention(*tensors, **GROUPED, scale=scale)

    tensors = inputs()
    served = module.attention(*tensors, **GROUPED)
    assert torch.equal(compiled(0.25, *tensors), served)
    for scale in (0.3, 0.4):  # PyTorch takes the number for a symbol the second time
        assert torch.equal(compiled(scale, *tensors), sdpa(*tensors, **GROUPED, scale=scale))
    assert "symbolic number" in module.info()["misses"]


def test_a_scale_that_is_a_tensor_breaks_a_graph_as_before(opened: Open, silent: None) -> None:
    module = opened()
    scale, tensors = torch.tensor(0.25), inputs()
    with module.active():
        compiled = torch.compile(
            lambda *t, scale: functional.scaled_dot_product_attention(*t, **GROUPED, scale=scale),
            backend="eager",
        )
        found = compiled(*tensors, scale=scale)
    assert torch.equal(found, sdpa(*tensors, **GROUPED, scale=0.25))
    assert "tensor" in module.info()["misses"]


def test_compiled_gradients_are_those_of_sdpa(opened: Open, silent: None) -> None:
    module = opened()
    compiled = torch.compile(
        lambda *t: module.attention(*t, **GROUPED), fullgraph=True, backend="aot_eager"
    )
    ours, theirs = ([t.clone().requires_grad_() for t in inputs()] for _ in range(2))
    compiled(*ours).sum().backward()
    sdpa(*theirs, **GROUPED).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))


def test_threads_share_a_package(opened: Open, silent: None) -> None:
    module = opened()
    expected = module.attention(*inputs(), **GROUPED)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(50):
            if not torch.equal(module.attention(*inputs(), **GROUPED), expected):
                wrong.append(1)
            module.attention(*inputs(50), **GROUPED)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert module.misses()[0]["count"] == 200


def test_a_package_under_two_names_has_two_operators(tmp_path: Path, binaries: Path) -> None:
    package = attention_package(tmp_path / "a", binaries, "once")
    with imported(package) as module:
        again = package.with_name("twice")
        os.symlink(package, again)
        with imported(again) as other:
            module.attention(*inputs(), **GROUPED)
            assert (module.info()["calls"], other.info()["calls"]) == (1, 0)
            torch.ops.twice.attention(*inputs(), False, None, True)
            assert (module.info()["calls"], other.info()["calls"]) == (1, 1)
    with imported(package) as module:  # the operators of the first import are still there
        module.attention(*inputs(), **GROUPED)
        assert module.info()["calls"] == 1


def test_check_compares_every_timed_case(opened: Open, capsys: Any) -> None:
    result = opened().check()
    assert result
    assert [row.case for row in result.rows] == [
        "(1,4/2,40,40,16) full",
        "(1,4/2,40,40,16) causal",
    ]
    assert capsys.readouterr().out.count("ok") == 2


def test_check_finds_a_kernel_that_differs(opened: Open, capsys: Any) -> None:
    kernels = copy.deepcopy(description("any")["kernels"])
    plan = kernels[0]["plan"]
    plan["arguments"] = [
        {**each, "value": 0.3} if each["type"] == "float32" else each for each in plan["arguments"]
    ]
    result = opened(kernels=kernels).check()
    assert not result
    assert "differs" in capsys.readouterr().out


def test_info_says_where_the_package_stands(opened: Open) -> None:
    info = opened().info()
    assert info["device_matches"]
    assert info["launcher"].startswith("ctypes")
    assert info["versions"]["torch"] == torch.__version__
    assert len(info["served"]) == 3


def test_an_import_and_a_call_do_not_load_the_compiler(tmp_path: Path, binaries: Path) -> None:
    attention_package(tmp_path, binaries, "light")
    program = f"""
import sys, torch, light
q = torch.randn(1, 4, 40, {HEAD_DIM})
k = q[:, :2].contiguous()
light.attention(q, k, k, enable_gqa=True)
with light.active():
    torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
assert light.info()["calls"] == 2
assert light.check()
print("torch._dynamo" in sys.modules, "sympy" in sys.modules)
"""
    command = [sys.executable, "-c", program]
    found = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert found.stdout.endswith("False False\n"), found.stderr


class Attended(torch.utils.data.Dataset[torch.Tensor]):
    """Results of a package, for the workers of a data loader."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> torch.Tensor:
        out: torch.Tensor = self._module.attention(*inputs(40 + number % 2), **GROUPED)
        return out


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_of_a_data_loader_are_served(
    opened: Open, silent: None, threads: Callable[[int], None]
) -> None:
    module = opened(device={**description("any")["device"], "threads": 1})
    threads(1)
    expected = [module.attention(*inputs(length), **GROUPED) for length in (40, 41)]
    loader = torch.utils.data.DataLoader(
        Attended(module),
        num_workers=2,
        batch_size=None,
        multiprocessing_context="fork",
        timeout=PATIENCE_S,
    )
    for number, out in enumerate(loader):
        assert torch.equal(out, expected[number % 2])
    assert not torch.equal(expected[0], sdpa(*inputs(), **GROUPED))
    assert module.info()["calls"] == 2  # of this process


def measured_with(package: Path, version: str) -> Path:
    """The package, as if it had been measured with that version of PyTorch."""
    certificate = json.loads((package / "certificate.json").read_text())
    certificate["environment"]["packages"]["torch"] = version
    (package / "certificate.json").write_text(json.dumps(certificate))
    return package


def test_with_another_pytorch_sdpa_serves_until_a_check_has_passed(
    tmp_path: Path, binaries: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = measured_with(attention_package(tmp_path, binaries, "other_versions"), "2.6.0")
    with imported(package) as module:
        with pytest.warns(UserWarning, match=r"version\): torch is .* here and was 2\.6\.0; check"):
            out = module.attention(*inputs(), **GROUPED)
        for _ in range(2):  # a second warning would be an error
            assert torch.equal(out, sdpa(*inputs(), **GROUPED))
            out = module.attention(*inputs(), **GROUPED)
        info = module.info()
        assert (info["calls"], info["misses"]["version"]["count"]) == (0, 3)
        assert (info["device_matches"], info["versions_match"]) == (True, False)
        assert info["why_not"].startswith("torch is ")
        assert info["measured_with"]["packages"]["torch"] == "2.6.0"
        assert module.check()
        assert "serve calls of this process from now on" in capsys.readouterr().out
        assert close(module.attention(*inputs(), **GROUPED), sdpa(*inputs(), **GROUPED))
        info = module.info()
        assert (info["versions_match"], info["versions_accepted"]) == (False, True)
        assert (info["why_not"], info["calls"]) == ("", 3)  # two of the check


def test_a_check_that_fails_lets_no_kernel_serve(
    tmp_path: Path, binaries: Path, silent: None
) -> None:
    kernels = copy.deepcopy(description("any")["kernels"])
    for argument in kernels[0]["plan"]["arguments"]:
        if argument["type"] == "float32":
            argument["value"] = 0.3
    package = attention_package(tmp_path, binaries, "wrong_elsewhere", kernels=kernels)
    with imported(measured_with(package, "2.6.0")) as module:
        result = module.check()
        assert {row.fault for row in result.rows} == {"differs"}
        assert torch.equal(module.attention(*inputs(), **GROUPED), sdpa(*inputs(), **GROUPED))
        assert module.info()["calls"] == 0


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57  Tue May\nGCC 12", "575.57"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build", "580.159.04"),
        (None, ""),
    ],
)
def test_the_version_of_the_driver_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str | None, version: str
) -> None:
    if words is not None:
        (tmp_path / "version").write_text(words)
    monkeypatch.setattr(_cuda_driver, "_VERSION_FILE", str(tmp_path / "version"))
    with mock.patch("ctypes.CDLL", side_effect=OSError):
        assert _cuda_driver.driver_version() == version


@pytest.mark.parametrize("version", [torch.__version__.partition("+")[0] + "+cu999", "", "nightly"])
def test_patch_versions_and_unknown_ones_count_as_the_same(
    tmp_path: Path, binaries: Path, version: str
) -> None:
    name = f"same_version_{abs(hash(version))}"
    package = measured_with(attention_package(tmp_path, binaries, name), version)
    with imported(package) as module:
        module.attention(*inputs(), **GROUPED)
        info = module.info()
        assert (info["calls"], info["versions_match"]) == (1, True)
        assert info["versions"]["torch"] == torch.__version__


def test_a_forked_child_finds_no_lock_held(opened: Open, silent: None) -> None:
    module = opened()
    with module._loaded._misses.lock:  # as another thread may at that moment
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends a child that waits for the lock
            os._exit(len(module.misses()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
