"""`tune_model`: tiny models, from the recording to the gain, with searches that take no time."""

from __future__ import annotations

import contextlib
import json
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import evotune
from evotune.api import model_timing, model_tuning
from evotune.api.loaded_packages import LoadedPackages
from evotune.api.model_package import Gain, ModelCall, ModelPackage
from evotune.errors import EvotuneError, RunLocked, UsageError
from evotune.runs.folder import RunFolder
from evotune.timing.paired import TimingSettings
from tests.recorder.models import Attention, transformers
from tests.runs.runs import brief_confirmations

from .tiny_models import HEADS, WIDTH, Decoder, Padded, SelfAttention, ViT, made_up_searches

QUICK = TimingSettings(min_rounds=2, max_rounds=2, sample_us=1.0)
Tune = Callable[..., ModelPackage]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Takes few samples, compiles without inductor, and runs without gradients."""
    monkeypatch.setattr(model_timing, "OF_MODELS", QUICK)
    monkeypatch.setattr(model_timing, "OF_CALLS", QUICK)
    monkeypatch.setattr(model_tuning, "_COMPILER", "eager")
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def tune(tmp_path: Path) -> Tune:
    """`tune_model` without its notes, in a folder that no other test has: packages of one name
    cannot be in one process."""

    def tuned(model: Any, *inputs: Any, **options: Any) -> ModelPackage:
        folder = tmp_path / tmp_path.parent.name.replace("-", "_") / tmp_path.name
        options = {"folder": folder, "trials": 1, "on_note": lambda line: None, **options}
        return evotune.tune_model(model, *inputs, **options)

    return tuned


def cases(package: ModelPackage) -> dict[str, bool]:
    """Case -> whether it is served."""
    return {call.case: call.gain is not None for call in package.calls}


def reason(package: ModelPackage) -> str:
    (missed,) = package.misses
    return missed.why


def x(batch: int = 2, length: int = 24) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH)


@pytest.mark.parametrize(
    ("model", "given", "served"),
    [
        (ViT, ((torch.ones(2, 3, 16, 16),), {}), {"(2,2,17,32,blhd) full": True}),
        (Decoder, ((torch.arange(32)[None],), {"scale": 0.5}), {"(1,2/1,32,32,blhd) causal": True}),
        (
            Padded,
            ((torch.ones(2, 24, WIDTH), torch.tensor([24, 9])), {}),
            {"(2,2,24,32,blhd) full": True, "(2,2,24,32,blhd) full, padding 2x1x1x24": True},
        ),
    ],
)
def test_a_model_is_recorded_tuned_exported_checked_and_timed(
    model: Callable[[], nn.Module],
    given: tuple[tuple[torch.Tensor, ...], dict[str, Any]],
    served: dict[str, bool],
    tune: Tune,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs, named = given
    tried, before = model().eval(), [each.clone() for each in inputs]
    plain = tried(*inputs, **named)
    with made_up_searches():
        package = tune(tried, *inputs, kwargs=named, trials=len(served))
    assert cases(package) == served
    assert all(torch.equal(*pair) for pair in zip(inputs, before, strict=True))
    assert (set(package.gains), set(package.skipped)) == ({"eager", "compiled"}, {"graph"})
    assert 0 < package.served_share <= 1
    assert package.error <= package.allowed
    assert (package.attention is not None, package.fault, bool(package)) == (True, "", True)
    assert capsys.readouterr().out == f"{package}\n"
    assert "use it      pip install --no-deps " in str(package)
    assert package.path is not None
    assert (package.path / "pyproject.toml").is_file()

    modules = package._loaded()._modules
    calls = sum(module.info()["calls"] for module in modules)
    with package.active():
        tuned = tried(*inputs, **named)
    made = sum(module.info()["calls"] for module in modules) - calls
    assert made == sum(call.count for call in package.calls if call.gain)
    for a, b in zip(model_timing._tensors(plain), model_timing._tensors(tuned), strict=True):
        torch.testing.assert_close(a, b)
    package.activate()
    assert F.scaled_dot_product_attention is not torch._C._nn.scaled_dot_product_attention
    package.deactivate()
    assert F.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention


@pytest.mark.soak
def test_a_real_search_ends_with_a_package_or_with_the_figures_of_the_loser(tune: Tune) -> None:
    with brief_confirmations():
        package = tune(Decoder().eval(), torch.arange(32)[None])
    (call,) = package.calls
    if package:
        assert call.gain is not None
    else:
        assert call.why.startswith("the best kernel, of attention-cpu, had ")
        assert package.again


def test_a_call_that_is_repeated_goes_on_where_it_was_interrupted(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = Decoder().eval(), torch.arange(32)[None]
    recordings: list[object] = []
    recorded = model_tuning._ModelTarget.recorded

    def counted(self: Any, **options: Any) -> Any:
        recordings.append(self)
        return recorded(self, **options)

    monkeypatch.setattr(model_tuning._ModelTarget, "recorded", counted)
    steps: list[tuple[Any, str]] = [
        (model, "forward"),
        (model_tuning, "start_family"),
        (model_tuning, "export_runs"),
        (model_timing, "compare_results"),
        (model_timing, "timed_pair"),
    ]
    with made_up_searches() as searches:
        for owner, name in steps:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    tune(model, given)
        package = tune(model, given)
        assert package
        made = Path(package.folders[0], "certificate.json").stat().st_mtime_ns
        again = tune(model, given)
    assert Path(again.folders[0], "certificate.json").stat().st_mtime_ns == made
    assert (len(recordings), len(searches)) == (2, 1)


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_a_search_that_was_interrupted_is_resumed(tune: Tune) -> None:
    model, given = Decoder().eval(), torch.arange(32)[None]
    with made_up_searches(interrupted=1) as searches:
        with pytest.raises(KeyboardInterrupt):
            tune(model, given)
        assert tune(model, given)
    assert len(searches) == 2
    assert len({str(each.runs_dir) for each in searches}) == 1


def test_misses_are_tuned_alone(tune: Tune) -> None:
    layer = SelfAttention()

    def model(short: torch.Tensor, long: torch.Tensor) -> torch.Tensor:
        return layer(short).sum() + layer(long).sum()

    given = x(1, 8), x(1, 64)
    won = {"(1,2,8,32,blhd) full": 1.25, "(1,2,64,32,blhd) full": 0.75}
    with pytest.raises(UsageError, match="has no measured calls yet"):
        tune(model, *given, misses_only=True)
    with made_up_searches(cases=won):
        package = tune(model, *given, trials=2)
    assert cases(package) == {"(1,2,8,32,blhd) full": True, "(1,2,64,32,blhd) full": False}
    assert "had 0.750x [0.735, 0.765] of SDPA's speed" in reason(package)
    assert package.again in str(package)
    with made_up_searches() as searches:
        package = tune(model, *given, misses_only=True)
    (request,) = searches
    assert [entry.shape["seq_len_q"] for entry in request.cases] == [64]
    assert all(cases(package).values())
    assert not package.again


def test_a_model_without_attention(tune: Tune) -> None:
    package = tune(nn.Linear(4, 4), torch.ones(1, 4))
    assert (package.calls, package.gains, bool(package), package.path) == ([], {}, False, None)
    assert "no call of attention was seen" in str(package)


def test_calls_with_grad_and_dropout_are_misses_and_said(tune: Tune) -> None:
    model = SelfAttention(dropout_p=0.1)
    assert "kernels have none (use model.eval())" in reason(tune(model, x()))
    with torch.enable_grad():
        package = tune(SelfAttention().train(), x(), folder=Path(tune_folder(tune), "grad"))
    assert "use torch.no_grad()" in reason(package)


def tune_folder(tune: Tune) -> Path:
    """A folder for a second model."""
    found = tune.__closure__[0].cell_contents  # type: ignore[attr-defined]
    assert isinstance(found, Path)
    return found / "second"


def test_what_a_package_cannot_serve_has_its_reason(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = torch.randn(1, 2, 8, 16)
    user = types.ModuleType("users_module")
    user.attend = torch._C._nn.scaled_dot_product_attention  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, user.__name__, user)
    package = tune(lambda q: user.attend(q, q, q), q)
    assert reason(package).startswith("the program calls users_module.attend, and a package")
    by_formula = Attention("eager", transformers(monkeypatch))
    package = tune(by_formula, q, q[:, :1], folder=tune_folder(tune))
    assert "model.set_attn_implementation('sdpa')" in reason(package)


def test_calls_of_sdpa_inside_transformers_are_tuned_as_they_are(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Attention("sdpa", transformers(monkeypatch))
    with made_up_searches():
        package = tune(model, torch.randn(1, 2, 16, 32), torch.randn(1, 1, 16, 32))
    assert cases(package) == {"(1,2,16,32,scale=0.25,mixed) causal": True}  # keys are repeated


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_the_fast_path_is_off_while_the_package_serves(tune: Tune) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    with made_up_searches():
        package = tune(model, x())
    assert (list(cases(package).values()), package.fast_path_off) == ([True], True)
    assert set(package.gains) == {"eager", "compiled"}, package.skipped
    assert "torch.backends.mha.set_fastpath_enabled(False)" in str(package)
    with package.active():
        assert not torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_model_that_is_compiled_already(tune: Tune) -> None:
    compiled = torch.compile(Decoder().eval(), backend="eager")
    given = torch.arange(32)[None]
    compiled(given)
    with made_up_searches():
        package = tune(compiled, given)
    assert list(cases(package).values()) == [True]
    assert set(package.gains) == {"compiled"}
    assert package.skipped["eager"] == "the model is compiled already"


def test_a_model_that_changes_its_inputs_and_keeps_state(tune: Tune) -> None:
    layer = SelfAttention()

    def model(given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        given["x"].add_(1)
        return [layer(given.pop("x"))]

    given = {"x": x()}
    before = given["x"].clone()
    with made_up_searches():
        package = tune(model, given, ways=("eager",))
    assert torch.equal(given["x"], before)
    assert package.fault == ""
    assert "KeyError" in package.skipped["eager"]  # it takes its input once


def test_a_model_that_raises_leaves_no_recording(tune: Tune, tmp_path: Path) -> None:
    def model(x: torch.Tensor) -> None:
        raise ValueError("no such batch")

    with pytest.raises(ValueError, match="no such batch"):
        tune(model, x(), folder=tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["lock"]


def test_a_compiler_that_fails_is_said(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_tuning, "_COMPILER", "none")
    with made_up_searches():
        package = tune(Decoder().eval(), torch.arange(32)[None])
    assert package.skipped["compiled"].startswith("InvalidBackend: ")
    assert set(package.gains) == {"eager"}


def test_mistakes_are_usage_errors(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown way jit; there are eager, compiled, graph"):
        tune(Decoder(), torch.arange(3), ways=("jit",))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    with pytest.raises(UsageError, match=r"is not empty and has no model\.json"):
        tune(nn.Linear(1, 1), torch.ones(1), folder=tmp_path / "full")
    tune(nn.Linear(1, 1), torch.ones(1))
    with pytest.raises(UsageError, match=r"is of Linear of float32\[1\], not of Linear of float32"):
        tune(nn.Linear(1, 1), torch.ones(2, 1))
    with RunFolder(tmp_path / "full").locked(), pytest.raises(UsageError):
        tune(nn.Linear(1, 1), torch.ones(1), folder=tmp_path / "full")


def test_a_wrong_kernel_gains_nothing(tune: Tune) -> None:
    def off(call: Any) -> Any:
        return lambda: call() + 1

    served = model_timing._served
    with pytest.MonkeyPatch.context() as patch, made_up_searches():
        patch.setattr(model_timing, "_served", lambda call: off(served(call)))
        package = tune(Decoder().eval(), torch.arange(32)[None])
    assert "its result differs by 1.0e+00" in package.fault
    assert (package.gains, package.attention) == ({}, None)
    assert "no gain is reported" in " ".join(str(package).split())


def test_a_package_whose_check_fails_is_an_error(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(self: Any) -> None:
        raise EvotuneError("package.check() failed: (1,2,8,16): differs")

    monkeypatch.setattr(LoadedPackages, "check", check)
    with made_up_searches(), pytest.raises(EvotuneError, match="differs"):
        tune(Decoder().eval(), torch.arange(32)[None])


class Switched:
    """Stands for packages: while they are active, `error` is added to a model's result."""

    def __init__(self, error: float) -> None:
        self.error = error
        self.now = 0.0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        self.now = self.error
        yield
        self.now = 0.0


