"""Serving torch.nn.functional.scaled_dot_product_attention itself, and undoing it."""

from __future__ import annotations

import functools
import importlib
import threading
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.export.runtime.packages import CASE, HEAD_DIM, region, strided_kernel, strided_region
from tests.export.runtime.test_calls import GROUPED, inputs, near, none_without_elements
from tests.patience import PATIENCE_S

Open = Callable[..., ModuleType]
BEFORE = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    assert F.scaled_dot_product_attention is BEFORE


def calls(module: ModuleType) -> int:
    """Served calls after one more call."""
    F.scaled_dot_product_attention(*inputs(), **GROUPED)
    return int(module.info()["calls"])


def test_nothing_happens_on_import(opened: Open) -> None:
    module = opened()
    assert F.scaled_dot_product_attention is BEFORE
    assert calls(module) == 0


def test_activation_serves_and_is_undone(opened: Open) -> None:
    module = opened()
    module.activate()
    module.activate()
    assert calls(module) == 1
    assert module.info()["active"]
    module.deactivate()
    assert F.scaled_dot_product_attention is BEFORE
    module.deactivate()
    assert calls(module) == 1


@pytest.mark.parametrize("on", [True, False])
def test_a_module_that_is_reloaded_takes_the_place_of_the_old_one(opened: Open, on: bool) -> None:
    module = opened()
    if on:
        module.activate()
        calls(module)
    importlib.reload(module)
    assert module.info()["active"] == on
    assert calls(module) == on  # counted anew
    module.deactivate()
    assert F.scaled_dot_product_attention is BEFORE


def test_blocks_nest_and_survive_exceptions(opened: Open) -> None:
    module = opened()
    with module.active():
        with module.active():
            assert calls(module) == 1
        assert calls(module) == 2
    with pytest.raises(RuntimeError), module.active():
        F.scaled_dot_product_attention(*inputs())  # heads that do not match
    assert F.scaled_dot_product_attention is BEFORE
    module.activate()
    with module.active():
        pass
    assert calls(module) == 3
    module.deactivate()


def test_the_block_of_another_thread_goes_on(opened: Open) -> None:
    module = opened()
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with module.active():
            inside.set()
            leave.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(PATIENCE_S)
    with module.active():
        pass
    assert calls(module) == 1
    leave.set()
    thread.join()
    assert F.scaled_dot_product_attention is BEFORE


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_packages_are_active_at_once(opened: Open, first_out: int) -> None:
    modules = [opened(served=[region(**CASE)]), opened(served=[region(**CASE), near()])]
    for module in modules:
        module.activate()
    F.scaled_dot_product_attention(*inputs(), **GROUPED)  # the one that was activated last
    assert [m.info()["calls"] for m in modules] == [0, 1]
    modules[0].activate()
    F.scaled_dot_product_attention(*inputs(38), **GROUPED)  # only the second serves it
    assert [m.info()["calls"] for m in modules] == [0, 2]
    modules[first_out].deactivate()
    assert calls(modules[1 - first_out]) == [3, 1][first_out]
    modules[1 - first_out].deactivate()
    assert F.scaled_dot_product_attention is BEFORE


FALLING_BACK: list[dict[str, Any]] = [
    {"attn_mask": torch.ones(40, 40, dtype=torch.bool).tril()},
    {"is_causal": True},
    {"scale": 0.5},
]


@pytest.mark.parametrize("options", FALLING_BACK, ids=lambda options: next(iter(options)))
def test_what_is_not_served_has_the_bits_of_sdpa(opened: Open, options: dict[str, Any]) -> None:
    module = opened(served=[region(**CASE, softmax_scale=[0.2, 0.26])])
    tensors = inputs()
    expected = F.scaled_dot_product_attention(*tensors, **options, **GROUPED)
    with module.active():
        out = F.scaled_dot_product_attention(*tensors, **options, **GROUPED)
    assert torch.equal(out, expected)
    assert module.info()["calls"] == 0
    assert len(module.info()["misses"]) == 1


def test_dropout_is_sdpas_with_the_same_random_numbers(opened: Open) -> None:
    module = opened()
    with module.active():
        torch.manual_seed(1)
        out = F.scaled_dot_product_attention(*inputs(), None, 0.5, **GROUPED)
    torch.manual_seed(1)
    assert torch.equal(out, F.scaled_dot_product_attention(*inputs(), None, 0.5, **GROUPED))
    assert module.info()["misses"]["dropout"]["count"] == 1


def test_training_is_sdpas(opened: Open) -> None:
    module = opened()
    ours, theirs = ([t.clone().requires_grad_() for t in inputs()] for _ in range(2))
    with module.active():
        F.scaled_dot_product_attention(*ours, **GROUPED).sum().backward()
    F.scaled_dot_product_attention(*theirs, **GROUPED).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))


def test_pytorchs_own_layers_call_it(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    module = opened(served=[strided_region()], kernels=[strided_kernel()])
    layer = torch.nn.MultiheadAttention(4 * HEAD_DIM, 4, batch_first=True).eval()
    x = torch.randn(1, 40, 4 * HEAD_DIM)
    torch.backends.mha.set_fastpath_enabled(False)  # it is C++, which calls no Python
    try:
        with torch.no_grad():
            expected = layer(x, x, x, need_weights=False)[0]
            with module.active():
                out = layer(x, x, x, need_weights=False)[0]
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    torch.testing.assert_close(out, expected)
    assert module.info()["calls"] == 1


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.soak)])
def test_compiled_functions_follow_the_switch(opened: Open, backend: str) -> None:
    module = opened()

    @torch.compile(fullgraph=True, backend=backend)
    def compiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True) + 1

    tensors = inputs()
    expected = compiled(*tensors)
    with module.active():
        out = compiled(*tensors)
        assert module.info()["calls"] == 1
        assert not torch.equal(out, expected)
    assert torch.equal(compiled(*tensors), expected)
    assert module.info()["calls"] == 1
    with module.active():
        assert torch.equal(compiled(*tensors), out)


