"""Attention functions of transformers while torch.compile traces them.

Those by formula leave no call of SDPA in the graph, and others repeat the heads of keys before they
call it. So the call is noted while it is traced, on Dynamo's graph: `_compiled_graphs` finds it
there, and passes over the calls of SDPA inside it. The graph gets no node from this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

from evotune.recorder import _seen_calls
from evotune.recorder._listeners import LISTENERS

INSIDE = "evotune_inside"
"""In a node's `meta`: the node is a part of a call that is noted."""
NOTED = "_evotune_noted"
"""An attribute of Dynamo's graph: functions, results and arguments of the calls."""
Function: TypeAlias = Callable[..., Any]


def traced(original: Function, function: str) -> Function:
    """The function as torch.compile is to trace it."""
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
            *(out[0], query, key, value, attention_mask),
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
    names = ("query", "key", "value", "attention_mask")
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
