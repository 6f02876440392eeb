"""Callables on a GPU, where files play the GPU (`fake_device.py`): the protocol, the clock, and how
each way to fail ends a trial. tests/gpu/test_callables.py runs the same on a real one."""

from __future__ import annotations

import contextlib
import ctypes
import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from evotune.backends.base.launch import CallPlan, CallTensor, DeviceProfile
from evotune.backends.cpu.cpp_compiler import find_compiler
from evotune.backends.cpu.cpu_session import CpuSession
from evotune.backends.cuda import ROOM as CUDA
from evotune.backends.python import ROOM, device_rows, host_process, releases
from evotune.backends.python.device_memory import (
    CudaDriver,
    DeviceMemory,
    DriverError,
    OpenedMemory,
)
from evotune.backends.python.device_rows import HostRow, Output, OwnRow, SlopeSampler
from evotune.backends.python.device_session import DeviceCallableSession, Quiet
from evotune.backends.python.function_calls import Wanted
from evotune.backends.python.host_device import DeviceCall, DeviceHost, GraphCapture
from evotune.trial import OutcomeKind
from tests.callables import CallableTrials, callable_trials
from tests.patience import assert_cut_short

from .fake_device import FakeDriver, again, no_files_left

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data" / "callables"
WRONG, NAN, LAUNCH = OutcomeKind.WRONG_RESULT, OutcomeKind.NAN, OutcomeKind.LAUNCH_ERROR


class Processor(CpuSession):
    """The processor in the GPU's place. Pytest changes what it would look at."""

    def take_stock(self) -> str:
        return ""


def fake_session(profile: DeviceProfile) -> DeviceCallableSession:
    return DeviceCallableSession(
        Processor(), FakeDriver(), again, gpu_share=lambda: 0.5, probe_s=lambda: 0.004
    )


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallableTrials]:
    """One session for all: no failure may harm the next trial."""
    folder = tmp_path_factory.mktemp("trials")
    with pytest.MonkeyPatch.context() as patch, no_files_left():
        patch.setattr(host_process, "_ZYGOTE", "tests.backends.fake_device")
        patch.setenv("PYTHONPATH", str(ROOT))
        space = DATA / "on_device.yaml"
        with callable_trials(space, folder, open_session=fake_session) as made:
            yield made


@pytest.mark.parametrize(
    ("behaviour", "outputs"),
    [("given", "given"), ("new", "copied"), ("new_on_device", "new")],
)
def test_a_right_callable_passes(trials: CallableTrials, behaviour: str, outputs: str) -> None:
    outcome = trials.run(BEHAVIOUR=behaviour)
    assert outcome.ok, outcome.reason
    (measured,) = outcome.measurements
    assert (measured.state["calls"], measured.state["outputs"]) == ("graph", outputs)
    assert measured.time_us > 0.0


EXPECTED = {
    "wrong": ((WRONG,), "out is off by"),
    "remembers": ((WRONG,), "out is off by"),
    "skips_in_rows": ((WRONG, NAN), "never written|out is off by"),
    "raises": ((LAUNCH,), r"device_calls.py:\d+: IndexError: out of tiles"),
    "address": ((OutcomeKind.ILLEGAL_ACCESS,), "illegal memory access"),
    "no_room": ((OutcomeKind.DEVICE_OOM,), "CUDA out of memory"),
    "exits": ((LAUNCH,), "ended with status 3 while it was called"),
    "leaves_a_process": ((LAUNCH,), "left a process running"),
    "works_later": (
        (WRONG, NAN, LAUNCH, OutcomeKind.NONDETERMINISTIC),
        "never written|out is off by|after the end of a row|differ",
    ),
}
SOON = {"wrong", "skips_in_rows", "address", "exits"}


@pytest.mark.parametrize(
    "behaviour",
    [pytest.param(b, marks=() if b in SOON else pytest.mark.soak) for b in EXPECTED],
)
def test_each_failure_is_an_outcome_of_its_own(trials: CallableTrials, behaviour: str) -> None:
    kinds, reason = EXPECTED[behaviour]
    outcome = trials.run(BEHAVIOUR=behaviour)
    assert outcome.kind in kinds, outcome.reason
    assert re.search(reason, outcome.reason), outcome.reason


