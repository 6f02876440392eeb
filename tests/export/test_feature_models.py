"""Models with features and packages' attention: see benchmarks/lab/feature_models.py."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from evotune.problems import create_problem
from tests.export.making import ROOT
from tests.export.runtime.packages import imported

Benchmarks = Callable[[str], ModuleType]
COMPILED = {
    **{"mistral-window": (2, True), "gpt-oss-sinks": (2, True)},
    **{"bert-padded": (0, True), "decode-paged": (4, True)},
}
"""How many calls kernels serve while PyTorch's compiler traces, and whether all is one graph."""
ABOUT = {"item": "bert-padded", "package": "p", "dtype": "float16"}


def cell(way: str, **found: Any) -> dict[str, Any]:
    return {**ABOUT, "way": way, **found}


@pytest.mark.parametrize("tiny", [False, True])
def test_the_cases_are_cases(benchmark_module: Benchmarks, tiny: bool) -> None:
    made = benchmark_module("feature_cases").cases(tiny)
    assert len(made) == 6
    for case in made:
        kind = case.space.removesuffix("_features").replace("_wgmma", "")
        problem = create_problem(kind, "float32" if tiny else "float16", ROOT)
        found = problem.case(case.shape, case.variant)
        assert problem.flops(found) > 0
        for space in (case.space, case.space_on_cpu):
            assert (ROOT / "search_spaces" / f"{space}.yaml").is_file()


def test_cells_that_are_measured_are_left_out(benchmark_module: Benchmarks) -> None:
    script = benchmark_module("feature_models")
    cells = [cell("graph", us={}), cell("eager", error="the time ran out")]
    assert script.left(cells, ABOUT, ["graph", "eager"]) == ["eager"]
    assert script.left(cells, {**ABOUT, "package": "other"}, ["graph"]) == ["graph"]


def test_the_table_has_speedups_and_faults(benchmark_module: Benchmarks) -> None:
    script = benchmark_module("feature_models")
    us = {"sdpa": 300.0, "none": 100.0, "package": 200.0}
    facts = {"us": us, "served": 12, "attention_calls": 12}
    lines = script.table([cell("graph", **facts, agrees=True)]).splitlines()
    assert lines[1].split()[-4:] == ["200.0", "1.50x", "2.00x", "12/12"]
    assert script.table([cell("graph", **facts, agrees=False)]).endswith("the output is off")
    assert script.table([cell("graph", error="it broke")]).endswith("it broke")


def test_an_item_needs_a_package_of_its_problem(
    benchmark_module: Benchmarks, tmp_path: Path
) -> None:
    script = benchmark_module("feature_models")
    (tmp_path / "dispatch.json").write_text('{"problem": {"name": "attention"}}')
    modules = {tmp_path: ModuleType("p")}
    assert list(script.pairs(["gpt-oss-sinks"], modules)) == [("gpt-oss-sinks", tmp_path)]
    with pytest.raises(SystemExit, match="bert-padded needs a package of attention_varlen"):
        list(script.pairs(["bert-padded"], modules))


