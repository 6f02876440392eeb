"""The launchers of CUDA packages, on a driver that runs on the CPU. See test_cuda_launchers.py."""

from __future__ import annotations

import ctypes
import functools
import gc
import hashlib
import itertools
import resource
import shutil
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional

from evotune.backends import registry
from evotune.backends.cuda import exported_launchers
from evotune.export.case_shapes import NONE
from tests.export.runtime.packages import (
    CASE,
    HEAD_DIM,
    description,
    imported,
    region,
    strided_region,
    write,
)
from tests.export.runtime.states import STATES, tangent
from tests.export.runtime.test_calls import (
    GROUPED,
    across,
    inputs,
    none_without_elements,
    sdpa,
    shifted,
)
from tests.patience import PATIENCE_S

Open = Callable[..., ModuleType]
HERE = Path(__file__).parent
NATIVE = [True, False]
NATIVE_SOON = [True, pytest.param(False, marks=pytest.mark.soak)]
"""For slow tests: `make test` takes the native launcher."""
_numbers = itertools.count()
ON_THE_CPU = """

DEVICE_TYPE = "cpu"
Launcher.real_refusal = Launcher.refusal
Launcher.refusal = lambda self, index: ""
Launcher.driver_version = lambda self: "580.95.05"


def current_stream(index):
    function = driver().fake_current_stream
    function.restype = ctypes.c_uint64
    return function()
"""
"""Stands at the end of the launcher's module in these packages."""
MAP = {
    "dtype": "float32",
    "extents": [{"name": n} for n in ("batch", "heads", "seq_len_q", "head_dim")],
    "box": [1, 1, 8, {"name": "head_dim"}],
    "swizzle_bytes": 64,
    "l2_promotion_bytes": 128,
}
ARGUMENTS = [
    {"type": "tensor_map", "name": "q", "tensor_map": MAP},
    *({"type": "tensor", "name": name} for name in ("k", "v", "out")),
    *({"type": "workspace", "name": name} for name in ("scratch", "counter")),
    {"type": "float32", "value": {"name": "softmax_scale"}},
    *(
        {"type": "int32", "value": {"name": name}}
        for name in ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k")
    ),
]
PLAN = {
    "entry": "attention",
    "arguments": ARGUMENTS,
    "workspaces": [
        {"name": "scratch", "bytes": ["*", 256, {"name": "heads"}], "init": "poison"},
        {"name": "counter", "bytes": 300, "init": "zero_once"},
    ],
    "launches": [
        {
            "entry": "attention",
            "grid": [["ceil_div", {"name": "seq_len_q"}, 8], {"name": "heads"}],
            "block": [64],
            "shared_bytes": 65536,
        }
    ],
}


def built(source: Path, output: Path, *options: str) -> Path:
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", *options, str(source)]
    subprocess.run([*command, "-o", str(output)], check=True, timeout=PATIENCE_S)
    return output


@pytest.fixture(scope="session")
def driver(binaries: Path) -> Any:
    """The fake driver, in libcuda's place in this process."""
    path = built(HERE / "fake_driver.cpp", binaries / "fake.so", "-Wl,-soname,libcuda.so.1")
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.fake_notes.restype = ctypes.c_char_p
    library.fake_set.argtypes = [ctypes.c_uint64] * 2
    return library


@pytest.fixture
def opened(driver: Any, tmp_path: Path, binaries: Path) -> Iterator[Open]:
    driver.fake_set(7, 0)
    with ExitStack() as stack:

        def make(
            native: bool = True,
            measured_with: str = "",
            value_dim: int = 0,
            masked: bool = False,
            **changes: Any,
        ) -> ModuleType:
            name = f"gpu_{next(_numbers)}"
            device = {"backend": "cuda", "name": "Fake", "multiprocessors": 2}
            device |= {"driver": measured_with} if measured_with else {}
            dispatch = description(name, device=device, **changes)
            kernel = dispatch["kernels"][0]
            kernel["plan"] = changes.get("plan", PLAN)
            files = {}
            for causal in (False, True):
                options = [f"-DHEAD_DIM={HEAD_DIM}", f"-DCAUSAL={int(causal)}"]
                code = f"kernel_{int(causal)}.so"
                if value_dim:
                    options += ["-DFEATURES=1", f"-DVALUE_DIM={value_dim}"]
                    code = f"{value_dim}_{code}"
                if masked:
                    options.append("-DMASKED=1")
                    code = f"masked_{code}"
                made, path = binaries / code, tmp_path / code
                if not made.exists():
                    built(HERE / "fake_kernel.cpp", made, *options)
                shutil.copy(made, path)  # another file is another library, with its own state
                data = str(path).encode() + b"\0"  # the machine code of the fake driver
                file = f"binaries/{int(causal)}.cubin"
                files[file] = data
                kernel["binaries"].append(
                    {
                        "fixed": {"causal": causal},
                        "file": file,
                        "sha256": hashlib.sha256(data).hexdigest(),
                    }
                )
            given = registry.named("cuda").exported_files(name)
            if not native:
                files |= {n: b"" for n in given if n.startswith("_native_") and n.endswith(".so")}
            launcher = given["_cuda_launcher.py"] + ON_THE_CPU.encode()
            package = write(tmp_path, name, dispatch, {**files, "_cuda_launcher.py": launcher})
            return stack.enter_context(imported(package))

        yield make
        driver.fake_set(7, 0)


def notes(driver: Any) -> list[str]:
    """The driver's calls since the last time."""
    return str(driver.fake_notes().decode()).splitlines()


