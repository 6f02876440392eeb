"""A call under a mode of PyTorch costs little: the mode sees SDPA if a kernel does not serve the
call, and nothing of the decision."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from .packages import HEAD_DIM

SDPA = torch._C._nn.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Device(DeviceContext):  # type: ignore[misc]
    """As torch.set_default_device has it. Notes the functions that it sees."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs)


class Looking(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def tensors(length: int = 40, heads: int = 2) -> list[torch.Tensor]:
    return [torch.randn(1, count, length, HEAD_DIM) for count in (4, heads, heads)]


def across() -> list[torch.Tensor]:
    return [torch.randn(1, 40, 4, HEAD_DIM).transpose(1, 2) for _ in range(3)]


CALLS: dict[str, tuple[Callable[[], list[torch.Tensor]], dict[str, Any]]] = {
    "served": (tensors, {}),
    "not won": (lambda: tensors(9), {}),
    "layout": (across, {}),
    "dtype": (lambda: [each.double() for each in tensors()], {}),
    "mask": (tensors, {"attn_mask": torch.ones(40, 40, dtype=torch.bool)}),
    "dropout": (tensors, {"dropout_p": 0.5}),
    "grad": (lambda: [each.requires_grad_() for each in tensors()], {}),
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("mode", [Device, Looking])
def test_a_mode_sees_nothing_of_the_decision(
    opened: Callable[..., ModuleType], kind: str, mode: type[Device | Looking]
) -> None:
    module = opened()
    make, options = CALLS[kind]
    given = make()
    with module.active():
        for _ in range(3):
            entered = mode()
            with entered:
                functional.scaled_dot_product_attention(*given, enable_gqa=True, **options)
            is_served = kind == "served" and mode is Device
            assert entered.seen == ([] if is_served else [SDPA])
    assert module.info()["calls"] == (3 if is_served else 0)
    assert sum(each["count"] for each in module.info()["misses"].values()) == 3 * (not is_served)


@pytest.mark.parametrize("kind", ["not won", "dtype", "layout"])
def test_a_call_under_autocast_that_is_known_to_be_missed_is_not_cast(
    opened: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    module = opened()
    calls = sys.modules[f"{module.__name__}._attention_package"]
    cast: list[torch.Tensor] = []

    def noting(tensor: torch.Tensor, device_type: str) -> torch.Tensor:
        cast.append(tensor)
        return tensor.to(torch.get_autocast_dtype(device_type))

    monkeypatch.setattr(calls, "cast_for_autocast", noting)
    given = CALLS[kind][0]()
    with module.active(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(4):
            functional.scaled_dot_product_attention(*given, enable_gqa=True)
        assert len(cast) == 3  # of the first call
    with module.active(), torch.no_grad():  # the same tensors without autocast
        functional.scaled_dot_product_attention(*tensors(), enable_gqa=True)
    assert module.info()["calls"] == 1
    assert module.info()["misses"]["dtype"]["count"] == 4


def test_calls_that_are_served_are_no_misses_because_others_were(
    opened: Callable[..., ModuleType],
) -> None:
    """A remembered miss is one for all calls with such shapes, types and devices."""
    module = opened()
    q, k, v = tensors()
    halves = [each.half() for each in (q, k, v)]
    with module.active(), torch.no_grad():
        for given in (halves, [halves[0], k, v], [q, halves[1], v]):
            with pytest.raises(RuntimeError) if given is not halves else warnings.catch_warnings():
                functional.scaled_dot_product_attention(*given, enable_gqa=True)
        functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert module.info()["calls"] == 1


def test_a_default_device_sees_nothing_of_a_decision_on_features(
    opened: Callable[..., ModuleType],
) -> None:
    module = opened()
    given = tensors()
    module.attention(*given, enable_gqa=True, softcap=5.0)
    calls = module._loaded._feature_calls
    call = sys.modules[f"{module.__name__}._attention_package"].Call
    asked = sys.modules[f"{module.__name__}._asked_features"].Asked(softcap=5.0)
    mode = Device()
    with torch.no_grad(), mode:
        assert calls.attempt(call(*given, False, None, True, asked)) is None
    assert not mode.seen


def test_the_benchmark_times_each_state(
    opened: Callable[..., ModuleType], benchmark_module: Callable[[str], ModuleType]
) -> None:
    script = benchmark_module("export_call")
    with torch.no_grad():
        record = script.measured(opened(), 0, calls=1, rounds=2, modes=True)
    autocast = ("autocast", "autocast that casts")
    states = ("plain", "default device", *autocast, "profiler", "inference mode")
    paths = [row["path"] for row in record["paths"] if "extra_us" in row]
    assert paths == [
        f"{hook}{case}, {state}"
        for state in states
        for hook in ("hook", "Python hook")
        for case in ("", ", miss", ", mask")
    ]


def test_a_masked_call_is_counted_as_such_whatever_its_sizes(
    opened: Callable[..., ModuleType],
) -> None:
    module = opened()
    given, mask = tensors(9, heads=4), torch.ones(9, 9, dtype=torch.bool)
    with module.active(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            functional.scaled_dot_product_attention(*given)
        functional.scaled_dot_product_attention(*given, attn_mask=mask)
    assert module.info()["misses"]["mask"]["count"] == 1
