"""Seeded inputs of attention, made to show a kernel's errors.

Some kinds give each row of q one of several traits, in turn; the seed says which one comes first.
So each head has rows of each trait, and over the seeds a shape of one row has every trait. Rows may
differ in scale by any amount: each element of the output has a limit of its own, so no row hides
another's errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from evotune.problems._attention_features import Features
from evotune.problems._attention_scores import Scores
from evotune.problems.element_types import table_on, torch_dtype
from evotune.problems.problem import Case, Tensors, TensorSpec

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
"""Of far rows the score at one end of the keys, which is the highest, and how far it lies above the
score at the other end. So one key, or a few, have all the weight: there a kernel in float32 is
right although it cannot tell scores of a million apart that differ by less than 0.06."""


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
    return found


def _slopes(values: torch.Tensor, kind: str) -> torch.Tensor:
    """Usual slopes, 2^(-8 (h + 1) / heads), times 0.7 to 1.4. Of large logits also far larger ones:
    there a key next to a row's own may count for nothing."""
    head = torch.arange(1, len(values) + 1, device=values.device)
    slopes = torch.exp2(-8.0 * head / len(values) + 0.5 * torch.tanh(values))
    if kind == "large_logits":
        slopes = torch.where(head % 2 == 1, 30.0 * slopes, slopes)
    return slopes


def _sinks(case: Case, values: torch.Tensor, kind: str) -> torch.Tensor:
    """N(1, 1), about as large as scores. Of needles two heads in three have sinks about 8.5 and
    10.5 below the needle's score. Of large logits heads in turn have sinks that take all, nothing
    and as much as a key."""
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
    """For rows in turn the last key that a row sees, the first one, the key before that, the one
    behind the last, and one in between: `target` folded into what the row sees. The last row looks
    at the last key."""
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
    # keys lie beside it and far from it.
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
    """The places of two components of k that are reserved for traits. Sets the second one, which
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


def _scale(case: Case) -> float:
    """The case's softmax scale, but at least 1e-6 in size: inputs cannot make up for less."""
    scale = float(case.symbols["softmax_scale"])
    return scale if abs(scale) > 1e-6 else math.copysign(1e-6, scale)


def _unit(case: Case) -> float:
    """Factor for queries of N(0, 1) that makes scores N(0, 1)."""
    unit = 1.0 / (abs(_scale(case)) * math.sqrt(int(case.symbols["head_dim"])))
    return 1.0 if abs(unit - 1.0) < 1e-6 else unit


def _size(case: Case, special: float) -> float:
    """The value of q's special component that gives a score of 1."""
    return 1.0 / (_scale(case) * special)
