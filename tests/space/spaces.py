"""Small space files for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evotune.space.bound import BoundSpace, bind
from evotune.space.document import SpaceDocument, parse_space
from evotune.trial import Value

HEAD = """\
name: small
problem: {name: attention, shapes: [{n: 64}]}
kernels: {plain: {source: kernels/a.cpp, entry: f}}
"""
DEVICE: Mapping[str, Value] = {"shared_bytes_per_block": 101376, "threads": 1024}


def parse_text(body: str) -> SpaceDocument:
    """A space file of HEAD and `body`."""
    return parse_space(HEAD + body)


def bind_text(body: str, environments: Sequence[Mapping[str, Value]] = ({"n": 64},)) -> BoundSpace:
    return bind(parse_text(body), environments, DEVICE)
