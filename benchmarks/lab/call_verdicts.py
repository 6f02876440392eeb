"""Makes a call by way of SDPA and of an exported package, and compares the results."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import call_contexts
import torch
import torch.nn.functional as F
from call_differences import difference, largest_difference, other_facts, same_bits
from exported import calls, device_of
from random_calls import RandomCall
from torch.nn.attention import SDPBackend, sdpa_kernel

from evotune.problems.attention import Attention
from evotune.verify.accuracy import LIMITS, errors_against, expected

SERVED, SAME_BITS, SAME_ERROR = "within the limit of float64", "SDPA's bits", "SDPA's error"
REFUSED, VARIES = "refused, as by SDPA", "SDPA's bits change from call to call"
ANY = "SDPA reads memory that no tensor has"
LEFT = "left to SDPA"
NONE, MATH = "no tensor, as from SDPA", "the math backend's bits, where SDPA gives no tensor"
INSTEAD = "within the limit of float64, where SDPA raises an exception"
EMPTY = "no element, where SDPA raises an exception"
OTHER_BITS = "within the limit of float64, not SDPA's bits"
RIGHT = (
    *(SERVED, SAME_BITS, SAME_ERROR, REFUSED, VARIES, ANY, LEFT, NONE, MATH),
    *(INSTEAD, EMPTY, OTHER_BITS),
)
PATHS = ("hook", "attention", "operator")
SDPA, KERNELS, JUDGE = "SDPA", "kernels", "judge"
_DEVICE_LOST = ("CUDA error", "device-side assert", "AcceleratorError")
_SDPA = torch._C._nn.scaled_dot_product_attention
_OF_THE_FUNCTION = {"is_causal", "scale", "enable_gqa", "attn_mask"}
_FEW = 64
_REPEATED = 16  # gradients of SDPA on a GPU add up in any order


class DeviceLost(Exception):
    """The device is of no use in this process any more."""


@dataclass
class Result:
    """A value, the gradients where it has a graph, or an exception.

    - served: by a kernel of the package.
    - undefined: SDPA gave None, as it does where cuDNN's kernel gets a tensor without elements.
    """

    value: Any = None
    gradients: tuple[Any, ...] = ()
    error: Exception | None = None
    served: bool = False
    undefined: bool = False

    @property
    def values(self) -> tuple[Any, ...]:
        return (self.value, *self.gradients)


class Judge:
    """Makes calls on the paths into a package, one after the other, and judges the results. `say`
    gets the name of each path, and JUDGE, before that may crash.

    Where SDPA gives None the hook must give None too. The package's own functions must give a
    tensor, and for that SDPA's math backend is asked.
    """

    def __init__(self, module: ModuleType, say: Callable[[str], None] = lambda path: None) -> None:
        self._module = module
        self._say = say
        self._device = device_of(module).type
        self._operator = getattr(torch.ops, module._loaded._operator.namespace).attention
        self._gave_none = False

    def verdicts(self, call: RandomCall) -> dict[str, str]:
        """Path -> one of RIGHT, or why the result is wrong."""
        before = [memory.clone() for memory in call.memory]
        self._say(SDPA)
        plain, limits = self._result(self._sdpa, call), Limit(call)
        by_math = self._result(_math, call) if plain.undefined else plain
        found = {}
        for path in _paths(call):
            self._say(path)
            result = self._by(path, call)
            self._say(JUDGE)
            known = plain if path == "hook" else by_math
            verdict = _judged(known, result, limits, exact=path != "operator")
            if plain.undefined:
                verdict = {SAME_BITS: NONE if path == "hook" else MATH}.get(verdict, verdict)
            elif verdict not in RIGHT and known.error is None:
                self._say(SDPA)
                again = (self._result(_SDPA, call).values for _ in range(_REPEATED))
                varies = any(difference(known.values, values) for values in again)
                verdict = VARIES if varies else verdict
                verdict = ANY if any(map(_has_no_memory, call.tensors)) else verdict
            if verdict not in RIGHT and path == "operator" and result.error is None:
                verdict = self._by_the_reference(known, result, limits) or verdict
            found[path] = verdict
        self._say(JUDGE)
        for memory, was in zip(call.memory, before, strict=True):
            if not same_bits(memory, was):
                found["inputs"] = "the call changed its inputs"
        return found

    @staticmethod
    def _by_the_reference(known: Result, found: Result, limits: Limit) -> str:
        """The verdict on what SDPA gave the operator for tensors that may lie otherwise than the
        caller's, so that another of its kernels, or one at all, computed it; "" for a wrong one."""
        if isinstance(found.value, torch.Tensor) and not found.value.numel():
            return EMPTY if known.error is not None and limits.has_shape(found.value) else ""
        if limits.verdict(found.value) != SERVED or not limits.hold_gradients(known, found):
            return ""
        return OTHER_BITS if known.error is None else INSTEAD

    def sdpa_alone(self, call: RandomCall) -> None:
        """Makes the call by SDPA as often as `verdicts` makes it on any path."""
        self._say(SDPA)
        for _ in (SDPA, *_paths(call)):
            self._result(_SDPA, call)

    def without_sdpa(self, call: RandomCall) -> str:
        """The verdict on what a kernel gives, for a call that SDPA does not survive."""
        if call.options.keys() - _OF_THE_FUNCTION or call.context in {"vmap", "forward AD"}:
            return LEFT
        self._say(KERNELS)
        result = self._result(self._attempt, call)
        self._say(JUDGE)
        if result.error is not None:
            return f"it raises {_said(result.error)}"
        return LEFT if result.value is None else Limit(call).verdict(result.value)

    def _attempt(  # noqa: PLR0917  # SDPA's arguments
        self,
        q: Any,
        k: Any,
        v: Any,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        attn_mask: Any = None,
    ) -> Any:
        attempt = self._module._loaded._calls.attempt
        return attempt(q, k, v, attn_mask, 0.0, is_causal, scale, enable_gqa)

    def _by(self, path: str, call: RandomCall) -> Result:
        if path == "attention":
            return self._result(self._module.attention, call)
        if path == "operator":
            return self._result(self._operator, call)
        with self._module.active():
            return self._result(F.scaled_dot_product_attention, call)

    def _sdpa(self, *tensors: Any, **options: Any) -> Any:
        """SDPA, and a note where it gives None: a mode around it may raise an exception then."""
        out = _SDPA(*tensors, **options)
        self._gave_none |= out is None
        return out

    def _result(self, function: Callable[..., Any], call: RandomCall) -> Result:
        result = self._once(function, call)
        if not isinstance(result.error, torch.OutOfMemoryError):
            return result
        result.error = None  # whose traceback keeps tensors
        torch.cuda.empty_cache()  # another process may have needed the memory for a while
        return self._once(function, call)

    def _once(self, function: Callable[..., Any], call: RandomCall) -> Result:
        self._gave_none = False
        torch.manual_seed(0)  # of dropout
        counted = calls(self._module)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = call_contexts.made(
                    call.context, self._device, function, call.tensors, call.options
                )
                gradients = _gradients(value, call)
            if self._device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:  # PyTorch raises exceptions of many types
            if any(word in f"{type(error).__name__} {error}" for word in _DEVICE_LOST):
                raise DeviceLost(str(error).splitlines()[0]) from error
            return Result(error=error, undefined=self._gave_none)
        served = calls(self._module) > counted
        return Result(value, gradients, served=served, undefined=self._gave_none)


