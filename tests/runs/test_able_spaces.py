"""Which shipped spaces can compute a case."""

from __future__ import annotations

from pathlib import Path

import pytest

from evotune.errors import SpaceError, UsageError
from evotune.runs.given_cases import ATTENTION, spaces_for, why_none
from evotune.runs.inspect import check_space
from evotune.runs.spaces import find_space, shipped_spaces
from evotune.space.document import load_space
from evotune.space.reading.case_file import CaseEntry
from evotune.space.reading.yaml_source import Data
from evotune.trial import Value

SHAPE: dict[str, Value] = {"batch": 1, "heads": 8, "seq_len": 512, "head_dim": 64}


def entry(
    dtype: str = "float16",
    variant: dict[str, Value] | None = None,
    call: dict[str, Data] | None = None,
    **sizes: Value,
) -> CaseEntry:
    return CaseEntry({}, {**SHAPE, **sizes}, variant or {}, dtype, call=call or {})


def able(case: CaseEntry, device: str) -> list[str]:
    return [each.space for each in spaces_for(case, device) if not each.why]


def test_every_shipped_space_of_attention_answers() -> None:
    problems = {name: load_space(path).problem for name, path in shipped_spaces().items()}
    of_attention = {name for name, spec in problems.items() if spec and spec.name in ATTENTION}
    assert {each.space for each in spaces_for(entry(), "l4")} == of_attention


def test_spaces_follow_the_device() -> None:
    *found, retyped = able(entry("float32"), "cpu")
    assert found == [
        *("attention-cpu", "attention-features-cpu", "attention-features-simd-cpu"),
        "attention-scalar-cpu",
    ]
    assert retyped == "attention-cpu-bf16"
    on_l4, on_h200 = able(entry(), "l4"), able(entry(), "h200")
    assert set(on_h200) - set(on_l4) == {
        *("attention-tma", "attention-wgmma", "attention-wgmma-features"),
    }
    with pytest.raises(UsageError, match="unknown device 'l5'"):
        spaces_for(entry(), "l5")


def test_a_dtype_that_kernels_have_and_the_file_does_not_say_is_told() -> None:
    answers = {each.space: each for each in spaces_for(entry("bfloat16"), "h200")}
    assert answers["attention-mma"].dtype == "bfloat16"
    first, second, *_ = spaces_for(entry("bfloat16"), "cpu")
    assert (first.space, first.dtype) == ("attention-cpu-bf16", "")
    assert (second.space, second.dtype) == ("attention-cpu", "bfloat16")


@pytest.mark.parametrize(
    ("case", "device", "words"),
    [
        (entry(head_dim=48), "h200", "needs head_dim in (32, 64, 96, 128), found head_dim = 48"),
        (entry("float64"), "cpu", "needs dtype in (float32, bfloat16), found dtype = float64"),
        (entry("float32", variant={"mask": "bias"}), "h200", "found dtype = float32"),
        (entry(call={"grad": True}), "h200", "an input requires grad"),
        (entry(call={"dropout": 0.1}), "h200", "dropout 0.1"),
        (entry(call={"obstacle": "nested tensors"}), "h200", "nested tensors"),
        (entry(seq_len=0), "cpu", "found dtype = float16"),
        (entry("float32", seq_len=0), "cpu", "expected seq_len to be an integer of at least 1"),
    ],
)
def test_why_none_can(case: CaseEntry, device: str, words: str) -> None:
    answers = spaces_for(case, device)
    assert words in why_none(answers)
    assert all(each.why for each in answers)


def test_features_go_to_spaces_that_compute_them() -> None:
    windowed = entry(window_left=100, variant={"causal": True})
    found = able(windowed, "h200")
    assert "attention-wgmma-features" in found
    assert "attention-wgmma" not in found
    assert why_none(spaces_for(windowed, "h200")) == ""


@pytest.mark.parametrize(
    ("old", "new", "where", "feature"),
    [
        ("variants: [{causal: false}", "variants: [{causal: true, softcap: 30}", "9:29", "softcap"),
        ("head_dim: 64}]\n  var", "head_dim: 64, mask: bias}]\n  var", "8:61", "mask"),
        ("seq_len: 500", "seq_len: 500, window_left: 9", "10:49", "window"),
    ],
)
def test_a_case_of_the_file_with_a_feature_that_no_kernel_computes_is_a_mistake_at_its_place(
    tmp_path: Path, old: str, new: str, where: str, feature: str
) -> None:
    """Each trial ended in wrong_result."""
    shipped = find_space("attention-cpu")
    text = shipped.read_text().replace(
        "name: attention-cpu", f"name: own\nroot: {shipped.parents[1]}"
    )
    assert old in text
    path = tmp_path / "own.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(SpaceError, match=f"kernel cpu does not compute {feature}") as refused:
        check_space(str(path), "cpu")
    assert f"own.yaml:{where}:" in str(refused.value)
