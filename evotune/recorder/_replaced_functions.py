"""Stands in for the functions of attention while a recording is open.

Each function is replaced wherever a module has it under a name: in `torch.nn.functional`, and in
modules that took it from there. The stand-in calls the original with the same arguments, then
notes the call. While torch.compile traces it, it is the original: the graph has the same nodes as
without it, and `_compiled_graphs` reads them. Dynamo guards on the function, so that what was
compiled before compiles once more with the stand-in, and afterwards has its old graph again.

A mode of PyTorch (TorchFunctionMode, TorchDispatchMode) is no way: it would see each operator, cost
each of them, and turn the fast path of nn.TransformerEncoder off.

Stand-ins are kept and used again, so that a second recording compiles nothing again.

Attention functions of transformers need more while torch.compile traces them (`traced`). Those by
formula leave no call of SDPA in the graph, and others repeat the heads of keys before they call it.
So the call is noted while it is traced, on Dynamo's graph: `_compiled_graphs` finds it there, and
passes over the calls of SDPA inside it. The graph gets no node from this.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

from evotune.recorder import _seen_calls
from evotune.recorder._seen_calls import LISTENERS, SizeOf
from evotune.recorder.described_calls import SeenCall

Function: TypeAlias = Callable[..., Any]
Seen: TypeAlias = Callable[[Any, str, SizeOf, Mapping[str, Any]], "SeenCall | None"]

SDPA = "scaled_dot_product_attention"
FUNCTION = f"F.{SDPA}"
"""What a recording calls it."""
LAYER = "multi_head_attention_forward"
FAST_PATHS = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
PACKAGE_FUNCTIONS: Mapping[str, Seen] = {
    "attention": _seen_calls.of_package,
    "attention_varlen": _seen_calls.of_packed,
    "attention_paged": _seen_calls.of_paged,
}
SIGNATURES: Mapping[str, tuple[str, ...]] = {
    SDPA: ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
    FAST_PATHS[0]: (
        *("query", "key", "value", "embed_dim", "num_heads", "qkv_weight", "qkv_bias"),
        *("proj_weight", "proj_bias", "mask", "need_weights", "average_attn_weights", "mask_type"),
    ),
    FAST_PATHS[1]: (
        *("query", "embed_dim", "num_heads", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias"),
        *("use_gelu", "norm_first", "eps", "norm_weight_1", "norm_bias_1", "norm_weight_2"),
        *("norm_bias_2", "ffn_weight_1", "ffn_bias_1", "ffn_weight_2", "ffn_bias_2", "mask"),
        "mask_type",
    ),
    LAYER: (
        *("query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight"),
        *("in_proj_bias", "bias_k", "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight"),
        *("out_proj_bias", "training", "key_padding_mask", "need_weights", "attn_mask"),
        *("use_separate_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
        *("static_k", "static_v", "average_attn_weights", "is_causal"),
    ),
    "attention": ("q", "k", "v", "is_causal", "scale", "enable_gqa"),
    "attention_varlen": (
        *("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
        *("causal", "scale"),
    ),
    "attention_paged": ("q", "k_cache", "v_cache", "cache_seqlens", "page_table"),
    "transformers": ("module", "query", "key", "value", "attention_mask"),
}
"""The arguments by position, by the names that `_seen_calls` asks for."""
_EAGER = "eager_attention_forward"
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
INSIDE = "evotune_inside"
"""A key in a node's `meta`: the node is a part of a noted call."""
NOTED = "_evotune_noted"
"""An attribute of Dynamo's graph: functions, results and arguments of the calls."""