def test_compiled_training_is_sdpas(opened: Open) -> None:
    module = opened()
    compiled = torch.compile(
        lambda *t: F.scaled_dot_product_attention(*t, enable_gqa=True),
        fullgraph=True,
        backend="aot_eager",
    )
    ours, theirs = ([t.clone().requires_grad_() for t in inputs()] for _ in range(2))
    with module.active():
        compiled(*ours).sum().backward()
    F.scaled_dot_product_attention(*theirs, **GROUPED).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))
    assert module.info()["calls"] == 0


def test_an_exported_program_has_no_operator_of_the_package(opened: Open) -> None:
    module = opened()

    class Layer(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    for strict in (False, True):
        with module.active(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(Layer(), tuple(inputs()), strict=strict)
        assert module.__name__ not in str(program.graph)
    assert module.info()["misses"]["export"]["count"] == 2


def test_a_mode_of_the_user_sees_the_call_a_default_device_does_not_matter(opened: Open) -> None:
    module = opened()
    seen = []

    class Looking(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    tensors = inputs()
    with module.active(), Looking():
        F.scaled_dot_product_attention(*tensors, **GROUPED)
    assert BEFORE in seen
    with module.active(), torch.device("cpu"):
        assert calls(module) == 1


def test_a_backend_that_the_user_chose_serves(opened: Open) -> None:
    module = opened()
    chosen = functools.partial(torch.nn.attention.sdpa_kernel, torch.nn.attention.SDPBackend.MATH)
    compiled = torch.compile(
        lambda *t: F.scaled_dot_product_attention(*t, enable_gqa=True), backend="eager"
    )
    with module.active(), torch.no_grad():
        with chosen():
            out = F.scaled_dot_product_attention(*inputs(), **GROUPED)
            traced = compiled(*inputs())
        assert module.info()["calls"] == 0
        assert module.info()["misses"]["backend"]["count"] == 2
        assert calls(module) == 1
    with chosen():
        expected = F.scaled_dot_product_attention(*inputs(), **GROUPED)
    assert torch.equal(out, expected)
    assert torch.equal(traced, expected)


def test_the_hook_gives_none_where_sdpa_does(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's kernels do for tensors without elements."""
    module = opened()
    q, k, v = (t[:0] for t in inputs())
    with monkeypatch.context() as patched:
        patched.setattr(F, "scaled_dot_product_attention", none_without_elements)
        with module.active():
            assert F.scaled_dot_product_attention(q, k, v) is None


def test_nested_tensors_and_traces_are_sdpas(opened: Open) -> None:
    module = opened(served=[region(**{**CASE, "group": 1})])
    q, k, v = inputs(kv_heads=4)
    nested = [torch.nested.nested_tensor(list(t)) for t in (q, k, v)]
    with module.active(), torch.no_grad():
        out = F.scaled_dot_product_attention(*nested)
        traced = torch.jit.trace(attend, (q, k, v), check_trace=False)
        assert module.info()["calls"] == 0
    expected = F.scaled_dot_product_attention(*nested)
    assert torch.equal(out.to_padded_tensor(0.0), expected.to_padded_tensor(0.0))
    assert torch.equal(traced(2 * q, k, v), attend(2 * q, k, v))


def test_arguments_of_other_types_are_sdpas(opened: Open) -> None:
    module = opened()
    with module.active():
        out = F.scaled_dot_product_attention(*inputs(), scale=1, **GROUPED)
        with pytest.raises(TypeError, match="must be bool"):
            F.scaled_dot_product_attention(*inputs(), is_causal=1, **GROUPED)
        with pytest.raises(TypeError, match="must be bool"):
            F.scaled_dot_product_attention(*inputs(), enable_gqa=None)
        with pytest.raises(TypeError, match="positional arguments"):
            F.scaled_dot_product_attention(*inputs(), None, 0.0, False, 0.5)
    assert torch.equal(out, F.scaled_dot_product_attention(*inputs(), scale=1, **GROUPED))
    assert module.info()["calls"] == 0


def test_a_symbolic_trace_has_pytorchs_own(opened: Open) -> None:
    """torch.fx gives placeholders, which refuse to be compared, for all arguments."""

    def attend(q: Any, k: Any, v: Any, dropout: Any, scale: Any) -> Any:
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, scale=scale, enable_gqa=True
        )

    expected = attend(*inputs(), 0.0, 0.3)
    with opened().active():
        traced = torch.fx.symbolic_trace(attend)
    assert torch.equal(traced(*inputs(), 0.0, 0.3), expected)


def test_torchscript_takes_pytorchs_own(opened: Open) -> None:
    module = opened()
    with module.active(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(attend)
        out = scripted(*inputs(kv_heads=4))
    assert torch.equal(out, attend(*inputs(kv_heads=4)))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def test_somebody_elses_replacement_stays(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    module = opened()
    seen = []

    @functools.wraps(BEFORE)
    def other(*arguments: Any, **options: Any) -> torch.Tensor:
        seen.append(1)
        return below(*arguments, **options)

    module.activate()
    below = F.scaled_dot_product_attention
    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", other)
        assert calls(module) == 1  # through both
        module.deactivate()
        assert F.scaled_dot_product_attention is other
        assert calls(module) == 1
        with module.active():
            assert calls(module) == 2
        assert F.scaled_dot_product_attention is other
    assert len(seen) == 2
    F.scaled_dot_product_attention = BEFORE  # `other` had found our replacement and put it back
