"""What the words of an exported package's README mean, for readers who do not know evotune."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evotune.trial import Domain, Json

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
    yield f"- `baseline`: what the kernel was measured against, in turn with it; {ways}"
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
    """Which lengths a champion executed one by one, a line for each quantity and each set of fixed
    values; one line that says so where it executed none."""
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
                found[f"{each.name} {spans} ({', '.join([*like, *ratios])})"] = None
    return list(found) or [NOT_EXECUTED]


def _value(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
