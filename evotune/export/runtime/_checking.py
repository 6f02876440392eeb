"""Compares kernels of attention with PyTorch on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ._asked_features import Asked, asked_of
from ._attention_package import AttentionKernels, Call, Outputs, sdpa
from ._masks import BIAS, NO_MASK, Mask
from ._missed import Missed, shown
from ._plain_features import Trees, explicit

_SCORES_PER_TILE = 1 << 24
_TIMES_SDPA = 2.0


@dataclass(frozen=True)
class Row:
    """The result of a check on one case.

    - error, allowed: the largest absolute error of the kernel, and the error that it may have.
    - fault: why the case failed, in words; "" when it passed.
    """

    case: str
    error: float
    allowed: float
    fault: str


@dataclass(frozen=True)
class Result:
    """The results of a check. It is true if there is a case and every case passed."""

    rows: tuple[Row, ...]

    def __bool__(self) -> bool:
        return bool(self.rows) and not any(row.fault for row in self.rows)

    def __str__(self) -> str:
        width = max([len(row.case) for row in self.rows], default=4)
        lines = [f"{'case':{width}}  {'error':>9}  {'allowed':>9}"]
        for row in self.rows:
            end = row.fault or "ok"
            lines.append(f"{row.case:{width}}  {row.error:9.2e}  {row.allowed:9.2e}  {end}")
        return shown("\n".join(lines))


def first_sentence(error: Exception) -> str:
    """The first sentence of an error's message, because PyTorch's messages may be paragraphs."""
    return str(error).partition("\n")[0].partition(". ")[0]


def check_cases(
    cases: Iterable[Mapping[str, Any]],
    words: Callable[[Mapping[str, Any]], str],
    compare: Callable[[Mapping[str, Any], str], Row],
) -> Result:
    """A row for each case. A case that cannot be called here fails with the reason: there is no
    such device, not enough memory, or no kernel serves it (NotServed is a ValueError)."""
    rows = []
    for symbols in cases:
        case = words(symbols)
        try:
            rows.append(compare(symbols, case))
        except (RuntimeError, ValueError) as error:
            rows.append(Row(case, 0.0, 0.0, first_sentence(error)))
    return Result(tuple(rows))


def check_attention(kernels: AttentionKernels, attempt: Callable[[Call], Outputs | None]) -> Result:
    """Calls every case that was timed and is served, on seeded inputs. A kernel's largest error
    against float64 may be twice that of SDPA and one rounding. If the versions here are refused,
    kernels are called without `attempt`, which would not call them."""
    any_version = bool(kernels.kernels.versions.refusal())
    device = torch.device(kernels.kernels.device_type)
    how = None if any_version else attempt

    def compare(symbols: Mapping[str, Any], case: str) -> Row:
        return _checked(kernels, how, symbols, case, device)

    return check_cases(kernels.dispatch.exact_cases(), words_of, compare)


def words_of(symbols: Mapping[str, Any]) -> str:
    kind = "causal" if symbols["causal"] else "full"
    heads = f"{symbols['heads']}/{_kv_heads(symbols)}"
    sizes = (symbols["batch"], heads, symbols["seq_len_q"], symbols["seq_len_k"])
    words = asked_of(symbols).words()
    head_dim = str(symbols["head_dim"])
    if symbols.get("value_dim", symbols["head_dim"]) != symbols["head_dim"]:
        head_dim += f"/{symbols['value_dim']}"
    return f"({','.join(map(str, sizes))},{head_dim}) {kind}{f', {words}' if words else ''}"


def _kv_heads(symbols: Mapping[str, Any]) -> int:
    """Regions name the number of key heads, or the heads in a group."""
    if "kv_heads" in symbols:
        return int(symbols["kv_heads"])
    return int(symbols["heads"]) // int(symbols.get("group", 1))


def seeded_call(
    kernels: AttentionKernels, symbols: Mapping[str, Any], device: torch.device
) -> Call:
    """A call of a case, on seeded inputs."""
    generator = torch.Generator(device).manual_seed(0)

    def values(heads: int, length: int, size: str) -> torch.Tensor:
        shape = (int(symbols["batch"]), heads, length, int(symbols.get(size, symbols["head_dim"])))
        made = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        return made.to(kernels.dtype)

    q = values(int(symbols["heads"]), int(symbols["seq_len_q"]), "head_dim")
    keys = _kv_heads(symbols), int(symbols["seq_len_k"])
    k, v = values(*keys, "head_dim"), values(*keys, "value_dim")
    asked, slopes, sinks = seeded_features(symbols, q.shape[1], generator)
    causal, scale = bool(symbols["causal"]), symbols.get("softmax_scale")
    grouped, mask = q.shape[1] != k.shape[1], seeded_mask(asked.mask, keys[1], generator)
    asked = asked._replace(mask=Mask())
    if causal and mask is not None:  # SDPA does not take both: a window says the same
        causal, asked = False, asked._replace(window_right=0)
    return Call(q, k, v, causal, scale, grouped, mask, asked, slopes, sinks)


def _checked(
    kernels: AttentionKernels,
    attempt: Callable[[Call], Outputs | None] | None,
    symbols: Mapping[str, Any],
    case: str,
    device: torch.device,
) -> Row:
    call = seeded_call(kernels, symbols, device)
    q, k, v, causal, scale, grouped, mask = call[:7]
    with torch.no_grad():
        decision = kernels.decide(call, any_version=attempt is None)
        if isinstance(decision, Missed):
            return Row(case, 0.0, 0.0, f"not served ({decision.kind}): {decision.words}")
        outputs = kernels.run_unaccepted(call) if attempt is None else attempt(call)
        if outputs is None:
            return Row(case, 0.0, 0.0, "not served")
        if mask is not None or not call.is_plain:
            error, allowed = compared(call, kernels.score_mods, outputs)
            return Row(case, error, allowed, "" if error <= allowed else "differs")
        out = outputs[0]
        known = sdpa(q, k, v, None, 0.0, causal, scale=scale, enable_gqa=grouped)
        used = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
        error, reference_error, largest = _errors(q, k, v, causal, used, (out, known))
    allowed = _TIMES_SDPA * reference_error + torch.finfo(q.dtype).eps * largest
    fault = "" if error <= allowed else "differs"  # NaN is a difference
    return Row(case, error, allowed, fault)


def _errors(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    found: tuple[torch.Tensor, torch.Tensor],
) -> tuple[float, float, float]:
    """The largest errors of the two results against float64, and the largest value. Computed by
    tiles of rows, so that long sequences fit in memory."""
    group = q.shape[1] // k.shape[1]
    keys, values = (t.double().repeat_interleave(group, dim=1) for t in (k, v))
    step = max(1, _SCORES_PER_TILE // (q.shape[0] * q.shape[1] * k.shape[2]))
    errors, largest = [0.0, 0.0], 0.0
    for first in range(0, q.shape[2], step):
        rows = slice(first, first + step)
        scores = q[:, :, rows].double() @ keys.transpose(-1, -2) * scale
        if causal:
            number = torch.arange(first, first + scores.shape[2], device=q.device)
            hidden = torch.arange(k.shape[2], device=q.device) > number[:, None]
            scores.masked_fill_(hidden, float("-inf"))
        reference = torch.softmax(scores, dim=-1) @ values
        largest = max(largest, float(reference.abs().max()))
        for place, result in enumerate(found):
            off = float((result[:, :, rows].double() - reference).abs().max())
            errors[place] = off if math.isnan(off) else max(errors[place], off)
    return errors[0], errors[1], largest


# Compares outputs of calls with features with float64, for `check`.
_TIMES_PLAIN = 2.0


def seeded_features(
    symbols: Mapping[str, Any], heads: int, generator: torch.Generator
) -> tuple[Asked, torch.Tensor | None, torch.Tensor | None]:
    """The features of a case, with slopes and sinks if it has them."""
    asked, device = asked_of(symbols), generator.device
    slopes = sinks = None
    if asked.alibi:
        head = torch.arange(1, heads + 1, dtype=torch.float32, device=device)
        slopes = torch.exp2(-8.0 * head / heads)
    if asked.sinks:
        sinks = torch.randn(heads, generator=generator, device=device)
    return asked, slopes, sinks


def seeded_mask(mask: Mask, keys: int, generator: torch.Generator) -> torch.Tensor | None:
    """A mask of this kind, which hides every third key or so, all keys of a last row, and the
    second half of the keys of a last batch. None without one."""
    if mask.kind == NO_MASK:
        return None
    shape, device = (mask.batch, mask.heads, mask.rows, keys), generator.device
    seen = torch.rand(shape, generator=generator, device=device) > 0.3
    seen[-1, :, :, keys // 2 :] = False
    seen[:, :, mask.rows - 1 :] &= mask.rows == 1
    if mask.kind != BIAS:
        return seen
    bias = torch.randn(shape, generator=generator, device=device)
    return bias.masked_fill(~seen, -math.inf).to(getattr(torch, mask.dtype))


def compared(call: Call, trees: Trees, found: Outputs) -> tuple[float, float]:
    """The largest absolute error against float64, and the error that is allowed: twice that of
    PyTorch with weights rounded as kernels round them, plus one rounding.

    If the call asks for logarithms, the two numbers are those of the output or of the logarithms,
    whichever uses more of what is allowed.
    """
    q, k, v = (tensor.double() for tensor in call[:3])
    is_bias = call.mask is not None and call.mask.is_floating_point()
    mask = call.mask.double() if is_bias and call.mask is not None else call.mask
    wide = call._replace(q=q, k=k, v=v, mask=mask)
    reference, reference_lse = explicit(wide, trees)
    known, known_lse = explicit(call, trees, rounded=True)
    pairs = [(found[0], known, reference)]
    if found[1] is not None:
        pairs.append((found[1], known_lse, reference_lse))
    eps = torch.finfo(call.q.dtype).eps
    return max((_compared(*pair, eps) for pair in pairs), key=lambda pair: _share(*pair))


def _compared(
    found: torch.Tensor, known: torch.Tensor, reference: torch.Tensor, eps: float
) -> tuple[float, float]:
    finite = torch.isfinite(reference)
    if not torch.equal(found[~finite].double(), reference[~finite]):  # -inf of a row without keys
        return math.nan, 0.0
    found, known, reference = (each[finite].double() for each in (found, known, reference))
    if not reference.numel():
        return 0.0, 0.0
    off, known_off = (float((each - reference).abs().max()) for each in (found, known))
    return off, _TIMES_PLAIN * known_off + eps * float(reference.abs().max())


def _share(off: float, allowed: float) -> float:
    """The error as a share of what it may be; NaN is the worst."""
    if math.isnan(off) or (off > 0.0 and not allowed):
        return math.inf
    return off / allowed if allowed else 0.0
