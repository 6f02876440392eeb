"""The tensor side of attention: float64 reference, tolerances, SDPA baselines and seeded inputs.

Inputs are made to show a kernel's errors. Some kinds give each row of q one of several traits, in
turn; the seed says which one comes first. So each head has rows of each trait, and over the seeds a
shape of one row has every trait. Rows may differ in scale by any amount: each element of the output
has a limit of its own, so no row hides another's errors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from evotune.problems import attention_mask_inputs
from evotune.problems import attention_masks as masks
from evotune.problems.attention_features import Features
from evotune.problems.attention_scores import ABSORBS, Scores, WholeScores
from evotune.problems.libraries import LIBRARIES, calling
from evotune.problems.problem import Case, Tensors, TensorSpec, rounding_of, table_on, torch_dtype

_BACKENDS = {
    "sdpa:flash": SDPBackend.FLASH_ATTENTION,
    "sdpa:cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa:efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa:math": SDPBackend.MATH,
}
_Call = TypeVar("_Call")
_SCORES_PER_TILE = 1 << 25  # 256 MiB in float64, whatever the batch
_UNIT = 2.0**-24  # of float32: the largest error of one rounding, relative to the result
_MANY = 3.0
"""Standard deviations of a sum's rounding errors; each is about 0.4 units."""
_FEW = 8.0
"""Errors of exponentials, products and quotients, in units in the last place."""
_LOST = 4 * _UNIT
"""A sum may lose all weights below it."""
_ROUNDED = 4.0
_SMALL_WEIGHT = 2.0**-25  # half the distance of the smallest float16 numbers


