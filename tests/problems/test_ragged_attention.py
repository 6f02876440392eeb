"""Attention over packed and over paged sequences: lengths, tables, reference, baselines."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from evotune.errors import UsageError
from evotune.problems import Case, create_problem, problem_names
from evotune.problems.loading import baseline_names
from evotune.problems.problem import Tensors, WrongSymbol
from evotune.problems.ragged_attention import PagedAttention, VarlenAttention, partition
from evotune.trial import Value
from tests.sweeps import swept

VARLEN, PAGED = VarlenAttention("float32"), PagedAttention("float32")
PACKED: dict[str, Value] = {
    **{"sequences": 6, "heads": 4, "kv_heads": 2, "tokens_q": 40, "tokens_k": 90},
    **{"longest_q": 17, "longest_k": 40, "head_dim": 16},
}
PAGES: dict[str, Value] = {
    **{"sequences": 5, "queries": 3, "heads": 4, "kv_heads": 2, "longest": 37, "page_size": 8},
    "head_dim": 16,
}


def case(problem: Any, *, causal: bool = True, **sizes: Value) -> Case:
    shape = PACKED if problem is VARLEN else PAGES
    made: Case = problem.case({**shape, **sizes}, {"causal": causal})
    return made


def one_by_one(this: Case, inputs: Tensors) -> torch.Tensor:
    """SDPA in float64 on each sequence, its keys gathered one after the other."""
    s: Any = this.symbols
    out = torch.zeros(inputs["q"].shape, dtype=torch.float64)
    for number in range(s["sequences"]):
        if "page_size" in s:
            keys = int(inputs["seq_lens"][number])
            pages = [int(inputs["page_table"][number, j // s["page_size"]]) for j in range(keys)]
            own = {
                name: torch.stack([inputs[f"{name}_pages"][p, j % s["page_size"]]
                                   for j, p in enumerate(pages)])
                for name in "kv"
            }  # fmt: skip
            rows: Any = number
        else:
            first, end = inputs["cu_seqlens_k"][number : number + 2].tolist()
            own = {name: inputs[name][first:end] for name in "kv"}
            rows = slice(*inputs["cu_seqlens_q"][number : number + 2].tolist())
        q = inputs["q"][rows].double().transpose(0, 1)
        k, v = (own[name].double().transpose(0, 1) for name in "kv")
        k, v = (each.repeat_interleave(s["heads"] // s["kv_heads"], dim=0) for each in (k, v))
        for row in range(q.shape[1]):
            seen = max(0, k.shape[1] - (q.shape[1] - 1 - row)) if s["causal"] else k.shape[1]
            if seen:
                found = F.scaled_dot_product_attention(
                    q[:, row : row + 1], k[:, :seen], v[:, :seen], scale=s["softmax_scale"]
                )
                out[rows][row] = found[:, 0]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", VarlenAttention.input_kinds)
@pytest.mark.parametrize("problem", [VARLEN, PAGED], ids=lambda each: each.name)
def test_the_reference_is_sdpa_on_each_sequence(problem: Any, kind: str, causal: bool) -> None:
    this = case(problem, causal=causal)
    inputs = problem.make_inputs(this, kind, 5)
    (found,) = problem.reference(this, inputs).values()
    torch.testing.assert_close(found, one_by_one(this, inputs), rtol=1e-10, atol=1e-10)
    (limits,) = problem.tolerances(this, inputs, {"out": found}).values()
    assert limits.isfinite().all()
    assert (limits > 0).all()


@pytest.mark.parametrize(
    ("problem", "sizes"),
    [
        (VARLEN, {}),
        (VARLEN, {"tokens_q": 90, "longest_q": 40}),  # as many keys as rows: is_causal is enough
        (PAGED, {}),
        (PAGED, {"lengths": "even"}),
        (PAGED, {"lengths": "even", "queries": 1}),  # no mask at all
    ],
)
def test_baselines_compute_the_same(problem: Any, sizes: dict[str, Value]) -> None:
    this = case(problem, **sizes)
    inputs = problem.make_inputs(this, "normal", 2)
    wanted = problem.reference(this, inputs)["out"]
    calls = problem.baselines(this, inputs)
    assert calls.keys() == {"sdpa:looped", "sdpa:padded"} <= set(baseline_names(problem))
    for name, call in calls.items():
        torch.testing.assert_close(call()["out"].double(), wanted, rtol=1e-5, atol=1e-5, msg=name)
        assert problem.baselines(this, inputs, name).keys() == {name}


def valid(this: Case, inputs: Tensors) -> bool:
    """Whether a kernel that trusts lengths and tables reads nothing but keys."""
    s: Any = this.symbols
    if "page_size" not in s:
        for side in ("q", "k"):
            ends = inputs[f"cu_seqlens_{side}"].tolist()
            parts = [after - before for before, after in pairwise(ends)]
            fits = ends[0] == 0 and ends[-1] == s[f"tokens_{side}"]
            if not (fits and all(0 <= each <= s[f"longest_{side}"] for each in parts)):
                return False
        return True
    for row, keys in zip(inputs["page_table"].tolist(), inputs["seq_lens"].tolist(), strict=True):
        if not s["queries"] <= keys <= s["longest"]:
            return False
        for j in range(keys):
            page = row[j // s["page_size"]]
            if not 0 <= page < s["pages"]:
                return False
            if not inputs["k_pages"][page, j % s["page_size"]].isfinite().all():
                return False
    return True


@pytest.mark.sweep(5)
@pytest.mark.parametrize("kind", VarlenAttention.input_kinds)
@pytest.mark.parametrize("problem", [VARLEN, PAGED], ids=lambda each: each.name)
def test_any_mixture_of_altered_lengths_and_tables_is_valid(problem: Any, kind: str) -> None:
    this = case(problem)
    names = [spec.name for spec in problem.tensors(this) if spec.is_index]
    changed = set()
    for seed in range(12):
        rng = random.Random(seed)
        inputs = problem.make_inputs(this, kind, seed)
        assert valid(this, inputs)
        found = [(name, problem.altered_indices(this, inputs, name, 16, rng)) for name in names * 4]
        for _ in range(20):
            mixed = {name: value.clone() for name, value in inputs.items()}
            for name, other in found:
                if other is not None and rng.random() < 0.5:
                    place, values = other
                    mixed[name].view(-1)[place : place + len(values)] = values
                    if not torch.equal(mixed[name], inputs[name]):
                        changed.add(name)
            assert valid(this, mixed), (seed, kind)
    assert changed == set(names)


def test_tables_are_adversarial() -> None:
    this = case(PAGED)
    tables, kept = [], []
    for seed, kind in enumerate(PAGED.input_kinds * 3):
        inputs = PAGED.make_inputs(this, kind, seed)
        table, lengths = inputs["page_table"], inputs["seq_lens"].tolist()
        used = [row[: -(-keys // 8)].tolist() for row, keys in zip(table, lengths, strict=True)]
        tables.append(used)
        kept += [entry for row, mine in zip(table.tolist(), used, strict=True)
                 for entry in row[len(mine) :]]  # fmt: skip
        if kind != "normal":
            assert inputs["k_pages"].isnan().any()
        else:
            assert inputs["k_pages"].isfinite().all()
    assert all(entry < 0 or entry >= int(this.symbols["pages"]) for entry in kept)
    assert kept
    firsts = [[row[0] for row in used] for used in tables]
    assert any(len(set(each)) < len(each) for each in firsts), "some sequences share a page"
    assert any(row != sorted(row) for used in tables for row in used), "pages are in no order"
    lengths = [PAGED.make_inputs(this, "ramp", seed)["seq_lens"].tolist() for seed in range(6)]
    rest = {keys % 8 for each in lengths for keys in each}
    assert {0, 1, 7} <= rest, "lengths end before, at and after the end of a page"


def test_packed_sequences_are_empty_full_and_in_between() -> None:
    this = case(VARLEN)
    found = set()
    for seed in range(8):
        ends = VARLEN.make_inputs(this, "needle", seed)["cu_seqlens_k"]
        found |= set(ends.diff().tolist())
    assert {0, 40} <= found
    assert len(found) > 5


@pytest.mark.parametrize("lengths", ["zipf", "even"])
def test_timed_lengths_add_up_and_their_work_is_counted(lengths: str) -> None:
    rng = random.Random(1)
    for _ in range(200):
        sequences, longest = rng.randint(1, 20), rng.randint(1, 100)
        tokens = rng.randint(longest, sequences * longest)
        found = partition(lengths, sequences, tokens, longest)
        assert sum(found) == tokens
        assert found == sorted(found, reverse=True)
        assert min(found) >= 0
        assert max(found) <= longest
    this = case(VARLEN, lengths=lengths)
    scores = 0
    for rows, keys in VARLEN.timed_lengths(this):
        scores += sum(1 for row in range(rows) for j in range(keys) if j <= row + keys - rows)
    assert VARLEN.flops(this) == 4 * 4 * 16 * scores
    inputs = VARLEN.make_inputs(this, "normal", 3)
    drawn = sorted(inputs["cu_seqlens_k"].diff().tolist(), reverse=True)
    assert drawn == [keys for _, keys in VARLEN.timed_lengths(this)]


def test_geometric_lengths_go_down_to_a_128th_of_the_longest() -> None:
    this = case(PAGED, sequences=16, longest=16384, lengths="geometric")
    keys = [each for _, each in PAGED.timed_lengths(this)]
    assert (keys[0], keys[-1]) == (16384, 128)
    assert all(1.36 < one / next_one < 1.40 for one, next_one in pairwise(keys))
    inputs = PAGED.make_inputs(this, "normal", 3)
    assert sorted(inputs["seq_lens"].tolist(), reverse=True) == keys
    assert ",geometric)" in this.label


@pytest.mark.parametrize(
    ("problem", "sizes", "words"),
    [
        (VARLEN, {"tokens_q": 16}, r"tokens_q must lie between longest_q \(17\) and .*, got 16"),
        (VARLEN, {"tokens_k": 241}, r"tokens_k must lie between .*, got 241"),
        (VARLEN, {"lengths": "random"}, "expected lengths to be zipf or even, got 'random'"),
        (VARLEN, {"seq_len": 4}, "unknown size 'seq_len' in a shape; known: sequences, heads"),
        (VARLEN, {"lengths": "geometric"}, "expected lengths to be zipf or even"),
        (PAGED, {"lengths": "random"}, "expected lengths to be zipf or even or geometric"),
        (PAGED, {"queries": 38}, r"queries \(38\) must not exceed longest"),
        (PAGED, {"heads": 3}, "must be a multiple of kv_heads"),
        (PAGED, {"page_size": 0}, "expected page_size to be an integer of at least 1, got 0"),
        (PAGED, {"scale": -1}, "expected scale to be a positive number"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(
    problem: Any, sizes: dict[str, Value], words: str
) -> None:
    with pytest.raises(WrongSymbol, match=words) as caught:
        case(problem, **sizes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("problem", [VARLEN, PAGED], ids=lambda each: each.name)
def test_test_cases_are_valid_and_keep_what_is_kept(problem: Any) -> None:
    this = case(problem)
    kept = ("page_size", "head_dim", "causal", "kv_heads", "longest_q")
    found = [*problem.edge_cases(this, kept), *islice(problem.random_cases([this], 3, kept), 60)]
    for each in found:
        for name in kept:
            assert each.symbols.get(name) == this.symbols.get(name)
    free = [*problem.edge_cases(this), *islice(problem.random_cases([this], 3), 60)]
    assert len({each.label for each in free}) > 40
    for each in free[:12]:
        assert valid(each, problem.make_inputs(each, "ramp", 1))
    assert [each.symbols["causal"] for each in problem.siblings(this)] == [False, True]
    assert problem.siblings(this)[1] == this


def test_they_are_found_by_name() -> None:
    assert {"attention_varlen", "attention_paged"} <= set(problem_names())
    assert create_problem("attention_paged", "float16").name == "attention_paged"
    with pytest.raises(UsageError, match="attention_paged has no dtype 'int8'"):
        create_problem("attention_paged", "int8")


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("problem", [VARLEN, PAGED], ids=lambda each: each.name)
def test_sizes_that_are_compiled_in_are_those_of_every_test(problem: Any, every: int) -> None:
    """Each size alone, and every so many of the pairs."""
    tight = {"tokens_q": 90, "longest_q": 17} if problem is VARLEN else {"longest": 5}
    this = case(problem, **tight)
    free = [name for name in problem.sizes if name != "head_dim"]
    for kept in (*((name,) for name in free), *list(itertools.combinations(free, 2))[::every]):
        drawn = islice(problem.random_cases([this], 3, kept), 20)
        for test in (*problem.edge_cases(this, kept), *drawn):
            assert {name: test.symbols[name] for name in kept} == {
                name: this.symbols[name] for name in kept
            }


DECODING: dict[str, Callable[[dict[str, int]], bool]] = {
    **{f"groups of {n}": lambda s, n=n: s["group"] == n for n in (4, 5, 6, 7, 8, 16)},
    "more than 4 key heads": lambda s: s["kv_heads"] > 4,
    "9 sequences": lambda s: s["sequences"] == 9,
    "512 keys": lambda s: s["longest"] == 512,
    "16 rows": lambda s: s["queries"] == 16,
    "more than 32,767 pages": lambda s: s["pages"] > 32_767,
    "one row of 32/8 heads, many keys": lambda s: (s["queries"], s["kv_heads"], s["group"])
    == (1, 8, 4) and s["longest"] > 600,
    **{f"pages of {n}": lambda s, n=n: s["page_size"] == n for n in (1, 16, 32, 64, 128, 256)},
}  # fmt: skip
PACKING: dict[str, Callable[[dict[str, int]], bool]] = {
    **{f"groups of {n}": lambda s, n=n: s["group"] == n for n in (4, 5, 6, 7, 8, 16)},
    "more than 17 sequences": lambda s: s["sequences"] > 17,
    "more than 200 rows": lambda s: s["longest_q"] > 200,
    "more than 400 keys": lambda s: s["longest_k"] > 400,
    "more than 8,192 tokens": lambda s: s["tokens_q"] > 8192 < s["tokens_k"],
    "one row of 32/8 heads, many keys": lambda s: (s["longest_q"], s["kv_heads"], s["group"])
    == (1, 8, 4) and s["longest_k"] > 600,
}  # fmt: skip


@pytest.mark.parametrize("seed", swept(range(6), (0, 1).__contains__))
@pytest.mark.parametrize(
    ("problem", "classes"), [(PAGED, DECODING), (VARLEN, PACKING)], ids=["paged", "varlen"]
)
def test_the_random_cases_of_any_seed_hold_every_class(
    problem: Any, classes: Any, seed: int
) -> None:
    drawn = islice(problem.random_cases([case(problem)], seed, ("head_dim",)), 120)
    sizes: list[Any] = [
        {**each.symbols, "group": each.symbols["heads"] // each.symbols["kv_heads"]}
        for each in drawn
    ]
    assert [name for name, holds in classes.items() if not any(map(holds, sizes))] == []


@pytest.mark.parametrize("seed", swept(range(6), (0, 1).__contains__))
def test_many_pages_are_drawn_of_the_page_size_that_is_compiled_in(seed: int) -> None:
    this = case(PAGED)
    drawn = islice(PAGED.random_cases([this], seed, ("head_dim", "page_size")), 120)
    found = [each.symbols for each in drawn]
    assert {each["page_size"] for each in found} == {this.symbols["page_size"]}
    assert max(int(each["pages"]) for each in found) > 32_767
