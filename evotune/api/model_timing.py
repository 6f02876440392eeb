"""Times a model with and without exported packages, in alternation, and compares its results.

Each distinct call of attention is timed where the model makes it, on the model's own tensors: in a
CUDA graph on a GPU, elsewhere as Python issues it. The whole model is timed in up to three ways.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional
from torch.utils import _pytree

from evotune.api.loaded_packages import LoadedPackages
from evotune.api.model_package import Gain, ModelCall, ModelPackage
from evotune.api.recording_calls import timed_once
from evotune.recorder.described_calls import SeenCall, described
from evotune.recorder.recordings import timed_by
from evotune.timing.paired import TimingSettings, measure_paired

SDPA = "F.scaled_dot_product_attention"
"""What a recording calls the function that packages replace."""
OF_MODELS = TimingSettings(
    min_rounds=6, max_rounds=40, half_width=0.003, max_seconds=20.0, sample_us=20_000.0
)
OF_CALLS = TimingSettings(max_rounds=15, max_seconds=0.5, sample_us=2_000.0)
_ALL_CALLS_S = 120.0  # afterwards a call gets the fewest rounds
_UNSERVED_SAMPLES = 5
_SLOW_US = 200_000.0
"""After a switch to the other side, an untimed call comes first unless a call takes this long."""
_GRAPH_US, _MOST_IN_A_GRAPH = 500.0, 50
_HEAD_START_CYCLES = 100_000  # longer than it takes to queue a graph
_TIMES_PLAIN = 2.0
_SHARES: Mapping[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
"""By dtype, the share of a result's largest element that rounding may change it by."""
Around = Callable[[], AbstractContextManager[object]]


# The calls of attention.


def timed_calls(run: Callable[[], object], packages: LoadedPackages) -> list[ModelCall]:
    """Makes `run` and times each distinct call of attention in it, the most expensive first. What
    was compiled by torch.compile runs as Python."""
    stopwatch = _Calls(packages)
    with (
        timed_by(stopwatch, as_served=True),
        packages.calling_sdpa(),
        torch.compiler.set_stance("force_eager"),
    ):
        run()
    return stopwatch.found()


def on_gpu(calls: Sequence[ModelCall]) -> bool:
    """Whether any of them runs on the GPU."""
    gpu = torch.accelerator.current_accelerator()
    return gpu is not None and any(call.call.get("device") == gpu.type for call in calls)


def device_request(calls: Sequence[ModelCall]) -> str:
    """The request for the device on which most of the time is spent: the current GPU, or the CPU
    with this process's number of threads."""
    spent: dict[str, float] = {}
    for call in calls:
        kind = str(call.call.get("device"))
        spent[kind] = spent.get(kind, 0.0) + call.total_us
    kind = max(spent, key=lambda kind: spent[kind], default=torch.empty(0).device.type)
    gpu = torch.accelerator.current_accelerator()
    is_gpu = gpu is not None and kind == gpu.type
    return f"{kind}:{torch.cuda.current_device() if is_gpu else torch.get_num_threads()}"


@dataclasses.dataclass(slots=True)
class _Timed:
    """A distinct call. `once_us`: of each time that the model made it."""

    once_us: list[Callable[[], float]]
    time_us: float = 0.0
    served: bool = False
    gain: Gain | None = None
    why: str = ""
    fault: str = ""


class _Calls:
    """A stopwatch that times each distinct call with and without the packages."""

    def __init__(self, packages: LoadedPackages) -> None:
        self._packages = packages
        self._kept: dict[SeenCall, _Timed] = {}
        self._deadline_s = time.monotonic() + _ALL_CALLS_S

    def made(
        self, call: functools.partial[Any], seen: Callable[[Any], SeenCall | None], *, on_gpu: bool
    ) -> Any:
        out, once_us = timed_once(call, on_gpu=on_gpu)
        facts = seen(out)
        if facts is None:
            return out
        known = self._kept.setdefault(facts, _Timed([]))
        known.once_us.append(once_us)
        if len(known.once_us) > 1 or facts.function != SDPA:
            return out
        with _same_random_numbers():
            self._ask_packages(known, call, out)
            if not facts.grad:  # a call with grad would keep memory for each sample
                try:
                    self._time(known, call, on_gpu, graph=on_gpu)
                except RuntimeError:  # a call that no graph captures
                    self._time(known, call, on_gpu, graph=False)
        return out

    def found(self) -> list[ModelCall]:
        calls = []
        for facts, timed in self._kept.items():
            entry = described(facts, len(timed.once_us))
            first_us = min(once_us() for once_us in timed.once_us)
            calls.append(
                ModelCall(
                    problem=entry.problem or "",
                    shape=dict(entry.shape),
                    variant=dict(entry.variant),
                    dtype=entry.dtype or "",
                    call=dict(entry.call),
                    count=len(timed.once_us),
                    time_us=timed.time_us or first_us,
                    gain=timed.gain,
                    why=timed.why,
                    fault=timed.fault,
                )
            )
        return sorted(calls, key=lambda call: -call.total_us)

    def _ask_packages(self, known: _Timed, call: functools.partial[Any], out: Any) -> None:
        """Finds whether a kernel serves the call, and compares its result."""
        served, missed = self._packages.counts()
        with self._packages.active():
            tuned = _served(call)()
        now_served, now_missed = self._packages.counts()
        if now_served == served:
            new = (why for why, count in now_missed.items() if count > missed.get(why, 0))
            known.why = next(filter(None, new), "")
            return
        known.served = True
        error, allowed = difference(tuned, out, _wide_or(out, call), _SHARES[out.dtype])
        if not error <= allowed:
            known.fault = f"its result differs by {error:.1e}, {allowed:.1e} allowed"

    def _time(
        self, known: _Timed, call: functools.partial[Any], on_gpu: bool, *, graph: bool
    ) -> None:
        settings = OF_CALLS
        if time.monotonic() > self._deadline_s:
            settings = dataclasses.replace(settings, max_seconds=0.0)
        with self._packages.active():
            if known.served:
                known.gain = timed_pair(call, _served(call), settings, graph=graph, on_gpu=on_gpu)
                known.time_us = known.gain.without_us
                return
            (sampler,) = _samplers([(call, _nothing)], settings, graph=graph, on_gpu=on_gpu)
        known.time_us = statistics.median(sampler.time_us() for _ in range(_UNSERVED_SAMPLES))


