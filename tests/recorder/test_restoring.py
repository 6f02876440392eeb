"""After a recording all functions are as they were, and modules that come later are seen."""

from __future__ import annotations

import os
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import evotune

_PYTORCHS = F.scaled_dot_product_attention


def patched() -> list[object]:
    """Everything that a recording replaces."""
    return [
        F.scaled_dot_product_attention,
        F.multi_head_attention_forward,
        torch._native_multi_head_attention,
        torch._transformer_encoder_layer_fwd,
        *sys.meta_path,
    ]


def call() -> None:
    x = torch.ones(1, 1, 4, 8)
    F.scaled_dot_product_attention(x, x, x)


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module that took SDPA out of its place before."""
    module = types.ModuleType("a_users_module")
    module.sdpa = F.scaled_dot_product_attention  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_everything_is_restored_after_an_exception(user: types.ModuleType) -> None:
    before = patched()
    meanwhile = []

    def failing() -> None:
        meanwhile.append(patched())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evotune.record(failing)
    assert meanwhile != [before]
    assert patched() == before
    assert user.sdpa is _PYTORCHS
    import torch._dynamo.output_graph as graphs

    assert graphs.OutputGraph.call_user_compiler.__module__ == "torch._dynamo.output_graph"


def test_the_function_is_seen_where_another_module_has_it(user: types.ModuleType) -> None:
    x = torch.ones(1, 1, 4, 8)
    with evotune.recording() as calls:
        user.sdpa(x, x, x)
    assert calls.count == 1
    user.sdpa(x, x, x)
    assert calls.count == 1


def test_a_module_that_is_imported_meanwhile_is_seen_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_meanwhile.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "loader = __loader__\n"
        "def eager_attention_forward(module, query, key, value, attention_mask, **others):\n"
        "    return query @ key.transpose(2, 3) @ value, None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    x = torch.ones(1, 1, 4, 8)
    with evotune.recording() as calls:
        import imported_meanwhile as user  # type: ignore[import-not-found]

        user.sdpa(x, x, x)
        user.eager_attention_forward(None, x, x, x, None)
    monkeypatch.delitem(sys.modules, user.__name__)
    functions = {call.entry.call["function"] for call in calls}
    assert functions == {"F.scaled_dot_product_attention", "transformers eager"}
    assert user.sdpa is _PYTORCHS
    assert user.eager_attention_forward.__code__.co_filename == user.__file__
    assert type(user.loader).__name__ == "SourceFileLoader" == type(user.__loader__).__name__


def test_what_somebody_else_put_in_its_place_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "scaled_dot_product_attention", _PYTORCHS)
    with evotune.recording() as calls:
        below = F.scaled_dot_product_attention

        def theirs(*given: Any, **named: Any) -> Any:
            return below(*given, **named)

        F.scaled_dot_product_attention = theirs
        call()
    assert F.scaled_dot_product_attention is theirs
    call()
    assert calls.count == 1
    F.scaled_dot_product_attention = below  # as their deactivate would
    with evotune.recording() as again:
        call()
    assert again.count == 1
    assert F.scaled_dot_product_attention is _PYTORCHS


def test_a_child_that_is_forked_records_nothing() -> None:
    with evotune.recording() as calls:
        child = os.fork()
        if child == 0:
            F.scaled_dot_product_attention(*[torch.ones(1, 1, 1, 1, device="meta")] * 3)
            os._exit(calls.count)
        call()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert calls.count == 1


def test_a_script_compiles_to_pytorchs_own_operator() -> None:
    def attention(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)

    x = torch.rand(1, 1, 4, 8)
    with evotune.recording(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(attention, (x,))
    assert "aten::scaled_dot_product_attention" in str(traced.graph)
    assert torch.equal(traced(x), attention(x))


def test_an_export_sees_the_program_alone() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    x = torch.rand(1, 1, 4, 8)
    plain = torch.export.export(Model(), (x,))
    with evotune.recording() as calls:
        recorded = torch.export.export(Model(), (x,))
        assert not calls  # nothing was computed
    targets = [[node.target for node in each.graph.nodes] for each in (plain, recorded)]
    assert targets[0] == targets[1]