@pytest.mark.soak
def test_a_call_without_end_is_killed(
    trials: CallableTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = releases.CALLING._replace(limit_s=0.5)
    monkeypatch.setattr(device_rows, "CALLING", short)
    outcome = trials.run(BEHAVIOUR="hangs")
    assert_cut_short(outcome, OutcomeKind.TIMEOUT, "more than 0.5 s passed while it was called")


@pytest.mark.soak
def test_a_callable_that_cannot_be_captured_is_timed_eagerly(
    trials: CallableTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host whose capture failed is replaced."""
    monkeypatch.setenv("FAKE_GPU_CAPTURES", "0")
    trials.session.close()  # the next zygote has the variable
    outcome = trials.run(BEHAVIOUR="new")
    trials.session.close()
    assert outcome.ok, outcome.reason
    state = outcome.measurements[0].state
    assert (state["calls"], state["outputs"]) == ("eager", "copied")


# Memory


def test_memory_without_a_tensor_serves_the_next_one_and_is_freed_when_hosts_have_ended() -> None:
    with no_files_left():
        driver = FakeDriver()
        memory = DeviceMemory(driver)
        first, second = memory.allocate(100), memory.allocate(100)
        address = first.data_ptr()
        assert memory.find(address + 64)[1] == 64
        assert memory.find(address)[0].number != memory.find(second.data_ptr())[0].number
        view = first[8:16]
        del first
        other = memory.allocate(100)
        assert other.data_ptr() != address  # a view still has it
        del view
        third = memory.allocate(3 << 19)
        assert third.data_ptr() == address
        assert memory.dropped == []
        del third
        memory.trim()
        with pytest.raises(DriverError):
            driver.export(address)
        with pytest.raises(KeyError):
            memory.find(address)


def test_each_allocation_is_a_block_of_its_own() -> None:
    """The driver puts small ones into one block, and a handle exports all of a block."""
    with no_files_left():
        memory = DeviceMemory(FakeDriver())
        tensors = [memory.allocate(n) for n in (1, 2 << 20, (2 << 20) + 1, 5 << 20)]
        sizes = [memory.find(tensor.data_ptr())[0].nbytes >> 20 for tensor in tensors]
        assert sizes == [2, 2, 3, 6]


def test_a_result_outside_its_memory_is_refused() -> None:
    with no_files_left():
        theirs, driver = FakeDriver(), FakeDriver()
        handle = theirs.export(theirs.allocate(4096))
        opened = OpenedMemory(driver)
        assert opened.address(handle, 96, 4000) - opened.address(handle, 0, 1) == 96
        for offset, nbytes in ((97, 4000), (-1, 8)):
            with pytest.raises(DriverError, match="outside its memory"):
                opened.address(handle, offset, nbytes)
        with pytest.raises(DriverError):
            opened.address(b"/dev/shm/fake-gpu-none", 0, 8)
        opened.close()


def test_the_driver_is_called_as_its_header_says(tmp_path: Path) -> None:
    """A library with the same functions stands in its place. Handles are passed by value."""
    library = tmp_path / "libcuda.so"
    source = Path(__file__).parent / "data" / "fake_cuda.cpp"
    command = [find_compiler(), "-shared", "-fPIC", "-O1", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    driver = CudaDriver(str(library))
    address = driver.allocate(4096)
    handle = driver.export(address)
    assert (len(handle), driver.open(handle)) == (64, address)
    assert driver.allocation(address + 100) == (address, 4096)
    ctypes.memset(address + 8, 7, 8)
    assert driver.read(address + 4, 8) == bytes([0, 0, 0, 0, 7, 7, 7, 7])
    driver.synchronize()
    driver.close(address)
    driver.free(address)
    with pytest.raises(DriverError, match="CUDA driver error: out of memory"):
        driver.allocate(1 << 41)
    with pytest.raises(DriverError, match="invalid resource handle"):
        driver.open(bytes(64))
    with pytest.raises(DriverError, match="not a handle"):
        driver.open(b"short")
    with pytest.raises(DriverError, match="status 500"):
        driver.allocation(address)


# Rows and their times


class TickingRow:
    """A row whose calls take 7 us each, and whose release and end take 90 us."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[int] = []

    def run(self) -> None:
        self.asked.append(self.count)

    def time_us(self, wanted: int, *, complement: bool) -> float:
        self.asked.append(wanted)
        return 90.0 + 7.0 * wanted


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64])
def test_the_slope_has_none_of_the_cost_of_a_release(count: int) -> None:
    row = TickingRow(count)
    sampler = SlopeSampler(row, random.Random(count))
    restored: list[int] = []
    sampler.before_repeating = lambda: restored.append(len(row.asked))
    assert sampler.time_us() == pytest.approx(7.0)
    assert len(row.asked) == 6
    assert restored == [1, 2, 3, 4, 5]  # the caller restores before the first row
    assert all(0 <= asked <= count for asked in row.asked)
    if count == 64:
        assert len({*row.asked}) > 4


