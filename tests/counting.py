"""Counts function calls: a measure of work that, unlike time, is the same on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def calls_made(work: Callable[[], object], limit: int) -> int:
    """How many functions, Python's and C's, `work` calls; AssertionError at once beyond `limit`."""
    count = 0

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")
        if count > limit:
            sys.setprofile(None)
            raise AssertionError(f"more than {limit:,} calls")

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