def _served(call: functools.partial[Any]) -> functools.partial[Any]:
    """The call by way of the active packages."""
    return functools.partial(functional.scaled_dot_product_attention, *call.args, **call.keywords)


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Random numbers that are drawn inside do not change those that follow."""
    devices = [torch.cuda.current_device()] if _has_gpu() else []
    with torch.random.fork_rng(devices):
        yield


def _has_gpu() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


# Pairs of samples.

_nothing: Around = contextlib.nullcontext


def timed_pair(
    plain: Callable[[], object],
    tuned: Callable[[], object],
    settings: TimingSettings,
    *,
    around: Around = _nothing,
    graph: bool,
    on_gpu: bool,
) -> Gain:
    """The gain of `tuned`, which is called within `around`, over `plain`. `graph`: both are
    replayed from CUDA graphs, and the device's time counts."""
    sides = [(plain, _nothing), (tuned, around)]
    baseline, candidate = _samplers(sides, settings, graph=graph, on_gpu=on_gpu)
    measured = measure_paired(candidate, baseline, case="", baseline_name="", settings=settings)
    return Gain.of(measured)


def _samplers(
    sides: Sequence[tuple[Callable[[], object], Around]],
    settings: TimingSettings,
    *,
    graph: bool,
    on_gpu: bool,
) -> list[Any]:
    """A sampler for each side, all of as many calls."""
    wait = torch.cuda.synchronize if on_gpu else _done
    for call, around in sides:
        with around():
            call()
            call()
    wait()
    begin_s = time.perf_counter()
    sides[0][0]()
    wait()
    once_us = max(1.0, (time.perf_counter() - begin_s) * 1e6)
    if not graph:
        count = min(1000, math.ceil(settings.sample_us / once_us))
        untimed = once_us < _SLOW_US
        return [_Eager(call, around, count, wait, untimed=untimed) for call, around in sides]
    count = min(_MOST_IN_A_GRAPH, math.ceil(_GRAPH_US / once_us))
    replays = min(1000, math.ceil(settings.sample_us / (count * once_us)))
    pool = torch.cuda.graph_pool_handle()  # one for all, because no two replays overlap
    return [_Graphs(call, around, count, replays, pool) for call, around in sides]


def _done() -> None:
    pass


class _Eager:
    """Times calls that Python issues, from the first call to the end on the device."""

    def __init__(
        self,
        call: Callable[[], object],
        around: Around,
        count: int,
        wait: Callable[[], None],
        *,
        untimed: bool,
    ) -> None:
        self._call, self._around, self._count, self._wait = call, around, count, wait
        self._untimed = untimed

    def run(self) -> None:
        with self._around():
            self._call()

    def time_us(self) -> float:
        with self._around():
            if self._untimed:
                self._call()
            self._wait()
            begin_s = time.perf_counter()
            for _ in itertools.repeat(None, self._count):
                self._call()
            self._wait()
            return (time.perf_counter() - begin_s) * 1e6 / self._count


