"""Random streams derived from their purpose, so that none has to be stored."""

from __future__ import annotations

import hashlib
import random


def stream(seed: int, purpose: str, number: int) -> random.Random:
    """The generator for one purpose of one proposal: always the same, unrelated to others."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "big"))
