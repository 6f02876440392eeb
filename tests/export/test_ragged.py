"""Packages of attention over packed and paged sequences, on the CPU."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import math
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from evotune.export.exporting import export_runs
from tests.export.runtime.packages import imported

from .making import explained_words, fabricated, tiny_space, words_of_tables

pytestmark = pytest.mark.filterwarnings("ignore:.*a call is not served:UserWarning")
VARLEN, PAGED = "attention-varlen-cpu", "attention-paged-cpu"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name in (VARLEN, PAGED):
        folder = tmp_path_factory.mktemp(name)
        run = fabricated(tiny_space(name, folder), folder)
        exported = export_runs([run], folder / "pkg", f"{name.replace('-', '_')}_package")
        found[name] = folder / "pkg" / exported.name
    return found


@pytest.fixture
def varlen(folders: dict[str, Path]) -> Iterator[ModuleType]:
    with imported(folders[VARLEN]) as module:
        yield module


@pytest.fixture
def paged(folders: dict[str, Path]) -> Iterator[ModuleType]:
    with imported(folders[PAGED]) as module:
        yield module


def packed(
    rows: list[int], keys: list[int], most: tuple[int, int] = (30, 40), heads: int = 4
) -> list[Any]:
    """The arguments of `attention_varlen`."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((sum(rows), heads, 32), (sum(keys), 2, 32), (sum(keys), 2, 32))
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    ends = [torch.tensor([0, *each]).cumsum(0).to(torch.int32) for each in (rows, keys)]
    return [q, k, v, *ends, *most]


TIMED = packed([30, 15, 10, 8, 7], [40, 20, 13, 10, 7])
UNEVEN = packed([30, 0, 30, 0, 10], [0, 40, 10, 40, 0])