def test_a_baseline_is_timed_as_the_candidate_beside_it() -> None:
    made: list[str] = []
    calls = [lambda n=n: made.append(f"call {n}") for n in range(4)]
    captured: list[int] = []

    def capture(part: Sequence[object]) -> object:
        captured.append(len(part))
        return lambda: made.append(f"graph of {len(part)}")

    is_graph = False
    row = OwnRow(calls, capture, lambda: None, captures=lambda: is_graph)  # type: ignore[arg-type]
    row.run()
    assert made == ["call 0", "call 1", "call 2", "call 3"]
    made.clear()
    row.time_us(3, complement=False)
    assert (len(made), captured) == (3, [])
    is_graph = True
    made.clear()
    row.time_us(3, complement=False)
    row.time_us(4, complement=False)
    assert captured == [1, 2, 1]  # once
    assert made == ["graph of 2", "graph of 1", "graph of 1", "graph of 2", "graph of 1"]


class LateRow:
    """A host's row that ends before its outputs are written: `write` writes them later."""

    host = type("Host", (), {"wake": lambda self, stage: None})()

    def run_ns(self, wanted: int, stage: object, **how: object) -> tuple[float, list[int]]:
        return 1.0, list(range(wanted))


def test_outputs_that_come_after_the_end_of_a_row_are_seen() -> None:
    with no_files_left():
        driver = FakeDriver()
        memory = DeviceMemory(driver)
        out = memory.allocate(64)
        out.zero_()
        spec = CallTensor("out", "float32", (16,), (1,), is_output=True)
        release = type("Release", (), {"outputs": [Output(driver, spec, out.data_ptr())]})()
        row = HostRow(
            *(driver, [release], LateRow(), []),  # type: ignore[arg-type, list-item]
            synchronize=lambda: None,
            rng=random.Random(1),
        )
        assert row.time_us(1, complement=False) > 0.0
        read = driver.read

        def late(address: int, nbytes: int) -> bytes:
            found = read(address, nbytes)
            out.fill_(1)
            return found

        driver.read = late  # type: ignore[method-assign]
        with pytest.raises(host_process.CallableFault, match="after the end of a row of calls"):
            row.time_us(1, complement=False)


class BusyRow(TickingRow):
    """Other work makes most rows longer, by more than their calls take."""

    def time_us(self, wanted: int, *, complement: bool) -> float:
        rng = random.Random(len(self.asked))
        return super().time_us(wanted, complement=complement) + 5000.0 * rng.random()


def test_on_a_busy_machine_no_call_seems_faster_than_it_is() -> None:
    for seed in range(50):
        row = BusyRow(16)
        assert SlopeSampler(row, random.Random(seed)).time_us() > 5.0
        assert len(row.asked) <= 18


def test_a_few_long_rows_do_not_count() -> None:
    class Interrupted(TickingRow):
        def time_us(self, wanted: int, *, complement: bool) -> float:
            late_us = 4000.0 if len(self.asked) % 5 == 3 else 0.0
            return super().time_us(wanted, complement=complement) + late_us

    for seed in range(20):
        found = SlopeSampler(Interrupted(64), random.Random(seed)).time_us()
        assert found == pytest.approx(7.0)


def test_results_with_gaps_land_between_the_gaps() -> None:
    with no_files_left():
        driver = FakeDriver()
        memory = DeviceMemory(driver)
        place, result = memory.allocate(4 * 24), memory.allocate(4 * 15)
        place.view(torch.float32).fill_(7.0)
        result.view(torch.float32).copy_(torch.arange(15.0))
        spec = CallTensor("out", "float32", (3, 5), (8, 1), is_output=True)
        output = Output(driver, spec, place.data_ptr())
        output.view().copy_(output.result(result.data_ptr()))
        found = place.view(torch.float32).view(3, 8)
        assert torch.equal(found[:, :5].flatten(), torch.arange(15.0))
        assert bool((found[:, 5:] == 7.0).all())
        assert (output.span_bytes, output.result_bytes) == (4 * 21, 4 * 15)


# In the host


