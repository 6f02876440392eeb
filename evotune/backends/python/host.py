"""The processes that execute callables: a zygote that forks hosts, and the hosts.

`python -m evotune.backends.python.host PARENT DESCRIPTOR` is the zygote. It imports PyTorch once,
and holds nothing of the run. A host executes one candidate: it obeys the messages of
`host_messages`, and makes a call when the worker releases it. Nothing that a host says is trusted:
the worker judges what is in the buffers, and takes times itself (`host_process.py`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import importlib
import mmap
import os
import re
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from evotune.backends.base.launch import CallPlan, CallTensor
from evotune.backends.python.function_calls import Wanted, returned_tensors, takes_outputs
from evotune.backends.python.host_device import DeviceCall, DeviceHost, open_gpu
from evotune.backends.python.host_limits import hide_memory, limit
from evotune.backends.python.host_messages import (
    AWAKE,
    CALL,
    CHOSEN,
    DONE,
    NUMBER_BIT,
    READY,
    REST,
    RUN,
    TO_HOST,
    TO_ZYGOTE,
    WAKE,
    WORD,
    Answer,
    Attach,
    Bind,
    Build,
    Ended,
    Fork,
    Forked,
    Load,
    Place,
    Raised,
    Row,
    ToHost,
    segments,
    word,
)
from evotune.problems.problem import torch_dtype
from evotune.util.processes import adopt_orphans, child_processes, die_with_parent

if TYPE_CHECKING:
    import torch

_MOST_MESSAGE = 1 << 17
_MOST_DESCRIPTORS = 3
_MOST_WORDS = 300
_LACKS_ON_GPU = re.compile(r"CUDA.*(?:(out of memory)|illegal memory access|misaligned address)")
_AWAKE_S = 0.001
"""So long a host spins for its next word. Then it sleeps until it is woken: on a busy machine the
scheduler takes the core of a process that spins for long."""
_GLANCES = 256  # between two looks at the clock
_MOST_COMPILED = 1 << 16
_POLL_S = 0.002
_STRANGERS_S = 10.0


def main() -> None:
    """The zygote's work, until the worker closes the socket."""
    die_with_parent(int(sys.argv[1]))
    adopt_orphans()  # what a host leaves running becomes a child of this process
    hide_memory()
    import torch  # noqa: F401

    gc.freeze()
    control = socket.socket(fileno=int(sys.argv[2]))
    hosts: set[int] = set()
    while True:
        data, descriptors, *_ = socket.recv_fds(control, _MOST_MESSAGE, _MOST_DESCRIPTORS)
        if not data:
            return
        message = TO_ZYGOTE.decode(data)
        if isinstance(message, Fork):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the threads of NumPy's library stand a fork
                pid = os.fork()
            if not pid:
                control.close()
                _become_host(message, descriptors)
            hosts.add(pid)
            for descriptor in descriptors:
                os.close(descriptor)
            control.send(msgspec.msgpack.encode(Forked(pid)))
        else:
            status = _ended(message.pid, message.grace_s)
            hosts.discard(message.pid)
            _end_strangers(hosts)
            control.send(msgspec.msgpack.encode(Ended(status)))


def _ended(pid: int, grace_s: float) -> int:
    """Ends a host; its status."""
    deadline = time.monotonic() + grace_s
    found, status = os.waitpid(pid, os.WNOHANG)
    while not found and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _end_strangers(hosts: set[int]) -> None:
    """Ends what hosts left: a process whose parent has ended is this process's child."""
    deadline = time.monotonic() + _STRANGERS_S
    while time.monotonic() < deadline:
        strangers = child_processes(os.getpid()) - hosts
        if not strangers:
            return
        for pid in strangers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


# A host.


def _become_host(fork: Fork, descriptors: Sequence[int]) -> NoReturn:
    status = 1
    try:
        hide_memory(False)  # the worker reads results
        die_with_parent(os.getppid())
        connection, page, output = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        limit(fork.memory_bytes, fork.file_bytes)
        _settle(fork.threads)
        opened = functools.partial(open_gpu, fork.gpu_share) if fork.gpu_share else None
        Host(socket.socket(fileno=connection), mmap.mmap(page, 0), opened).serve()
        status = 0
    except BaseException:  # noqa: BLE001 (a process ends here, whatever the candidate did to it)
        traceback.print_exc()
    os._exit(status)


def _settle(threads: int) -> None:
    """Gives PyTorch its threads, and the allocator the state that the worker's has."""
    import torch

    from evotune.backends.cpu import native_runtime

    sys.dont_write_bytecode = True
    torch.set_num_threads(threads)
    native_runtime.share()
    native_runtime.settle_allocator()


@dataclass(slots=True)
class _Slot:
    """A bound call, which returns the rest of the answer to the word. `results`: those of the last
    call, which the worker reads in this process's memory. `device_call`: the call, if on a GPU."""

    call: Callable[[], bytes]
    blocks: frozenset[int]
    results: Sequence[torch.Tensor] = ()
    device_call: DeviceCall | None = None


