"""Packages of kernels for other problems than attention."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import pickle
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._device import DeviceContext

from evotune.runs.setup import load_kernel_setup
from evotune.runs.spaces import shipped_spaces
from evotune.space.reading.case_file import read_cases
from evotune.workers.executor import TIMED
from tests.export.runtime.packages import description, imported, operators, write
from tests.patience import PATIENCE_S

Open = Callable[..., ModuleType]
Call = Callable[..., torch.Tensor]
_numbers = itertools.count()
SOURCE = """
#include <cmath>
extern "C" void norm(const float* x, const float* weight, float* out, float* scales, float eps,
                     int rows, int columns) {
  for (int row = 0; row < rows; ++row) {
    double sum = 0;
    for (int i = 0; i < columns; ++i) sum += double(x[row * columns + i]) * x[row * columns + i];
    scales[row] = float(1 / std::sqrt(sum / columns + eps));
    for (int i = 0; i < columns; ++i)
      out[row * columns + i] = x[row * columns + i] * scales[row] * weight[i];
  }
}
"""
ROWS, COLUMNS = {"name": "rows"}, {"name": "columns"}


def name(text: str) -> dict[str, str]:
    return {"name": text}


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> dict[str, torch.Tensor]:
    scales = (x.square().mean(-1) + eps).rsqrt()
    return {"out": x * scales[:, None] * weight, "scales": scales}


def dispatch(outputs: list[str], **changes: Any) -> dict[str, Any]:
    ranges = {"rows": [1, 100], "columns": [1, 64], "eps": [1e-8, 1e-3], "elements": [1, 6400]}
    exact = {n: [v, v] for n, v in {"rows": 8, "columns": 32, "eps": 1e-6, "elements": 256}.items()}
    whole = {"kernel": 0, "fixed": {}, "speedup_low": 1.1, "near": False, "layout": "contiguous"}
    return {
        "problem": {
            "name": "user",
            "inputs": ["x", "weight"],
            "outputs": outputs,
            "dtype": "float32",
            "call": "rms_norm",
        },
        "cases_from": {
            "sizes": ["rows", "columns"],
            "constants": {"eps": 1e-6},
            "ranges": {"eps": [1e-8, 1e-3]},
            "variants": {},
            "tuned": [{"rows": 8, "columns": 32, "eps": 1e-6}],
        },
        "shapes": {
            "x": [ROWS, COLUMNS],
            "weight": [COLUMNS],
            "out": [ROWS, COLUMNS],
            "scales": [ROWS],
        },
        "quantities": {"elements": ["*", ROWS, COLUMNS]},
        "kernels": [
            {
                "champion": 0,
                "binaries": [],
                "plan": {
                    "entry": "norm",
                    "arguments": [
                        {"type": "tensor", "name": "x"},
                        {"type": "tensor", "name": "weight"},
                        {"type": "tensor", "name": "out"},
                        {"type": "workspace" if outputs == ["out"] else "tensor", "name": "scales"},
                        {"type": "float32", "value": name("eps")},
                        {"type": "int32", "value": ROWS},
                        {"type": "int32", "value": COLUMNS},
                    ],
                    "workspaces": [{"name": "scales", "bytes": ["*", 4, ROWS], "init": "poison"}]
                    if outputs == ["out"]
                    else [],
                    "launches": [],
                },
                "guards": [],
            }
        ],
        "served": [{**whole, "ranges": exact}],
        "domain": [{**whole, "ranges": ranges}],
        **changes,
    }


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("norm")
    (folder / "norm.cpp").write_text(SOURCE)
    command = ["g++", "-O1", "-fPIC", "-shared", "norm.cpp", "-o", "norm.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=PATIENCE_S)
    return (folder / "norm.so").read_bytes()


@pytest.fixture
def opened(tmp_path: Path, binary: bytes) -> Iterator[Open]:
    with ExitStack() as stack:

        def make(outputs: tuple[str, ...] = ("out",), **changes: Any) -> ModuleType:
            package = f"norm_{next(_numbers)}"
            whole = description(package, **dispatch(list(outputs), **changes))
            file = {"fixed": {}, "file": "binaries/norm.so"}
            whole["kernels"][0]["binaries"] = [
                {**file, "sha256": hashlib.sha256(binary).hexdigest()}
            ]
            folder = write(tmp_path, package, whole, {"binaries/norm.so": binary})
            return stack.enter_context(imported(folder))

        yield make


def inputs(rows: int = 8, columns: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, columns, generator=generator), torch.rand(columns, generator=generator)


def test_values_that_memory_does_not_hold_are_not_read_from_it(opened: Open) -> None:
    module = opened()
    x, weight = inputs()
    out = module.rms_norm(torch._neg_view(x), weight)
    torch.testing.assert_close(out, norm(-x, weight)["out"])
    with pytest.raises(ValueError, match="not contiguous"):  # it repeats one zero
        module.rms_norm(torch._efficientzerotensor(x.shape), weight)
    assert module.info()["calls"] == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of PyTorch's
def test_forward_mode_gradients_are_refused(opened: Open) -> None:
    module = opened()
    x, weight = inputs()
    with forward_ad.dual_level(), pytest.raises(ValueError, match="has no gradient"):
        module.rms_norm(forward_ad.make_dual(x, torch.ones_like(x)), weight)


def traced(call: Call) -> torch.Tensor:
    x, weight = inputs()
    found: torch.Tensor = torch.jit.trace(call, (x + 1, weight))(x, weight)
    return found


def recorded(call: Call) -> torch.Tensor:
    x, weight = inputs()
    found: torch.Tensor = make_fx(call)(x + 1, weight)(x, weight)
    return found


def mapped(call: Call) -> torch.Tensor:
    x, weight = inputs()
    found: torch.Tensor = torch.vmap(call, in_dims=(0, None))(torch.stack([x + 1, x]), weight)
    return found[1]


def functional(call: Call) -> torch.Tensor:
    found: torch.Tensor = torch.func.functionalize(lambda *given: call(*given) * 1)(*inputs())
    return found


def wrapped(call: Call) -> torch.Tensor:
    """TwoTensor has no memory of its own."""
    found: torch.Tensor = call(*(TwoTensor(each, each) for each in inputs())).a
    return found


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of PyTorch's
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of vmap
@pytest.mark.parametrize("state", [traced, recorded, mapped, functional, wrapped])
def test_who_looks_at_operators_sees_the_package_s(
    opened: Open, state: Callable[[Call], torch.Tensor]
) -> None:
    torch.testing.assert_close(state(opened().rms_norm), norm(*inputs())["out"])


def test_tensors_without_memory_reach_no_kernel(opened: Open) -> None:
    module = opened()
    with FakeTensorMode() as mode:
        assert module.rms_norm(torch.randn(8, 32), torch.randn(32)).shape == (8, 32)
    x, weight = map(mode.from_tensor, inputs())
    assert module.rms_norm(x, weight).shape == (8, 32)
    assert module.info()["calls"] == 0


def test_a_parameter_is_a_plain_tensor(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    module = opened()
    monkeypatch.setattr(module._loaded._calls, "overload", None)
    with torch.no_grad():
        out = module.rms_norm(X, torch.nn.Parameter(WEIGHT))
    torch.testing.assert_close(out, norm(X, WEIGHT)["out"])


def test_every_case_of_the_domain_runs_the_kernel(opened: Open) -> None:
    module = opened()
    for rows, columns in ((8, 32), (3, 64), (100, 1)):
        x, weight = inputs(rows, columns)
        torch.testing.assert_close(module.rms_norm(x, weight), norm(x, weight)["out"])
        torch.testing.assert_close(
            module.rms_norm(weight=weight, x=x, eps=1e-3), norm(x, weight, 1e-3)["out"]
        )
    assert module.info()["calls"] == 6
    assert "activate" not in module.__all__


def test_no_more_threads_are_used_than_were_measured_with(opened: Open) -> None:
    before = torch.get_num_threads()
    module = opened(device={**description("any")["device"], "threads": 1})
    try:
        torch.set_num_threads(2)
        torch.testing.assert_close(module.rms_norm(X, WEIGHT), norm(X, WEIGHT)["out"])
        assert module.info()["calls"] == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_several_outputs_come_by_name(opened: Open) -> None:
    module = opened(("out", "scales"))
    found = module.rms_norm(*inputs())
    assert list(found) == ["out", "scales"]
    for key, value in norm(*inputs()).items():
        torch.testing.assert_close(found[key], value)
    out, scales = operators(module).rms_norm(*inputs(), eps=1e-4)
    torch.testing.assert_close(scales, norm(*inputs(), 1e-4)["scales"])
    assert out.shape == (8, 32)


X, WEIGHT = inputs()
REFUSED: list[tuple[str, tuple[torch.Tensor, ...], dict[str, Any]]] = [
    ("outside the domain.*rows=101.*checked: rows 1 to 100, columns 1 to 64", inputs(101), {}),
    ("outside the domain.*eps=0.5", inputs(), {"eps": 0.5}),
    (r"the kernels take x \(rows, columns\), weight \(columns\)", (X, WEIGHT[:7]), {}),
    (r"dtype.*x is torch.float64", (X.double(), WEIGHT), {}),
    ("layout.*use x.contiguous", (X.mT.contiguous().mT, WEIGHT), {}),
    ("grad.*use torch.no_grad", (X.clone().requires_grad_(), WEIGHT), {}),
]


@pytest.mark.parametrize(("words", "tensors", "options"), REFUSED)
def test_other_calls_are_an_error_in_one_line(
    opened: Open, words: str, tensors: Any, options: Any
) -> None:
    module = opened()
    for _ in range(2):
        with pytest.raises(ValueError, match=words) as caught:
            module.rms_norm(*tensors, **options)
        assert "\n" not in str(caught.value)
    assert sum(kind["count"] for kind in module.info()["misses"].values()) == 2


def test_a_size_that_no_check_had_is_named(opened: Open) -> None:
    whole = dispatch(["out"])["domain"]
    known = [{**each, "lengths": {"rows": [[1, 50], [60, 100]]}} for each in whole]
    module = opened(domain=known)
    words = r'outside the domain.*no check had rows=55; `info\(\)\["lengths"\]` names the lengths'
    with pytest.raises(ValueError, match=words):
        module.rms_norm(*inputs(55))


@pytest.mark.parametrize(("words", "tensors", "options"), REFUSED)
def test_a_fallback_serves_them(opened: Open, words: str, tensors: Any, options: Any) -> None:
    module = opened()
    module.set_fallback(lambda *given, **named: given[0] * 2)
    with pytest.warns(UserWarning, match="the fallback serves it"):
        out = module.rms_norm(*tensors, **options)
    assert torch.equal(out, tensors[0] * 2)
    assert out.requires_grad == tensors[0].requires_grad


@pytest.mark.parametrize(
    ("arguments", "named", "words"),
    [
        ((X,), {}, "lacks weight"),
        ((X, None), {}, "lacks weight"),
        ((X,), {"weight": None}, "lacks weight"),
        ((X, WEIGHT, X), {}, "takes 2 tensors, got 3"),
        ((X, WEIGHT), {"epsilon": 1}, "got 'epsilon'; known: x, weight, rows, columns, eps"),
        ((X, WEIGHT), {"x": X}, "got 'x'"),
        ((X, WEIGHT), {"eps": "1e-6"}, "eps must be a number, got '1e-6'"),
        ((X, WEIGHT), {"rows": [8]}, r"rows must be a number, got \[8\]"),
    ],
)
def test_wrong_arguments_are_told(opened: Open, arguments: Any, named: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        opened().rms_norm(*arguments, **named)


def test_an_input_may_have_any_name(opened: Open) -> None:
    renamed = json.dumps(dispatch(["out"])).replace('"x"', '"self"')
    module = opened(**json.loads(renamed))
    found = module.rms_norm(**{"self": X, "weight": WEIGHT})
    torch.testing.assert_close(found, norm(X, WEIGHT)["out"])


def test_a_size_may_be_a_number_that_a_tracer_leaves_open(opened: Open) -> None:
    call = opened().rms_norm
    graph = make_fx(lambda x, weight: call(x, weight, rows=x.shape[0]), tracing_mode="symbolic")
    torch.testing.assert_close(graph(X, WEIGHT)(X, WEIGHT), norm(X, WEIGHT)["out"])


def test_an_option_that_is_none_is_left_out(opened: Open) -> None:
    module = opened()
    out = module.rms_norm(X, WEIGHT, eps=None, rows=None)
    assert torch.equal(out, module.rms_norm(X, WEIGHT))
    module.set_fallback(lambda *given, **named: norm(*given)["out"] if not named else None)
    with pytest.warns(UserWarning, match="grad"):
        module.rms_norm(X.clone().requires_grad_(), WEIGHT, eps=None)


def test_the_operator_keeps_its_promises(opened: Open) -> None:
    for outputs in (("out",), ("out", "scales")):
        module = opened(outputs)
        overload = operators(module).rms_norm.default
        torch.library.opcheck(overload, inputs(), {"eps": 1e-5})


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions_call_it(opened: Open, dynamic: bool) -> None:
    module = opened()
    compiled = torch.compile(
        lambda x, w: module.rms_norm(x, w) + 1, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for rows in (8, 9):
        x, weight = inputs(rows)
        torch.testing.assert_close(compiled(x, weight), norm(x, weight)["out"] + 1)
    assert module.info()["calls"] == 2


@pytest.mark.parametrize("shape", [(2, 4, 32), (0, 32)])
def test_compiled_calls_of_no_case_go_to_the_fallback(opened: Open, shape: tuple[int, ...]) -> None:
    module = opened()
    compiled = torch.compile(
        lambda x: module.rms_norm(x, WEIGHT) + 1, fullgraph=True, backend="aot_eager"
    )
    module.set_fallback(lambda x, weight: F.rms_norm(x, (32,), weight, 1e-6))
    x = torch.randn(shape)
    with pytest.warns(UserWarning, match="the fallback serves it"):
        torch.testing.assert_close(compiled(x), F.rms_norm(x, (32,), WEIGHT, 1e-6) + 1)


@pytest.mark.filterwarnings("ignore")  # of misses
@pytest.mark.parametrize(
    "types", [(torch.bfloat16, torch.float32), (torch.float32, torch.float64), (torch.half,) * 2]
)
def test_a_compiler_is_told_the_type_that_the_fallback_gives(
    opened: Open, types: tuple[torch.dtype, torch.dtype]
) -> None:
    """inductor reads the output's memory as the type that it was told."""
    module = opened()
    module.set_fallback(lambda x, weight: norm(x, weight)["out"])
    given = X.to(types[0]), WEIGHT.to(types[1])
    with FakeTensorMode() as mode:
        told = module.rms_norm(*map(mode.from_tensor, given))
    found = module.rms_norm(*given)
    assert (found.dtype, found.shape) == (told.dtype, told.shape)
    assert found.dtype == torch.promote_types(*types)


