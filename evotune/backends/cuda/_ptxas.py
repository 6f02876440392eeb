"""Reads the figures that ptxas prints of each function (`--ptxas-options=-v`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from evotune.trial import Json

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_CONSTANT = re.compile(r"(\d+) bytes cmem\[\d+\]")
_CUMULATIVE = re.compile(r"(\d+) bytes cumulative stack size")
_SERIALIZED = re.compile(r"wgmma\.mma_async instructions are serialized .* function '([^']+)'")
_STACK_FIGURES = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")


def read_figures(log: str) -> dict[str, Json]:
    """The worst of every figure over the entry functions, and each function's own under `entries`.

    A function that is called and not inlined counts for every entry, since ptxas does not say which
    entry calls it.
    """
    entries: dict[str, dict[str, int]] = {}
    called = dict.fromkeys(_STACK_FIGURES, 0)
    serialized: set[str] = set()
    entry = subject = ""
    for line in log.splitlines():
        if found := _ENTRY.search(line):
            entry = found.group(1)
            entries[entry] = {}
        elif found := _SERIALIZED.search(line):
            serialized.add(found.group(1))
        elif found := _PROPERTIES.search(line):
            subject = found.group(1)
        elif found := _STACK.search(line):
            figures = dict(zip(_STACK_FIGURES, map(int, found.groups()), strict=True))
            _keep_worst(entries[entry] if subject == entry and entry else called, figures)
        elif (found := _REGISTERS.search(line)) and entry:
            _keep_worst(entries[entry], _usage(line, int(found.group(1))))
    called["serialized"] = int(bool(serialized - entries.keys()))
    for name, own in entries.items():
        _keep_worst(own, {**called, "serialized": max(called["serialized"], name in serialized)})
    worst: dict[str, Json] = {}
    for own in entries.values():
        _keep_worst(worst, own)
    return {**worst, "entries": entries}


def _usage(line: str, registers: int) -> dict[str, int]:
    figures = {
        "registers": registers,
        "static_shared_bytes": sum(map(int, _SHARED.findall(line))),
        "constant_bytes": sum(map(int, _CONSTANT.findall(line))),
    }
    cumulative = _CUMULATIVE.search(line)
    return {**figures, "stack_bytes": int(cumulative.group(1))} if cumulative else figures


def _keep_worst(kept: dict[str, Json] | dict[str, int], figures: Mapping[str, int]) -> None:
    for name, value in figures.items():
        kept[name] = max(value, kept.get(name, value))