def test_a_finished_run_of_the_packages_is_kept(
    benchmark_module: Benchmarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = benchmark_module("feature_packages")
    options = argparse.Namespace(folder=tmp_path, tiny=True)
    search, other = (
        script.search_of(case, number, tiny=True)
        for number, case in enumerate(script.cases(True)[:2])
    )
    begun: list[Path] = []

    def run(space: Path) -> dict[str, Any]:
        begun.append(space)
        return {"status": 0, "run": "" if len(begun) == 1 else "kept"}

    monkeypatch.setattr(script, "_fabricated", run)
    commands = script.Commands()
    found = [script.searched(options, search, "float32", "cpu", commands) for _ in range(3)]
    assert [each["run"] for each in found] == ["", "kept", "kept"]
    assert len(begun) == 2  # one that failed is made again
    over = script.Commands(minutes=0)
    assert script.searched(options, other, "float32", "cpu", over)["run"] == ""


def test_commands_end_when_their_time_is_over(benchmark_module: Benchmarks) -> None:
    script = benchmark_module("feature_packages")
    commands = script.Commands(minutes=0.3 / 60)
    assert commands.status([sys.executable, "-c", "import time; time.sleep(60)"]) is None
    assert commands.status([sys.executable, "-c", ""]) is None
    assert script.Commands().status(["sh", "-c", "exit 3"]) == 3


def test_a_model_ends_when_its_time_is_over_and_is_measured_again(
    benchmark_module: Benchmarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = benchmark_module("feature_models")
    options = argparse.Namespace(rounds=1, compiler="eager", tiny=True)
    child = tmp_path / "child.py"
    cell = json.dumps({"way": "graph", "us": {}})
    said = tmp_path / "said"
    child.write_text(
        f"import time\nprint({cell!r}, flush=True)\nopen({str(said)!r}, 'w').close()\n"
        "while True: time.sleep(60)\n"
    )

    class Late(subprocess.Popen[bytes]):
        """Its time is over as soon as the first cell is there."""

        def communicate(self, input: bytes | None = None, timeout: float | None = None) -> Any:
            if timeout is None:
                return super().communicate()
            while not said.exists():
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(script.subprocess, "Popen", Late)
    monkeypatch.setattr(script, "__file__", str(child))
    cells = script.measured(options, tmp_path, "bert-padded", ["graph", "eager"], 0.5)
    late = {"way": "eager", "error": "the time ran out"}
    assert cells == [json.loads(cell), late]


class Counting:
    """Stands for a package on the CPU whose kernels serve each call."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.__name__ = "counting"
        self.served = 0
        kernels = SimpleNamespace(dtype=dtype)
        self._loaded = SimpleNamespace(_loaded=SimpleNamespace(device_type="cpu"), _kernels=kernels)

    def info(self) -> dict[str, int]:
        return {"calls": self.served}

    def register_transformers(self) -> None:
        """Its attention is the eager one of GPT-OSS, with sinks or without."""
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask
        from transformers.models.gpt_oss import modeling_gpt_oss
        from transformers.models.llama import modeling_llama

        def attend(module: Any, *given: Any, **named: Any) -> Any:
            self.served += 1
            sinks = named.get("s_aux") is not None
            of = modeling_gpt_oss if sinks else modeling_llama
            if not hasattr(module, "num_key_value_groups"):
                module.num_key_value_groups = 1
            return of.eager_attention_forward(module, *given, **named)

        AttentionInterface.register(self.__name__, attend)
        AttentionMaskInterface.register(self.__name__, eager_mask)

    def attention_paged(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        lengths: torch.Tensor,
        table: torch.Tensor,
        **_: Any,
    ) -> torch.Tensor:
        self.served += 1
        pages = table.long()
        keys, values = (each[pages].flatten(1, 2).transpose(1, 2) for each in (k, v))
        seen = torch.arange(keys.shape[2]) < lengths[:, None]
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, seen[:, None, None], enable_gqa=True
        )
        return out.transpose(1, 2)


@pytest.fixture
def trial(
    benchmark_module: Benchmarks, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[], torch.Tensor]], Any]]:
    """Makes a trial of one item: x + 1, which the package computes as it is told."""
    script = benchmark_module("feature_models")
    x = torch.arange(4, dtype=torch.float32)

    def made(package: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        sides = {"none": lambda: x, "sdpa": lambda: x + 1, "package": lambda: package(x)}
        built = SimpleNamespace(
            sides=sides,
            compiled=lambda side, compiler: compiler(sides[side]),
            limit="sdpa",
            reference=lambda: x.double() + 1,
            attention_calls=1,
        )
        item = SimpleNamespace(build=lambda module, tiny: built)
        items = SimpleNamespace(ITEMS={"item": item})
        monkeypatch.setitem(sys.modules, "feature_items", items)
        return script.Trial(Counting(torch.float32), "item", True, 1, "eager")

    torch._dynamo.reset()
    yield made
    torch._dynamo.reset()


def test_a_side_is_compiled_in_parts_where_it_cannot_be_one_graph(trial: Any) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        twice = 2 * x
        torch._dynamo.graph_break()
        return twice - x + 1

    found = trial(broken).cell("compile")
    assert found["graphs"] == {"none": 1, "sdpa": 1, "package": 2}
    assert found["us"].keys() == {"none", "sdpa", "package"}
    assert found["agrees"]


def test_a_compiled_package_that_is_off_is_a_fault(
    benchmark_module: Benchmarks, trial: Any
) -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x + (2 if torch.compiler.is_compiling() else 1)

    made = trial(wrong)
    assert made.about["agrees"]
    found = {**made.about, **made.cell("compile")}
    assert found["errors"] == {"sdpa": 0.0, "package": 1.0}
    assert benchmark_module("feature_models").fault(found) == "the output is off"
    assert made.cell("eager").keys().isdisjoint({"errors", "graphs"})


def test_rows_and_keys_in_pages_are_values_of_the_packages_type(
    benchmark_module: Benchmarks,
) -> None:
    """Else the reference would have other inputs than the sides in bfloat16."""
    pytest.importorskip("transformers")
    module = benchmark_module("feature_items")
    size = benchmark_module("feature_cases").decode_of(True)
    device = torch.device("cpu")
    mine = module._Cache(size, device, torch.bfloat16, torch.bfloat16)
    wide = module._Cache(size, device, torch.float32, torch.bfloat16)
    for name in ("q", "k", "v", "k_pages", "v_pages"):
        assert torch.equal(getattr(mine, name).float(), getattr(wide, name))


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("item", ["mistral-window", "gpt-oss-sinks", "bert-padded", "decode-paged"])
def test_tiny_models_in_half_precision(
    benchmark_module: Benchmarks, item: str, dtype: torch.dtype
) -> None:
    pytest.importorskip("transformers")
    script = benchmark_module("feature_models")
    torch._dynamo.reset()
    with torch.no_grad():
        trial = script.Trial(Counting(dtype), item, True, 1, "eager")
        assert trial.about["agrees"], trial.about
        assert trial.cell("eager")["served"] == trial.about["attention_calls"]
        found = trial.cell("compile")
        assert found["agrees"], found
        assert {"package", "none"} <= found["us"].keys()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # of transformers and of calls that are not served
def test_tiny_models_are_served(benchmark_module: Benchmarks, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    script, maker = benchmark_module("feature_models"), benchmark_module("feature_packages")
    options = argparse.Namespace(folder=tmp_path, dtypes=["float32"], devices=["cpu"], tiny=True)
    options.items = list(script._ITEMS)
    record = maker.made(options, maker.Commands())
    assert not record["left"]
    with ExitStack() as stack, torch.no_grad():
        paths = [Path(path) for path in record["packages"].values()]
        modules = {path: stack.enter_context(imported(path)) for path in paths}
        for item, path in script.pairs(script._ITEMS, modules):
            trial = script.Trial(modules[path], item, True, 1, "eager")
            assert trial.about["agrees"], (item, trial.about)
            found = trial.cell("eager")
            assert found["served"] == trial.about["attention_calls"], item
            assert {"package", "none"} < found["us"].keys()
            assert "skipped" in trial.cell("graph")
            found = trial.cell("compile")
            assert found["agrees"], (item, found)
            assert {"package", "none"} < found["us"].keys()
            assert (found["served"], found["graphs"]["package"] == 1) == COMPILED[item], item


@pytest.mark.soak
def test_one_expert_is_the_expert_of_gpt_oss(benchmark_module: Benchmarks) -> None:
    pytest.importorskip("transformers")
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    module = benchmark_module("feature_items")
    config = GptOssConfig(
        hidden_size=32, intermediate_size=16, num_local_experts=1, num_experts_per_tok=1
    )
    mlp = GptOssMLP(config)
    for parameter in mlp.parameters():
        torch.nn.init.normal_(parameter)
    tokens = torch.randn(7, 32)
    with torch.no_grad():
        _, weights, chosen = mlp.router(tokens)
        config._experts_implementation = "eager"
        expected = mlp.experts(tokens, chosen, weights)
        torch.testing.assert_close(
            module._one_expert(mlp.experts, tokens, chosen, weights), expected
        )
