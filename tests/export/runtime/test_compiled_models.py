"""Masks of transformers' models while torch.compile traces, and the calls that kernels serve there.

The models themselves are tried where transformers is installed; else a stand-in for its registry
calls the package as they do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.export.runtime.packages import HEAD_DIM, imported, package_for_models
from tests.export.runtime.registry import Registry
from tests.export.runtime.test_transformers_features import (
    LAYERS,
    MODULE,
    SMALL,
    WINDOW,
    config_of,
    masked,
)
from tests.inductor import quick_inductor
from tests.sweeps import swept

KEYS = 30
Layer = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """PyTorch keeps compiled code by the code of a function, and tests share theirs."""
    torch._dynamo.reset()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, binaries: Path) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("compiled_models")
    with imported(package_for_models(folder, binaries, "for_compiled_models")) as module:
        yield module


def tensors(queries: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((4, queries), (2, KEYS), (2, KEYS))
    return tuple(torch.randn(1, *each, HEAD_DIM, generator=generator) for each in sizes)


def options_of(layer: dict[str, Any]) -> dict[str, Any]:
    return {**layer, "s_aux": torch.arange(4.0)} if layer.get("s_aux") else layer


def right(queries: int, layer: dict[str, Any], seen: torch.Tensor | None = None) -> torch.Tensor:
    """The output of a layer in float64. `seen` hides further keys."""
    q, k, v = (each.double() for each in tensors(queries))
    k, v = (each.repeat_interleave(2, 1) for each in (k, v))
    scores = q @ k.transpose(-1, -2) / HEAD_DIM**0.5
    if layer.get("softcap"):
        scores = torch.tanh(scores / layer["softcap"]) * layer["softcap"]
    behind = torch.arange(KEYS - queries, KEYS)[:, None] - torch.arange(KEYS)
    allowed = (behind >= 0) & (behind < layer.get("sliding_window", KEYS))
    scores = scores.masked_fill(~(allowed if seen is None else allowed & seen), -torch.inf)
    if layer.get("s_aux"):
        sinks = torch.arange(4.0).double().view(1, 4, 1, 1).expand(1, 4, queries, 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return (weights @ v).transpose(1, 2).float()


def model_of(registry: Registry, layer: dict[str, Any], queries: int, **named: Any) -> Layer:
    """A model of a layer: it makes the mask and hands it on, as models do."""
    options = options_of(layer)

    def model(*given: torch.Tensor, change: Any = None) -> torch.Tensor:
        size = layer.get("sliding_window")
        mask = masked(registry, queries, KEYS, **{"local_size": size, **named})
        if change is not None:
            mask = change(mask)
        out: torch.Tensor = registry.forward(MODULE, *given, mask, **options)[0]
        return out

    return model


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("layer", LAYERS[:1])
def test_a_window_is_in_one_graph(
    registry: Registry, served: Callable[[], int], layer: dict[str, Any], backend: str
) -> None:
    compiled = torch.compile(model_of(registry, layer, KEYS), fullgraph=True, backend=backend)
    with quick_inductor():
        for _ in range(2):
            torch.testing.assert_close(compiled(*tensors(KEYS)), right(KEYS, layer))
    assert (served(), registry.left_to_sdpa) == (2, 0)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("queries", [KEYS, 7, 1])
@pytest.mark.parametrize("layer", LAYERS)
def test_compiled_layers_are_served(
    registry: Registry, served: Callable[[], int], layer: dict[str, Any], queries: int
) -> None:
    """A prompt, the next part of one, and a token after it."""
    compiled = torch.compile(model_of(registry, layer, queries), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*tensors(queries)), right(queries, layer))
    assert (served(), registry.left_to_sdpa) == (1, 0)


def test_the_graph_holds_no_mask(registry: Registry) -> None:
    """No code that runs after the graph needs it."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    layer = {"sliding_window": WINDOW}
    torch.compile(model_of(registry, layer, KEYS), fullgraph=True, backend=backend)(*tensors(KEYS))
    (outputs,) = next(node for node in graphs[0].graph.nodes if node.op == "output").args
    assert len(outputs) == 1


HIDDEN = torch.arange(KEYS) != 3
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "joined": lambda mask: mask & HIDDEN,
    "cloned": lambda mask: mask.clone().logical_and_(HIDDEN),
    "added": lambda mask: torch.zeros(mask.shape).masked_fill(~(mask & HIDDEN), -torch.inf),
    "viewed": lambda mask: (mask & HIDDEN)[:, :, :KEYS, :KEYS],
    "in place": lambda mask: mask.logical_and_(HIDDEN),
    "written": lambda mask: _written(mask, mask),
    "written through a view": lambda mask: _written(mask, mask[:, :, :, :9]),
}