class _Graphs:
    """Times replays of CUDA graphs of `count` calls each, by events. Two graphs take turns, since
    a graph's place in memory changes its time."""

    def __init__(
        self, call: Callable[[], object], around: Around, count: int, replays: int, pool: Any
    ) -> None:
        self._count, self._replays = count, replays
        with around():
            graphs = [_captured(call, count, pool) for _ in range(2)]
        self._turns = itertools.cycle([graph for graph in graphs for _ in range(2)])
        self._first = graphs[0]
        event: Any = torch.cuda.Event
        self._begin, self._end = (event(enable_timing=True) for _ in range(2))
        self.run()

    def run(self) -> None:
        self._first.replay()

    def time_us(self) -> float:
        graph = next(self._turns)
        torch.cuda._sleep(_HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
        self._begin.record()
        for _ in range(self._replays):
            graph.replay()
        self._end.record()
        self._end.synchronize()
        elapsed_ms: float = self._begin.elapsed_time(self._end)
        return elapsed_ms * 1e3 / (self._replays * self._count)


def _captured(call: Callable[[], object], count: int, pool: Any) -> torch.cuda.CUDAGraph:
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        for _ in range(count):
            call()
    return graph


# Results.


def compare_results(
    run: Callable[[], object], packages: LoadedPackages, found: ModelPackage
) -> None:
    """Compares the result with the packages with the result without them, and notes it in `found`.

    Rounding makes both differ from the result with attention in a wider type. The packages' may
    differ twice as much as the plain one, and by a share of the largest element.
    """
    plain, again = _result(run), _result(run)
    with packages.active():
        tuned = _result(run)
    wide = plain
    with _wide_attention(), contextlib.suppress(RuntimeError):  # it takes more memory
        wide = _result(run)
    if [each.shape for each in tuned] != [each.shape for each in plain]:
        found.fault = "the results have other shapes with the package"
        return
    of_calls = max(_SHARES[getattr(torch, call.dtype)] for call in found.calls if call.gain)
    for each, other, once_more, reference in zip(tuned, plain, again, wide, strict=True):
        share = max(of_calls, _SHARES.get(other.dtype, 0.0))
        error, allowed = difference(each, other, reference, share)
        unsteady, known = difference(once_more, other, other, share)
        if not unsteady <= known:
            found.fault = "the model gives another result at each call"
        elif not error <= allowed:
            words = f"the results differ by {error:.1e} with the package, {allowed:.1e} allowed"
            found.fault = words
        if found.fault:
            return
        if error * found.allowed >= found.error * allowed:
            found.error, found.allowed = error, allowed


def difference(
    tuned: torch.Tensor, plain: torch.Tensor, wide: torch.Tensor, share: float
) -> tuple[float, float]:
    """The largest difference of `tuned` from the result in a wider type, and the one that rounding
    may make. Integers must be equal unless those of `plain` are not, either; elements that are not
    finite must be those of `plain`. NaN is a difference that nothing allows."""
    if not plain.is_floating_point():
        differs = not torch.equal(tuned, plain) and torch.equal(plain, wide)
        return float(differs), 0.5
    finite = torch.isfinite(plain)
    if not torch.equal(torch.isfinite(tuned), finite):
        return math.nan, 0.0
    tuned, plain, wide = (each[finite].double() for each in (tuned, plain, wide))
    if not plain.numel():
        return 0.0, 1.0
    error, own = (float((each - wide).abs().max()) for each in (tuned, plain))
    return error, _TIMES_PLAIN * own + share * float(wide.abs().max())


def _result(run: Callable[[], object]) -> list[torch.Tensor]:
    """Copies of the tensors in the result, with the same random numbers at each call."""
    with _same_random_numbers():
        torch.manual_seed(0)
        return [tensor.detach().clone() for tensor in _tensors(run())]


def _tensors(result: object) -> Iterator[torch.Tensor]:
    for leaf in _pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor):
            yield leaf.to_dense() if leaf.layout != torch.strided else leaf
        elif isinstance(leaf, Mapping):
            yield from _tensors(list(leaf.values()))
        elif dataclasses.is_dataclass(leaf):
            yield from _tensors(list(vars(leaf).values()))


@contextlib.contextmanager
def _wide_attention() -> Iterator[None]:
    """SDPA computes in a wider type."""
    original = functional.scaled_dot_product_attention

    def scaled_dot_product_attention(*given: Any, **named: Any) -> torch.Tensor:
        out: torch.Tensor = original(*given, **named)
        return _wide(functools.partial(original, *given, **named)).to(out.dtype)

    functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        functional.scaled_dot_product_attention = original


def _wide(call: functools.partial[Any]) -> torch.Tensor:
    """The result of a call of SDPA in float64, or for half precision in float32."""
    query = call.args[0] if call.args else call.keywords["query"]
    half = query.dtype in (torch.float16, torch.bfloat16)

    def widened(each: Any) -> Any:
        is_float = isinstance(each, torch.Tensor) and each.is_floating_point()
        return each.to(torch.float32 if half else torch.float64) if is_float else each

    named = {name: widened(value) for name, value in call.keywords.items()}
    with torch.autocast(query.device.type, enabled=False), torch.no_grad():
        out: torch.Tensor = call.func(*map(widened, call.args), **named)
    return out


def _wide_or(out: torch.Tensor, call: functools.partial[Any]) -> torch.Tensor:
    """`_wide`; the result itself if there is not enough memory."""
    try:
        return _wide(call)
    except RuntimeError:
        return out
