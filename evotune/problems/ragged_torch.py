"""The tensor side of attention over ragged sequences: each one is a case of dense attention."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from evotune.problems.attention import Attention
from evotune.problems.libraries import LIBRARIES, calling
from evotune.problems.problem import Case, Tensors, rounding_of, torch_dtype

_GARBAGE = 100.0
"""Size of the values in slots without a key, if these are not NaN."""
_NO_PAGES = (-1, -(1 << 31), (1 << 31) - 1, 1 << 20)
"""Entries of a page table beyond a sequence's length."""
_SHARED = 3  # one sequence in three begins with another sequence's first page


def make_inputs(
    case: Case, timed_lengths: Sequence[tuple[int, int]], kind: str, seed: int, device: str
) -> Tensors:
    """One seeded input set. Normal inputs have the timed lengths, in any order; other kinds have
    awkward lengths. The values of each sequence are those of dense attention. Page slots without a
    key are NaN, except in normal inputs."""
    rng = random.Random(seed)
    s: Any = case.symbols
    lengths = [*timed_lengths]
    if kind != "normal":
        lengths = _awkward(case, lengths, rng)
    rng.shuffle(lengths)
    dense = [
        _values(case, each, kind, seed + 1009 * number, device)
        for number, each in enumerate(lengths)
    ]
    dtype = torch_dtype(s["dtype"])
    if "page_size" not in s:
        found = {
            name: torch.cat([each[name] for each in dense if each]) for name in ("q", "k", "v")
        }
        for side, place in (("q", 0), ("k", 1)):
            ends = torch.tensor([0, *(each[place] for each in lengths)]).cumsum(0)
            found[f"cu_seqlens_{side}"] = ends.to(torch.int32).to(device)
        return found
    shape = (s["pages"], s["page_size"], s["kv_heads"], s["head_dim"])
    generator = torch.Generator(device).manual_seed(seed)
    pools = [_GARBAGE * torch.randn(shape, generator=generator, device=device) for _ in range(2)]
    if kind != "normal":
        pools = [torch.full_like(pool, torch.nan) for pool in pools]
    k_pages, v_pages = (pool.to(dtype) for pool in pools)
    table = _page_table(case, lengths, rng)
    for row, (_, keys), each in zip(table, lengths, dense, strict=True):
        slots = _slots(torch.tensor(row), keys, s["page_size"]).to(device)
        k_pages.view(-1, *shape[2:])[slots] = each["k"]
        v_pages.view(-1, *shape[2:])[slots] = each["v"]
    return {
        "q": torch.stack([each["q"] for each in dense]),
        "k_pages": k_pages,
        "v_pages": v_pages,
        "page_table": torch.tensor(table, dtype=torch.int32, device=device),
        "seq_lens": torch.tensor([keys for _, keys in lengths], dtype=torch.int32, device=device),
    }


def _awkward(
    case: Case, lengths: list[tuple[int, int]], rng: random.Random
) -> list[tuple[int, int]]:
    """Other lengths that fit the case: both empty and full sequences, or for pages, lengths before,
    at and after the end of a page."""
    s: Any = case.symbols
    if "page_size" in s:
        size, least, most = s["page_size"], s["queries"], s["longest"]
        near = [size * rng.randint(0, s["most_pages"]) + rng.randint(-1, 1) for _ in lengths]
        near[0] = most
        return [(least, min(most, max(least, keys))) for keys in near]
    sides = []
    for side in ("q", "k"):
        left, most = s[f"tokens_{side}"], s[f"longest_{side}"]
        found = []
        for number in range(s["sequences"]):
            others = (s["sequences"] - number - 1) * most
            low, high = max(0, left - others), min(most, left)
            found.append(rng.choice((low, high, high, rng.randint(low, high))))
            left -= found[-1]
        sides.append(found)
    return list(zip(*sides, strict=True))


def _values(case: Case, lengths: tuple[int, int], kind: str, seed: int, device: str) -> Tensors:
    """Values of one sequence with rows first: (rows or keys, heads, head_dim)."""
    s: Any = case.symbols
    rows, keys = lengths
    problem = Attention(s["dtype"])
    shapes = {"q": (rows, s["heads"]), "k": (keys, s["kv_heads"]), "v": (keys, s["kv_heads"])}
    if rows and keys:
        made = problem.make_inputs(_dense(case, rows, keys), kind, seed, device)
        return {name: made[name][0].transpose(0, 1) for name in shapes}
    dtype = torch_dtype(s["dtype"])
    return {
        name: torch.ones((*shape, s["head_dim"]), dtype=dtype, device=device)
        for name, shape in shapes.items()
    }