@pytest.mark.parametrize("native", NATIVE)
def test_a_call_reaches_the_driver(opened: Open, driver: Any, native: bool) -> None:
    module = opened(native)
    assert module.info()["launcher"].startswith("native" if native else "ctypes")
    notes(driver)
    tensors = inputs()
    out = module.attention(*tensors, **GROUPED)
    torch.testing.assert_close(out, sdpa(*tensors, **GROUPED))
    made = notes(driver)
    encoded = "map 7 2 2 16 40 4 1 64 2560 10240 16 8 1 1"
    assert [line for line in made if line.split()[0] not in ("memset", "allocate")] == [
        encoded,  # would the driver take it?
        "load",
        "attribute 8 65536",
        encoded,
        "launch 5 4 1 / 64 1 1 + 65536 on 7",
    ]
    module.attention(*tensors, **GROUPED)
    assert notes(driver) == ["launch 5 4 1 / 64 1 1 + 65536 on 7"]
    module.attention(*[t.clone() for t in tensors], **GROUPED)
    assert [line.split()[0] for line in notes(driver)] == ["map", "launch"]
    causal = module.attention(*tensors, is_causal=True, scale=0.3, **GROUPED)
    torch.testing.assert_close(causal, sdpa(*tensors, is_causal=True, scale=0.3, **GROUPED))
    assert module.info()["calls"] == 4


