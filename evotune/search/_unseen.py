"""Remembers the configurations told, and finds one that was not proposed yet."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Collection, Iterator

from evotune.space.search_space import SearchSpace
from evotune.trial import Configuration

_DIGEST_BYTES = 12  # a billion configurations collide with a probability below 1e-11


class SeenConfigurations:
    """The set of configurations told so far, at some 100 bytes each.

    It has only configurations that the engine told. A candidate that a strategy considered and
    dropped stays available: a blacklist of such candidates cost Helion good configurations (#3518).
    """

    def __init__(self) -> None:
        self._digests: dict[bytes, None] = {}  # in order: the same trials give the same snapshot

    def add(self, configuration: Configuration) -> None:
        self._digests[_digest(configuration)] = None

    def __contains__(self, configuration: Configuration) -> bool:
        return _digest(configuration) in self._digests

    def __len__(self) -> int:
        return len(self._digests)

    def snapshot(self) -> str:
        return base64.b64encode(b"".join(self._digests)).decode()

    def restore(self, snapshot: str) -> None:
        data = base64.b64decode(snapshot)
        self._digests = {
            data[i : i + _DIGEST_BYTES]: None for i in range(0, len(data), _DIGEST_BYTES)
        }


class UnseenConfigurations:
    """Finds configurations of a space that are neither told nor pending.

    Between calls it remembers how far it has enumerated the space. A configuration that was told
    stays told, so the answers do not depend on earlier calls.
    """

    def __init__(self, space: SearchSpace, seen: SeenConfigurations) -> None:
        self._space = space
        self._seen = seen
        self.forget()

    def forget(self) -> None:
        """Begins the enumeration again, as needed when the told configurations are replaced."""
        self._rest: Iterator[Configuration] = self._space.enumerate()
        self._passed: list[Configuration] = []  # enumerated, and not told when last looked at

    def is_free(self, configuration: Configuration, pending: Collection[Configuration]) -> bool:
        return configuration not in pending and configuration not in self._seen

    def sample(
        self, rng: random.Random, pending: Collection[Configuration], attempts: int = 256
    ) -> Configuration | None:
        """A free configuration drawn from the space; the first free one when all attempts fail.

        Attempts fail only in a space that is nearly exhausted. None when it is exhausted.
        """
        for _ in range(attempts):
            configuration = self._space.sample(rng)
            if self.is_free(configuration, pending):
                return configuration
        return self.first(pending)

    def first(self, pending: Collection[Configuration]) -> Configuration | None:
        """The first free configuration in the space's order; amortised constant time."""
        self._passed = [c for c in self._passed if c not in self._seen]
        for configuration in self._passed:
            if configuration not in pending:
                return configuration
        for configuration in self._rest:
            if configuration in self._seen:
                continue
            self._passed.append(configuration)
            if configuration not in pending:
                return configuration
        return None


def _digest(configuration: Configuration) -> bytes:
    return hashlib.blake2b(configuration.key.encode(), digest_size=_DIGEST_BYTES).digest()