def _dense(case: Case, rows: int, keys: int) -> Case:
    """The case of dense attention that one sequence is."""
    s: Any = case.symbols
    shape = {"batch": 1, "heads": s["heads"], "kv_heads": s["kv_heads"], "head_dim": s["head_dim"]}
    shape |= {"seq_len_q": rows, "seq_len_k": keys, "scale": s["softmax_scale"]}
    return Attention(s["dtype"]).case(
        {**shape, "alignment": "bottom_right"}, {"causal": s["causal"]}
    )


def _page_table(case: Case, lengths: list[tuple[int, int]], rng: random.Random) -> list[list[int]]:
    """Pages in any order. Some sequences begin with the first page of another one, if that page is
    full in both. Entries beyond a sequence's length are no valid pages."""
    s: Any = case.symbols
    free = rng.sample(range(s["pages"]), s["pages"])
    table: list[list[int]] = []
    for number, (_, keys) in enumerate(lengths):
        count = -(-keys // s["page_size"])
        row = [free.pop() for _ in range(count)]
        other = number - 1
        full = other >= 0 and min(keys, lengths[other][1]) >= s["page_size"]
        if number % _SHARED == 1 and full:
            row[0] = table[other][0]
        table.append(row + [rng.choice(_NO_PAGES) for _ in range(s["most_pages"] - count)])
    return table


def _slots(row: torch.Tensor, keys: int, page_size: int) -> torch.Tensor:
    """The slots of a sequence's keys, counted over all pages."""
    key = torch.arange(keys, device=row.device)
    return row.long()[key // page_size] * page_size + key % page_size


def sequences(case: Case, inputs: Tensors) -> Iterator[tuple[int, Any, Tensors]]:
    """For each sequence its number, the place of its rows in q and out, and its q, k, v with heads
    first, (1, heads, rows or keys, head_dim)."""
    s: Any = case.symbols
    ends = {
        name: inputs[name].tolist() for name in inputs if name.startswith(("cu_seqlens", "seq_l"))
    }
    for number in range(s["sequences"]):
        if "page_size" in s:
            slots = _slots(inputs["page_table"][number], ends["seq_lens"][number], s["page_size"])
            found = {
                name: inputs[f"{name}_pages"].flatten(0, 1)[slots].transpose(0, 1)[None]
                for name in ("k", "v")
            }
            place: Any = number
        else:
            keys = slice(*ends["cu_seqlens_k"][number : number + 2])
            found = {name: inputs[name][keys].transpose(0, 1)[None] for name in ("k", "v")}
            place = slice(*ends["cu_seqlens_q"][number : number + 2])
        yield number, place, {"q": inputs["q"][place].transpose(0, 1)[None], **found}


def reference(case: Case, inputs: Tensors) -> Tensors:
    out = torch.zeros(inputs["q"].shape, dtype=torch.float64, device=inputs["q"].device)
    problem = Attention(str(case.symbols["dtype"]))
    for _, place, own in sequences(case, inputs):
        rows, keys = own["q"].shape[2], own["k"].shape[2]
        if rows and keys:
            found = problem.reference(_dense(case, rows, keys), own)["out"]
            out[place] = found[0].transpose(0, 1)
    return {"out": out}


def tolerances(case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
    """The tolerances of dense attention."""
    out, problem = reference["out"], Attention(str(case.symbols["dtype"]))
    allowed = rounding_of(out, inputs["q"].dtype)
    for _, place, own in sequences(case, inputs):
        rows, keys = own["q"].shape[2], own["k"].shape[2]
        if rows and keys:
            mine = {"out": out[place].transpose(0, 1)[None]}
            found = problem.tolerances(_dense(case, rows, keys), own, mine)["out"]
            allowed[place] = found[0].transpose(0, 1)
    return {"out": allowed}


def altered_indices(
    case: Case, inputs: Tensors, name: str, rng: random.Random
) -> tuple[int, torch.Tensor] | None:
    """Another valid value for one element of the index tensor `name`: the element's flat index, and
    the value as int32 of shape (1,). None if there is no other value.

    - `page_table`: a page whose slots all have keys.
    - `seq_lens`: a length of at least half the present one.
    - `cu_seqlens_q`, `cu_seqlens_k`: the boundary moves towards the beginning, by at most half of
      the sequence before it.

    The tensors stay valid if several of these changes are made.
    """
    s: Any = case.symbols
    values = inputs[name].tolist()
    number = rng.randrange(s["sequences"])
    if name == "seq_lens":
        place, least = number, s["queries"]
        value = rng.randint(max(least, (values[number] + 1) // 2), values[number])
    elif name == "page_table":
        lengths = inputs["seq_lens"].tolist()
        full = [page for row, keys in zip(values, lengths, strict=True)
                for page in row[: keys // s["page_size"]]]  # fmt: skip
        if not full:
            return None
        used = -(-lengths[number] // s["page_size"])
        place = number * s["most_pages"] + rng.randrange(used)
        value = rng.choice(full)
    else:
        if number == 0:
            return None
        before, here, after = values[number - 1 : number + 2]
        longest = s[f"longest_{name[-1]}"]
        # The next sequence grows, and must not exceed the longest length.
        least = max(here - (here - before) // 2, after - longest)
        place, value = number, rng.randint(min(least, here), here)
    made = torch.tensor([value], dtype=torch.int32, device=inputs[name].device)
    return place, made


def baselines(case: Case, inputs: Tensors, only: str = "") -> dict[str, Callable[[], Tensors]]:
    """SDPA on one sequence after the other, with keys gathered before the call, and SDPA on a
    padded batch. Gathering and padding are not part of the calls, so both do less than a kernel.
    SDPA gets a mask only if is_causal is not equivalent, because its fastest kernels take none."""
    if only in LIBRARIES:
        return calling.calls(case, inputs, only)
    found: dict[str, Callable[[], Tensors]] = {}
    parts = [
        (place, own) for _, place, own in sequences(case, inputs)
        if own["q"].shape[2] and own["k"].shape[2]
    ]  # fmt: skip
    if only in ("", "sdpa:looped"):
        masks = [_mask_of(case, *_lengths_of(own), own["q"].device) for _, own in parts]
        found["sdpa:looped"] = functools.partial(_looped, case, inputs["q"], parts, masks)
    if only in ("", "sdpa:padded"):
        found["sdpa:padded"] = _padded_call(case, inputs["q"], parts)
    return found


def _lengths_of(own: Tensors) -> tuple[int, int]:
    return own["q"].shape[2], own["k"].shape[2]


def _mask_of(case: Case, rows: int, keys: int, device: torch.device) -> dict[str, Any]:
    """SDPA's options for the mask of one sequence. SDPA's is_causal is top left."""
    if not case.symbols["causal"] or rows == 1:
        return {}
    if rows == keys:
        return {"is_causal": True}
    ones = torch.ones(rows, keys, dtype=torch.bool, device=device)
    return {"attn_mask": ones.tril(keys - rows)}


def _sdpa(
    case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: dict[str, Any]
) -> Any:
    return F.scaled_dot_product_attention(
        *(q, k, v),
        **mask,
        scale=float(case.symbols["softmax_scale"]),
        enable_gqa=case.symbols["heads"] != case.symbols["kv_heads"],
    )


def _looped(
    case: Case, q: torch.Tensor, parts: list[tuple[Any, Tensors]], masks: list[dict[str, Any]]
) -> Tensors:
    out = torch.zeros_like(q)
    for (place, own), mask in zip(parts, masks, strict=True):
        out[place] = _sdpa(case, own["q"], own["k"], own["v"], mask)[0].transpose(0, 1)
    return {"out": out}


def _padded_call(
    case: Case, q: torch.Tensor, parts: list[tuple[Any, Tensors]]
) -> Callable[[], Tensors]:
    """A call on batches that are padded to the longest sequence; rows are put in their places."""
    most = {name: max(own[name].shape[2] for _, own in parts) for name in ("q", "k", "v")}

    def padded(name: str) -> torch.Tensor:
        return torch.cat(
            [F.pad(own[name], (0, 0, 0, most[name] - own[name].shape[2])) for _, own in parts]
        )

    mask = _mask_of_padded(case, [_lengths_of(own) for _, own in parts], q.device)
    queries, all_keys, values = (padded(name) for name in ("q", "k", "v"))

    def call() -> Tensors:
        found = _sdpa(case, queries, all_keys, values, mask)
        out = torch.zeros_like(q)
        for number, (place, own) in enumerate(parts):
            out[place] = found[number, :, : own["q"].shape[2]].transpose(0, 1)
        return {"out": out}

    return call


def _mask_of_padded(
    case: Case, lengths: list[tuple[int, int]], device: torch.device
) -> dict[str, Any]:
    """SDPA's options for a padded batch. If each sequence has as many keys as rows, is_causal also
    hides the padding's keys from all rows except the padding's."""
    causal = bool(case.symbols["causal"])
    if len(set(lengths)) == 1:
        return _mask_of(case, *lengths[0], device)
    if causal and all(rows == keys for rows, keys in lengths):
        return {"is_causal": True}
    most_rows, most_keys = (max(each) for each in zip(*lengths, strict=True))
    mask = torch.zeros(len(lengths), 1, most_rows, most_keys, dtype=torch.bool, device=device)
    for number, (rows, keys) in enumerate(lengths):
        mask[number, 0, :rows, :keys] = True
        if causal:
            mask[number, 0, :rows, :keys].tril_(keys - rows)
    return {"attn_mask": mask}