def compared(run: Callable[[], object], packages: Switched) -> ModelPackage:
    call = ModelCall(
        problem="attention", shape={}, variant={}, dtype="float32", call={}, count=1, time_us=1.0,
        gain=Gain(1.0, 1.0, 1.0, 1.0, 1.0),
    )  # fmt: skip
    package = ModelPackage(what="", calls=[call])
    model_timing.compare_results(run, packages, package)  # type: ignore[arg-type]
    return package


@pytest.mark.parametrize(
    ("error", "agrees"), [(0.0, True), (1e-6, True), (1e-3, False), (float("nan"), False)]
)
def test_results_may_differ_by_what_rounding_makes(error: float, agrees: bool) -> None:
    packages, values = Switched(error), torch.linspace(-1, 1, 9)
    package = compared(lambda: {"out": [values + packages.now]}, packages)
    assert (package.fault == "") is agrees
    if not agrees:
        assert "the results differ by" in package.fault


def test_results_without_a_clear_comparison() -> None:
    packages = Switched(1.0)
    assert compared(lambda: None, packages).fault == ""
    tokens = torch.arange(4)
    assert compared(lambda: tokens + int(packages.now), packages).fault
    count = iter(range(10))
    unsteady = compared(lambda: torch.ones(2) * next(count), Switched(0.0))
    assert unsteady.fault == "the model gives another result at each call"
    steady = compared(lambda: torch.rand(2), Switched(0.0))  # random numbers are the same
    assert steady.fault == ""
    infinite = torch.tensor([1.0, float("-inf"), float("nan")])
    assert compared(lambda: infinite, Switched(0.0)).fault == ""
    shapes = compared(lambda: torch.ones(2 + int(packages.now)), packages)
    assert "other shapes" in shapes.fault