@pytest.mark.filterwarnings("ignore")  # of misses
@pytest.mark.parametrize("outputs", [("out",), ("out", "scales")])
def test_what_the_fallback_gives_is_as_a_kernel_would_give_it(
    opened: Open, outputs: tuple[str, ...]
) -> None:
    module = opened(outputs)
    module.set_fallback(lambda x, weight: {"out": x.double(), "scales": x[:, 0]})
    view = torch.stack((X, X), -1)[..., 0]  # not contiguous, so that no kernel serves it
    found = module.rms_norm(view, WEIGHT)
    for each in found.values() if isinstance(found, dict) else [found]:
        assert each.dtype == torch.float32
    module.set_fallback(lambda x, weight: {"out": x, "scales": x[:, 0]})
    x, operator = X.double(), operators(module).rms_norm
    for call in (module.rms_norm, operator):
        found = call(x, WEIGHT)
        if isinstance(found, torch.Tensor):
            found = {"out": found}
        for each in found.values() if isinstance(found, dict) else found:
            each.fill_(7)
        assert torch.equal(x, X.double())


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", ["mkldnn", "sparse", "sparse_csr"])
def test_a_tensor_without_strides_goes_to_the_fallback(opened: Open, layout: str) -> None:
    module = opened()
    module.rms_norm(X, WEIGHT)  # a decision on tensors of the same shape
    module.set_fallback(lambda x, weight: norm(x.to_dense(), weight)["out"])
    with pytest.warns(UserWarning, match="x has the layout .*; the fallback serves it"):
        out = module.rms_norm(getattr(X, f"to_{layout}")(), WEIGHT)
    torch.testing.assert_close(out, norm(X, WEIGHT)["out"])
    assert module.info()["calls"] == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_goes_to_the_fallback(opened: Open) -> None:
    module = opened()
    module.set_fallback(lambda x, weight: x * 2)
    with pytest.warns(UserWarning, match="x has the layout nested; the fallback serves it"):
        out = module.rms_norm(torch.nested.nested_tensor([X, X[:3]]), WEIGHT)
    assert torch.equal(out[1], X[:3] * 2)