def plan() -> CallPlan:
    out = CallTensor("out", "float32", (4,), (1,), is_output=True)
    return CallPlan((), (CallTensor("x", "float32", (4,), (1,)), out))


def device_call(function: object, *, given: bool) -> DeviceCall:
    outputs = {"out": torch.zeros(4)}
    wanted = Wanted.of(plan())
    return DeviceCall(function, {"x": torch.ones(4)}, outputs, wanted, given)  # type: ignore[arg-type]


def test_a_graph_that_writes_nothing_is_no_graph() -> None:
    """Work in a stream that was not captured, for example."""
    driver = FakeDriver()
    right = device_call(lambda x, out: torch.add(x, 1, out=out), given=True)
    assert DeviceHost(driver, again, "cpu").can_capture(right)
    empty = DeviceHost(driver, lambda calls: lambda: None, "cpu")
    assert not empty.can_capture(right)

    def captured(calls: list[object]) -> object:
        raise RuntimeError("operation not permitted when stream is capturing")

    assert not DeviceHost(driver, captured, "cpu").can_capture(right)  # type: ignore[arg-type]


def test_results_that_cannot_be_exported_are_copied_and_single_calls_leave_them_alone() -> None:
    host = DeviceHost(FakeDriver(), again, "cpu")
    calls = [device_call(lambda x: x + 1, given=False) for _ in range(3)]
    parts, answer = host.row(calls, graphs=True, copies=False)
    assert (answer.graph, answer.results) == (True, ())
    parts, answer = host.row(calls, graphs=True, copies=True)
    parts[1]()
    assert [call.outputs["out"].tolist() for call in calls] == [[2.0] * 4] * 3  # captured once
    for call in calls:
        call.outputs["out"].zero_()
    parts[1]()
    assert [call.outputs["out"][0].item() for call in calls] == [0.0, 2.0, 2.0]
    assert all(call.results == () for call in calls)
    parts, answer = host.row(calls, graphs=False, copies=False)
    assert not answer.graph


class FakeGraph:
    """Notes what PyTorch's graph is asked to do."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        self._log.append(f"begin {pool} {capture_error_mode}")

    def capture_end(self) -> None:
        self._log.append("end")

    def replay(self) -> None:
        self._log.append("replay")


def test_a_capture_follows_calls_and_a_failed_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "Stream", lambda: "stream")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: FakeGraph(log))
    capture = GraphCapture()
    replay = capture([lambda: log.append("first"), lambda: log.append("second")])
    replay()
    begin = "begin pool thread_local"
    wanted = ["wait", "first", "first", "wait", begin, "first", "second", "end", "replay"]
    assert log == wanted
    log.clear()

    def fails() -> None:
        log.append("called")
        if begin in log:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        capture([fails])
    assert log == ["wait", "called", "called", "wait", begin, "called", "end"]


# The GPU is quiet


def test_a_busy_gpu_is_noticed_and_a_short_disturbance_is_not() -> None:
    times = iter([0.004, 0.005, 0.0041, 0.009, 0.009, 0.0045, 0.009, 0.009, 0.009])
    quiet = Quiet(lambda: next(times), random.Random(0))
    quiet.learn()
    assert not quiet.is_busy()
    assert quiet.is_busy()


def test_a_gpu_that_is_busy_beside_the_baseline_is_told_once() -> None:
    seconds = 0.004
    quiet = Quiet(lambda: seconds, random.Random(0))
    quiet.learn()
    for _ in range(100):
        quiet.look_beside()
    assert quiet.words() == ""
    seconds = 0.009
    for _ in range(100):
        quiet.look_beside()
    assert quiet.words() == "kept the GPU busy while the baseline was timed"
    assert quiet.words() == ""


# Its devices


def test_the_backend_takes_gpus_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceProfile("NVIDIA H200", "cuda", "sm_90", {}, id="GPU-1")
    monkeypatch.setattr(type(CUDA), "profile", lambda self, request, compile_only=False: gpu)
    assert ROOM.understands("cuda:1")
    assert ROOM.understands("cpu:2")
    assert not ROOM.understands("h200")
    found = ROOM.profile("cuda:0")
    assert (found.backend, found.id) == ("python", "GPU-1")
    assert ROOM.worker_environment(found) == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert ROOM.caller(found).refusal(torch.device("cuda:0")) == ""
    assert "was tuned for NVIDIA H200" in ROOM.caller(found).refusal(torch.device("cpu"))
    assert not ROOM.profile("cpu:1").id