class Host:
    """Obeys the worker, over `connection` and the words of `page`."""

    def __init__(
        self,
        connection: socket.socket,
        page: mmap.mmap,
        opened: Callable[[], DeviceHost] | None = None,
    ) -> None:
        """`opened` opens the GPU that candidates use, if they use one."""
        self._open_device = opened
        self._device: DeviceHost | None = None
        self._graphs = False
        self._connection = connection
        self._words = memoryview(page).cast("Q")
        self._blocks: dict[int, torch.Tensor] = {}
        self._slots: dict[int, _Slot] = {}
        self._rows: dict[int, tuple[int, ...]] = {}
        self._made: dict[int, tuple[Callable[..., object], bool]] = {}
        self._make: Callable[..., object] | None = None
        self._configuration: Mapping[str, Any] = {}
        self._folder = ""
        self._actions: dict[int, Callable[[], bytes]] = {REST: self._rest}
        """By slot and request, as words have them."""
        self._last = 0
        """The last word that was obeyed."""

    def serve(self) -> None:
        """Until the worker closes the connection."""
        while True:
            data, descriptors, *_ = socket.recv_fds(self._connection, _MOST_MESSAGE, 1)
            if not data:
                return
            if data == WAKE:
                self._spin()
                continue
            message = TO_HOST.decode(data)
            try:
                answer: Answer | Raised = self._obey(message, descriptors)
            except BaseException as error:  # noqa: BLE001 (the candidate raises what it likes)
                answer = self._raised(error)
            self._connection.send(msgspec.msgpack.encode(answer))

    def _obey(self, message: ToHost, descriptors: Sequence[int]) -> Answer:
        if self._device is None and self._open_device is not None:
            self._device = self._open_device()
        if isinstance(message, Attach):
            self._blocks[message.block] = self._attached(message, descriptors)
        elif isinstance(message, Load):
            self._load(message)
        elif isinstance(message, Build):
            return self._build(message)
        elif isinstance(message, Row):
            return self._row(message)
        else:
            self._bind(message)
        return Answer()

    def _attached(self, message: Attach, descriptors: Sequence[int]) -> torch.Tensor:
        import torch

        if self._device is not None:
            return self._device.attach(message.handle, message.nbytes)
        (descriptor,) = descriptors
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        mapped = mmap.mmap(descriptor, message.nbytes, flags=flags)
        os.close(descriptor)
        return torch.frombuffer(mapped, dtype=torch.uint8)

    # Building

    def _load(self, message: Load) -> None:
        self._folder = message.folder
        sys.path.insert(0, message.folder)
        self._configuration = dict(message.configuration)
        self._graphs = message.graphs
        module = importlib.import_module(message.module)
        made = getattr(module, message.entry, None)
        if not callable(made):
            raise AttributeError(f"{message.module} has no function {message.entry}")
        self._make = made

    def _build(self, message: Build) -> Answer:
        assert self._make is not None
        plan = message.plan
        allow_recompiling()
        function = self._make(dict(self._configuration), dict(plan.symbols))
        if not callable(function):
            raise TypeError(f"make returned a {type(function).__name__}, expected a function")
        wanted = Wanted.of(plan)
        given = takes_outputs(function, [each.name for each in wanted])
        copies = {
            spec.name: view.clone()
            for spec, view in self._views(plan, message.places)
            if not spec.is_output
        }
        device = "cpu" if self._device is None else self._device.device
        outputs = {each.name: each.empty(device)() for each in wanted if given}
        call = DeviceCall(function, copies, outputs, wanted, given)
        call.launch()
        graph = False
        if self._device is not None:
            self._device.join()
            graph = message.captures and self._device.can_capture(call)
        self._made[message.number] = function, given
        return Answer(given=given, graph=graph)

    def _views(
        self, plan: CallPlan, places: Sequence[Place]
    ) -> Iterator[tuple[CallTensor, torch.Tensor]]:
        for spec, place in zip(plan.tensors, places, strict=True):
            if place.block < 0:
                continue
            dtype = torch_dtype(spec.dtype)
            base = self._blocks[place.block]
            room = base.numel() - place.offset
            whole = base[place.offset : place.offset + room - room % dtype.itemsize].view(dtype)
            yield spec, whole.as_strided(spec.shape, spec.strides)

    def _bind(self, message: Bind) -> None:
        for block in message.dropped:
            self._blocks.pop(block, None)
            for number in [n for n, slot in self._slots.items() if block in slot.blocks]:
                del self._slots[number]
                del self._actions[word(0, number, CALL)]
                for row in [each for each, slots in self._rows.items() if number in slots]:
                    del self._rows[row]
                    del self._actions[word(0, row, RUN)]
        views = list(self._views(message.plan, message.places))
        inputs = {spec.name: view for spec, view in views if not spec.is_output}
        outputs = {spec.name: view for spec, view in views if spec.is_output}
        blocks = frozenset(place.block for place in message.places)
        slot = _Slot(_nothing, blocks)
        wanted = Wanted.of(message.plan)
        function, given = self._made.get(message.build, (_nothing, message.given))
        if self._device is not None:
            slot.device_call = DeviceCall(function, inputs, outputs, wanted, given)
            slot.call = self._device.single(slot.device_call)
        else:
            if message.build < 0 and not given:
                made = [each.empty()() for each in wanted]
                function, inputs = (lambda: made), {}
            if message.build >= 0 and given:
                slot.call = _given_call(function, {**inputs, **outputs}, wanted)
            elif not given:
                targets = list(outputs.values()) if message.copies else []
                slot.call = _new_call(function, inputs, wanted, slot, targets)
        self._slots[message.slot] = slot
        self._actions[word(0, message.slot, CALL)] = slot.call

    def _row(self, message: Row) -> Answer:
        """Prepares what makes the calls of some segments of a row."""
        words, answer = self._words, Answer()
        slots = [self._slots[number] for number in message.calls]
        parts: list[Callable[[], object]] = [
            functools.partial(_each, [slots[n].call for n in part]) for part in segments(len(slots))
        ]
        join: Callable[[], object] = _nothing
        if self._device is not None:
            calls = [slot.device_call for slot in slots if slot.device_call is not None]
            parts, answer = self._device.row(calls, graphs=self._graphs, copies=message.copies)
            join = self._device.join
        parts.reverse()

        def run() -> bytes:
            bit, wanted, answers = 1 << len(parts), words[CHOSEN], b""
            for part in parts:
                bit >>= 1
                if wanted & bit:
                    made = part()
                    answers += made if isinstance(made, bytes) else b""
            join()
            return answers

        self._rows[message.slot] = message.calls
        self._actions[word(0, message.slot, RUN)] = run
        return answer

    # Calls

    def _spin(self) -> None:
        """Obeys words until one says rest, or none comes for a while. Little is done between a word
        and its call: that is part of the call's time."""
        words, send, actions = self._words, self._connection.send, self._actions
        now, last, mask = time.monotonic, self._last, (1 << NUMBER_BIT) - 1
        words[AWAKE] = 1
        send(READY)
        while words[AWAKE]:
            answer = DONE + ((last >> NUMBER_BIT) + 1).to_bytes(8, "little")
            value, until = words[WORD], now() + _AWAKE_S
            while value == last and now() < until:
                for _ in range(_GLANCES):
                    value = words[WORD]
                    if value != last:
                        break
            if value == last:
                words[AWAKE] = 0
                value = words[WORD]
                if value == last:
                    return
                words[AWAKE] = 1  # it came at the last moment
            last = self._last = value
            try:
                answer += actions[value & mask]()
            except BaseException as error:  # noqa: BLE001 (the candidate raises what it likes)
                answer = msgspec.msgpack.encode(self._raised(error))
            send(answer)

    def _rest(self) -> bytes:
        from evotune.backends.cpu import native_runtime

        native_runtime.rest()
        self._words[AWAKE] = 0
        return b""

    def _raised(self, error: BaseException) -> Raised:
        """The error in a line, with the candidate's own line that raised it."""
        lack = ""
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            lack = "memory"
        elif isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EFBIG):
            lack = "memory" if error.errno == errno.ENOMEM else "file"
        elif found := _LACKS_ON_GPU.search(str(error)):
            lack = "room" if found[1] else "address"
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MOST_WORDS]
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if self._folder and each.filename.startswith(self._folder)]
        if isinstance(error, SyntaxError):
            words = f"{type(error).__name__}: {error.msg}"
        if own:
            name = os.path.relpath(own[-1].filename, self._folder)
            words = f"{name}:{own[-1].lineno}: {words}"
        return Raised(words, lack)


