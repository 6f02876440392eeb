"""The CUDA session: candidates are cubins, launched and timed on one GPU of this process.

Torch owns the context and the memory; CuPy loads the machine code and launches it on torch's
current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import torch

from evotune.backends.cuda.context_limits import STACK, changes, read_limits, restore_stack
from evotune.backends.cuda.eager import EagerSampler
from evotune.backends.cuda.faults import classify
from evotune.backends.cuda.graphs import GraphSampler
from evotune.backends.cuda.kernel import CudaKernel, bind
from evotune.backends.cuda.perturbation import Perturber
from evotune.backends.cuda.state import GpuState
from evotune.device.launch import LaunchPlan
from evotune.device.profile import DeviceProfile
from evotune.device.protocol import Disturb, Fault, Sampler
from evotune.trial import Json

_T = TypeVar("_T")
_COPY_BYTES = 2 << 30
_COPY_ROUNDS = 12
# Of the memory. All sets of one trial on a long sequence must stay: where one of them does not, the
# least recently used one is always the next, and each is made again, in float64, for each check.
_POOL_SHARE = 3


class CudaSession:
    """The first GPU that this process sees; see `evotune.device.protocol.Session`."""

    torch_device = "cuda:0"
    sample_us = 250.0  # an event is exact to half a microsecond
    untimed_calls = 0  # of hundreds in a graph
    allocates = False  # a graph's outputs lie where they were when it was made
    in_order = True

    def __init__(self, profile: DeviceProfile) -> None:
        torch.zeros(1, device=self.torch_device)  # makes the context current, for CuPy too
        properties = torch.cuda.get_device_properties(0)
        self.pool_bytes = properties.total_memory // _POOL_SHARE
        self.warm_bytes = int(profile.attributes["l2_bytes"]) // 2
        self.cold_bytes = 2 * int(profile.attributes["l2_bytes"])
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._open_pool()
        self._state = GpuState(profile.id)
        self._profile = profile
        self._limits: Mapping[str, int] = {}

    def _open_pool(self) -> None:
        """One pool for all graphs: what calls allocate while they are captured is free again for
        the next graph, as no two replays overlap. The first graph keeps the pool alive."""
        one = torch.zeros(1, device=self.torch_device)
        one = one + one  # what is captured must have run before
        self._graph_pool = torch.cuda.graph_pool_handle()
        self._keeper = GraphSampler([lambda: one + one], self._stream, self._graph_pool)

    def load(self, path: Path, plan: LaunchPlan) -> Callable[..., object]:
        return _with_room(lambda: CudaKernel(path))

    def bind(
        self, kernel: Callable[..., object], plan: LaunchPlan, pointers: Mapping[str, int]
    ) -> Callable[[], object]:
        assert isinstance(kernel, CudaKernel)
        return bind(kernel, plan, pointers, _current_stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def settle(self) -> None:
        """Torch's work is queued behind the launch, in the same stream."""

    def free(self) -> None:
        """A pool's memory is only given back with the last of its graphs."""
        self._open_pool()
        torch.cuda.empty_cache()

    def sampler(self, calls: Sequence[Callable[[], object]], *, untimed: int = 0) -> GraphSampler:
        assert not untimed
        return _with_room(lambda: GraphSampler(calls, self._stream, self._graph_pool))

    def eager_sampler(self, calls: Sequence[Callable[[], object]]) -> EagerSampler:
        return EagerSampler(calls)

    def copy_gbps(self) -> float:
        free_bytes, _ = torch.cuda.mem_get_info()
        words = min(_COPY_BYTES, free_bytes // 4) // 8
        source = torch.randint(1 << 60, (words,), device=self.torch_device)
        target = torch.empty_like(source)

        def copy() -> object:
            # By a kernel: as a node of a graph, a plain copy takes the slower copy engines.
            return torch.bitwise_not(source, out=target)

        copy()
        sampler = self.sampler([copy])
        time_us = min(sampler.time_us() for _ in range(_COPY_ROUNDS))
        return 2 * 8 * words / time_us / 1000

    def take_stock(self) -> str:
        """The context's limits; a deeper stack is the driver's doing, and is taken back."""
        self._limits = self._limits or read_limits()
        now = read_limits()
        if now.get(STACK) != self._limits.get(STACK):
            restore_stack(self._limits)
            now = read_limits()
        return ", ".join(changes(self._limits, now)[:1])

    def left_running(self, run: Callable[[], object] | None = None) -> str:
        """Device code alone starts nothing that a synchronization does not wait for. What is left
        of the context's limits is asked anyway: it costs next to nothing."""
        return self.take_stock()

    def perturbations(self) -> Mapping[str, Callable[[], AbstractContextManager[Disturb]]]:
        return Perturber(self._profile).perturbations()

    def undisturbed(self, sampler: Sampler) -> Sampler:
        """Nothing runs beside it."""
        return sampler

    def fault(self, error: RuntimeError) -> Fault | None:
        return classify(error, self._usable)

    @staticmethod
    def _usable() -> bool:
        try:
            torch.cuda.synchronize()
            torch.zeros(1, device=CudaSession.torch_device).item()
        except RuntimeError:
            return False
        return True

    def state(self) -> Mapping[str, Json]:
        return self._state.read()


def _current_stream() -> int:
    """As `torch.cuda.current_stream().cuda_stream`, which takes longer than a launch."""
    return int(torch._C._cuda_getCurrentRawStream(0))


def _with_room(attempt: Callable[[], _T]) -> _T:
    """For what cannot be had of the memory that PyTorch keeps for later calls: a capture's own,
    and the driver's for code and graphs. When it runs out, that memory is given back first."""
    try:
        return attempt()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
    # Only here: the error held what the calls had allocated.
    torch.cuda.empty_cache()
    return attempt()
