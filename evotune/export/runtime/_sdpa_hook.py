"""Serves `torch.nn.functional.scaled_dot_product_attention` itself while a package is active.

A replacement of the function in `torch.nn.functional` asks the active packages first. The
alternative, to override PyTorch's operators below SDPA in the dispatcher, has drawbacks:

- The fused operators return a logsumexp that the kernels do not compute. In a graph that
  torch.compile made for training, the operator runs without grad mode on tensors that do not
  require grad, and the backward pass reads that logsumexp: an override could not detect that.
- An override of `aten::scaled_dot_product_attention` has no way back to PyTorch's own
  implementation in native code, and the way through Python costs more than the function here.

torch.compile traces through the replacement as through any Python function, and guards on it, so
that it compiles again after `deactivate`. Code that took the function out of the module before
(`from torch.nn.functional import scaled_dot_product_attention`), and C++ code, is not served.

All packages in a process share one replacement, whichever of them made it. It asks their servers:
functions of (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa) that return the
output, or None for a call that they do not serve.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

_NAME = "scaled_dot_product_attention"
_SHARED = "_evotune_hook_1"  # another number for another agreement between packages
Server = Callable[..., "torch.Tensor | None"]


class Hook:
    """One package's switch. `deactivate` undoes `activate`, however often that was called; blocks
    of `with active():` nest. Calls of all threads are served while the switch is on or a block is
    open."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._on = False
        self._open_blocks = 0
        self._layer: Any = None

    def activate(self) -> None:
        with _shared().lock:
            self._on = True
            self._layer = _added(self._server, self._layer)

    def deactivate(self) -> None:
        with _shared().lock:
            self._on = False
            self._leave()

    def take_over(self, other: Hook) -> None:
        """Switches the other one off, and this one on if the other one was. Open blocks of the
        other one continue."""
        with _shared().lock:
            if other._on:
                other.deactivate()
                self.activate()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with _shared().lock:
            self._open_blocks += 1
            self._layer = _added(self._server, self._layer)
        try:
            yield
        finally:
            with _shared().lock:
                self._open_blocks -= 1
                self._leave()

    @property
    def is_active(self) -> bool:
        return self._on or self._open_blocks > 0

    def _leave(self) -> None:
        if self._layer is not None and not self.is_active:
            _remove(self._server, self._layer)
            self._layer = None


class _Layer:
    """A replacement of the function in the module, and the servers that it asks, the last activated
    one first."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.servers: tuple[Server, ...] = ()
        self.replacement = _replacement(self)


class _Shared:
    """Kept in `torch.nn.functional`, where all packages find it.

    - layers: by the identity of their originals. There are several if other code replaced the
      function too. They are kept, because TorchScript knows replacements by their identity.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.layers: dict[int, Any] = {}


def _shared() -> _Shared:
    found: _Shared = functional.__dict__.setdefault(_SHARED, _Shared())
    return found


def _added(server: Server, layer: Any) -> Any:
    """The layer that asks the server from now on."""
    found = getattr(functional, _NAME)
    layers = _shared().layers
    own = next((each for each in layers.values() if each.replacement is found), None)
    if own is None:
        own = layers.get(id(found)) or layers.setdefault(id(found), _Layer(found))
        setattr(functional, _NAME, own.replacement)
    if layer is not None and layer is not own:
        _remove(server, layer)
    if server not in own.servers:
        own.servers = (server, *own.servers)
    return own


def _remove(server: Server, layer: Any) -> None:
    """Restores the original when no server is left. If other code has replaced the function since,
    the replacement stays below theirs and passes calls on."""
    layer.servers = tuple(other for other in layer.servers if other != server)
    if not layer.servers and getattr(functional, _NAME) is layer.replacement:
        setattr(functional, _NAME, layer.original)


def _replacement(layer: _Layer) -> Any:
    original = layer.original

    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        for server in layer.servers:
            out = server(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            if out is not None:
                return out
        if scale is None and enable_gqa is False:  # as older replacements by others take it
            return original(query, key, value, attn_mask, dropout_p, is_causal)  # type: ignore[no-any-return]
        return original(  # type: ignore[no-any-return]
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )

    scaled_dot_product_attention.__doc__ = original.__doc__
    with contextlib.suppress(AttributeError):  # TorchScript then compiles PyTorch's own function
        torch.jit._builtins._register_builtin(
            scaled_dot_product_attention, "aten::scaled_dot_product_attention"
        )
    return scaled_dot_product_attention