def _written(mask: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    part[..., 3] = False
    return mask


@pytest.mark.parametrize(
    ("layer", "change"),
    swept(
        [(layer, change) for layer in LAYERS[:1] + LAYERS[3:] for change in CHANGES],
        lambda each: each[0] is LAYERS[0],
    ),
)
def test_a_mask_that_a_compiled_model_changed_counts(
    registry: Registry, served: Callable[[], int], layer: dict[str, Any], change: str
) -> None:
    model = model_of(registry, layer | {"sliding_window": WINDOW}, KEYS)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    out = compiled(*tensors(KEYS), change=CHANGES[change])
    expected = right(KEYS, layer | {"sliding_window": WINDOW}, HIDDEN)
    rows = slice(4, None)  # SDPA gives NaN for a row that sees no key
    torch.testing.assert_close(out[:, rows], expected[:, rows])
    assert served() == 0


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "named",
    [
        {"allow_is_causal_skip": False},  # another mask is joined to it
        {"use_vmap": True},
        {"local_size": WINDOW + 1},  # chunks, or another window than the model's
        {"config": SimpleNamespace(sliding_window=WINDOW, attention_chunk_size=WINDOW)},
        {"q_offset": torch.tensor(0)},
        {"attention_mask": HIDDEN[None]},  # nobody may look into it
        {"attention_mask": torch.ones(1, KEYS, dtype=torch.bool)},
    ],
)
def test_a_mask_that_may_say_more_is_used(
    registry: Registry, served: Callable[[], int], named: dict[str, Any]
) -> None:
    layer = {"sliding_window": WINDOW}
    model = model_of(registry, layer, KEYS, **named)
    expected = right(KEYS, {"sliding_window": named.get("local_size", WINDOW)}, _hidden_by(named))
    out = torch.compile(model, fullgraph=True, backend="eager")(*tensors(KEYS))
    torch.testing.assert_close(out, expected)
    assert (served(), registry.left_to_sdpa) == (0, 1)


def _hidden_by(named: dict[str, Any]) -> torch.Tensor | None:
    padding: torch.Tensor | None = named.get("attention_mask")
    return padding


def test_open_lengths_keep_their_mask(registry: Registry, served: Callable[[], int]) -> None:
    def model(*given: torch.Tensor) -> torch.Tensor:
        keys = given[1].shape[2]
        mask = masked(registry, keys, keys, local_size=WINDOW)
        out: torch.Tensor = registry.forward(MODULE, *given, mask, sliding_window=WINDOW)[0]
        return out

    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(*tensors(KEYS)), right(KEYS, {"sliding_window": WINDOW}))
    assert (served(), registry.left_to_sdpa) == (0, 1)


def test_an_exported_program_keeps_its_mask(registry: Registry, served: Callable[[], int]) -> None:
    layer = {"sliding_window": WINDOW}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of(registry, layer, KEYS)

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            return self.model(*given)

    for strict in (True, False):
        program = torch.export.export(Model(), tensors(KEYS), strict=strict)
        out = program.module()(*tensors(KEYS))
        torch.testing.assert_close(out, right(KEYS, layer))
        assert served() == 0


def test_a_layer_that_is_compiled_alone_keeps_its_mask(
    registry: Registry, served: Callable[[], int]
) -> None:
    """Somebody may have written into the mask, and a graph cannot ask."""
    layer = torch.compile(_layer(registry), fullgraph=True, backend="eager")
    mask = masked(registry, KEYS, KEYS, local_size=WINDOW)
    assert mask is not None
    torch.testing.assert_close(layer(mask, *tensors(KEYS)), right(KEYS, OF_WINDOW))
    mask[..., 3] = False
    _is_of_the_written_mask(layer(mask, *tensors(KEYS)))
    assert (served(), registry.left_to_sdpa) == (0, 2)


def test_a_mask_that_leaves_a_graph_has_no_note_that_counts(
    registry: Registry, served: Callable[[], int]
) -> None:
    def made() -> torch.Tensor | None:
        return masked(registry, KEYS, KEYS, local_size=WINDOW)

    mask = torch.compile(made, fullgraph=True, backend="eager")()
    assert mask is not None
    torch.testing.assert_close(_layer(registry)(mask, *tensors(KEYS)), right(KEYS, OF_WINDOW))
    mask[..., 3] = False
    _is_of_the_written_mask(_layer(registry)(mask, *tensors(KEYS)))
    assert (served(), registry.left_to_sdpa) == (0, 2)


