"""Writes the README of an exported package: its figures, its domain, its use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evotune.export.case_shapes import NONE
from evotune.export.compute_source import COMPUTE_FILE
from evotune.problems.attention_masks import PADDING
from evotune.problems.problem import distinct_broadcasts
from evotune.trial import Domain, Json
from evotune.util.words import counted, markdown_text

_MOST_REGIONS = 40
_MASK_SIZES = "mask_sizes"
_ATTENTION = """\
```python
import torch.nn.functional as F
import {name}

# q, k, v, attn_mask, is_causal, scale and enable_gqa as in scaled_dot_product_attention
out = {name}.attention(q, k, v, is_causal=True)

with {name}.active():  # or activate(), and deactivate()
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)

{name}.register_transformers()  # then attn_implementation="{name}"
```

Nothing changes on import. `deactivate()` undoes `activate()` exactly. A call that no kernel serves
gets PyTorch's own attention, bit for bit: another device, dtype or layout, dropout, inputs that
require grad, cases and masks that are in no row of the table of served cases below.
"""
_MASKS = """
Kernels take masks, as `attn_mask` of both functions. Which of them a kernel serves depends on the
mask's kind, on its type and on how it is broadcast, and never on its values.
"""
_FEATURES = """
Features are further arguments of `attention`. Kernels serve those in the columns of the tables
below, plain PyTorch computes all others:

```python
out = {name}.attention(
    q, k, v, is_causal=True,
    alignment="bottom_right",  # the last row sees the last key
    window=(255, None),  # keys before and behind a row's own one
    softcap=30.0, alibi_slopes=slopes, sinks=sinks,  # a number for each head, in float32
    score_mod="…",  # a text of info()["score_mods"]
)
out, lse = {name}.attention(q, k, v, return_lse=True)
```
"""
_OTHER = """\
```python
import {name}

{result} = {name}.{call}({arguments})
```

The sizes follow from the shapes. {otherwise}
"""
_FALLS_BACK = """\
A call outside the domain (the last table), of other types or on
another device goes to the problem's own `compute`, in PyTorch, and is counted;
`{name}.set_fallback(function)` names another function for such calls. `{name}/_problem_compute.py`
has the method; it is the problem's, not evotune's."""
_REFUSES = """\
A call outside the domain (the last table), or on another device, is a ValueError;
`{name}.set_fallback(function)` names a function that takes such calls."""
_RAGGED = """\
```python
import {name}

{result} = {name}.{call}({arguments})
```

Tensors and maxima have the names, the order and the layout that they have in flash-attn; `scale` is
its `softmax_scale`. A call that no kernel serves goes to PyTorch, a sequence after the other, and
is counted. On a CPU the tables are looked at before each call; on a GPU they are not, unless
`{name}.assert_tables()` has the GPU assert them.
"""
_PADDED = """
`{name}.register_transformers()` makes `attn_implementation="{name}"` an attention of the
transformers library: padded batches are packed for these kernels, its `sdpa` serves other calls.
"""
_LAYOUTS = {
    "contiguous": "contiguous (row after row, without gaps)",
    "strided": "strided (also views, such as transposed ones)",
}
_RAGGED_ARGUMENTS = {
    "attention_varlen": (
        "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=True"
    ),
    "attention_paged": "q, k_cache, v_cache, cache_seqlens, page_table, causal=True",
}
_REST = """\
`info()` tells the device, how kernels are launched, which cases they serve, and the calls that no
kernel served; `write_misses("cases.yaml")` writes those down. `check()` checks the kernels on this
machine. Under another minor version of PyTorch, or another branch of the driver (the number before
its first dot), kernels serve calls only after `check()` has passed in the same process.