def test_a_call_of_python_needs_no_operator(
    opened: Open, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = opened()
    monkeypatch.setattr(module._loaded._calls, "_native", None)  # what calls the operator
    monkeypatch.setattr(module._loaded._kernels, "serve", None)
    tensors = inputs()
    for _ in range(3):
        out = module.attention(*tensors, **GROUPED)
        torch.testing.assert_close(out, sdpa(*tensors, **GROUPED))
    with torch.inference_mode():
        assert module.attention(*tensors, **GROUPED).is_inference()
    with module.active():
        functional.scaled_dot_product_attention(*tensors, scale=0.3, **GROUPED)
    assert module.info()["calls"] == 5


@pytest.mark.parametrize("native", NATIVE)
def test_an_error_of_the_driver_reaches_the_caller(opened: Open, driver: Any, native: bool) -> None:
    module = opened(native)
    tensors = inputs()
    module.attention(*tensors, **GROUPED)
    driver.fake_fail(719)
    said = r"cuLaunchKernel gives CUDA error 719 \(unspecified launch failure\)"
    with pytest.raises(RuntimeError, match=said):
        module.attention(*tensors, **GROUPED)
    driver.fake_fail(0)
    torch.testing.assert_close(module.attention(*tensors, **GROUPED), sdpa(*tensors, **GROUPED))


def test_a_profiler_sees_the_operator(opened: Open) -> None:
    module = opened()
    tensors = inputs()
    module.attention(*tensors, **GROUPED)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        module.attention(*tensors, **GROUPED)
    assert any(event.name == f"{module.__name__}::_attempt" for event in profile.events())


@pytest.mark.parametrize("native", NATIVE)
def test_in_every_state_of_pytorch_a_call_gives_what_sdpa_gives(opened: Open, native: bool) -> None:
    module = opened(native)
    call = functools.partial(module.attention, **GROUPED)
    before = functools.partial(sdpa, **GROUPED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):  # the second time the decisions are known
            for state in STATES:
                expected = state(before, inputs())
                torch.testing.assert_close(state(call, inputs()), expected, msg=state.__name__)
            call(*inputs())
    assert module.info()["calls"] >= 2


def test_native_code_serves_calls_under_a_default_device(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = opened()
    monkeypatch.setattr(module._loaded._calls, "_native", None)  # what calls the operator
    monkeypatch.setattr(module._loaded._kernels, "serve", None)
    tensors = inputs()
    with module.active(), torch.device("cpu"):
        for _ in range(3):
            out = functional.scaled_dot_product_attention(*tensors, **GROUPED)
    torch.testing.assert_close(out, sdpa(*tensors, **GROUPED))
    assert module.info()["calls"] == 3


def test_native_code_serves_calls_under_autocast_that_casts_nothing(opened: Open) -> None:
    """As a model in half precision has it, under autocast to half precision."""
    module = opened()
    direct = module._loaded._calls._direct  # type: ignore[attr-defined]
    q, k, v = inputs()
    few = [t[:, :, :1] for t in (q, k, v)]
    rest = (None, 0.0, False, None, True)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for tensors in ((q, k, v), few):
            module.attention(*tensors, **GROUPED)  # decided
        with autocast_to(torch.float32):
            torch.testing.assert_close(direct(q, k, v, *rest), sdpa(q, k, v, **GROUPED))
            assert direct(*few, *rest) is False
        with autocast_to(torch.bfloat16):  # for which the package has no kernel
            for _ in range(2):
                assert direct(q, k, v, *rest) is False
            assert module.attention(q, k, v, **GROUPED).dtype == torch.bfloat16
        with autocast_to(torch.float32):
            half = q.bfloat16()
            for _ in range(2):  # a kernel serves the call when Python has cast its tensors
                assert direct(half, k, v, *rest) is None
                assert direct(q, k, half[:, :2], *rest) is None
            before = module.info()["calls"]
            assert module.attention(half, k, v, **GROUPED).dtype == torch.float32
            assert module.info()["calls"] == before + 1
            for _ in range(2):
                assert direct(half[:, :, :1], *few[1:], *rest) is False
        assert direct(half, k, v, *rest) is False  # without autocast the types differ


@contextmanager
def autocast_to(dtype: torch.dtype) -> Iterator[None]:
    """Autocast on the CPU; `torch.autocast` itself takes no float32."""
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", dtype)
    torch.set_autocast_enabled("cpu", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", False)
        torch.set_autocast_dtype("cpu", before)


@pytest.mark.parametrize("native", NATIVE)
def test_an_operator_without_grad_mode_keeps_tangents(opened: Open, native: bool) -> None:
    operator = getattr(torch.ops, opened(native).__name__).attention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = tangent(functools.partial(operator, **GROUPED), inputs())
    torch.testing.assert_close(found, tangent(functools.partial(sdpa, **GROUPED), inputs()))


@pytest.mark.parametrize("native", NATIVE)
def test_the_rest_gets_the_bits_of_sdpa(opened: Open, native: bool) -> None:
    module = opened(native)
    calls: list[tuple[str, list[torch.Tensor], dict[str, Any]]] = [
        ("not measured to win", inputs(50), GROUPED),
        ("outside the domain", inputs(300), GROUPED),
        ("dtype", inputs(dtype=torch.bfloat16), GROUPED),
        ("layout", [across(t) for t in inputs()], GROUPED),
        ("alignment", [shifted(t) for t in inputs()], GROUPED),
        ("outside the domain", [t[0] for t in inputs(heads=2)], {}),
    ]
    for kind, tensors, options in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = module.info()["misses"].get(kind, {"count": 0})["count"]
            for _ in range(3):
                out = module.attention(*tensors, **options)
        expected = sdpa(*tensors, **options)
        assert torch.equal(out, expected)
        assert out.stride() == expected.stride()
        assert module.info()["misses"][kind]["count"] == before + 3
    assert module.info()["calls"] == 0
    q, k, v = inputs()
    with pytest.raises(RuntimeError, match="must match the size"):
        module.attention(q, k, v)


@pytest.mark.parametrize("native", NATIVE)
def test_the_first_miss_of_a_kind_is_said_at_once(opened: Open, native: bool) -> None:
    module = opened(native)
    with pytest.warns(UserWarning, match=r"not served \(not measured to win\)"):
        module.attention(*inputs(50), **GROUPED)
    module.attention(*inputs(60), **GROUPED)


@pytest.mark.parametrize("native", NATIVE)
def test_streams_and_captures_have_counters_of_their_own(
    opened: Open, driver: Any, tmp_path: Path, native: bool
) -> None:
    module = opened(native)
    used = []
    for stream, capture in [(7, 0), (8, 0), (8, 0), (9, 4), (9, 5), (7, 0)]:
        driver.fake_set(stream, capture)
        notes(driver)
        out = module.attention(*inputs(), **GROUPED)
        torch.testing.assert_close(out, sdpa(*inputs(), **GROUPED))
        assert notes(driver)[-1].endswith(f"on {stream}")
        kernel = ctypes.CDLL(str(tmp_path / "kernel_0.so"))
        used.append(ctypes.c_void_p.in_dll(kernel, "last_counter").value)
    assert used[1] == used[2]
    assert used[0] == used[5]
    assert len(set(used)) == 4


@pytest.mark.parametrize("native", NATIVE)
def test_a_first_call_may_be_captured(opened: Open, driver: Any, native: bool) -> None:
    module = opened(native)
    driver.fake_set(9, 4)
    for _ in range(2):
        out = module.attention(*inputs(), **GROUPED)
        torch.testing.assert_close(out, sdpa(*inputs(), **GROUPED))
    assert module.info()["calls"] == 2


@pytest.mark.parametrize("native", NATIVE)
def test_threads_share_the_launcher(opened: Open, native: bool) -> None:
    module = opened(native, plan={**PLAN, "workspaces": PLAN["workspaces"][:1], **NO_COUNTER})
    wrong: list[float] = []

    def work(seed: int) -> None:
        tensors = [t + seed for t in inputs()]
        expected = sdpa(*tensors, **GROUPED)
        for _ in range(40):
            out = module.attention(*tensors, **GROUPED)
            if not torch.allclose(out, expected, atol=1e-5):
                wrong.append(float((out - expected).abs().max()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert module.info()["calls"] == 160


@pytest.mark.parametrize("by_operator", [False, True])
def test_a_call_made_while_another_is_decided_keeps_its_own_decision(
    opened: Open, monkeypatch: pytest.MonkeyPatch, by_operator: bool
) -> None:
    """A program may call while Python warns of a miss, for instance. Another thread has to look the
    decision up."""
    module = opened()
    call = getattr(torch.ops, module.__name__).attention if by_operator else module.attention
    kernels = module._loaded._kernels  # type: ignore[attr-defined]
    decide, inner = kernels.decide, inputs(40)

    def calling(asked: Any) -> Any:
        monkeypatch.setattr(kernels, "decide", decide)
        call(*inner, **GROUPED)
        return decide(asked)

    monkeypatch.setattr(kernels, "decide", calling)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(*inputs(50), **GROUPED)  # not served
        assert module.info()["calls"] == 1
        thread = threading.Thread(target=call, args=inner, kwargs=GROUPED)
        thread.start()
        thread.join()
    info = module.info()
    assert (info["calls"], info["misses"]["not measured to win"]["count"]) == (2, 1)


def test_native_code_keeps_no_more_decisions_than_python_does(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = opened()
    monkeypatch.setattr(sys.modules[f"{module.__name__}._operators"], "_MOST_DECISIONS", 4)
    decisions = module._loaded._operator.decisions  # type: ignore[attr-defined]
    added: set[int] = set()
    for name in ("add", "add_miss"):
        add = getattr(decisions._native, name)
        noted = functools.partial(lambda add, *given: _noted(added, add(*given)), add)
        monkeypatch.setattr(decisions._native, name, noted)
    drop = decisions._native.drop
    dropped: set[int] = set()
    monkeypatch.setattr(decisions._native, "drop", lambda number: drop(_noted(dropped, number)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(3):
            for number in range(10):
                out = module.attention(*inputs(), scale=0.1 * (number + 1), **GROUPED)
                tensors = inputs(50 + number)  # not served
                module.attention(*tensors, **GROUPED)
                torch.testing.assert_close(
                    out, sdpa(*inputs(), scale=0.1 * (number + 1), **GROUPED)
                )
            assert module.info()["calls"] == 10 * (turn + 1)
    assert sum(each["count"] for each in module.misses()) == 30
    assert len(added) == 60
    assert len(added - dropped) <= 8


@pytest.mark.parametrize("native", NATIVE_SOON)
def test_counters_of_forgotten_decisions_are_used_again_on_their_stream(
    opened: Open, driver: Any, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    counter = {"name": "counter", "bytes": 1 << 19, "init": "zero_once"}  # half an arena
    module = opened(native, plan={**PLAN, "workspaces": [PLAN["workspaces"][0], counter]})  # type: ignore[index]
    for name in ("_operators", "_attention_package"):
        monkeypatch.setattr(sys.modules[f"{module.__name__}.{name}"], "_MOST_DECISIONS", 2)
    notes(driver)
    gc.freeze()  # what was made before: a collection need not look at it
    allocated = []
    for stream in (7, 8):
        driver.fake_set(stream, 0)
        for number in range(1, 151):
            out = module.attention(*inputs(), scale=0.01 * number, **GROUPED)
            torch.testing.assert_close(out, sdpa(*inputs(), scale=0.01 * number, **GROUPED))
            if number % 10 == 0:
                gc.collect()
        allocated.append(sum(line.startswith("allocate") for line in notes(driver)))
    assert all(1 <= count <= 36 for count in allocated)  # a thread keeps its last 64 decisions
    driver.fake_set(7, 5)
    for number in range(1, 5):  # a graph keeps its counters
        module.attention(*inputs(), scale=0.1 * number, **GROUPED)
    assert sum(line.startswith("allocate") for line in notes(driver)) in (1, 2)


def _noted(numbers: set[int], number: int) -> int:
    numbers.add(number)
    return number


def test_a_decision_that_is_dropped_takes_no_memory(opened: Open) -> None:
    native = opened()._loaded._operator.decisions._native  # type: ignore[attr-defined]
    plan = {**PLAN, "workspaces": [], "constant_memory": [], "arguments": [], "launches": []}
    bound = types.SimpleNamespace(
        plan=plan,
        code=types.SimpleNamespace(index=0),
        places={},
        prepared=lambda key: types.SimpleNamespace(launches=[]),
    )
    launch = types.SimpleNamespace(__self__=bound)
    out = torch.empty(1, 4, 40, 16)

    def grown_bytes() -> int:
        before = memory_bytes()
        for _ in range(50_000):
            native.drop(native.add(launch, out))
        return memory_bytes() - before

    grown_bytes()
    assert grown_bytes() < 2 << 20
    number = native.add_miss()
    native.drop(number)
    assert native.calls(number) == 0


def memory_bytes() -> int:
    """The memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("warm", [False, True])
def test_a_thread_without_a_context_can_call(
    opened: Open, driver: Any, native: bool, warm: bool
) -> None:
    """The driver refuses all calls of a thread in which no context is current."""
    module = opened(native)
    tensors, outs = inputs(), []
    if warm:
        module.attention(*tensors, **GROUPED)
    contexts: list[int | None] = []

    def work() -> None:
        outs.append(module.attention(*tensors, **GROUPED))
        context = ctypes.c_void_p()
        driver.cuCtxGetCurrent(ctypes.byref(context))
        contexts.append(context.value)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.testing.assert_close(outs[0], sdpa(*tensors, **GROUPED))
    assert contexts == [None]  # as it was
    assert module.info()["calls"] == 1 + warm


NO_COUNTER: dict[str, Any] = {
    "workspaces": [
        {"name": "scratch", "bytes": 256, "init": "poison"},
        {"name": "counter", "bytes": 300, "init": "poison"},
    ],
    "entry": "attention_without_counter",
    "launches": [{**PLAN["launches"][0], "entry": "attention_without_counter"}],  # type: ignore[index]
}


@pytest.mark.parametrize("native", NATIVE)
def test_constant_memory_is_filled_for_each_stream(opened: Open, driver: Any, native: bool) -> None:
    """The kernel multiplies its scale by the first value of q, which lies in `table`."""
    constants = [{"symbol": "table", "tensor": "q", "bytes": 64}]
    module = opened(native, plan={**PLAN, "constant_memory": constants})
    tensors = inputs()
    scale = float(tensors[0].flatten()[0]) * HEAD_DIM**-0.5
    notes(driver)
    for stream, loads in ((7, 1), (8, 1), (8, 0)):
        driver.fake_set(stream, 0)
        out = module.attention(*tensors, **GROUPED)
        torch.testing.assert_close(out, sdpa(*tensors, scale=scale, **GROUPED))
        made = notes(driver)
        assert "copy 64" in made
        assert sum(line == "load" for line in made) == loads
    assert module.info()["calls"] == 3


@pytest.mark.parametrize("native", NATIVE_SOON)
def test_threads_on_one_stream_keep_their_constant_memory(
    opened: Open, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    """The second thread calls after the first one has filled `table`, before it launches."""
    constants = [{"symbol": "table", "tensor": "q", "bytes": 64}]
    plan = {**PLAN, "workspaces": PLAN["workspaces"][:1], **NO_COUNTER}
    module = opened(native, plan={**plan, "constant_memory": constants})
    launcher = sys.modules[f"{module.__name__}._cuda_launcher"]
    first, second = inputs(), [tensor + 1 for tensor in inputs()]
    other: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: other.append(module.attention(*second, **GROUPED)))
    call, waits = launcher.call, iter([0.5])

    def interrupted(*given: Any) -> None:
        call(*given)
        if wait := next(waits, None):
            thread.start()
            thread.join(wait)

    module.attention(*first, **GROUPED)
    monkeypatch.setattr(launcher, "call", interrupted)
    out = module.attention(*first, **GROUPED)
    thread.join()
    for found, tensors in ((out, first), (other[0], second)):
        scale = float(tensors[0].flatten()[0]) * HEAD_DIM**-0.5
        torch.testing.assert_close(found, sdpa(*tensors, scale=scale, **GROUPED))


def with_features(value_dim: int) -> dict[str, Any]:
    """Changes of a description: a kernel with sinks and without, for values of this size."""
    sinks = {"type": "tensor", "name": "sinks", "given": {"name": "sinks"}}
    regions = []
    for given, causal in itertools.product((False, True), (False, True)):
        made = region(causal=causal, **CASE)
        fixed = {**made["fixed"], **NONE, "value_dim": value_dim, "sinks": given}
        regions.append({**made, "fixed": fixed})
    plan = {**PLAN, "arguments": [*ARGUMENTS, sinks]}
    return {"plan": plan, "served": regions, "domain": regions, "value_dim": value_dim}


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("value_dim", [HEAD_DIM, 8])
def test_sinks_and_values_of_their_own_size_reach_the_driver(
    opened: Open, native: bool, value_dim: int
) -> None:
    module = opened(native, **with_features(value_dim))
    q, k, v = inputs()
    v = v[..., :value_dim].contiguous()
    sinks = torch.tensor([0.0, 1.0, -1.0, 3.0])
    padded = [functional.pad(tensor, (0, 0, 0, 1)) for tensor in (k, v)]
    for causal in (False, True):
        options = {"is_causal": causal, **GROUPED}
        plain = sdpa(q, k, v, **options)
        with module.active():
            for found in (
                functional.scaled_dot_product_attention(q, k, v, **options),
                module.attention(q, k, v, **options),
                getattr(torch.ops, module.__name__).attention(q, k, v, **options),
            ):
                torch.testing.assert_close(found, plain)
        seen = torch.ones(40, 40, dtype=torch.bool)
        mask = torch.zeros(4, 40, 41)
        mask[..., :40].masked_fill_(~(seen.tril() if causal else seen), -torch.inf)
        mask[..., 40] = sinks[:, None]
        found = module.attention(q, k, v, sinks=sinks, **options)
        torch.testing.assert_close(found, sdpa(q, *padded, attn_mask=mask[None], **GROUPED))
    assert module.info()["calls"] == 8, module.misses()
    assert module.check()


@pytest.mark.parametrize("native", NATIVE)
def test_a_size_of_values_that_is_not_served_says_nothing_of_others(
    opened: Open, native: bool
) -> None:
    module = opened(native, **with_features(8))
    q, k, v = inputs()
    with pytest.warns(UserWarning, match="a call is not served"):
        module.attention(q, k, v, **GROUPED)
    for _ in range(2):
        module.attention(q, k, v[..., :8].contiguous(), **GROUPED)
    assert module.info()["calls"] == 2


def with_masks() -> dict[str, Any]:
    """Changes of a package whose kernel takes padding and boolean masks, and no causal ones."""
    strides = (f"attn_mask_stride_{each}" for each in ("batch", "head", "row"))
    arguments = [
        {"type": "tensor", "name": "attn_mask", "given": {"name": "has_mask"}},
        *({"type": "int64", "value": {"name": name}} for name in strides),
    ]
    made = region(**CASE)
    none = {**made["fixed"], **NONE, "value_dim": HEAD_DIM}
    regions = [{**made, "fixed": none}]
    for mask, sizes in (("padding", ["- 1 1"]), ("bool", ["- 1 rows", "- heads rows"])):
        regions.append({**made, "fixed": {**none, "mask": mask}, "mask_sizes": sizes})
    plan = {**PLAN, "arguments": [*ARGUMENTS, *arguments]}
    return {"plan": plan, "served": regions, "domain": regions, "masked": True}


SERVED_MASKS: list[tuple[int, ...]] = [
    (1, 1, 1, 40),
    (1, 40),
    (40, 40),
    (4, 40, 40),
    (1, 4, 40, 40),
]


@pytest.mark.parametrize("native", NATIVE)
def test_masks_reach_the_driver(
    opened: Open, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = opened(native, **with_masks())
    q, k, v = inputs()
    calls = 0
    if native:  # what calls the operator, and what Python launches
        monkeypatch.setattr(module._loaded._calls, "_native", None)  # type: ignore[attr-defined]
        monkeypatch.setattr(module._loaded._kernels, "serve", None)  # type: ignore[attr-defined]
    with module.active():
        for shape in (None, *SERVED_MASKS, None):
            mask = None if shape is None else torch.rand(shape) < 0.6
            for _ in range(2):
                wanted = sdpa(q, k, v, attn_mask=mask, **GROUPED)
                for found in (
                    functional.scaled_dot_product_attention(q, k, v, mask, **GROUPED),
                    module.attention(q, k, v, attn_mask=mask, **GROUPED),
                ):
                    torch.testing.assert_close(found, wanted)
                    calls += 1
                if mask is not None:
                    mask.logical_not_()  # a graph or a loop may write into it
    assert module.info()["calls"] == calls, module.misses()
    assert module.check()


@pytest.mark.parametrize("native", NATIVE)
def test_masks_of_the_operators_reach_the_driver(opened: Open, native: bool) -> None:
    module = opened(native, **with_masks())
    q, k, v = inputs()
    operators = getattr(torch.ops, module.__name__)
    for shape in SERVED_MASKS:
        mask = torch.rand(shape) < 0.6
        wanted = sdpa(q, k, v, attn_mask=mask, **GROUPED)
        rest = False, float("nan"), True, mask
        for found in (
            operators.attention(q, k, v, **GROUPED, attn_mask=mask),
            operators._served(q, k, v, *rest),
            *([operators._attempt(q, k, v, *rest)] if native else []),
            operators.attention_with_features(q, k, v, **GROUPED, attn_mask=mask)[0],
        ):
            torch.testing.assert_close(found, wanted)
    assert module.info()["calls"] == (3 + native) * len(SERVED_MASKS), module.misses()
    odd = torch.rand(1, 4, 1, 40) < 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not native or operators._attempt(q, k, v, *rest[:3], odd) is None
        found = operators._served(q, k, v, *rest[:3], odd)
        assert torch.equal(found, sdpa(q, k, v, attn_mask=odd, **GROUPED))
        with_grad = [t.requires_grad_() for t in inputs()]
        torch.library.opcheck(operators.attention.default, (*with_grad, False, None, True, mask))


@pytest.mark.parametrize("native", NATIVE)
def test_masks_that_no_kernel_takes_get_the_bits_of_sdpa(opened: Open, native: bool) -> None:
    module = opened(native, **with_masks())
    q, k, v = inputs()
    room = torch.rand(40 * 40 + 1) < 0.5
    masks: list[tuple[str, torch.Tensor]] = [
        ("outside the domain", torch.rand(1, 4, 1, 40) < 0.5),
        ("mask", torch.randn(40, 40)),
        ("layout", (torch.rand(40, 40) < 0.5).mT),
        ("layout", (torch.rand(40, 41) < 0.5)[:, :40]),
        ("alignment", room[1:].view(40, 40)),
        ("mask", torch.randn(40, 40, requires_grad=True)),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, mask in masks:
            before = module.info()["misses"].get(kind, {"count": 0})["count"]
            wanted = sdpa(q, k, v, attn_mask=mask, **GROUPED)
            for _ in range(3):
                found = module.attention(q, k, v, attn_mask=mask, **GROUPED)
                assert torch.equal(found, wanted)
                assert found.requires_grad == mask.requires_grad
            assert module.info()["misses"][kind]["count"] == before + 3, kind
    assert module.info()["calls"] == 0


def test_native_code_sees_which_masks_autocast_casts(opened: Open) -> None:
    module = opened(**with_masks())
    direct = module._loaded._calls._direct  # type: ignore[attr-defined]
    q, k, v = inputs()
    mask, bias = torch.rand(40, 40) < 0.6, torch.randn(40, 40)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for each in (mask, bias, bias.half()):
            direct(q, k, v, each, 0.0, False, None, True)  # decided
        with autocast_to(torch.float32):
            assert direct(q, k, v, mask, 0.0, False, None, True) is not None
            assert direct(q, k, v, bias, 0.0, False, None, True) is False
            assert direct(q, k, v, bias.half(), 0.0, False, None, True) is False
            assert direct(q.half(), k, v, mask, 0.0, False, None, True) is None  # Python casts
        with autocast_to(torch.float16):
            assert direct(q, k, v, mask, 0.0, False, None, True) is False
    with torch.enable_grad():
        assert direct(q, k, v, bias.requires_grad_(), 0.0, False, None, True) is False


@pytest.mark.parametrize("native", NATIVE)
def test_a_map_that_the_driver_refuses_is_a_miss(opened: Open, native: bool) -> None:
    wrong = {**ARGUMENTS[0], "tensor_map": {**MAP, "box": [1, 1, 8, 512]}}
    module = opened(native, plan={**PLAN, "arguments": [wrong, *ARGUMENTS[1:]]})
    with pytest.warns(UserWarning, match="cuTensorMapEncodeTiled gives CUDA error 1"):
        out = module.attention(*inputs(), **GROUPED)
    assert torch.equal(out, sdpa(*inputs(), **GROUPED))


@pytest.mark.parametrize("native", NATIVE)
def test_each_argument_has_a_map_of_its_own(opened: Open, driver: Any, native: bool) -> None:
    """Two arguments map one tensor, in boxes of 8 and of 4 rows."""
    other = {**ARGUMENTS[0], "tensor_map": {**MAP, "box": [1, 1, 4, {"name": "head_dim"}]}}
    module = opened(native, plan={**PLAN, "arguments": [*ARGUMENTS, other]})
    notes(driver)
    module.attention(*inputs(), **GROUPED)
    made = [line.split()[-3] for line in notes(driver) if line.startswith("map")]
    assert made == ["8", "4"] * 2  # would the driver take them? Then those of the call


@pytest.mark.parametrize("native", NATIVE)
def test_strides_reach_the_map_and_the_output(opened: Open, driver: Any, native: bool) -> None:
    names = [f"q_stride_{dimension}" for dimension in ("batch", "head", "row")]
    strided = {**MAP, "strides": [*({"name": name} for name in names), 1]}
    plan = {**PLAN, "arguments": [{**ARGUMENTS[0], "tensor_map": strided}, *ARGUMENTS[1:]]}
    module = opened(native, plan=plan, served=[strided_region()])
    notes(driver)
    tensors = [across(t) for t in inputs()]
    out = module.attention(*tensors, **GROUPED)
    assert out.stride() == tensors[0].stride()
    assert any("16 40 4 1 256 64 10240" in line for line in notes(driver))


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize(
    ("here", "reason"),
    [(("NVIDIA H100", 132), "this is NVIDIA H100, the kernels are for Fake"),
     (("Fake", 114), "this GPU has 114 multiprocessors, the kernels are for Fake with 2")],
)  # fmt: skip
def test_on_another_gpu_everything_falls_back_and_is_said_once(
    opened: Open, monkeypatch: pytest.MonkeyPatch, native: bool, here: Any, reason: str
) -> None:
    module = opened(native)
    launcher = module._loaded._loaded.launcher  # type: ignore[attr-defined]
    properties = types.SimpleNamespace(name=here[0], multi_processor_count=here[1])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    launcher.refusal = launcher.real_refusal
    with pytest.warns(UserWarning, match=rf"not served \(device\): {reason}"):
        module.attention(*inputs(), **GROUPED)
    for length in (40, 50):  # a second warning would be an error
        out = module.attention(*inputs(length), **GROUPED)
        assert torch.equal(out, sdpa(*inputs(length), **GROUPED))
    assert module.info()["misses"]["device"]["count"] == 3


@pytest.mark.parametrize("native", NATIVE)
def test_with_another_driver_sdpa_serves_until_a_check_has_passed(
    opened: Open, native: bool
) -> None:
    module = opened(native, measured_with="575.57.08")
    operator = getattr(torch.ops, module.__name__).attention
    calls = (module.attention, operator)
    with pytest.warns(UserWarning, match=r"version\): driver is 580\.95\.05 here and was 575"):
        outs = [call(*inputs(), **GROUPED) for call in calls]
    assert all(torch.equal(out, sdpa(*inputs(), **GROUPED)) for out in outs)
    assert module.info()["calls"] == 0
    assert module.check()
    checked = module.info()["calls"]
    for call in calls:
        torch.testing.assert_close(call(*inputs(), **GROUPED), sdpa(*inputs(), **GROUPED))
    info = module.info()
    assert (info["calls"], info["misses"]["version"]["count"]) == (checked + 2, 2)
    assert (info["versions"]["driver"], info["measured_with"]["driver"]) == (
        "580.95.05",
        "575.57.08",
    )


@pytest.mark.parametrize("native", NATIVE)
def test_another_patch_of_the_driver_counts_as_the_same(opened: Open, native: bool) -> None:
    module = opened(native, measured_with="580.159.04")
    module.attention(*inputs(), **GROUPED)
    assert module.info()["calls"] == 1


@pytest.mark.parametrize("native", NATIVE)
def test_where_the_driver_does_not_load_the_code_everything_falls_back(
    opened: Open, tmp_path: Path, native: bool
) -> None:
    module = opened(native)
    (tmp_path / "kernel_0.so").unlink()
    with pytest.warns(UserWarning, match="not served .no kernel for the device.*error 200"):
        module.attention(*inputs(), **GROUPED)
    for _ in range(2):
        out = module.attention(*inputs(), **GROUPED)
        assert torch.equal(out, sdpa(*inputs(), **GROUPED))
    assert module.info()["calls"] == 0


@pytest.mark.parametrize("native", NATIVE)
def test_two_names_of_a_package_count_for_themselves(opened: Open, native: bool) -> None:
    """The loader gives one library for one file, under whichever name it is opened."""
    module = opened(native)
    assert module.__file__
    again = Path(module.__file__).parent.with_name(f"{module.__name__}_again")
    again.symlink_to(module.__name__)
    with imported(again) as other, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for length in (40, 50):
            out = module.attention(*inputs(length), **GROUPED)
            torch.testing.assert_close(out, sdpa(*inputs(length), **GROUPED))
        assert (module.info()["calls"], other.info()["calls"]) == (1, 0)
        assert [sum(m["count"] for m in each.misses()) for each in (module, other)] == [1, 0]
        for _ in range(2):
            other.attention(*inputs(), **GROUPED)
        assert (module.info()["calls"], other.info()["calls"]) == (1, 2)
        assert other.info()["launcher"].startswith("native" if native else "ctypes")


@pytest.mark.parametrize("native", NATIVE)
def test_strides_of_dimensions_of_one_index_do_not_matter(opened: Open, native: bool) -> None:
    """The driver would refuse a map with them, and all later calls of the shape would be misses."""
    names = [f"q_stride_{dimension}" for dimension in ("batch", "head", "row")]
    strided = {**MAP, "strides": [*({"name": name} for name in names), 1]}
    plan = {**PLAN, "arguments": [{**ARGUMENTS[0], "tensor_map": strided}, *ARGUMENTS[1:]]}
    module = opened(native, plan=plan, served=[strided_region()])
    q, k, v = inputs()
    odd = q.as_strided(q.shape, (7, *q.stride()[1:]))
    for given in (odd, q):
        out = module.attention(given, k, v, **GROUPED)
        torch.testing.assert_close(out, sdpa(q, k, v, **GROUPED))
    assert module.info()["calls"] == 2


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("grad", [False, True])
def test_sdpa_gets_a_scale_that_is_no_number(
    opened: Open, monkeypatch: pytest.MonkeyPatch, native: bool, grad: bool
) -> None:
    module = opened(native)
    seen: list[float | None] = []

    def recorded(*tensors: Any, scale: float | None, **options: Any) -> torch.Tensor:
        seen.append(scale)
        return sdpa(*tensors, scale=scale, **options)

    monkeypatch.setattr(sys.modules[f"{module.__name__}._attention_package"], "sdpa", recorded)
    operator = getattr(torch.ops, module.__name__).attention
    with torch.set_grad_enabled(grad), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for scale in (float("nan"), -float("nan"), float("inf")):
            operator(*inputs(), scale=scale, **GROUPED)
    assert [str(abs(scale)) for scale in seen if scale is not None] == ["nan", "nan", "inf"]


@pytest.mark.parametrize("native", NATIVE)
def test_unusual_arguments_are_read_as_pytorch_reads_them(opened: Open, native: bool) -> None:
    module = opened(native)
    operator = getattr(torch.ops, module.__name__).attention
    q, k, v = inputs()
    zeros = torch._efficientzerotensor(q.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in (operator, module.attention):
            out = call(torch._neg_view(q), k, v, **GROUPED)
            torch.testing.assert_close(out, sdpa(-q, k, v, **GROUPED))
            call(zeros, k, v, **GROUPED)
            undefined = {"scale": float("nan"), "is_causal": True, **GROUPED}
            for grad in (False, True):
                q.requires_grad_(grad)
                assert call(q, k, v, **undefined).isnan().all()
            for mode in (torch.inference_mode, torch.no_grad):
                with mode():
                    assert call(q, k, v, **undefined).isnan().all()
        out = operator(zeros, k, v, **GROUPED)
        torch.testing.assert_close(out, sdpa(zeros + 0, k, v, **GROUPED))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = operator(q, k, v, **GROUPED)
            assert torch.equal(found, sdpa(q, k, v, **GROUPED))


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("grad", [False, True])
def test_a_call_gives_a_tensor_where_sdpa_gives_none(
    opened: Open, monkeypatch: pytest.MonkeyPatch, native: bool, grad: bool
) -> None:
    module = opened(native)
    package = sys.modules[f"{module.__name__}._attention_package"]
    monkeypatch.setattr(package, "sdpa", none_without_elements)
    operators = getattr(torch.ops, module.__name__)
    q, k, v = (across(t) for t in inputs(heads=2))
    with torch.set_grad_enabled(grad), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for empty in ((q[:0], k[:0], v[:0]), (q[:, :0], k[:, :0], v[:, :0])):
            served = operators._served(*empty, False, float("nan"), False)
            for out in (operators.attention(*empty), served, module.attention(*empty)):
                assert out.shape == empty[0].shape
            assert served.stride() == torch.empty_like(empty[0]).stride()
        assert not operators.attention(q, k[:, :, :0], v[:, :, :0]).any()


@pytest.mark.parametrize("native", NATIVE)
def test_an_output_has_the_strides_of_its_own_call(opened: Open, native: bool) -> None:
    """A decision holds for all strides of a dimension of one index."""
    names = [f"q_stride_{dimension}" for dimension in ("batch", "head", "row")]
    strided = {**MAP, "strides": [*({"name": name} for name in names), 1]}
    plan = {**PLAN, "arguments": [{**ARGUMENTS[0], "tensor_map": strided}, *ARGUMENTS[1:]]}
    module = opened(native, plan=plan, served=[strided_region()])
    operator = getattr(torch.ops, module.__name__).attention
    q, k, v = inputs()
    wide = torch.randn(1, 4, 40, 2 * HEAD_DIM)[..., :HEAD_DIM]
    given = [q.as_strided(q.shape, (step, *q.stride()[1:])) for step in (0, 2560, 7)]
    given += [wide.as_strided(q.shape, (step, *wide.stride()[1:])) for step in (0, 5120, 7)]
    with torch.no_grad():
        for each in given:
            with module.active():  # a bool of dropout takes the longer way
                hooked = functional.scaled_dot_product_attention(
                    each, k, v, dropout_p=False, **GROUPED
                )
            for out in (operator(each, k, v, **GROUPED), hooked):
                assert out.stride() == torch.empty_like(each).stride()
                if each.is_contiguous():  # the kernel knows no other tensors
                    torch.testing.assert_close(out, sdpa(each, k, v, **GROUPED))
    assert module.info()["calls"] == 12


@pytest.mark.parametrize("native", NATIVE_SOON)
def test_operators_keep_their_promises(opened: Open, native: bool) -> None:
    module = opened(native)
    operators = getattr(torch.ops, module.__name__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tensors in (inputs(), inputs(50), [across(t) for t in inputs()]):
            torch.library.opcheck(operators.attention.default, (*tensors, False, None, True))
            torch.library.opcheck(operators._served.default, (*tensors, False, 0.25, True))
            expected = sdpa(*tensors, **GROUPED)
            for out in (
                operators.attention(*tensors, False, None, True),
                operators._served(*tensors, False, 0.25, True),
            ):
                torch.testing.assert_close(out, expected)
        ours, theirs = ([t.clone().requires_grad_() for t in inputs()] for _ in range(2))
        operators.attention(*ours, False, None, True).sum().backward()
        sdpa(*theirs, **GROUPED).sum().backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.soak)])
def test_compiled_graphs_call_it(opened: Open, native: bool, backend: str) -> None:
    module = opened(native)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v: module.attention(q, k, v, **GROUPED) * 2, fullgraph=True, backend=backend
    )
    tensors = inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's compiler
        compiled(*tensors)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*tensors), sdpa(*tensors, **GROUPED) * 2)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(*tensors), sdpa(*tensors, **GROUPED) * 2)
    assert module.info()["calls"] == 3


def test_a_native_library_that_does_not_load_is_said(opened: Open) -> None:
    info = opened(native=False).info()
    assert "does not load" in info["launcher"]


def test_check_calls_what_users_call(opened: Open, driver: Any, capsys: Any) -> None:
    module = opened()
    notes(driver)
    assert module.check()
    assert sum(line.startswith("launch") for line in notes(driver)) == 2
    assert module.info()["calls"] == 2


@pytest.mark.soak
def test_the_native_launcher_is_built_alike_each_time() -> None:
    files = registry.named("cuda").exported_files("any")
    name = f"_native_{exported_launchers.platform()}.so"
    sources = {n.removeprefix("native/"): files[n] for n in files if n.startswith("native/")}
    assert files[name] == exported_launchers.build.__wrapped__(tuple(sources.items())).library
    assert exported_launchers.slower_because() == ""


def test_without_a_compiler_packages_have_no_native_launcher_and_an_export_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    missing = exported_launchers.build.__wrapped__((("f.cpp", b"int f();"),))
    assert not missing.library
    assert missing.reason == "no C++ compiler was found (no-such-compiler)"
    monkeypatch.setenv("CXX", "g++")
    wrong = exported_launchers.build.__wrapped__((("f.cpp", b"int f("),))
    assert not wrong.library
    assert "g++ fails (f.cpp:1:" in wrong.reason
    monkeypatch.setattr(exported_launchers, "build", lambda sources: wrong)
    said = registry.named("cuda").exported_slower_because()
    assert said == f"calls go through ctypes, which is slower: {wrong.reason}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_where_there_is_no_gpu_everything_is_sdpas(tmp_path: Path) -> None:
    device = {"backend": "cuda", "name": "NVIDIA H200", "multiprocessors": 132}
    write(tmp_path, "far", description("far", device=device), {})
    program = """
import torch, warnings, far
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    q = torch.randn(1, 4, 40, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    with far.active():
        for _ in range(2):
            out = torch.nn.functional.scaled_dot_product_attention(q, q, q)
            assert torch.equal(out, expected)
    assert torch.equal(torch.ops.far.attention(q, q, q), expected)
nested = torch.nested.nested_tensor(list(q))
for grad in (False, True):
    with torch.set_grad_enabled(grad):
        known = torch.nn.functional.scaled_dot_product_attention(nested, nested, nested)
        assert torch.equal(torch.ops.far.attention(nested, nested, nested)[0], known[0])
assert len(said) == 1, said
info = far.info()
assert not info["device_matches"] and info["why_not"], info
assert info["launcher"].startswith("ctypes"), info
assert info["misses"]["device"]["count"] == 3, info
assert not far.check()
"""
    command = [sys.executable, "-c", program]
    found = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert found.returncode == 0, found.stderr