def _math(*tensors: Any, **options: Any) -> Any:
    with sdpa_kernel(SDPBackend.MATH):
        return _SDPA(*tensors, **options)


def _paths(call: RandomCall) -> tuple[str, ...]:
    """The paths that take the call's options."""
    return PATHS[:1] if call.options.keys() - _OF_THE_FUNCTION else PATHS


def _gradients_by_math(call: RandomCall, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    call = dataclasses.replace(call, tensors=list(tensors))
    device = tensors[0].device.type
    value = call_contexts.made(call.context, device, _math, call.tensors, call.options)
    return _gradients(value, call)


def _is_as_near(
    found: torch.Tensor | None, other: torch.Tensor | None, exact: torch.Tensor | None
) -> bool:
    """Whether `found` is at most twice as far from `exact` as `other`, and one rounding. None is
    the gradient of a tensor that has no part in the result."""
    if found is None or other is None or exact is None:
        return found is other is exact
    rounding = torch.finfo(found.dtype).eps * float(exact.abs().max())
    return largest_difference(exact, found) <= 2 * largest_difference(exact, other) + rounding


def _has_no_memory(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor._is_zerotensor()


def _gradients(value: Any, call: RandomCall) -> tuple[Any, ...]:
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return ()
    asked = [t for t in (*call.tensors, call.options.get("attn_mask")) if _needs_grad(t)]
    # The operator's output has strides of its own, and those of its gradient change the last bits.
    of_value = torch.ones_like(value) if value.is_nested else torch.ones_like(value).contiguous()
    return torch.autograd.grad(value, asked, of_value, allow_unused=True)


def _needs_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _judged(known: Result, found: Result, limit: Limit, exact: bool) -> str:
    """Where no kernel serves the call, `exact` asks for SDPA's strides and messages too."""
    if known.error is not None:
        return _judged_error(known.error, found, limit, exact)
    if found.error is not None:
        return f"it raises {_said(found.error)}"
    if found.served:
        value = found.value
        if isinstance(value, tuple) and value[1] is None is known.value[1]:  # of inference tensors
            value = value[0]
        return limit.verdict(value)
    differs = difference(known.values, found.values)
    if exact and not differs:
        differs = other_facts(known.value, found.value)
    return differs or SAME_BITS


def _judged_error(known: Exception, found: Result, limit: Limit, exact: bool) -> str:
    if found.error is None:
        if found.served and isinstance(known, torch.OutOfMemoryError):
            return limit.verdict(found.value)
        return f"it gives a result where SDPA raises {_said(known)}"
    if not exact:
        return REFUSED
    same = type(found.error) is type(known) and str(found.error) == str(known)
    return SAME_ERROR if same else f"{_said(found.error)} in place of {_said(known)}"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


class Limit:
    """The gate's limits of a call's result, computed when the first kernel serves it."""

    def __init__(self, call: RandomCall) -> None:
        self._call = call
        self._reference: torch.Tensor | None = None
        self._limits: torch.Tensor
        self._right: list[torch.Tensor] = []

    def verdict(self, out: Any) -> str:
        """The output must be laid out like q too, except under vmap."""
        call, exact = self._call, True
        if call.context == "vmap" and isinstance(out, torch.Tensor):
            out, exact = out[0], False
        q = call.tensors[0]
        dtype = q.dtype
        if call.context.startswith("autocast "):
            dtype = getattr(torch, call.context.partition(" ")[2])
        if not isinstance(out, torch.Tensor) or (out.shape, out.dtype) != (q.shape, dtype):
            return f"the output is no {dtype} of shape {tuple(q.shape)}"
        if exact and out.stride() != torch.empty_like(q).stride():
            return f"the output has strides {out.stride()}"
        if any(same_bits(out, right) for right in self._right):
            return SERVED
        found = self._held(out.detach(), dtype)
        if found == SERVED:
            self._right.append(out)
        return found

    def hold_gradients(self, known: Result, found: Result) -> bool:
        """Whether each gradient of `found` is as near to that in float64 as that of PyTorch's
        formula: at most twice as far, and one rounding. False where one is missing, and where the
        formula has none."""
        tensors = self._call.tensors
        wants_none = known.error is None and not known.gradients
        if wants_none or not any(map(_needs_grad, tensors)):
            return not found.gradients
        wide = [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]
        try:
            exact, by_math = (_gradients_by_math(self._call, given) for given in (wide, tensors))
        except RuntimeError:  # such as too little memory
            return False
        if not len(found.gradients) == len(exact) == len(by_math):
            return False
        return all(map(_is_as_near, found.gradients, by_math, exact))

    def has_shape(self, out: torch.Tensor) -> bool:
        """Whether the output has q's shape; vmap puts another dimension before it."""
        wanted = self._call.tensors[0].shape
        return out.shape[out.ndim - len(wanted) :] == wanted

    def _held(self, out: torch.Tensor, dtype: torch.dtype) -> str:
        if self._reference is None:
            self._compute(dtype)
        assert self._reference is not None
        # The reference has NaN also where a hidden key is NaN.
        options = self._call.options
        hides = options.get("is_causal", False) or options.get("attn_mask") is not None
        if not hides and bool((self._reference.isnan() & ~out.isnan()).any()):
            return "numbers in place of NaN"
        limited = self._limits.isfinite() & self._reference.isfinite()
        held = torch.where(limited, out, 0.0)
        reference = torch.where(limited, self._reference, 0.0)
        wanted = expected(reference, torch.where(limited, self._limits, 1.0), dtype)
        errors = errors_against(held.contiguous(), wanted)
        # Of a few elements the RMS says nothing.
        right = LIMITS.hold(errors) or (out.numel() < _FEW and errors.max <= LIMITS.max)
        return SERVED if right else f"off by {errors.max:.3g} limits, RMS {errors.rms:.3g}"

    def _compute(self, dtype: torch.dtype) -> None:
        call = self._call
        given = [t.detach().resolve_neg().to(dtype).contiguous() for t in call.tensors]
        (batch, heads, rows, head_dim), (_, kv_heads, keys, _) = (t.shape for t in given[:2])
        shape: dict[str, Any] = {
            **{"batch": batch, "heads": heads, "kv_heads": kv_heads},
            **{"seq_len_q": rows, "seq_len_k": keys, "head_dim": head_dim},
        }
        problem = Attention(str(dtype).removeprefix("torch."))
        inputs = dict(zip(("q", "k", "v"), given, strict=True))
        mask = call.options.get("attn_mask")
        if mask is not None:
            shape |= {"mask": "bool" if mask.dtype == torch.bool else "bias"}
            mask = mask.detach().resolve_neg().expand(batch, heads, rows, keys).contiguous()
            if mask.dtype == torch.bool:
                mask = mask.to(torch.uint8)
            elif call.context.startswith("autocast "):
                mask = mask.to(dtype)
            if mask.dtype not in (dtype, torch.uint8):
                shape["mask_dtype"] = str(mask.dtype).removeprefix("torch.")
            inputs["attn_mask"] = mask
        case = problem.case(shape, {"causal": call.options.get("is_causal", False)})
        if call.options.get("scale") is not None:  # of any sign
            symbols = {**case.symbols, "softmax_scale": float(call.options["scale"])}
            case = dataclasses.replace(case, symbols=symbols)
        reference = problem.reference(case, inputs)
        self._reference = reference["out"]
        self._limits = problem.tolerances(case, inputs, reference)["out"]