`{name}/certificate.json` has the checks that each kernel passed, the figures, the versions and the
SHA-256 of every file: a file with other bytes is not loaded. The modules whose names begin with `_`
are evotune's, under the MIT license.
"""


def readme(certificate: Mapping[str, Json], dispatch: Mapping[str, Json]) -> str:
    """The README, in Markdown."""
    return "\n".join(_parts(certificate, dispatch))


def _parts(certificate: Mapping[str, Json], dispatch: Mapping[str, Json]) -> Iterator[str]:
    name, problem, device = certificate["package"], dispatch["problem"], certificate["device"]
    unit = "multiprocessor" if device.get("multiprocessors") else "thread"
    count = device.get(f"{unit}s")
    yield f"# {name}\n"
    summary = markdown_text(certificate["summary"])
    yield f"{summary} Tuned and checked by evotune {certificate['evotune']}.\n"
    named = markdown_text(f"{device['name']}, {device['arch']}")
    yield f"- Device: {named}{f', {counted(count, unit)}' if count else ''}."
    yield "  On any other device no kernel runs."
    layouts = sorted({_LAYOUTS[region["layout"]] for region in dispatch["domain"]})
    types = [f"; {tensor} {dtype}" for tensor, dtype in problem.get("types", {}).items()]
    yield f"- Tensors: {problem['dtype']}, {' or '.join(layouts)}{''.join(types)}."
    packages = certificate["environment"].get("packages", {})
    versions = [f"{each} {packages[each]}" for each in ("torch",) if each in packages]
    if driver := certificate["device"].get("driver"):
        versions.append(f"driver {driver}")
    measured = markdown_text(", ".join(versions)) or "versions that were not recorded"
    yield f"- Measured with {measured}.\n"
    yield "## Install and use\n"
    yield "```sh\npip install --no-deps .      # needs PyTorch, and no network\n```\n"
    arguments = ", ".join(problem["inputs"])
    result = ", ".join(problem["outputs"])
    template = _ATTENTION if "attention" in dispatch["cases_from"] else _OTHER
    if problem["name"] in _RAGGED_ARGUMENTS:
        template, arguments = _RAGGED, _RAGGED_ARGUMENTS[problem["name"]]
        template += "" if problem["name"] == "attention_paged" else _PADDED
    files = certificate["files"]
    several = len(problem["outputs"]) > 1
    yield template.format(
        name=name,
        call=problem["call"],
        arguments=arguments,
        result="outputs" if several else result,
        otherwise=(_FALLS_BACK if COMPUTE_FILE in files else _REFUSES).format(name=name),
    )
    if any(region.get("mask_sizes") for region in dispatch["served"]):
        yield _MASKS
    if any("given" in region["fixed"] for region in dispatch["domain"]):
        yield _FEATURES.format(name=name)
    yield _REST.format(name=name)
    yield "## Figures\n"
    yield from figure_words(dispatch)
    yield from _figures(certificate["champions"])
    if "portfolio" in certificate:
        yield from _rule(certificate["portfolio"])
    yield from _tables(dispatch, serves_all=template is _OTHER)
    yield from _lengths(certificate["champions"])


def _tables(dispatch: Mapping[str, Json], *, serves_all: bool) -> Iterator[str]:
    """The tables of regions. `serves_all`: kernels serve their whole domain."""
    won, domain = dispatch["served"], dispatch["domain"]
    yield "## Words of the tables below\n"
    yield "A row of a table stands for all cases whose numbers are those of the row, or between"
    yield "them: `14 to 17` are 14, 15, 16 and 17.\n"
    yield from region_words(_columns([*won, *domain]), dispatch)
    if serves_all:
        yield "## Faster cases\n"
        yield "Kernels serve their whole domain, below, won or not. In these cases they are surely"
        yield "faster than the baseline, or the case lies between and near such cases.\n"
    else:
        yield "## Served cases\n"
        yield "In these cases a kernel is surely faster than the baseline, or the case lies between"
        yield "and near such cases.\n"
    yield from _regions(won)
    yield "## Domain\n"
    yield "A kernel gets no case outside of these. It was right on all of them that were tried."
    yield "Where lengths were executed (below), each two sizes of a served case were tried"
    yield "together, in bands from a power of two to the next.\n"
    yield from _regions(domain)


def _lengths(champions: Sequence[Mapping[str, Json]]) -> Iterator[str]:
    """Which lengths each kernel executed."""
    yield "## Lengths\n"
    yield "Each of these lengths was executed at least once, in a short launch whose result was"
    yield "compared with a reference. Of more than 512 lengths, one of each remainder by 256 and by"
    yield "384 stands for the others. `lengths not executed`: only those of tried cases were.\n"
    for number, champion in enumerate(champions):
        for line in champion["lengths"]:
            yield f"- kernel {number}: {markdown_text(line)}"
    yield ""


def _rule(portfolio: Mapping[str, Json]) -> Iterator[str]:
    """The rule of a portfolio, in words."""
    yield "## Rule\n"
    yield "The first line that holds a case decides. Ratios of sizes (heads to key heads, keys to"
    yield "queries) must be near those of measured cases, and sizes inside the kernel's domain."
    yield ""
    for number, region in enumerate(portfolio["rule"], 1):
        least = f"at least {region['speedup_low']:.3f}x in {region['measured']} measured cases"
        yield f"{number}. {markdown_text(region['cases'])}: kernel {region['kernel']} ({least})"
    yield f"{len(portfolio['rule']) + 1}. all others: {markdown_text(portfolio['otherwise'])}\n"
    yield "`listed`: the whole list; `seen`: the cases that the rule was made of; `held out`: the"
    yield "others of the list; `drawn`: cases drawn where losses are likely. `without single"
    yield "cases`: the lines for one case each are left out. A case in no line of the rule counts"
    yield "as 1.\n"
    for group, figures in portfolio["figures"].items():
        if figures["cases"]:
            yield (
                f"- {markdown_text(group)}: {figures['cases']} cases, {figures['served']} by "
                f"kernels, mean {figures['mean']:.3f}x, worst {figures['worst']:.3f}x "
                f"({markdown_text(figures['worst_case'])})"
            )
    yield ""


def _figures(champions: Sequence[Mapping[str, Json]]) -> Iterator[str]:
    yield "| kernel | case | time_us | baseline | baseline_us | speedup | 95% |"
    yield "|---|---|---|---|---|---|---|"
    for number, champion in enumerate(champions):
        for each in champion["figures"]:
            if each["cache"] != "warm":
                continue
            case, baseline = markdown_text(each["case"]), markdown_text(each["baseline"])
            case = f"*{case}*" if each["held_out"] else case
            yield (
                f"| {number} | {case} | {each['time_us']:.4g} | {baseline} | "
                f"{each['baseline_us']:.4g} | {each['speedup']:.3f} | "
                f"{each['low']:.3f} to {each['high']:.3f} |"
            )
    yield ""


def _columns(regions: Sequence[Mapping[str, Json]]) -> list[str]:
    """The names of the sizes and options that the regions fix or bound. Features that no region has
    are left out."""
    names = list(dict.fromkeys(n for r in regions for n in (*r["fixed"], *r["ranges"])))
    absent = {n for n, no in NONE.items() if all(r["fixed"].get(n) == no for r in regions)}
    masked = [_MASK_SIZES] if any(_MASK_SIZES in region for region in regions) else []
    return [name for name in (*names, *masked) if name not in absent]


def _regions(regions: Sequence[Mapping[str, Json]]) -> Iterator[str]:
    if not regions:
        yield "None.\n"
        return
    names = _columns(regions)
    yield f"| kernel | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for region in regions[:_MOST_REGIONS]:
        cells = [_cell(region, name) for name in names]
        yield f"| {region['kernel']} | {' | '.join(cells)} |"
    left = len(regions) - _MOST_REGIONS
    yield f"\nAnd {left} more, in `dispatch.json`.\n" if left > 0 else ""


def _cell(region: Mapping[str, Json], name: str) -> str:
    if name == _MASK_SIZES:
        known = distinct_broadcasts(region.get(name, ()))
        ways = 2 if region["fixed"]["mask"] == PADDING else 8
        return "any" if len(known) == ways else "; ".join(known)
    if name in region["fixed"]:
        return _text(region["fixed"][name])
    low, high = region["ranges"].get(name, ("", ""))
    return _text(low) if low == high else f"{_text(low)} to {_text(high)}"


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else markdown_text(str(value))


_OF_EVERY_PROBLEM = {
    "dtype": "the type of the tensors",
    "elements": "the number of elements of the largest tensor, gaps between them included",
}
_OF_ATTENTION = {
    **_OF_EVERY_PROBLEM,
    "causal": "whether a row of q sees no key behind its own place",
    "head_dim": "the numbers of one head in a row of q and of k",
    "value_dim": "the numbers of one head in a row of v",
    "batch": "sequences of a call",
    "heads": "heads of q",
    "group": "heads of q that share a head of k and v; 1 means that k and v have as many as q",
    "seq_len_q": "rows of q in a sequence",
    "seq_len_k": "rows of k and of v in a sequence",
    "length_ratio": "seq_len_k / seq_len_q",
    "batch_heads": "batch * heads",
    "softmax_scale": "the factor of q k^T; PyTorch calls it `scale`, usually 1 / sqrt(head_dim)",
    "sequences": "sequences of a call",
    "tokens_q": "rows of q in all sequences together",
    "tokens_k": "rows of k in all sequences together",
    "longest_q": "max_seqlen_q of a call, or tokens_q where that is less",
    "longest_k": "max_seqlen_k of a call, or tokens_k where that is less",
    "queries": "rows of q in each sequence",
    "longest": "the largest number of keys that a sequence may have",
    "page_size": "keys of a page of the cache",
    "given": "which of window_left, window_right and softcap a call gives",
    "window_left": "keys before its own place that a row sees: the first number of `window`",
    "window_right": "keys behind its own place that a row sees: the second number of `window`",
    "softcap": "the bound of the scores: cap * tanh(score / cap)",
    "bottom_right": "whether the last row's own place is the last key; else row i's is key i",
    "alibi": "whether a call gives `alibi_slopes`",
    "sinks": "whether a call gives `sinks`",
    "lse": "whether a call asks for the logarithms of the rows' sums (`return_lse=True`)",
    "score_mod": "the change of the scores that a call gives",
    "mask": "the kind of `attn_mask`: `padding` (boolean, the same for all heads and rows, by its "
    "shape or strides), `bool` (any other boolean mask), `bias` (added to the scores) or `none`",
    "mask_dtype": "the type of a bias",
    _MASK_SIZES: "how a mask is broadcast, a word each for batch, heads and rows: `batch 1 rows` "
    "is the same for all heads; `-` where the case itself has size 1",
}
_CASE_OF_SDPA = (
    "(batch, heads, sequence length, head_dim). `8/2` heads are 8 of q and 2 of k and v, `20x60` "
    "are 20 rows of q and 60 keys; `causal` or, without a mask, `full`"
)


def figure_words(dispatch: Mapping[str, Json]) -> Iterator[str]:
    """Lines that explain the columns of the figures."""
    case, ways = "the sizes, each with its name", "`sdpa:…` is scaled_dot_product_attention"
    if sizes := dispatch["cases_from"].get("sizes"):
        case, ways = f"the sizes ({', '.join(sizes)})", "`torch:…` is a computation in PyTorch"
    elif "attention" in dispatch["cases_from"]:
        case = _CASE_OF_SDPA
    yield "- `kernel`: a number for each kernel of this package"
    yield f"- `case`: {case}; in *italics* where the search did not see the case"
    yield "- `time_us`: the kernel's time on the device, in µs, with its inputs in the caches as"
    yield "  far as these hold them"
    yield f"- `baseline`: what the kernel was measured against, in alternation; {ways}"
    yield "- `baseline_us`: the baseline's time"
    yield "- `speedup`: the baseline's time / the kernel's; `95%` is its 95% confidence interval\n"


def region_words(names: Sequence[str], dispatch: Mapping[str, Json]) -> Iterator[str]:
    """Lines that explain the columns `names` of the tables of regions."""
    given = dispatch["cases_from"]
    sizes = [name for name in names if name in given.get("sizes", ())]
    constants = [name for name in names if name in given.get("constants", {})]
    flags = [name for name in names if name in given.get("flags", {})]
    call = f"`{dispatch['problem']['call']}`"
    for own, meaning in (
        (sizes, f"sizes that follow from the shapes of the tensors given to {call}"),
        (constants, f"constants of {call}"),
        (flags, f"options of {call}"),
    ):
        if own:
            yield f"- {', '.join(f'`{name}`' for name in own)}: {meaning}"
    known = _OF_EVERY_PROBLEM if "sizes" in given else _OF_ATTENTION
    for name in names:
        if name in known and name not in (*sizes, *constants, *flags):
            yield f"- `{name}`: {known[name]}"
    yield ""


NOT_EXECUTED = "lengths not executed"


def length_words(domain: Domain) -> list[str]:
    """The lengths that a champion executed one by one, a line for each quantity and each set of
    fixed values. If it executed none, one line says so."""
    found: dict[str, None] = {}
    for region in domain.regions:
        like = [
            f"{name} {_value(value)}" for name, value in region.fixed.items() if name != "dtype"
        ]
        for each in region.executed or ():
            ratios = [f"{name} {value}" for name, value in each.alike.items()]
            spans = " and ".join(
                str(low) if low == high else f"{low} to {high}" for low, high in each.ranges
            )
            if spans:
                where = f" ({', '.join([*like, *ratios])})" if like or ratios else ""
                found[f"{each.name} {spans}{where}"] = None
    return list(found) or [NOT_EXECUTED]


def _value(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
