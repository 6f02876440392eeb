"""A package with features of attention: attention-features-cpu, exported and imported."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from evotune.export.runtime._asked_features import asked_of
from evotune.export.runtime._attention_package import Call
from evotune.export.runtime._checking import compared
from evotune.problems.attention import Attention
from evotune.problems.problem import Case
from evotune.space.reading.case_file import read_cases
from tests.export.making import explained_words, words_of_tables
from tests.export.runtime import calling
from tests.export.runtime.packages import CASE, HEAD_DIM, imported

Open = Callable[..., ModuleType]
PROBLEM = Attention("float32")
SCORE_MOD = "score - 0.01 * abs(row - column) if head % 2 == 0 else min(score, 4)"
GROUPED: dict[str, Any] = {"enable_gqa": True}
RIGHT = {"alignment": "bottom_right", "causal": True}
WINDOW = {**RIGHT, "window_left": 100, "sinks": True}
CAPPED = {**RIGHT, "softcap": 30.0, "alibi": True, "lse": True}


def case_of(queries: int = 64, keys: int = 64, **told: Any) -> Case:
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "head_dim": 32, "value_dim": 16}
    variant = {"causal": told.pop("causal", False)}
    return PROBLEM.case({**sizes, "seq_len_q": queries, "seq_len_k": keys, **told}, variant)


def arguments(case: Case) -> tuple[list[torch.Tensor], dict[str, Any], dict[str, torch.Tensor]]:
    return calling.arguments(PROBLEM, case)


def is_right(case: Case, inputs: dict[str, torch.Tensor], found: Any) -> bool:
    return calling.is_right(PROBLEM, case, inputs, found)


@pytest.fixture(scope="module")
def package(features_cpu: Path) -> Iterator[ModuleType]:
    with imported(features_cpu) as module:
        yield module


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of misses
        yield


@pytest.mark.parametrize(
    "told",
    [
        WINDOW,
        {**WINDOW, "window_left": 95},
        {**WINDOW, "alignment": "top_left"},  # the same case, where the lengths are equal
        CAPPED,
        {**CAPPED, "softcap": 40.0, "alignment": "top_left"},
        {"score_mod": SCORE_MOD},
        {**WINDOW, "queries": 20, "keys": 60},
        {**CAPPED, "queries": 20, "keys": 60},
    ],
)
def test_kernels_serve_the_features_that_they_were_checked_for(
    package: ModuleType, served: Callable[[], int], told: dict[str, Any]
) -> None:
    case = case_of(**told)
    given, named, inputs = arguments(case)
    for views in (given, [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in given]):
        assert is_right(case, inputs, package.attention(*views, **named))
        assert served() == 1, package.misses()


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({**WINDOW, "window_left": 20}, "not measured to win"),
        ({**WINDOW, "lse": True}, "outside the domain"),
        ({**CAPPED, "window_left": 10}, "outside the domain"),
        ({"causal": True}, "outside the domain"),
        ({"softcap": 30.0}, "outside the domain"),
        ({"alibi": True, "lse": True, "window_right": 3}, "outside the domain"),
        ({**WINDOW, "queries": 60, "keys": 20}, "not measured to win"),
        ({"score_mod": SCORE_MOD, "sinks": True}, "outside the domain"),
    ],
)
def test_pytorch_serves_the_others_and_they_are_listed(
    package: ModuleType,
    served: Callable[[], int],
    tmp_path: Path,
    told: dict[str, Any],
    kind: str,
) -> None:
    case = case_of(**told)
    given, named, inputs = arguments(case)
    assert is_right(case, inputs, package.attention(*given, **named))
    assert served() == 0
    package.write_misses(tmp_path / "missed.json")
    entries = read_cases(tmp_path / "missed.json")
    assert case in [PROBLEM.case(entry.shape, entry.variant) for entry in entries]
    assert kind in [missed["kind"] for missed in package.misses()]


def test_tensors_of_slopes_and_sinks_may_have_any_type(
    package: ModuleType, served: Callable[[], int]
) -> None:
    for told in (WINDOW, CAPPED):
        case = case_of(**told)
        given, named, inputs = arguments(case)
        for name in {"alibi_slopes", "sinks"} & inputs.keys():
            half = inputs[name].bfloat16()
            inputs[name] = half.float()
            named[name] = half
        assert is_right(case, inputs, package.attention(*given, **named))
        assert served() == 1


def test_tensors_that_do_not_go_together_are_refused_in_one_line(package: ModuleType) -> None:
    q, k, v = arguments(case_of())[0]
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        ((q, k, v), {"softcap": 2.0}, "enable_gqa=True"),
        ((q[0], k[0], v[0]), {"softcap": 2.0, **GROUPED}, "four dimensions"),
        ((q, k, v[:, :, :3]), {"softcap": 2.0, **GROUPED}, "do not fit together"),
        ((q, k, v.double()), {"softcap": 2.0, **GROUPED}, "one floating-point type"),
        ((q, k, v), {"sinks": torch.zeros(3), **GROUPED}, "each of 4 heads"),
        ((q, k, v), {"alibi_slopes": torch.zeros(1, 4), **GROUPED}, "each of 4 heads"),
        ((q, k, v), {"sinks": torch.zeros(4, device="meta"), **GROUPED}, "several devices"),
        ((q, k, v), {"sinks": torch.zeros(4).to(torch.complex64), **GROUPED}, "real numbers"),
        ((q, k, v), {"softcap": 2.0, "scale": "x", **GROUPED}, "scale must be a number"),
    ]
    for given, named, words in wrong:
        with pytest.raises(ValueError, match=words) as caught:
            package.attention(*given, **named)
        assert "\n" not in str(caught.value)


def test_gradients_are_pytorchs(package: ModuleType, served: Callable[[], int]) -> None:
    given, named, _ = arguments(case_of(**WINDOW))
    wanted = [tensor.requires_grad_() for tensor in (*given, named["sinks"])]
    before = package.info()["misses"].get("grad", {"count": 0})["count"]
    package.attention(*given, **named).sum().backward()
    assert all(tensor.grad is not None for tensor in wanted)
    assert package.info()["misses"]["grad"]["count"] == before + 1
    with torch.no_grad():
        package.attention(*given, **named)
    assert served() == 1


def test_autocast_casts_what_it_casts_for_sdpa(
    package: ModuleType, served: Callable[[], int]
) -> None:
    case = case_of(**CAPPED)
    given, named, _ = arguments(case)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, lse = package.attention(*given, **named)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    half = [tensor.bfloat16() for tensor in given]
    for one, other in zip((out, lse), package.attention(*half, **named), strict=True):
        assert torch.equal(one, other)
    assert served() == 0


@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_takes_tensors_of_several_types(package: ModuleType, compiled: bool) -> None:
    torch._dynamo.reset()
    (q, k, v), named, _ = arguments(case_of(**CAPPED))
    call: Any = package.attention
    if compiled:
        call = torch.compile(call, fullgraph=True, backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = call(q, k, v.bfloat16(), **named), package.attention(q, k, v, **named)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler
def test_autocast_while_tracing_does_the_same(package: ModuleType) -> None:
    torch._dynamo.reset()
    given, named, _ = arguments(case_of(**CAPPED))
    compiled = torch.compile(package.attention, fullgraph=True, backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = compiled(*given, **named), package.attention(*given, **named)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore")  # of PyTorch's exporter
def test_an_exported_program_has_no_operator_of_the_package(package: ModuleType) -> None:
    given, named, _ = arguments(case_of(**WINDOW))

    class Layer(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = package.attention(q, k, v, **named)
            return out

    program = torch.export.export(Layer(), tuple(given))
    assert not any(package.__name__ in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(*given), Layer()(*given))


def test_transforms_get_what_pytorch_computes(
    package: ModuleType, served: Callable[[], int]
) -> None:
    given, named, _ = arguments(case_of(**WINDOW))
    named["sinks"] = named["sinks"].clone()

    def attend(q: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = package.attention(q, *given[1:], **named)
        return out

    wanted = torch.stack([attend(given[0]), attend(2 * given[0])])
    assert served() == 2
    torch.testing.assert_close(
        torch.func.vmap(attend)(torch.stack([given[0], 2 * given[0]])), wanted
    )
    _, tangent = torch.func.jvp(attend, (given[0],), (given[0],))
    assert tangent.abs().sum() > 0
    assert served() == 0


def test_a_warning_names_what_serves_a_call(package: ModuleType) -> None:
    given, named, _ = arguments(case_of(**CAPPED))
    package._loaded._misses.told.clear()  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="softcap 2.0, alibi, lse; PyTorch serves it"):
        package.attention(*given, **{**named, "softcap": 2.0})


def test_the_operator_keeps_its_promises(package: ModuleType) -> None:
    operator = torch.ops.features_package.attention_with_features.default
    for told in (WINDOW, {"score_mod": SCORE_MOD}, {**WINDOW, "window_left": 3}, CAPPED):
        given, named, inputs = arguments(case_of(**told))
        asked = asked_of(case_of(**told).symbols)
        options = {n: v for n, v in asked._asdict().items() if n not in ("alibi", "sinks", "mask")}
        options |= {"is_causal": named["is_causal"], "enable_gqa": True}
        further = [inputs.get("alibi_slopes"), inputs.get("sinks")]
        torch.library.opcheck(
            operator, (*given, *further), options, test_utils=("test_schema", "test_faketensor")
        )
        found, lse = operator(*given, *further, **options)
        wanted = package.attention(*given, **named)
        assert torch.equal(found, wanted[0] if asked.lse else wanted)
        assert lse.shape == (found.shape[:3] if asked.lse else (0,))
    torch.library.opcheck(operator, (*given, *further), options)
    with pytest.raises(ValueError, match="none of this package's"):
        operator(*given, score_mod="score + 1", enable_gqa=True)
    for cap in (math.nan, -3.0):
        with pytest.raises(ValueError, match="softcap is a positive number"):
            operator(*given, softcap=cap, enable_gqa=True)
    with_grad = [tensor.requires_grad_() for tensor in given]
    torch.library.opcheck(
        operator, (*with_grad, *further), options, test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler
def test_compiled_functions_are_served(package: ModuleType, served: Callable[[], int]) -> None:
    for told, count in ((CAPPED, 1), (WINDOW, 1), ({**WINDOW, "window_left": 3}, 0)):
        torch._dynamo.reset()
        case = case_of(**told)
        given, named, inputs = arguments(case)
        compiled = torch.compile(package.attention, fullgraph=True, backend="aot_eager")
        assert is_right(case, inputs, compiled(*given, **named))
        assert served() == count
        assert is_right(case, inputs, compiled(*given, **named))
        assert served() == count


@pytest.mark.soak  # PyTorch's compiler takes 11 s for lengths that stay open
@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler
def test_a_compiled_function_leaves_open_lengths_to_pytorch(
    package: ModuleType, served: Callable[[], int]
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(package.attention, fullgraph=True, backend="eager", dynamic=True)
    for queries, keys in ((64, 64), (50, 33)):
        case = case_of(queries, keys, **CAPPED, window_left=9)
        given, named, inputs = arguments(case)
        assert is_right(case, inputs, compiled(*given, **named))
    assert served() == 0


def test_check_compares_every_timed_case(package: ModuleType, capsys: Any) -> None:
    result = package.check()
    assert result, result
    assert len(result.rows) == 3
    assert "window_left 100, sinks" in capsys.readouterr().out


def test_check_sees_a_wrong_output_and_a_wrong_logarithm() -> None:
    _, _, inputs = arguments(case_of(**CAPPED))
    asked = asked_of(case_of(**CAPPED).symbols)
    q, k, v = (inputs[name] for name in "qkv")
    call = Call(q, k, v, True, None, True, None, asked, inputs["alibi_slopes"])
    reference = PROBLEM.reference(case_of(**CAPPED), inputs)
    out, lse = reference["out"].float(), reference["lse"].float()
    error, allowed = compared(call, {}, (out, lse))
    assert error <= allowed
    for wrong in ((out + 1e-3, lse), (out, lse + 1e-3), (out * math.nan, lse)):
        error, allowed = compared(call, {}, wrong)
        assert not error <= allowed


def test_info_names_the_score_modifications(package: ModuleType) -> None:
    assert package.info()["score_mods"] == [SCORE_MOD]
    given, named, _ = arguments(case_of())
    with pytest.raises(ValueError, match="info"):
        package.attention(*given, **{**named, "score_mod": "score * 2"})


def test_the_benchmark_times_every_case_with_features(
    package: ModuleType, benchmark_module: Callable[[str], ModuleType]
) -> None:
    result = benchmark_module("export_feature_call").measured(package, calls=1, rounds=2)
    assert [row["path"] for row in result["paths"]] == 3 * [
        "package",
        "operator",
        "PyTorch",
        "SDPA",
    ]
    assert len(result["ratios"]) == 6


def plain_inputs(length: int = 40) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads = (CASE["heads"], CASE["heads"] // CASE["group"], CASE["heads"] // CASE["group"])
    return [torch.randn(1, each, length, HEAD_DIM, generator=generator) for each in heads]


def test_a_package_without_features_leaves_them_to_pytorch(opened: Open) -> None:
    module = opened()
    out = module.attention(*plain_inputs(), sinks=torch.zeros(4), **GROUPED)
    assert out.shape == (1, 4, 40, HEAD_DIM)
    assert module.info()["calls"] == 0
    (missed,) = module.misses()
    assert (missed["kind"], missed["shape"]["sinks"]) == ("features", True)
    wide = [*plain_inputs()[:2], plain_inputs()[2].repeat(1, 1, 1, 2)]
    module.attention(*wide, **GROUPED)
    assert module.info()["calls"] == 0


def test_features_without_an_effect_are_a_plain_call(opened: Open) -> None:
    module = opened()
    given = plain_inputs()
    plain = module.attention(*given, is_causal=True, **GROUPED)
    for features in (
        {"window": (39, None)},
        {"window": (100, 100), "alignment": "bottom_right"},
        {"softcap": None, "window": None, "return_lse": False},
    ):
        out = module.attention(*given, is_causal=True, **GROUPED, **features)
        assert torch.equal(out, plain)
    assert module.info()["calls"] == 4


def test_the_readme_shows_the_features_that_kernels_have(features_cpu: Path) -> None:
    text = (features_cpu.parent / "README.md").read_text()
    assert "features_package.attention(\n    q, k, v, is_causal=True,\n" in text
    features = {"given", "sinks", "alibi", "lse", "score_mod", "value_dim"}
    assert features <= words_of_tables(text) <= explained_words(text)
