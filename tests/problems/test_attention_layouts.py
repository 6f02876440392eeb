"""Layouts of attention: strides of a case, and which cases have which layout."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from evotune.problems import Case, attention
from evotune.problems.attention import Attention
from evotune.problems.attention_shapes import FAR, LAYOUTS, symbols_of
from evotune.problems.problem import WrongSymbol, with_strides
from evotune.trial import Value

PROBLEM = Attention("float16")
SHAPE: dict[str, Value] = {"batch": 2, "heads": 6, "kv_heads": 3, "seq_len_q": 5, "seq_len_k": 7}
SHAPE["head_dim"] = 32


def case(layout: str | None = None, **sizes: Value) -> Case:
    made = PROBLEM.case({**SHAPE, **sizes}, {"causal": True})
    if layout in FAR:
        return attention._laid_out(made.symbols, str(layout))
    named = {} if layout is None else {"layout": layout}
    return PROBLEM.case({**SHAPE, **sizes, **named}, {"causal": True})


def strides(made: Case) -> dict[str, tuple[int, ...]]:
    return {spec.name: spec.all_strides for spec in PROBLEM.tensors(made)}


def test_the_default_is_contiguous_and_not_in_the_label() -> None:
    for made in (case(), case("bhld")):
        assert made.label == "(2,6/3,5x7,32) causal"
        assert made == case()
        assert all(spec.strides == () for spec in PROBLEM.tensors(made))
        assert strides(made)["k"] == (3 * 7 * 32, 7 * 32, 32, 1)
        assert PROBLEM.place(made).layout == "contiguous"


def test_the_symbols_are_the_strides() -> None:
    made = case("packed_qkv")
    assert made.label == "(2,6/3,5x7,32,packed_qkv) causal"
    row = (6 + 2 * 3) * 32
    assert [made.symbols[name] for name in symbols_of("q")] == [5 * row, 32, row]
    assert [made.symbols[name] for name in symbols_of("v")] == [7 * row, 32, row]
    assert [made.symbols[name] for name in symbols_of("out")] == [5 * 6 * 32, 32, 6 * 32]
    assert strides(case("blhd"))["k"] == (7 * 3 * 32, 32, 3 * 32, 1)


@pytest.mark.parametrize("layout", [*LAYOUTS, *FAR])
def test_no_two_elements_share_a_place(layout: str) -> None:
    for sizes in ({}, {"batch": 1}, {"batch": 1, "heads": 2, "kv_heads": 1}):
        for spec in PROBLEM.tensors(case(layout, **sizes)):  # type: ignore[arg-type]
            index = torch.meshgrid(*map(torch.arange, spec.shape), indexing="ij")
            steps = zip(index, spec.all_strides, strict=True)
            places = sum(at * stride for at, stride in steps)
            assert isinstance(places, torch.Tensor)
            assert places.unique().numel() == places.numel()
            assert int(places.max()) == spec.span - 1
            assert all(stride % 8 == 0 for stride in spec.all_strides[:-1])


def test_in_a_mixed_layout_all_strides_differ() -> None:
    found = strides(case("mixed"))
    for place in range(3):
        assert len({each[place] for each in found.values()}) == 4


def test_a_layout_is_a_variant_too() -> None:
    assert PROBLEM.case(SHAPE, {"causal": True, "layout": "blhd"}) == case("blhd")
    with pytest.raises(WrongSymbol, match="both the shape and the variant set layout"):
        PROBLEM.case({**SHAPE, "layout": "blhd"}, {"layout": "blhd"})
    for wrong in ("bldh", "far_q"):
        shape = {**SHAPE, "layout": wrong}
        with pytest.raises(WrongSymbol, match=f"unknown layout '{wrong}'; known: bhld, blhd, pac"):
            PROBLEM.case(shape, {})


def test_siblings_keep_the_layout() -> None:
    assert [each.label for each in PROBLEM.siblings(case("blhd"))] == [
        "(2,6/3,5x7,32,blhd) full",
        "(2,6/3,5x7,32,blhd) causal",
    ]


def test_edge_and_random_shapes_have_the_same_sizes_whatever_their_layout() -> None:
    kept = ("layout",)
    free, same = PROBLEM.edge_cases(case()), PROBLEM.edge_cases(case(), kept)
    assert {str(each.symbols["layout"]) for each in free} == set(LAYOUTS)
    assert {str(each.symbols["layout"]) for each in same} == {"bhld"}
    drawn = islice(PROBLEM.random_cases([case()], 3), 80)
    near = [each for each in drawn if each.symbols["layout"] not in FAR]
    others = islice(PROBLEM.random_cases([case()], 3, kept), len(near))
    names = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_k", "softmax_scale")
    for each, other in zip(near, others, strict=True):
        assert [each.symbols[n] for n in names] == [other.symbols[n] for n in names]
        assert other.symbols["layout"] == "bhld"


def test_random_shapes_have_every_layout_and_offsets_beyond_32_bits() -> None:
    drawn = list(islice(PROBLEM.random_cases([case()], 5), 100))
    assert {str(each.symbols["layout"]) for each in drawn} == {*LAYOUTS, *FAR}
    far = [each for each in drawn if each.symbols["layout"] in FAR]
    assert len(far) == 2 * len(FAR)
    for each in far:
        name = str(each.symbols["layout"]).removeprefix("far_")
        spans = {spec.name: spec.span for spec in PROBLEM.tensors(each)}
        assert [n for n, span in spans.items() if span > 1 << 31] == [name]
    kept = islice(PROBLEM.random_cases([case()], 5, ("kv_heads",)), 100)
    assert not {str(each.symbols["layout"]) for each in kept} & set(FAR)


def test_a_callers_strides_make_another_case() -> None:
    made = case()
    specs = PROBLEM.tensors(made)
    assert with_strides(made, specs, {"q": strides(made)["q"]}) is made
    other = with_strides(made, specs, {"k": (1000, 40, 200, 1)})
    assert other.label == "(2,6/3,5x7,32) causal strided"
    assert strides(other) == {**strides(made), "k": (1000, 40, 200, 1)}


def test_baselines_get_tensors_with_the_cases_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    met: dict[str, tuple[int, ...]] = {}
    real = torch.nn.functional.scaled_dot_product_attention

    def noting(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object
    ) -> torch.Tensor:
        met.update(q=q.stride(), k=k.stride(), v=v.stride())
        return real(q, k, v, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noting)
    made = case("mixed")
    inputs = PROBLEM.make_inputs(made, "normal", 1)
    found = PROBLEM.baselines(made, inputs)["sdpa:math"]()["out"]
    assert met == {name: each for name, each in strides(made).items() if name != "out"}
    reference = PROBLEM.reference(made, inputs)["out"]
    torch.testing.assert_close(found.double(), reference, atol=2e-3, rtol=2e-3)