@pytest.mark.filterwarnings("ignore")  # of misses, and of PyTorch's loop over a batch
def test_transforms_go_through_the_fallback(opened: Open) -> None:
    module = opened()
    module.set_fallback(lambda x, weight: norm(x, weight)["out"])

    def total(x: torch.Tensor, call: Call = module.rms_norm) -> torch.Tensor:
        return call(x, WEIGHT).square().sum()

    def known(x: torch.Tensor) -> torch.Tensor:
        return total(x, lambda *given: norm(*given)["out"])

    torch.testing.assert_close(torch.func.grad(total)(X), torch.func.grad(known)(X))
    found, wanted = (torch.func.jvp(each, (X,), (X,)) for each in (total, known))
    torch.testing.assert_close(found, wanted)
    batch = torch.stack((X, 2 * X))
    torch.testing.assert_close(
        torch.vmap(torch.func.grad(total))(batch), torch.vmap(torch.func.grad(known))(batch)
    )


def test_another_device_is_an_error(opened: Open) -> None:
    module = opened(device={**description("any")["device"], "name": "Another Processor"})
    with pytest.raises(ValueError, match=r"device.*the kernels are for Another Processor"):
        module.rms_norm(*inputs())
    assert not module.check()


def test_a_compiled_call_on_another_device_goes_to_the_fallback(opened: Open) -> None:
    module = opened(device={"backend": "cuda", "name": "A GPU", "arch": "sm_90"})
    module.set_fallback(lambda *given, **named: norm(*given)["out"])
    compiled = torch.compile(module.rms_norm, fullgraph=True, backend="aot_eager")
    with pytest.warns(UserWarning, match="the tensors are on cpu; the fallback serves it"):
        torch.testing.assert_close(compiled(X, WEIGHT), norm(X, WEIGHT)["out"])