def allow_recompiling() -> None:
    """Dynamo stops compiling a function that it has compiled for eight shapes. Here each case is
    one."""
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.config.recompile_limit = dynamo.config.accumulated_recompile_limit = _MOST_COMPILED


def _nothing() -> bytes:
    """A call that the cost of a release is measured with."""
    return b""


def _each(calls: Sequence[Callable[[], bytes]]) -> bytes:
    return b"".join([call() for call in calls])


def _given_call(
    function: Callable[..., object],
    tensors: Mapping[str, torch.Tensor],
    wanted: Sequence[Wanted],
) -> Callable[[], bytes]:
    """A call with the outputs. It allocates and frees as much, as a baseline's call does and a
    program's would."""
    empties = [each.empty() for each in wanted]

    def call() -> bytes:
        for empty in empties:
            empty()
        function(**tensors)
        return b""

    return call


def _new_call(
    function: Callable[..., object],
    inputs: Mapping[str, torch.Tensor],
    wanted: Sequence[Wanted],
    slot: _Slot,
    targets: Sequence[torch.Tensor],
) -> Callable[[], bytes]:
    """A call that answers with the addresses of its results, or copies them into `targets`."""
    addresses = struct.Struct(f"<{len(wanted)}Q")

    def call() -> bytes:
        slot.results = ()  # their memory serves the next ones, as in a program
        slot.results = results = returned_tensors(function(**inputs), wanted)
        if targets:
            for target, value in zip(targets, results, strict=True):
                target.copy_(value)
            return b""
        return addresses.pack(*[value.data_ptr() for value in results])

    return call


if __name__ == "__main__":
    main()