def pages(lengths: list[int], most_pages: int = 5, queries: int = 2) -> list[torch.Tensor]:
    """The arguments of `attention_paged`. What no sequence has is NaN, or no page."""
    generator = torch.Generator().manual_seed(0)
    count = 2 + sum(-(-length // 16) for length in lengths)
    k, v = (torch.full((count, 16, 2, 32), math.nan) for _ in range(2))
    order = iter(torch.randperm(count, generator=generator).tolist())
    table = torch.full((len(lengths), most_pages), -7, dtype=torch.int32)
    for number, length in enumerate(lengths):
        for place in range(-(-length // 16)):
            page = table[number, place] = next(order)
            inside = slice(0, min(16, length - 16 * place))
            k[page, inside] = torch.randn(k[page, inside].shape, generator=generator)
            v[page, inside] = torch.randn(v[page, inside].shape, generator=generator)
    q = torch.randn(len(lengths), queries, 4, 32, generator=generator)
    return [q, k, v, torch.tensor(lengths, dtype=torch.int32), table]


def sequence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> torch.Tensor:
    """One sequence by the formula in float64, rows first."""
    group = q.shape[1] // k.shape[1]
    keys, values = (t.double().repeat_interleave(group, dim=1) for t in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q.double(), keys) * scale
    if causal:
        seen = torch.arange(len(k)) <= torch.arange(len(q))[:, None] + len(k) - len(q)
        scores = scores.masked_fill(~seen, -math.inf)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)  # of a row that sees no key
    return torch.einsum("hij,jhd->ihd", weights, values)


def agree_varlen(
    out: torch.Tensor, given: list[Any], causal: bool = False, scale: float | None = None
) -> None:
    q, k, v, ends_q, ends_k = given[:5]
    scale = scale or 1 / math.sqrt(q.shape[2])
    expected = torch.zeros_like(q, dtype=torch.float64)
    pairs = zip(
        itertools.pairwise(ends_q.tolist()), itertools.pairwise(ends_k.tolist()), strict=True
    )
    for rows, keys in pairs:
        own = slice(*keys)
        expected[slice(*rows)] = sequence(q[slice(*rows)], k[own], v[own], causal, scale)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


def agree_paged(
    out: torch.Tensor, given: list[torch.Tensor], causal: bool = False, scale: float | None = None
) -> None:
    q, k, v, lengths, table = given
    for number, length in enumerate(lengths.tolist()):
        slots = table[number, : -(-length // k.shape[1])].long()
        keys, values = (each[slots].flatten(0, 1)[:length] for each in (k, v))
        wanted = sequence(q[number], keys, values, causal, scale or 1 / math.sqrt(q.shape[3]))
        torch.testing.assert_close(out[number].double(), wanted, rtol=1e-4, atol=1e-5)


def misses(module: ModuleType) -> list[str]:
    return sorted(module.info()["misses"])


def test_packed_sequences_reach_the_kernel(varlen: ModuleType) -> None:
    for given in (TIMED, UNEVEN, packed([13, 12, 30, 11], [12, 40, 31, 2])):
        agree_varlen(varlen.attention_varlen(*given, causal=True), given, True)
    assert varlen.info()["calls"] == 2  # four sequences are no tenth around five
    assert misses(varlen) == ["not measured to win"]
    scaled = {"scale": 1 / math.sqrt(32), "causal": True}
    agree_varlen(varlen.attention_varlen(*TIMED, **scaled), TIMED, True)
    assert varlen.info()["calls"] == 3


def test_paged_sequences_reach_the_kernel(paged: ModuleType) -> None:
    for lengths in ([70, 35, 23, 17], [2, 64, 16, 70]):
        given = pages(lengths)
        out = paged.attention_paged(*given, max_seqlen_k=70, causal=True)
        agree_paged(out, given, True)
        # A table has room for whole pages only: 80 keys, more than a tenth beyond 70.
        agree_paged(paged.attention_paged(*given, causal=True), given, True)
    assert paged.info()["calls"] == 2
    assert misses(paged) == ["not measured to win"]
    wide = pages([70, 35, 23, 17], most_pages=9)
    agree_paged(paged.attention_paged(*wide, max_seqlen_k=70, causal=True), wide, True)
    assert paged.info()["calls"] == 3


def test_a_maximum_in_a_tensor_counts_as_its_value(varlen: ModuleType) -> None:
    most = torch.tensor(30)
    given = [*TIMED[:5], most, 40]
    varlen.attention_varlen(*given, causal=True)
    most.fill_(20)  # it is in place, and a sequence is longer
    varlen.attention_varlen(*given, causal=True)
    assert varlen.info()["calls"] == 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [[30, 15, 10, 8, 7], [3], [0, 0], [40, 1, 0, 9], [1, 1, 1]])
def test_pytorch_is_right_on_any_packed_sequences(
    varlen: ModuleType, rows: list[int], causal: bool
) -> None:
    keys = [7 * number % 50 for number, _ in enumerate(rows, 1)]
    given = packed(rows, keys, (40, 50))
    wide = [t.double() for t in given[:3]] + [t.long() for t in given[3:5]] + given[5:]
    for tensors in (given, wide):
        out = varlen.attention_varlen(*tensors, causal=causal, scale=0.3)
        assert out.dtype == tensors[0].dtype
        agree_varlen(out, given, causal, 0.3)
    assert varlen.info()["calls"] == 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[80, 0, 1, 33], [5], [0, 0], [1, 80, 16]])
def test_pytorch_is_right_on_any_pages(paged: ModuleType, lengths: list[int], causal: bool) -> None:
    given = pages(lengths, queries=3)
    agree_paged(paged.attention_paged(*given, causal=causal, scale=0.3), given, causal, 0.3)
    assert paged.info()["calls"] == 0


@pytest.mark.parametrize("causal", [False, True])
def test_padding_gives_what_a_loop_gives(
    varlen: ModuleType, paged: ModuleType, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a CUDA graph is captured nobody may read the lengths."""
    options: dict[str, Any] = {"causal": causal, "scale": 0.3}
    cache = [pages(lengths) for lengths in ([80, 0, 1, 33], [16, 32, 5, 2])]
    packs, tables = (sys.modules[f"{each.__name__}._plain_ragged"] for each in (varlen, paged))
    with monkeypatch.context() as patch:
        for module in (packs, tables):
            patch.setattr(module, "_is_capturing", lambda tensor: True)
        for read in ("tolist", "item", "__bool__", "__int__"):
            patch.setattr(torch.Tensor, read, lambda tensor: pytest.fail("it was read"))
        rows = [packs.plain_varlen(*given, **options) for given in (TIMED, UNEVEN)]
        decoded = [tables.plain_paged(*given, **options) for given in cache]
        decoded.append(tables.plain_paged(*cache[1], max_seqlen_k=32, **options))
    for given, out in zip((TIMED, UNEVEN), rows, strict=True):
        agree_varlen(out, given, causal, 0.3)
    for tensors, out in zip((*cache, cache[1]), decoded, strict=True):
        agree_paged(out, tensors, causal, 0.3)


def changed(given: list[Any], place: int, index: Any, value: int) -> list[Any]:
    found = [each.clone() if isinstance(each, torch.Tensor) else each for each in given]
    found[place][index] = value
    return found


@pytest.mark.parametrize(
    ("place", "index", "value", "words"),
    [
        (3, 1, -5, "cu_seqlens_q must not decrease"),
        (3, 1, 1 << 30, "cu_seqlens_q must not decrease"),
        (4, 5, 91, "cu_seqlens_k must begin with 0 and end with 90"),
        (4, 0, 1, "cu_seqlens_k must begin with 0"),
    ],
)
def test_boundaries_that_do_not_fit_reach_no_kernel(
    varlen: ModuleType, place: int, index: int, value: int, words: str
) -> None:
    wrong = changed(TIMED, place, index, value)
    with pytest.raises(ValueError, match=r"must begin with 0, never decrease, and end at or below"):
        varlen.attention_varlen(*wrong, causal=True)
    assert varlen.info()["calls"] == 0
    assert words in varlen.info()["misses"]["values"]["first"]


def test_boundaries_that_kernels_were_not_checked_on_go_to_pytorch(varlen: ModuleType) -> None:
    fewer = changed(TIMED, 3, 5, 68)  # two rows behind the last sequence
    out = varlen.attention_varlen(*fewer, causal=True)
    agree_varlen(out, fewer, True)
    assert not out[68:].any()
    longer = packed([32, 13, 10, 8, 7], [40, 20, 13, 10, 7])  # one is longer than it was said
    agree_varlen(varlen.attention_varlen(*longer, causal=True), longer, True)
    assert varlen.info()["misses"]["values"]["count"] == 2
    assert varlen.info()["calls"] == 0


@pytest.mark.parametrize(
    ("place", "index", "value", "words"),
    [
        (3, 0, 81, "cache_seqlens must lie between 2"),
        (3, 0, -1, "cache_seqlens must lie between 2"),
        (4, (0, 1), -1, "page_table names a page that is none of the"),
        (4, (0, 1), 99, "page_table names a page that is none of the"),
    ],
)
def test_pages_that_do_not_fit_reach_no_kernel(
    paged: ModuleType, place: int, index: Any, value: int, words: str
) -> None:
    wrong = changed(pages([70, 35, 23, 17]), place, index, value)
    told = r"^cache_seqlens .* sequence 0 it is|^page_table of sequence 0 names page "
    with pytest.raises(ValueError, match=told):
        paged.attention_paged(*wrong, max_seqlen_k=70, causal=True)
    assert paged.info()["calls"] == 0
    assert words in paged.info()["misses"]["values"]["first"]


def test_a_gpu_asserts_the_same_when_it_is_asked_to(varlen: ModuleType, paged: ModuleType) -> None:
    """On a CPU the same calls of PyTorch raise."""
    tables = sys.modules[f"{varlen.__name__}._ragged_package"]
    symbols: dict[str, Any] = {"tokens_q": 70, "tokens_k": 90, "longest_q": 30, "longest_k": 40}
    cache = pages([70, 35, 23, 17])
    symbols |= {"queries": 2, "longest": 70, "pages": len(cache[1]), "page_size": 16}
    assert tables.asserted(symbols, False, TIMED[:5]) is None
    assert tables.asserted(symbols, True, cache) is None
    for wrong in (changed(TIMED, 3, 1, -5), changed(TIMED, 4, 5, 91)):
        with pytest.raises(RuntimeError, match=r"cu_seqlens_. must"):
            tables.asserted(symbols, False, wrong[:5])
    for wrong in (changed(cache, 3, 0, 81), changed(cache, 4, (0, 1), len(cache[1]))):
        with pytest.raises(RuntimeError, match=r"cache_seqlens must|page_table names"):
            tables.asserted(symbols, True, wrong)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda given: [given[0][:, :3], *given[1:]], "must divide those of q"),
        (lambda given: [given[0][0], *given[1:]], "must have three dimensions"),
        (lambda given: [*given[:4], given[4][1:], *given[5:]], "one number more than there"),
        (lambda given: [*given[:2], given[2][1:], *given[3:]], "same rows and heads"),
    ],
)
def test_shapes_that_do_not_fit_are_told(varlen: ModuleType, change: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        varlen.attention_varlen(*change(TIMED))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, [[1.0]], "attention_varlen: q is a tensor, got list"),
        (4, None, "attention_varlen: cu_seqlens_k is a tensor, got NoneType"),
        (3, UNEVEN[3].float(), "cu_seqlens_q must hold integers, got torch.float32"),
        (1, UNEVEN[1].half(), "q, k and v must have one floating-point type, got torch.float32, "),
        (5, -1, "max_seqlen_q is an integer of at least 0, got -1"),
        (6, 2.5, "max_seqlen_k is an integer of at least 0, got 2.5"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(
    varlen: ModuleType, place: int, value: Any, words: str
) -> None:
    given = [value if number == place else each for number, each in enumerate(UNEVEN)]
    with pytest.raises((TypeError, ValueError), match=f"^{words}"):
        varlen.attention_varlen(*given)


def test_a_maximum_must_be_given(varlen: ModuleType) -> None:
    with pytest.raises(TypeError, match="lacks max_seqlen_k"):
        varlen.attention_varlen(*TIMED[:6], None)


def test_the_misses_are_cases_of_the_problem(varlen: ModuleType, tmp_path: Path) -> None:
    from evotune.problems import create_problem
    from evotune.space.reading.case_file import read_cases

    varlen.attention_varlen(*TIMED, causal=False)
    varlen.attention_varlen(*packed([90], [90], (90, 90)), causal=True, scale=0.5)
    varlen.write_misses(tmp_path / "cases.yaml")
    assert (tmp_path / "cases.yaml").read_text().startswith("- kind: ")
    cases = read_cases(tmp_path / "cases.yaml")
    varlen.write_misses(tmp_path / "cases.json")
    assert [each["count"] for each in json.loads((tmp_path / "cases.json").read_text())] == [1, 1]
    problem = create_problem("attention_varlen", "float32")
    labels = {problem.case(each.shape, each.variant).label for each in cases}
    assert labels == {
        "(sequences=5,heads=4,kv_heads=2,tokens_q=70,tokens_k=90,longest_q=30,longest_k=40,"
        "head_dim=32) full",
        "(sequences=1,heads=4,kv_heads=2,tokens_q=90,tokens_k=90,longest_q=90,longest_k=90,"
        "head_dim=32,scale=0.5) causal",
    }


def test_gradients_are_pytorchs(varlen: ModuleType, paged: ModuleType) -> None:
    given = [TIMED[0].clone().requires_grad_(), *TIMED[1:]]
    varlen.attention_varlen(*given, causal=True).sum().backward()
    assert given[0].grad.shape == TIMED[0].shape
    cache = pages([70, 35, 23, 17])
    cache[0].requires_grad_()
    paged.attention_paged(*cache, max_seqlen_k=70).sum().backward()
    assert cache[0].grad is not None
    assert misses(varlen) == misses(paged) == ["grad"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of PyTorch's
def test_the_operators_keep_their_promises(varlen: ModuleType, paged: ModuleType) -> None:
    overload = getattr(torch.ops, varlen.__name__).attention_varlen.default
    options = {"max_seqlen_q": 30, "max_seqlen_k": 40, "causal": True}
    torch.library.opcheck(overload, tuple(UNEVEN[:5]), options)
    overload = getattr(torch.ops, paged.__name__).attention_paged.default
    full = pages([70, 35, 23, 17])
    full[1], full[2] = full[1].nan_to_num(0.0), full[2].nan_to_num(0.0)
    torch.library.opcheck(overload, tuple(full), {"causal": True})  # which PyTorch serves


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_it_does_for_sdpa(
    varlen: ModuleType, paged: ModuleType, dtype: torch.dtype, to: torch.dtype
) -> None:
    q, k, v, ends_q, ends_k, *_ = packed([3, 0, 5], [3, 4, 2])
    cached = pages([20, 1, 64])
    most = {"max_seqlen_q": 30, "max_seqlen_k": 40}
    operator = getattr(torch.ops, varlen.__name__).attention_varlen
    result = dtype if dtype == torch.float64 else to
    for call, tensors, tables in (
        (functools.partial(varlen.attention_varlen, **most), (q, k, v), (ends_q, ends_k)),
        (functools.partial(operator, **most), (q, k, v), (ends_q, ends_k)),
        (paged.attention_paged, cached[:3], cached[3:]),
    ):
        given = [each.to(dtype) for each in tensors]
        exact = call(*(each.to(result).double() for each in given), *tables, causal=True)
        for of_tables in (torch.int32, torch.int64):
            with torch.autocast("cpu", to):
                found = call(*given, *(each.to(of_tables) for each in tables), causal=True)
            assert found.dtype == result
            torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.02)


def test_autocast_takes_tensors_of_several_types(varlen: ModuleType) -> None:
    q, k, v, *rest = UNEVEN
    with torch.autocast("cpu", torch.bfloat16):
        found = varlen.attention_varlen(q, k, v.bfloat16(), *rest)
        assert torch.equal(found, varlen.attention_varlen(q, k, v, *rest))
    assert found.dtype == torch.bfloat16


def test_values_of_another_size_are_promised(varlen: ModuleType, paged: ModuleType) -> None:
    q, k, v, *rest = packed([3, 5], [3, 4])
    most = {"max_seqlen_q": rest[2], "max_seqlen_k": rest[3]}
    overload = getattr(torch.ops, varlen.__name__).attention_varlen.default
    torch.library.opcheck(overload, (q, k, v[..., :16], *rest[:2]), most)
    assert varlen.attention_varlen(q, k, v[..., :16], *rest).shape == (*q.shape[:-1], 16)
    overload = getattr(torch.ops, paged.__name__).attention_paged.default
    q, k, v, *tables = (each.nan_to_num(0.0) for each in pages([20, 1]))
    torch.library.opcheck(overload, (q, k, v[..., :16], *tables))
    assert paged.attention_paged(q, k, v[..., :16], *tables).shape == (*q.shape[:-1], 16)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions_call_the_kernels(
    varlen: ModuleType, paged: ModuleType, dynamic: bool
) -> None:
    options: dict[str, Any] = {"fullgraph": True, "backend": "aot_eager", "dynamic": dynamic}
    compiled = torch.compile(
        lambda *given: varlen.attention_varlen(*given, causal=True) + 1, **options
    )
    agree_varlen(compiled(*TIMED) - 1, TIMED, True)
    given = pages([70, 35, 23, 17])
    decode = torch.compile(
        lambda *given: paged.attention_paged(*given, max_seqlen_k=70, causal=True) + 1, **options
    )
    agree_paged(decode(*given) - 1, given, True)
    assert varlen.info()["calls"] == paged.info()["calls"] == 1


def test_pickle_finds_the_functions(varlen: ModuleType, paged: ModuleType) -> None:
    for function in (varlen.attention_varlen, paged.attention_paged):
        assert pickle.dumps(function)  # as a name of the package
        assert next(iter(inspect.signature(function).parameters)) == "q"


def test_check_compares_with_float64(varlen: ModuleType, paged: ModuleType, capsys: Any) -> None:
    assert varlen.check()
    assert paged.check()
    assert capsys.readouterr().out.count("ok\n") == 2


def test_check_does_not_depend_on_the_default_device(varlen: ModuleType) -> None:
    with torch.device("meta"):
        assert varlen.check()


def test_the_files_tell_what_is_served(folders: dict[str, Path]) -> None:
    for name, symbol in ((VARLEN, "cu_seqlens_k, max_seqlen_q"), (PAGED, "k_cache, v_cache")):
        folder = folders[name]
        readme = (folder.parent / "README.md").read_text()
        assert symbol in readme
        assert {"group", "sequences"} <= words_of_tables(readme) <= explained_words(readme)
        described = json.loads((folder / "dispatch.json").read_text())
        assert set(described["problem"]["types"].values()) == {"int32"}
        assert {region["near"] for region in described["served"]} == {False, True}
        assert described["quantities"].keys() == {"group"}


def test_the_benchmark_times_each_path(
    varlen: ModuleType, benchmark_module: Callable[[str], ModuleType]
) -> None:
    script = benchmark_module("export_named_call")
    record = script.measured(varlen, 0, calls=1, rounds=2)
    assert [row["path"] for row in record["paths"]] == [
        *("package", "unchecked", "operator", "fallback")
    ]
    assert record["ratios"].keys() == {
        "package / unchecked, host_us",
        "package / fallback, host_us",
    }


@pytest.mark.parametrize("is_strict", [False, True])
def test_an_exported_program_keeps_the_tokens_open(varlen: ModuleType, is_strict: bool) -> None:
    class Layer(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            return varlen.attention_varlen(*given, 30, 40)

    rows, keys = (torch.export.Dim(name, min=2, max=4096) for name in ("rows", "keys"))
    sizes = ({0: rows}, {0: keys}, {0: keys}, {}, {})
    torch._dynamo.reset()
    with torch.no_grad():
        program = torch.export.export(
            Layer(), tuple(TIMED[:5]), dynamic_shapes=(sizes,), strict=is_strict
        )
        for given in (TIMED, packed([3, 9, 1, 4, 2], [4, 9, 2, 4, 7])):
            expected = varlen.attention_varlen(*given[:5], 30, 40)
            torch.testing.assert_close(program.module()(*given[:5]), expected)


@pytest.mark.parametrize("is_strict", [False, True])
def test_an_exported_program_keeps_the_pages_open(paged: ModuleType, is_strict: bool) -> None:
    class Layer(torch.nn.Module):
        def forward(self, *given: torch.Tensor) -> Any:
            return paged.attention_paged(*given)

    found = torch.export.Dim("pages", min=2, max=4096)
    sizes = ({}, {0: found}, {0: found}, {}, {})
    given = pages([70, 35, 23, 17])
    torch._dynamo.reset()
    with torch.no_grad():
        program = torch.export.export(
            Layer(), tuple(given), dynamic_shapes=(sizes,), strict=is_strict
        )
        more = [given[0], *(torch.cat([each, each]) for each in given[1:3]), *given[3:]]
        torch.testing.assert_close(program.module()(*more), paged.attention_paged(*given))