def named_arguments(names: tuple[str, ...], given: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {"src": "query", "num_head": "num_heads"}
    found = {renamed.get(name, name): value for name, value in named.items()}
    return dict(zip(names, given, strict=False)) | found


class Replacements:
    """All functions that are replaced in this process. One recording after the other shares them;
    the lock of `LISTENERS` is held by whoever calls a method."""

    def __init__(self) -> None:
        self._stand_ins: dict[tuple[int, str], tuple[Function, Function]] = {}
        self._used: dict[tuple[int, str], tuple[Function, Function]] = {}
        self._mappings: list[tuple[MutableMapping[Any, Any], Any, Function]] = []

    def everywhere(self) -> None:
        """Replaces the functions in all modules that are loaded."""
        torch = sys.modules.get("torch")
        functional = sys.modules.get("torch.nn.functional")
        if torch is None or not hasattr(functional, SDPA):
            return
        self._stand_in(torch._C._nn.scaled_dot_product_attention, SDPA, SDPA)
        self._replace(functional, SDPA, getattr(functional, SDPA), SDPA)
        self._replace(functional, LAYER, getattr(functional, LAYER), LAYER)
        for name in FAST_PATHS:
            if (found := getattr(torch, name, None)) is not None:
                self._replace(torch, name, found, name)
        for module in list(sys.modules.values()):
            if isinstance(module, types.ModuleType):
                self.in_module(module)

    def in_module(self, module: types.ModuleType) -> None:
        """Replaces the functions in a module, which may have been imported a moment ago."""
        names = vars(module)
        for name in PACKAGE_FUNCTIONS if "write_misses" in names else ():
            if callable(found := names.get(name)):
                self._replace(module, name, found, name)
        if callable(found := names.get(_EAGER)):
            self._replace(module, _EAGER, found, "transformers", "eager")
        if (interface := names.get(_INTERFACE)) is not None:
            self._replace_in_interface(interface)
        if _takes_sdpa(module):
            taken = {id(old) for (_, kind), (old, _) in self._used.items() if kind == SDPA}
            for name, value in list(names.items()):
                if id(value) in taken:
                    self._replace(module, name, value, SDPA, f"{module.__name__}.{name}")

    def restore(self) -> None:
        """Gives all modules the originals, those too that took a stand-in from another module. A
        function that somebody else has replaced since stays."""
        originals = {id(stand_in): original for original, stand_in in self._used.values()}
        for module in list(sys.modules.values()):
            if not isinstance(module, types.ModuleType):
                continue
            for name, value in list(vars(module).items()):
                if id(value) in originals:
                    setattr(module, name, originals[id(value)])
        for mapping, name, original in self._mappings:
            if id(mapping.get(name)) in originals:
                mapping[name] = original
        self._mappings.clear()
        self._used.clear()

    def _replace(
        self, module: Any, name: str, found: Function, kind: str, shown: str | None = None
    ) -> None:
        stand_in = self._stand_in(found, kind, shown or kind)
        if stand_in is not None:
            setattr(module, name, stand_in)

    def _replace_in_interface(self, interface: Any) -> None:
        """The attention functions of transformers by name: those of all models, and a user's."""
        for mapping in ("_global_mapping", "_local_mapping"):
            functions = getattr(interface, mapping, None)
            if isinstance(functions, MutableMapping):
                for name, found in list(functions.items()):
                    stand_in = self._stand_in(found, "transformers", str(name))
                    if stand_in is not None:
                        functions[name] = stand_in
                        self._mappings.append((functions, name, found))

    def _stand_in(self, found: Function, kind: str, shown: str) -> Function | None:
        """The stand-in for a function; None where it is one itself. That may be left over: somebody
        who had replaced it during an earlier recording has put it back since."""
        for key, pair in self._stand_ins.items():
            if found is pair[1]:
                self._used[key] = pair
                return None
        key = (id(found), shown)
        if key not in self._stand_ins:
            self._stand_ins[key] = (found, _made(found, kind, shown))
        self._used[key] = self._stand_ins[key]
        return self._used[key][1]


def _takes_sdpa(module: types.ModuleType) -> bool:
    """Whether a module may have SDPA under a name as its user. Parts of PyTorch and of packages
    have it to call the original."""
    folder = module.__name__.rpartition(".")[0]
    of_torch = module.__name__.partition(".")[0] == "torch"
    return not of_torch and f"{folder}._attention_package" not in sys.modules


def _made(original: Function, kind: str, shown: str) -> Function:
    if kind == SDPA:
        return _of_sdpa(original, FUNCTION if shown == SDPA else shown)
    if kind == LAYER:
        return _of_layer(original)
    if kind in FAST_PATHS:
        return _of_others(original, kind, "nn fast path", _seen_calls.of_fast_path)
    if kind == "transformers":
        seen = _seen_calls.of_transformers
        return _of_others(original, kind, f"transformers {shown}", seen)
    package = getattr(original, "__module__", "package")
    return _of_others(original, kind, f"{package}.{kind}", PACKAGE_FUNCTIONS[kind])


def _of_sdpa(original: Function, shown: str) -> Function:
    """The stand-in for SDPA. `shown`: what the program calls it, for a module may have it under a
    name of its own."""
    import torch

    is_compiling, is_tracing = torch.compiler.is_compiling, torch._C._get_tracing_state
    plain = (torch.Tensor, torch.nn.Parameter)

    def note(  # noqa: PLR0917
        out: Any,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """Tells a call, which the original has accepted. A call that is known must cost little."""
        given = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if type(query) not in plain or query.is_nested or out is None:
            _tell(out, shown, lambda out: _of_tensors(out, shown, given))
            return
        mask = attn_mask
        if mask is not None:
            mask = (mask.shape, mask.stride(), mask.dtype)
        strides = None
        if not (query.is_contiguous() and key.is_contiguous() and value.is_contiguous()):
            strides = (query.stride(), key.stride(), value.stride())
        facts = (
            query.shape,
            key.shape,
            value.shape,
            strides,
            mask,
            query.dtype,
            out.dtype,
            query.device,
            out.requires_grad,
            dropout_p,
            is_causal,
            scale,
            shown,
        )
        for listener in LISTENERS.told:
            listener.heard(facts, _of_tensors, out, shown, given)

    @functools.wraps(original)
    def scaled_dot_product_attention(*given: Any, **named: Any) -> Any:
        if is_compiling():
            return original(*given, **named)
        if not LISTENERS.told or LISTENERS.inside.depth or is_tracing() is not None:
            return original(*given, **named)
        LISTENERS.inside.sdpa_calls += 1
        if LISTENERS.stopwatch is not None:
            return _timed(
                original, shown, given, named, lambda out: _of_named(out, shown, given, named)
            )
        out = original(*given, **named)
        note(out, *given, **named)
        return out

    with contextlib.suppress(AttributeError):  # TorchScript then compiles PyTorch's own function
        torch.jit._builtins._register_builtin(scaled_dot_product_attention, f"aten::{SDPA}")
    return scaled_dot_product_attention


def _of_tensors(out: Any, function: str, given: Sequence[Any]) -> SeenCall | None:
    """The facts of a call of SDPA; None where a compiler calls it with tensors of its own."""
    for tensor in given[:3]:
        if type(tensor).__name__ in _OF_COMPILERS:
            return None
        if not tensor.is_nested and any(type(size) is not int for size in tensor.shape):
            return None
    arguments = dict(zip(SIGNATURES[SDPA], given, strict=False))
    return _seen_calls.of_sdpa(out, function, int, arguments)


def _of_named(
    out: Any, function: str, given: Sequence[Any], named: Mapping[str, Any]
) -> SeenCall | None:
    arguments = named_arguments(SIGNATURES[SDPA], given, named)
    in_order = [arguments.get(name, _DEFAULTS.get(name)) for name in SIGNATURES[SDPA]]
    return _of_tensors(out, function, in_order)


_DEFAULTS = {"dropout_p": 0.0, "is_causal": False, "enable_gqa": False}
_OF_COMPILERS = ("FakeTensor", "FunctionalTensor")


def _of_layer(original: Function) -> Function:
    """The stand-in for F.multi_head_attention_forward, which calls SDPA where it gives no weights,
    and is one node of a graph."""
    of_weights = _of_others(original, LAYER, LAYER, _seen_calls.of_layer)

    @functools.wraps(original)
    def multi_head_attention_forward(*given: Any, **named: Any) -> Any:
        if named_arguments(SIGNATURES[LAYER], given, named).get("need_weights", True):
            return of_weights(*given, **named)
        return original(*given, **named)

    return multi_head_attention_forward


def _of_others(original: Function, kind: str, shown: str, seen: Seen) -> Function:
    """The stand-in for any other function. What it calls is a part of it."""
    import torch

    is_compiling, is_tracing = torch.compiler.is_compiling, torch._C._get_tracing_state
    is_traced, names = torch.compiler.is_dynamo_compiling, SIGNATURES[kind]
    compiled = original
    if kind == "transformers":
        compiled = traced(original, shown)

    @functools.wraps(original)
    def attention(*given: Any, **named: Any) -> Any:
        if is_compiling():
            return (compiled if is_traced() else original)(*given, **named)
        if not LISTENERS.told or LISTENERS.inside.depth or is_tracing() is not None:
            return original(*given, **named)

        inside, before = LISTENERS.inside, LISTENERS.inside.sdpa_calls
        alone = not (LISTENERS.as_served and kind == "transformers")

        def facts(out: Any) -> SeenCall | None:
            if not alone and inside.sdpa_calls > before:
                return None
            return seen(out, shown, int, named_arguments(names, given, named))

        inside.depth += alone
        try:
            if LISTENERS.stopwatch is not None:
                return _timed(original, shown, given, named, facts, alone=alone)
            out = original(*given, **named)
        finally:
            inside.depth -= alone
        _tell(out, shown, facts)
        return out

    return attention


def _tell(out: Any, function: str, facts: Callable[[Any], SeenCall | None]) -> None:
    """Tells a call whose arguments may be anything."""
    found = _described(out, function, facts)
    if found is not None:
        LISTENERS.heard(found)


def _described(out: Any, function: str, facts: Callable[[Any], SeenCall | None]) -> SeenCall | None:
    """A call that cannot be described must not end the program, so it is told as such."""
    try:
        return facts(out)
    except Exception as error:  # noqa: BLE001 - a program with a recorder inside goes on
        LISTENERS.missed(f"{function}: {type(error).__name__}: {error}")
        return None


def _timed(
    original: Function,
    shown: str,
    given: Any,
    named: Mapping[str, Any],
    facts: Callable[[Any], SeenCall | None],
    *,
    alone: bool = True,
) -> Any:
    """Makes the call by the stopwatch. `alone`: no call inside it is timed by itself."""
    stopwatch = LISTENERS.stopwatch
    assert stopwatch is not None
    on_gpu = any(getattr(each, "is_cuda", False) for each in (*given, *named.values()))
    call = functools.partial(original, *given, **named)
    LISTENERS.inside.depth += alone
    try:
        return stopwatch.made(call, lambda out: _described(out, shown, facts), on_gpu=on_gpu)
    finally:
        LISTENERS.inside.depth -= alone


REPLACEMENTS = Replacements()


def traced(original: Function, function: str) -> Function:
    """The function that torch.compile traces in place of `original`."""
    from torch._dynamo.comptime import comptime

    def attention(
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        *others: Any,
        **named: Any,
    ) -> Any:
        comptime(_begin, _nothing)
        out = original(module, query, key, value, attention_mask, *others, **named)
        note(
            function,
            *(out[0], query, key, value, attention_mask, named.get("position_bias")),
            (
                named.get("dropout", 0.0),
                named.get("scaling"),
                named.get("is_causal"),
                named.get("sliding_window"),
                named.get("softcap"),
                named.get("s_aux") is not None or getattr(module, "sinks", None) is not None,
                getattr(module, "is_causal", True),
            ),
        )
        return out

    def note(  # noqa: PLR0917
        function: str,
        out: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        position_bias: Any,
        options: tuple[Any, ...],
    ) -> None:
        comptime(_end, _nothing)

    return functools.wraps(original)(attention)


def _nothing() -> None:
    """Outside of Dynamo nothing is noted."""


def _begin(context: Any) -> None:
    output = _output(context)
    output.__dict__.setdefault("_evotune_begun", []).append(len(output.graph.nodes))


def _end(context: Any) -> None:
    try:
        _note(context)
    except Exception as error:  # noqa: BLE001 - the program is compiled all the same
        LISTENERS.missed(f"in a graph: {type(error).__name__}: {error}")


def _note(context: Any) -> None:
    output = _output(context)
    for node in list(output.graph.nodes)[output._evotune_begun.pop() :]:
        node.meta[INSIDE] = True
    names = ("query", "key", "value", "attention_mask", "position_bias")
    arguments = {name: _known(context, name) for name in names}
    dropout, scaling, causal, window, softcap, has_sinks, own_causal = _known(context, "options")
    module = SimpleNamespace(is_causal=own_causal, sinks=has_sinks or None)
    arguments |= {"module": module, "dropout": dropout, "scaling": scaling, "is_causal": causal}
    arguments |= {"sliding_window": window, "softcap": softcap}
    noted = output.__dict__.setdefault(NOTED, [])
    out, function = _known(context, "out"), _known(context, "function")
    noted.append((function, _seen_calls.of_transformers, out, arguments))


def _output(context: Any) -> Any:
    return context._ComptimeContext__tx.output


def _known(context: Any, name: str) -> Any:
    """What the compiler knows of a local variable: a tensor without values, or the value."""
    variable = context.get_local(name)._ComptimeVar__variable
    if variable.is_python_constant():
        return variable.as_python_constant()
    return variable.as_proxy().node.meta["example_value"]