def test_a_gain_whose_interval_holds_1_is_none() -> None:
    assert str(Gain(1.02, 0.99, 1.05, 1, 1)) == "no measurable change [0.990, 1.050]"
    assert str(Gain(1.02, 1.01, 1.05, 1, 1)) == "1.020x [1.010, 1.050]"
    package = ModelPackage(what="model", calls=[], gains={"eager": Gain(0.9, 0.8, 0.95, 9e3, 1e4)})
    call = json.loads('{"shape": {"batch": 1}}')["shape"]
    package.calls = [
        ModelCall(
            problem="attention", shape=call, variant={}, dtype="float16", call={}, count=2,
            time_us=5.0, gain=gain, why="" if gain else "too small",
        )
        for gain in (Gain(2.0, 1.8, 2.5, 5.0, 2.5), None)
    ]  # fmt: skip
    assert package.served_share == 0.5
    assert package.attention == Gain(*(20 / (10 + 10 / s) for s in (2.0, 1.8, 2.5)), 20.0, 15.0)
    text = str(package)
    assert "eager       0.900x [0.800, 0.950], 9 ms before, 10 ms now; do not use" in text
    assert "not served  batch 1: too small" in text


def test_two_processes_do_not_tune_one_model(tune: Tune, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    tune(nn.Linear(1, 1), torch.ones(1), folder=folder)
    with RunFolder(folder).locked(), pytest.raises(RunLocked):
        tune(nn.Linear(1, 1), torch.ones(1), folder=folder)
