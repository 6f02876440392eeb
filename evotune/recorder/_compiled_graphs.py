"""Reads calls of attention out of the graphs that torch.compile makes, and counts their runs.

Dynamo passes each graph to the user's backend. This module reads the graph's nodes first, and wraps
what the backend returns in a function that reports the graph's calls at each run, so that replays
of CUDA graphs count too. Graph and backend do not change. Sizes that a graph leaves open are
integer inputs of it, so each run reports its own.

Graphs that are compiled while a recording is open stay wrapped in Dynamo's cache. They report
nothing while no recording is open.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from evotune.recorder import _seen_calls
from evotune.recorder._replaced_functions import (
    FAST_PATHS,
    INSIDE,
    LAYER,
    NOTED,
    PACKAGE_FUNCTIONS,
    SDPA,
    SIGNATURES,
    Seen,
    named_arguments,
)
from evotune.recorder._seen_calls import LISTENERS, SizeOf
from evotune.recorder.described_calls import SeenCall

MODULE = "torch._dynamo.output_graph"
_METHOD = "call_user_compiler"
_SERVED = "_served"
_MOST_RUNS = 4096


class CompiledGraphs:
    """The replacement of Dynamo's method that calls the backend, while a recording is open."""

    def __init__(self) -> None:
        self._original: Any = None

    def watch(self) -> None:
        """Starts to watch Dynamo, if it is loaded."""
        module = sys.modules.get(MODULE)
        owner = getattr(module, "OutputGraph", None)
        if owner is None or self._original is not None:
            return
        original = self._original = getattr(owner, _METHOD)

        def call_user_compiler(graph: Any, module: Any, *others: Any, **named: Any) -> Any:
            if getattr(graph, "package", None) is not None:  # it is written to a file
                return original(graph, module, *others, **named)
            noted = [_Call(*each) for each in getattr(graph, NOTED, ())]
            calls = [*noted, *_calls(module)]
            runs = _Runs(module, calls) if calls else None
            compiled = original(graph, module, *others, **named)
            return compiled if runs is None else runs.around(compiled)

        setattr(owner, _METHOD, call_user_compiler)

    def restore(self) -> None:
        if self._original is not None:
            setattr(sys.modules[MODULE].OutputGraph, _METHOD, self._original)
            self._original = None


class _Call:
    """One call of a graph: its function, its arguments and its result as the compiler sees them."""

    def __init__(self, function: str, seen: Seen, out: Any, arguments: Mapping[str, Any]) -> None:
        self._function = function
        self._seen = seen
        self._out = out
        self._arguments = arguments

    def facts(self, size: SizeOf) -> SeenCall | None:
        return self._seen(self._out, self._function, size, self._arguments)


class _Runs:
    """Tells the calls of one graph."""

    def __init__(self, module: Any, calls: list[_Call]) -> None:
        self._calls = calls
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        values = [node.meta.get("example_value") for node in inputs]
        self._places = [at for at, value in enumerate(values) if _is_open(value)]
        self._symbols = [values[at].node.expr for at in self._places]
        self._known: dict[tuple[int, ...], list[SeenCall]] = {}
        if not self._places:
            self._at(())

    def around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        def told(*given: Any) -> Any:
            if not LISTENERS.told or LISTENERS.inside.depth or LISTENERS.stopwatch is not None:
                return compiled(*given)
            sizes = tuple(given[place] for place in self._places)
            out = compiled(*given)
            for call in self._at(sizes):
                LISTENERS.heard(call)
            return out

        return told

    def _at(self, sizes: tuple[int, ...]) -> list[SeenCall]:
        """The calls of a run whose open sizes are these."""
        found = self._known.get(sizes)
        if found is None:
            values = dict(zip(self._symbols, sizes, strict=True))

            def size(of: Any) -> int:
                if not _is_open(of):
                    return int(of)
                known = of.node.expr.xreplace(values)
                # The graph does not read some sizes. Of these only the first run's are known.
                return int(known if getattr(known, "is_number", True) else of.node.hint)

            found = []
            for call in self._calls:
                try:
                    seen = call.facts(size)
                except Exception as error:  # noqa: BLE001 - the program goes on
                    LISTENERS.missed(f"in a graph: {type(error).__name__}: {error}")
                    continue
                found += [] if seen is None else [seen]
            if len(self._known) >= _MOST_RUNS:
                self._known.clear()
            self._known[sizes] = found
        return found


def _is_open(value: Any) -> bool:
    """Whether a size is one that the graph leaves open."""
    return type(value).__name__ == "SymInt"


def _calls(module: Any) -> Iterator[_Call]:
    """The calls in a graph, in those too that a node of it calls, as for checkpoints."""
    targets = _targets()
    for node in module.graph.nodes:
        if node.op != "call_function" or node.meta.get(INSIDE):
            continue
        for argument in node.args:
            if getattr(argument, "op", "") == "get_attr":
                inner = getattr(module, str(argument.target), None)
                if hasattr(inner, "graph"):
                    yield from _calls(inner)
        kind, function, seen = targets.get(node.target) or _of_operator(node.target)
        if seen is not None:
            out = node.meta.get("example_value")
            given = [_value(each) for each in node.args]
            named = {name: _value(each) for name, each in node.kwargs.items()}
            yield _Call(function, seen, out, named_arguments(SIGNATURES[kind], given, named))


_NONE: tuple[str, str, Seen | None] = ("", "", None)


def _targets() -> dict[Any, tuple[str, str, Seen | None]]:
    import torch

    found: dict[Any, tuple[str, str, Seen | None]] = {
        torch._C._nn.scaled_dot_product_attention: (
            *(SDPA, "F.scaled_dot_product_attention"),
            _seen_calls.of_sdpa,
        )
    }
    seen: dict[str, Seen] = dict.fromkeys(FAST_PATHS, _seen_calls.of_fast_path)
    for owner, name in (*((torch, name) for name in FAST_PATHS), (torch.nn.functional, LAYER)):
        function = getattr(owner, name)
        function = getattr(function, "__wrapped__", function)  # not its stand-in
        found[function] = (name, "nn fast path", seen.get(name, _seen_calls.of_layer))
    return found


def _of_operator(target: Any) -> tuple[str, str, Seen | None]:
    """An operator of an evotune package; `_NONE` for anything else."""
    schema = getattr(target, "_schema", None)
    namespace, _, name = getattr(schema, "name", "").rpartition("::")
    kind = "attention" if name == _SERVED else name
    if namespace in ("", "aten") or kind not in PACKAGE_FUNCTIONS:
        return _NONE
    return kind, f"{namespace}.{kind}", PACKAGE_FUNCTIONS[kind]


def _value(argument: Any) -> Any:
    """What the compiler knows of an argument: a tensor without values, or the number itself."""
    return argument.meta.get("example_value") if hasattr(argument, "meta") else argument


COMPILED = CompiledGraphs()