def test_with_another_pytorch_a_call_is_an_error_until_a_check_has_passed(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = opened()
    monkeypatch.setattr(torch, "__version__", "99.1.0")
    with pytest.raises(ValueError, match=r"version.*torch is 99\.1\.0 here.*check"):
        module.rms_norm(*inputs())
    assert module.check()
    torch.testing.assert_close(module.rms_norm(*inputs()), norm(*inputs())["out"])
    assert module.info()["versions_accepted"]


def test_check_compares_with_the_fallback(opened: Open, capsys: Any) -> None:
    module = opened()
    assert module.check()
    module.set_fallback(lambda *given, **named: norm(*given, **{"eps": named["eps"]})["out"])
    assert module.check()
    module.set_fallback(lambda *given, **named: given[0])
    assert not module.check()
    assert "differs" in capsys.readouterr().out


def test_check_calls_timed_cases_that_were_not_won(
    opened: Open, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    module = opened(served=[])
    monkeypatch.setattr(torch, "__version__", "99.1.0")
    assert module.check()
    assert "rows=8, columns=32" in capsys.readouterr().out
    torch.testing.assert_close(module.rms_norm(*inputs()), norm(*inputs())["out"])


def test_misses_outside_the_domain_are_cases_to_tune(opened: Open, tmp_path: Path) -> None:
    module = opened()
    module.set_fallback(lambda *given, **named: norm(*given, **named)["out"])
    with pytest.warns(UserWarning, match="outside the domain"):
        module.rms_norm(*inputs(rows=101), eps=1e-5)
    (missed,) = module.misses()
    assert missed["shape"] == {"rows": 101, "columns": 32, "eps": 1e-5}
    assert missed["variant"] == {}
    assert missed["dtype"] == "float32"
    module.write_misses(tmp_path / "misses.json")
    cases = read_cases(tmp_path / "misses.json")
    space = shipped_spaces()["rms-norm-cpu"]
    setup = load_kernel_setup(space, "cpu", compile_only=True, cases=cases)
    assert [case.label for case in setup.cases[TIMED]] == ["(101,32,eps=1e-05)"]
    assert setup.skipped == ()


@pytest.mark.filterwarnings("ignore")  # of misses
def test_numbers_that_no_case_has_spoil_no_list_of_cases(opened: Open, tmp_path: Path) -> None:
    module = opened()
    module.set_fallback(lambda *given, **named: given[0])
    for number in (float("nan"), float("inf"), 1.0):
        module.rms_norm(X, WEIGHT, eps=number)
    module.rms_norm(X, WEIGHT, rows=8.5)
    module.write_misses(tmp_path / "cases.yaml")
    (case,) = read_cases(tmp_path / "cases.yaml")
    assert case.shape["eps"] == 1.0
    assert module.info()["misses"]["outside the domain"]["count"] == 4
    assert module.info()["calls"] == 0


def test_the_function_tells_its_arguments(opened: Open) -> None:
    function = opened().rms_norm
    assert pickle.dumps(function)  # as a name of the package
    assert str(inspect.signature(function)) == "(x, weight, *, rows=None, columns=None, eps=None)"
    assert function.__name__ == "rms_norm"
    assert "- x (rows, columns), float32\n- weight (columns), float32" in function.__doc__


def test_a_default_device_sees_nothing_of_a_decision(opened: Open) -> None:
    module = opened()
    given, other = inputs(), inputs(rows=200)
    seen: list[Any] = []

    class Device(DeviceContext):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    with Device(torch.device("cpu")):  # type: ignore[no-untyped-call]
        module.rms_norm(*given)
        with pytest.raises(ValueError, match="outside the domain"):
            module.rms_norm(*other)
        assert not seen
        module.set_fallback(lambda x, weight: norm(x, weight)["out"])
        module.rms_norm(*other)
        assert seen  # the fallback is PyTorch's