@pytest.mark.parametrize("writes", [False, True])
def test_a_note_ends_at_a_break_of_the_graph(
    registry: Registry, served: Callable[[], int], writes: bool
) -> None:
    @torch._dynamo.disable
    def touch(mask: torch.Tensor) -> None:
        if writes:
            mask[..., 3] = False

    @torch.compile(backend="eager")
    def model(*given: torch.Tensor) -> torch.Tensor:
        mask = masked(registry, KEYS, KEYS, local_size=WINDOW)
        assert mask is not None
        touch(mask)
        return _layer(registry)(mask, *given)

    out = model(*tensors(KEYS))
    if writes:
        _is_of_the_written_mask(out)
    else:
        torch.testing.assert_close(out, right(KEYS, OF_WINDOW))
    assert (served(), registry.left_to_sdpa) == (0, 1)


def test_a_checkpoint_in_the_graph_keeps_the_mask(
    registry: Registry, served: Callable[[], int]
) -> None:
    def inner(mask: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        mask[..., 3] = False
        return _layer(registry)(mask, *given)

    @torch.compile(backend="eager")
    def model(*given: torch.Tensor) -> torch.Tensor:
        mask = masked(registry, KEYS, KEYS, local_size=WINDOW)
        out: torch.Tensor = torch.utils.checkpoint.checkpoint(
            inner, mask, *given, use_reentrant=False
        )
        return out

    _is_of_the_written_mask(model(*tensors(KEYS)))
    assert served() == 0


OF_WINDOW = {"sliding_window": WINDOW}


def _layer(registry: Registry) -> Layer:
    def layer(mask: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = registry.forward(MODULE, *given, mask)[0]
        return out

    return layer


def _is_of_the_written_mask(out: torch.Tensor) -> None:
    """Rows of a window that holds hidden keys alone have no value with SDPA."""
    torch.testing.assert_close(out[:, 4:], right(KEYS, OF_WINDOW, HIDDEN)[:, 4:])


def test_another_compiler_gets_no_answer_of_an_earlier_trace(package: ModuleType) -> None:
    tracing = __import__(f"{package.__name__}._tracing", fromlist=["_"])
    tracing._looks.append(True)
    assert not tracing.is_of_this_graph(torch.ones(1))


def test_an_older_pytorch_keeps_the_mask(
    package: ModuleType,
    registry: Registry,
    served: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before 2.8 torch.compile could not trace a note."""
    hook = __import__(f"{package.__name__}._transformers_hook", fromlist=["_"])
    monkeypatch.setattr(hook, "NOTES_ARE_TRACED", False)
    layer = {"sliding_window": WINDOW}
    compiled = torch.compile(model_of(registry, layer, KEYS), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*tensors(KEYS)), right(KEYS, layer))
    assert (served(), registry.left_to_sdpa) == (0, 1)


@pytest.mark.parametrize("name", ["Mistral", "Gemma2", "GptOss"])
def test_compiled_models_are_served(
    package: ModuleType, served: Callable[[], int], name: str
) -> None:
    transformers = pytest.importorskip("transformers")
    package.register_transformers()
    models = []
    for implementation in (package.__name__, "eager"):
        torch.manual_seed(0)
        made = transformers.AutoModelForCausalLM.from_config(
            config_of(transformers, name), attn_implementation=implementation
        ).eval()
        for layer in made.model.layers:
            if hasattr(layer.self_attn, "sinks"):
                torch.nn.init.normal_(layer.self_attn.sinks)
        models.append(made)
    ours, theirs = models
    tokens = torch.arange(2 * 20).view(2, 20) % 50
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    cache = transformers.DynamicCache(config=ours.config)
    out = compiled(tokens, past_key_values=cache).logits
    torch.testing.assert_close(out, theirs(tokens).logits)
    assert served() == SMALL["num_hidden_layers"], package.info()["misses"]
    padding = torch.ones_like(tokens)
    padding[1, :5] = 0
    out, expected = (model(tokens, attention_mask=padding).logits for model in (compiled, theirs))
    torch.testing.assert_close(out[0], expected[0])
    torch.testing.assert_close(out[1, 5:], expected[1, 5:])
    assert served() == 0