def reference(case: Case, inputs: Tensors) -> Tensors:
    """Outputs in float64, computed by tiles of query rows, so that long sequences fit in memory."""
    q, k, v = (inputs[name].double() for name in ("q", "k", "v"))
    of_case = Scores(case, inputs)
    grouped = _grouped(q, k)
    out = torch.empty((*grouped.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
    lse = torch.empty_like(out[..., :1])
    for rows in _tiles(q, k):
        tile = grouped[:, :, :, rows]
        flat = tile.flatten(2, 3) @ k.transpose(-1, -2) * _scale(case)
        scores, _ = of_case.changed(flat.view(*tile.shape[:4], -1), rows)
        weights, lse[:, :, :, rows] = of_case.weighed(scores)
        out[:, :, :, rows] = (weights.flatten(2, 3) @ v).view(*tile.shape[:4], -1)
    found = {"out": out.view(*q.shape[:3], v.shape[-1])}
    return found | ({"lse": lse.view(q.shape[:3])} if of_case.features.lse else {})


def tolerances(case: Case, inputs: Tensors, reference: Tensors) -> Tensors:
    """The error that a right kernel may have in each element of the output.

    A right kernel may

    - add in float32 in any order;
    - have exponentials that are a few units in the last place off;
    - scale its weights by any factor with which none overflows;
    - in half precision, round the weights once before they are multiplied with V;
    - round the results once.

    Rounding errors are taken as independent, as they nearly are: the errors of a sum of n terms add
    up to sqrt(n) units of its magnitude (Higham and Mary, A New Approach to Probabilistic Rounding
    Error Analysis, 2019), times a factor for the worst of millions of elements. For out = sum p v
    with the weights p of a row, whose sum is 1, the limit adds up:

    - The sums over the keys: sqrt(n) units of sqrt(sum p v^2), which is at least sum p |v|.
    - Dependent errors. A sum of weights near 1 may lose weights of less than a few units, times
      |out|. A sum of weighted values loses at most those weights times the largest |v|, and at most
      a unit of its own size per key. A running mean adds a few units of the largest |v|.
    - The scores: an error e of a score is a relative error of its weight. The common part of a
      row's errors cancels out; by Cauchy and Schwarz the rest changes out by
      sqrt(sum p e^2) sqrt(sum p (v - out)^2) at most.
    - Weights that are normalised by exp(score - logsumexp): a unit of the largest score.
    - Weights in half precision: units of that type times sqrt(sum p^2 v^2); for small weights in
      float16, multiples of 2^-24.

    A bias that is added to the scores makes errors of a few units of the bias and of the sum. One
    that absorbs all scores of a row, as the lowest float does, leaves no errors of scores.

    A sink is one more key, whose v is 0. The logarithm of a row's sum may be off by what the errors
    of its scores, of the sum and of rounded weights make up, and by a few units.
    """
    q, k, v = (inputs[name].float() for name in ("q", "k", "v"))
    dtype, of_case = inputs["q"].dtype, Scores(case, inputs)
    grouped, out = _grouped(q, k), _grouped(reference["out"].float(), k)
    squares, largest = v.square(), v.abs().amax(2, keepdim=True)
    before = F.pad(squares, (0, 0, 1, 0)).cumsum(2) if dtype == torch.float16 else squares
    allowed, allowed_lse = torch.empty_like(out), torch.empty_like(out[..., :1])
    of_score = _UNIT * (_MANY * math.sqrt(q.shape[3]) + _FEW)
    for rows in _tiles(q, k):
        tile, mean = grouped[:, :, :, rows], out[:, :, :, rows].flatten(2, 3)
        flat, group = tile.flatten(2, 3), (*tile.shape[:4], -1)
        scores = flat @ k.transpose(-1, -2) * _scale(case)
        size = (flat.square() @ k.square().transpose(-1, -2)).sqrt_() * abs(_scale(case))
        size += scores.abs()
        changed, error = of_case.changed(scores.view(group), rows, (of_score * size).view(group))
        assert error is not None
        weights, lse = of_case.weighed(changed)
        top, sunk = (each.flatten(2, 3) for each in of_case.highest(changed, lse))
        weights, lse, error = (each.flatten(2, 3) for each in (weights, lse, error))
        error += 2 * _UNIT * top
        common = (error * weights).sum(-1, keepdim=True) + 2 * _UNIT * top * sunk
        error = error.square_().mul_(weights).sum(-1, keepdim=True)
        error += (2 * _UNIT * top).square_() * sunk
        second = weights @ squares
        terms = (of_case.count(rows) + of_case.features.sinks).sqrt().repeat(tile.shape[2])[:, None]
        sums = _UNIT * (_MANY * terms + _FEW)
        limit = sums * (second.sqrt() + mean.abs()) + 2 * _UNIT * top * mean.abs()
        lost = weights.masked_fill(weights > _LOST, 0).sum(-1, keepdim=True)
        limit += 2 * lost * mean.abs() + _LOST * largest
        limit += 2 * torch.minimum(lost * largest, _UNIT * terms.square() * second.sqrt())
        limit += error.sqrt_() * (second - mean.square()).clamp_(min=0).sqrt_()
        off = common + sums + 2 * lost + _LOST + _of_logarithm(lse)
        if dtype != torch.float32:
            weights.square_()
            squared = weights.sum(-1, keepdim=True)
            spread = weights @ squares + mean.square() * squared
            half = _ROUNDED * torch.finfo(dtype).eps / 2
            limit += half * spread.sqrt_()
            off += half * squared.sqrt_()
        if dtype == torch.float16:
            first, last = (end.repeat(tile.shape[2]) for end in of_case.seen(rows))
            total = (
                before[:, :, (last + 1).clamp(min=0)] - before[:, :, first.clamp(max=k.shape[2])]
            )
            limit += _ROUNDED * _SMALL_WEIGHT * total.clamp_(min=0).sqrt_()
            off += _ROUNDED * _SMALL_WEIGHT * terms
        allowed[:, :, :, rows] = limit.view(group)
        allowed_lse[:, :, :, rows] = off.view(group)
    rounding = rounding_of(reference["out"], dtype)
    found = {"out": allowed.view(reference["out"].shape).double() + rounding}
    if "lse" in reference:
        rounding = rounding_of(reference["lse"], torch.float32)
        found["lse"] = allowed_lse.view(q.shape[:3]).double() + rounding
    return found


def _of_logarithm(lse: torch.Tensor) -> torch.Tensor:
    """The error of a logarithm itself. That of a row whose scores a bias absorbs says nothing."""
    return torch.where(lse < -ABSORBS, 1.0, _FEW * _UNIT) * lse.abs()


def _scale(case: Case) -> float:
    return float(case.symbols["softmax_scale"])


def _grouped(of_queries: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The tensor with the heads of a group as additional rows for the same keys, so the keys need
    no copies."""
    batch, _, queries, head_dim = of_queries.shape
    return of_queries.reshape(batch, k.shape[1], -1, queries, head_dim)


def _tiles(q: torch.Tensor, k: torch.Tensor) -> Iterator[slice]:
    """Tiles of the query rows."""
    step = max(1, _SCORES_PER_TILE // (q.shape[0] * q.shape[1] * k.shape[2]))
    return (slice(at, min(at + step, q.shape[2])) for at in range(0, q.shape[2], step))


def _laid_out(specs: Sequence[TensorSpec], inputs: Tensors) -> Tensors:
    """The inputs with the strides of `specs`, copied if theirs differ."""
    found = dict(inputs)
    for spec in specs:
        if spec.strides and spec.name in found:
            value = found[spec.name]
            view = torch.empty_strided(
                spec.shape, spec.strides, dtype=value.dtype, device=value.device
            )
            found[spec.name] = view.copy_(value)
    return found


def baselines(
    case: Case, specs: Sequence[TensorSpec], inputs: Tensors, only: str = ""
) -> dict[str, Callable[[], Tensors]]:
    """The SDPA backends that accept these inputs here, with the strides of `specs`, and the unfused
    path. `only` names one that is known to be among them, or an optional library; the others are
    left out.

    The backend that PyTorch would choose by itself is called plainly, without the context
    manager that forces a backend, so that its time is the time a user sees.
    """
    inputs = _laid_out(specs, inputs)
    if only in LIBRARIES:
        return calling.calls(case, inputs, only)
    usable: dict[str, Callable[[], Tensors]] = {}
    asked = _unless_too_large(sdpa_call, case, inputs, only)
    chosen = None
    if asked is not None:
        chosen = SDPBackend(torch._fused_sdp_choice(*asked.tensors, **asked.options))
    for name, backend in _BACKENDS.items() if asked is not None else ():
        if only not in ("", name):
            continue
        assert asked is not None
        if backend == chosen:
            usable[name] = asked
            continue
        forced = functools.partial(_forced, backend, asked)
        try:
            forced()
        except RuntimeError:  # PyTorch refuses with "No available kernel"
            if only:
                raise  # it ran before: memory has run out, or the device is lost
            continue
        usable[name] = forced
    if only in ("", "unfused"):
        unfused = _unless_too_large(unfused_call, case, inputs, only)
        usable |= {"unfused": unfused} if unfused is not None else {}
    return usable


def _unless_too_large(
    make: Callable[[Case, Tensors], _Call | None], case: Case, inputs: Tensors, only: str
) -> _Call | None:
    """The call; None if its masks do not fit into memory, unless it is requested by name."""
    try:
        return make(case, inputs)
    except torch.OutOfMemoryError:
        if only:
            raise
        return None


def _forced(backend: SDPBackend, call: Callable[[], Tensors]) -> Tensors:
    with sdpa_kernel(backend):
        return call()


# Attention by PyTorch: scaled_dot_product_attention, and library calls on the whole score matrix.
#
# SDPA's only feature is a mask, which can express everything that hides or shifts scores: windows,
# alignment, ALiBi. A sink is an additional key of zeros whose mask is the sink. SDPA has no soft
# cap. It does not return the logarithms of the rows' sums either, so it does less than a kernel
# that must return them.
@dataclass(frozen=True)
class SdpaCall:
    """A call of scaled_dot_product_attention."""

    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    options: Mapping[str, Any]

    def __call__(self) -> Tensors:
        return {"out": F.scaled_dot_product_attention(*self.tensors, **self.options)}


def sdpa_call(case: Case, inputs: Tensors) -> SdpaCall | None:
    """The call that computes the case; None if there is none."""
    of_case = Scores(case, inputs)
    features = of_case.features
    if features.softcap or features.score_mod:
        return None
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    options: dict[str, Any] = {
        "scale": float(case.symbols["softmax_scale"]),
        "enable_gqa": case.symbols["heads"] != case.symbols["kv_heads"],
    }
    shifted = features.bottom_right and q.shape[2] != k.shape[2]
    plain = not (features.has_window or features.alibi or features.sinks or shifted)
    if plain and not features.mask:
        return SdpaCall((q, k, v), {"is_causal": bool(case.symbols["causal"]), **options})
    if plain and not case.symbols["causal"]:
        return SdpaCall((q, k, v), {"attn_mask": _as_sdpa_has_it(inputs["attn_mask"]), **options})
    every = slice(None)
    hidden, bias = of_case.hidden(every), of_case.bias(every, torch.float32)
    added = of_case.added(every, torch.float32)
    if bias is None and added is None and not features.sinks:
        mask = None if hidden is None else _with_heads(~hidden)
        return SdpaCall((q, k, v), {"attn_mask": mask, **options})
    if bias is None:
        groups = (k.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2])
        bias = torch.zeros(groups, dtype=torch.float32, device=q.device)
    if added is not None:
        bias = bias + added
    if hidden is not None:
        bias = bias.masked_fill(hidden, -math.inf)
    sink = of_case.sink(torch.float32)
    if sink is not None:
        bias = torch.cat([bias, sink.expand(*bias.shape[:-1], 1)], dim=-1)
        k, v = (F.pad(each, (0, 0, 0, 1)) for each in (k, v))
    dtype = torch.float32 if features.mask.dtype == "float32" else q.dtype
    return SdpaCall((q, k, v), {"attn_mask": _with_heads(bias).to(dtype), **options})


def _as_sdpa_has_it(mask: torch.Tensor) -> torch.Tensor:
    """The mask of a case; booleans are bytes there."""
    return mask.view(torch.bool) if mask.dtype == torch.uint8 else mask


def _with_heads(mask: torch.Tensor) -> torch.Tensor:
    """A mask of scores with one dimension for the heads, not two; one of rows and keys alone as it
    is."""
    if mask.dim() == 4:
        return mask.flatten(0, 1)[None]
    return mask.flatten(1, 2) if mask.dim() == 5 else mask


def unfused_call(case: Case, inputs: Tensors) -> Callable[[], Tensors]:
    """matmul, scale, features, softmax, matmul: library calls on the whole score matrix."""
    of_case = WholeScores(case, inputs)
    of_case.prepare()
    return functools.partial(_unfused_with_features if of_case.features.any else _unfused, of_case)


def _unfused(of_case: WholeScores) -> Tensors:
    scores, v = _scores(of_case)
    hidden = of_case.hidden(slice(None))
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return {"out": torch.matmul(torch.softmax(scores, dim=-1), v)}


def _unfused_with_features(of_case: WholeScores) -> Tensors:
    q, k, v = (of_case.inputs[name] for name in ("q", "k", "v"))
    batch, kv_heads, keys, _ = k.shape
    groups = (batch, kv_heads, q.shape[1] // kv_heads, q.shape[2])
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    # The rows of a group of heads are the rows of one product, so keys need no copy for each head.
    scores = _float32_product(q.reshape(k.shape[0], -1, q.shape[-1]), k.transpose(1, 2))
    scores = scores.mul_(float(of_case.case.symbols["softmax_scale"])).view(*groups, keys)
    changed, _ = of_case.changed(scores, slice(None))
    weights, lse = of_case.weighed(changed)
    out = torch.bmm(weights.to(v.dtype).view(k.shape[0], -1, keys), v)
    found = {"out": out.view(batch, q.shape[1], q.shape[2], v.shape[-1])}
    return found | (
        {"lse": lse.view(batch, q.shape[1], q.shape[2])} if of_case.features.lse else {}
    )


def _float32_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The batched product with float32 elements. In half precision scores are off by up to a
    thousandth of the highest one, which exceeds the gate's limits if a soft cap follows or the
    logarithms of the sums are requested."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def _scores(of_case: Scores) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled scores (batch, heads, rows, keys), and v with as many heads."""
    q, k, v = (of_case.inputs[name] for name in ("q", "k", "v"))
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scale = float(of_case.case.symbols["softmax_scale"])
    return torch.matmul(q, k.transpose(-1, -2)) * scale, v


_SPECIAL, _SPECIAL_OF_LARGE = 4.0, 4096.0
"""Size of the components of k that give the rows of a trait their scores. Products with float16
reach scores of a million only if both factors are large."""
_LARGEST = 3e4  # a float16 holds twice that
_GAPS = (12.5, 6.5, 11.0, 8.0, 15.5, 9.5)  # in this order: few rows suffice for low and high ones
_MOST_GAP_OF_FLOAT16 = 13.0
"""Weights of e^-15.5 are a few of float16's smallest numbers: their rounding errors add up."""
_NEEDLE_GAPS = (8.5, 10.5)
_LOUD, _LOUDEST = 100.0, 2000.0
_RAMP_TRAITS = ("plain", "sink", "zero", "rising", "plain", "falling")
_LARGE_TRAITS = ("spread", "above", "far", "below", "rising", "far", "falling")
_FAR = (
    *((-450.0, 300.0), (2e4, 2e4), (-1e6, 1e6), (-900.0, 1200.0)),
    *((900.0, 1200.0), (-2e4, 2e4), (1e6, 1e6)),
)
"""For far rows: the score at one end of the keys, which is the highest, and how far it lies above
the score at the other end. So one key or a few have all the weight. Then a kernel in float32 is
right although it cannot distinguish scores of a million that differ by less than 0.06."""


def make_inputs(
    tensors: Sequence[TensorSpec], case: Case, kind: str, seed: int, device: str
) -> Tensors:
    """One seeded input set for the problem's `tensors`, made on `device`.

    - normal: N(0, 1).
    - needle: each query matches one key far more than all others, so that a dropped or misplaced
      key shows.
    - ramp: V counts the keys, so that every key's weight shows. Rows in turn have scores as in
      normal; three equal keys 6.5 to 15.5 above all others and zero in V (so that only the small
      weights contribute); all scores exactly zero; scores that rise or fall gently along the keys.
      Every fourth column of V changes its sign at each half or quarter of the keys, or after 64 or
      128 of them, so that parts of a sum are large where the sum is small.
    - large_logits: rows in turn have scores beyond 100; all scores 150 to 250 above or below zero;
      scores that rise or fall along the keys by 240 to 300; scores up to a million above or below
      zero that rise or fall along the keys as far (`_FAR`), so that keys hidden by a mask lie far
      above those that are seen. Every other column of V is a hundred times as large, every fourth
      one two thousand times.
    """
    generator = torch.Generator(device).manual_seed(seed)
    specs = {spec.name: spec for spec in tensors}

    def normal(name: str) -> torch.Tensor:
        shape = specs[name].shape
        return torch.randn(shape, generator=generator, dtype=torch.float32, device=device)

    q, k, v = normal("q"), normal("k"), normal("v")
    if kind == "needle":
        q = _needles(case, q, k)
    elif kind == "ramp":
        q, k, v = _ramp(case, q, k, v, seed)
    elif kind == "large_logits":
        q, k, v = _large(case, q, k, v, seed)
    elif kind != "normal":
        raise ValueError(f"unknown input kind {kind!r}")
    if kind != "normal":
        q = q.clamp(-_LARGEST, _LARGEST)
    dtype = torch_dtype(specs["q"].dtype)
    found = {"q": q.to(dtype), "k": k.to(dtype), "v": v.to(dtype)}
    # Last, so that the draws before do not depend on features.
    if "alibi_slopes" in specs:
        found["alibi_slopes"] = _slopes(normal("alibi_slopes"), kind)
    if "sinks" in specs:
        found["sinks"] = _sinks(case, normal("sinks"), kind)
    if mask := Features.of(case).mask:
        spec = specs[masks.TENSOR]
        found[masks.TENSOR] = attention_mask_inputs.made(spec, mask, kind, seed, generator)
    return found


def _slopes(values: torch.Tensor, kind: str) -> torch.Tensor:
    """Usual slopes, 2^(-8 (h + 1) / heads), times 0.7 to 1.4. Large logits also get far larger
    slopes, with which a key next to a row's own may count for nothing."""
    head = torch.arange(1, len(values) + 1, device=values.device)
    slopes = torch.exp2(-8.0 * head / len(values) + 0.5 * torch.tanh(values))
    if kind == "large_logits":
        slopes = torch.where(head % 2 == 1, 30.0 * slopes, slopes)
    return slopes


def _sinks(case: Case, values: torch.Tensor, kind: str) -> torch.Tensor:
    """N(1, 1), about as large as scores. For needles two heads in three have sinks about 8.5 and
    10.5 below the needle's score. For large logits the heads' sinks alternately take all the
    weight, none, and as much as a key."""
    turn = torch.arange(len(values), device=values.device) % 3
    if kind == "needle":
        high, low = (2.0 * math.sqrt(int(case.symbols["head_dim"])) - gap for gap in _NEEDLE_GAPS)
        shift = (high, 1.0, low)
    else:
        shift = (250.0, -250.0, 0.0) if kind == "large_logits" else (1.0, 1.0, 1.0)
    return values + table_on(values.device, shift)[turn]


def _needles(case: Case, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    queries, keys = q.shape[2], k.shape[2]
    # Consecutive queries look at keys spread over the whole length, the last ones included.
    query = torch.arange(queries, device=q.device)
    target = (query * 7919 + (keys - 1)) % keys
    features = Features.of(case)
    if features.has_window or features.bottom_right:
        target = _near_the_ends(Scores(case, {"q": q}), query, target)
    elif case.symbols["causal"]:
        own = query.clamp(max=keys - 1)
        # Every other query, the last one included, looks at the last key it may see.
        at_edge = (queries - 1 - query) % 2 == 0
        target = torch.where(at_edge, own, torch.minimum(target, own))
    grouped = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return (2.0 * grouped[:, :, target, :] + 0.1 * q) * _unit(case)


def _near_the_ends(scores: Scores, query: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The key at which each row looks. Rows alternate among the last key that the row sees, the
    first one, the key before that, the one after the last, and one in between (`target` folded into
    what the row sees). The last row looks at the last key."""
    first, last = scores.seen(slice(None))
    keys = int(scores.case.symbols["seq_len_k"])
    turn = (len(query) - 1 - query) % 5
    within = first + target % (last - first + 1).clamp(min=1)
    choices = torch.stack([last, first, first - 1, last + 1, within])
    return choices.gather(0, turn[None])[0].clamp(0, keys - 1)


def _ramp(
    case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    keys = k.shape[2]
    count = torch.arange(1, keys + 1, dtype=torch.float32, device=v.device) / keys
    noise, v = v, count.reshape(1, 1, keys, 1) + 0.001 * v
    key = torch.arange(keys, device=v.device)
    for place, part in enumerate((key * 2 // keys, key * 4 // keys, key // 64, key // 128)):
        sign = (1.0 - 2.0 * (part % 2)).reshape(1, 1, keys, 1)
        v[..., 2 + 4 * place :: 16] = sign + 0.25 * noise[..., 2 + 4 * place :: 16]
    q = q * _unit(case)
    if q.shape[3] < 4:
        return q, k, v
    one, other = _specials(k, _SPECIAL)
    k[..., one] = 0.0
    # In the middle half: a kernel meets many keys after the sink in either order of keys. Equal
    # keys lie next to it and far from it.
    sink = keys // 4 + seed // 64 % max(1, (keys + 1) // 2)
    k[:, :, sink, one] = _SPECIAL
    sinks = [sink, min(sink + 1, keys - 1), (sink + keys // 3) % keys]
    for place in sinks:  # a list of places would be copied to a GPU, which waits for it
        k[:, :, place] = k[:, :, sink]
        v[:, :, place] = 0.0
    turn, step = _turns(q, seed, len(_RAMP_TRAITS))
    gaps = table_on(q.device, _GAPS)[step % len(_GAPS)]
    if case.symbols["dtype"] == "float16":
        gaps = gaps.clamp(max=_MOST_GAP_OF_FLOAT16)
    slopes = 2.0 + 4.0 * (step % 5) / 4
    sunk, zero = _is(turn, _RAMP_TRAITS, "sink"), _is(turn, _RAMP_TRAITS, "zero")
    rising = _is(turn, _RAMP_TRAITS, "rising").float() - _is(turn, _RAMP_TRAITS, "falling").float()
    q[..., one] = q[..., other] = 0.0
    q = torch.where(sunk[..., None], 0.3 * q, q)
    q[..., one] = sunk * gaps * _size(case, _SPECIAL)
    q[..., other] = rising * slopes * _size(case, _SPECIAL)
    return torch.where(zero[..., None], torch.zeros_like(q), q), k, v


def _large(
    case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    v[..., 1::4] *= _LOUD
    v[..., 3::4] *= _LOUDEST
    q = q * _unit(case)
    if q.shape[3] < 4:
        return 30.0 * q, k, v
    one, other = _specials(k, _SPECIAL_OF_LARGE)
    k[..., one] = _SPECIAL_OF_LARGE
    turn, step = _turns(q, seed, len(_LARGE_TRAITS))
    part = (step % 5) / 4
    above = _is(turn, _LARGE_TRAITS, "above").float() - _is(turn, _LARGE_TRAITS, "below").float()
    rising = _is(turn, _LARGE_TRAITS, "rising").float()
    rising = rising - _is(turn, _LARGE_TRAITS, "falling").float()
    q = torch.where(_is(turn, _LARGE_TRAITS, "spread")[..., None], 30.0 * q, q)
    far = _is(turn, _LARGE_TRAITS, "far")
    place = 2 * step + (turn > _LARGE_TRAITS.index("far"))
    highest, fall = table_on(q.device, _FAR)[place % len(_FAR)].unbind(-1)
    direction = 1.0 - 2.0 * (place // len(_FAR) % 2)  # rising first: causal masks hide high scores
    offset = torch.where(far, highest - fall / 2, above * (150.0 + 100.0 * part))
    slope = torch.where(far, direction * fall / 2, rising * (120.0 + 30.0 * part))
    q = torch.where(far[..., None], torch.zeros_like(q), q)
    q[..., one] = offset * _size(case, _SPECIAL_OF_LARGE)
    q[..., other] = slope * _size(case, _SPECIAL_OF_LARGE)
    return q, k, v


def _specials(k: torch.Tensor, size: float) -> tuple[int, int]:
    """The indices of two components of k that are reserved for traits. Sets the second one, which
    rises along the keys."""
    keys, head_dim = k.shape[2:]
    one, other = 0, head_dim // 2
    k[..., other] = size * torch.linspace(-1.0, 1.0, keys, device=k.device)
    return one, other


def _turns(q: torch.Tensor, seed: int, traits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row its trait's number, and how often its head had that trait before."""
    batch, heads, queries = q.shape[:3]
    batches = torch.arange(batch, device=q.device)[:, None, None]
    head = torch.arange(heads, device=q.device)[:, None]
    row = torch.arange(queries, device=q.device) + batches + head + seed % 2520
    return row % traits, row // traits


def _is(turn: torch.Tensor, traits: tuple[str, ...], name: str) -> torch.Tensor:
    found = torch.zeros_like(turn, dtype=torch.bool)
    for number, trait in enumerate(traits):
        if trait == name:
            found |= turn == number
    return found


def _scale_of_inputs(case: Case) -> float:
    """The case's softmax scale, but at least 1e-6 in size: inputs cannot make up for less."""
    scale = float(case.symbols["softmax_scale"])
    return scale if abs(scale) > 1e-6 else math.copysign(1e-6, scale)


def _unit(case: Case) -> float:
    """Factor for queries of N(0, 1) that makes scores N(0, 1)."""
    unit = 1.0 / (abs(_scale_of_inputs(case)) * math.sqrt(int(case.symbols["head_dim"])))
    return 1.0 if abs(unit - 1.0) < 1e-6 else unit


def _size(case: Case, special: float) -> float:
    """The value of q's special component that gives a score of 1."""
    return 1.0 / (_scale_of_inputs(case) * special)
