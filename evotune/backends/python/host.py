"""The processes that execute callables: a zygote that forks hosts, and the hosts.

`python -m evotune.backends.python.host PARENT DESCRIPTOR` is the zygote. It imports PyTorch once,
and holds nothing of the run. A host executes one candidate: it obeys the messages of
`host_messages`, and makes a call when the worker releases it. Nothing that a host says is trusted:
the worker judges what is in the buffers, and takes times itself (`host_process.py`).
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from evotune.backends.base.launch import CallPlan, CallTensor
from evotune.backends.python.function_calls import Wanted, returned_tensors, takes_outputs
from evotune.backends.python.host_messages import (
    AWAKE,
    CALL,
    DONE,
    NUMBER_BIT,
    READY,
    REST,
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
    word,
)
from evotune.problems.problem import torch_dtype
from evotune.util.processes import adopt_orphans, child_processes, die_with_parent, lower_limit

if TYPE_CHECKING:
    import torch

_MOST_MESSAGE = 1 << 17
_MOST_DESCRIPTORS = 3
_MOST_WORDS = 300
_AWAKE_S = 0.001
"""So long a host spins for its next word. Then it sleeps until it is woken: on a busy machine the
scheduler takes the core of a process that spins for long."""
_GLANCES = 256  # between two looks at the clock
_POLL_S = 0.002
_STRANGERS_S = 10.0


def main() -> None:
    """The zygote's work, until the worker closes the socket."""
    die_with_parent(int(sys.argv[1]))
    adopt_orphans()  # what a host leaves running becomes a child of this process
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
        die_with_parent(os.getppid())
        connection, page, output = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        data_bytes = _own_bytes() + fork.memory_bytes
        lower_limit(resource.RLIMIT_DATA, data_bytes)
        lower_limit(resource.RLIMIT_FSIZE, fork.file_bytes)
        _settle(fork.threads)
        Host(socket.socket(fileno=connection), mmap.mmap(page, 0)).serve()
        status = 0
    except BaseException:  # noqa: BLE001 (a process ends here, whatever the candidate did to it)
        traceback.print_exc()
    os._exit(status)


def _own_bytes() -> int:
    """The memory that this process has now, as RLIMIT_DATA counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmData":
            return int(value.split()[0]) << 10
    return 0


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
    call, which the worker reads in this process's memory."""

    call: Callable[[], bytes]
    blocks: frozenset[int]
    results: Sequence[torch.Tensor] = ()


class Host:
    """Obeys the worker, over `connection` and the words of `page`."""

    def __init__(self, connection: socket.socket, page: mmap.mmap) -> None:
        self._connection = connection
        self._words = memoryview(page).cast("Q")
        self._blocks: dict[int, mmap.mmap] = {}
        self._slots: dict[int, _Slot] = {}
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

    def _obey(self, message: Attach | Load | Build | Bind, descriptors: Sequence[int]) -> Answer:
        if isinstance(message, Attach):
            (descriptor,) = descriptors
            self._blocks[message.block] = mmap.mmap(
                descriptor, message.nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE
            )
            os.close(descriptor)
        elif isinstance(message, Load):
            self._load(message)
        elif isinstance(message, Build):
            return Answer(given=self._build(message))
        else:
            self._bind(message)
        return Answer()

    # Building

    def _load(self, message: Load) -> None:
        self._folder = message.folder
        sys.path.insert(0, message.folder)
        self._configuration = dict(message.configuration)
        module = importlib.import_module(message.module)
        made = getattr(module, message.entry, None)
        if not callable(made):
            raise AttributeError(f"{message.module} has no function {message.entry}")
        self._make = made

    def _build(self, message: Build) -> bool:
        assert self._make is not None
        plan = message.plan
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
        if given:
            function(**copies, **{each.name: each.empty() for each in wanted})
        else:
            returned_tensors(function(**copies), wanted)
        self._made[message.number] = function, given
        return given

    def _views(
        self, plan: CallPlan, places: Sequence[Place]
    ) -> Iterator[tuple[CallTensor, torch.Tensor]]:
        import torch

        for spec, place in zip(plan.tensors, places, strict=True):
            if place.block < 0:
                continue
            dtype = torch_dtype(spec.dtype)
            base = torch.frombuffer(self._blocks[place.block], dtype=torch.uint8)
            room = base.numel() - place.offset
            whole = base[place.offset : place.offset + room - room % dtype.itemsize].view(dtype)
            yield spec, whole.as_strided(spec.shape, spec.strides)

    def _bind(self, message: Bind) -> None:
        for block in message.dropped:
            self._blocks.pop(block, None)
            for number in [n for n, slot in self._slots.items() if block in slot.blocks]:
                del self._slots[number]
                del self._actions[word(0, number, CALL)]
        views = list(self._views(message.plan, message.places))
        inputs = {spec.name: view for spec, view in views if not spec.is_output}
        outputs = {spec.name: view for spec, view in views if spec.is_output}
        blocks = frozenset(place.block for place in message.places)
        slot = _Slot(_nothing, blocks)
        wanted = Wanted.of(message.plan)
        function, given = self._made.get(message.build, (_nothing, message.given))
        if message.build < 0 and not given:
            made = [each.empty() for each in wanted]
            function, inputs = (lambda: made), {}
        if message.build >= 0 and given:
            slot.call = _given_call(function, {**inputs, **outputs}, wanted)
        elif not given:
            targets = list(outputs.values()) if message.copies else []
            slot.call = _new_call(function, inputs, wanted, slot, targets)
        self._slots[message.slot] = slot
        self._actions[word(0, message.slot, CALL)] = slot.call

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
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MOST_WORDS]
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if self._folder and each.filename.startswith(self._folder)]
        if isinstance(error, SyntaxError):
            words = f"{type(error).__name__}: {error.msg}"
        if own:
            name = os.path.relpath(own[-1].filename, self._folder)
            words = f"{name}:{own[-1].lineno}: {words}"
        return Raised(words, lack)


def _nothing() -> bytes:
    """A call that the cost of a release is measured with."""
    return b""


def _given_call(
    function: Callable[..., object],
    tensors: Mapping[str, torch.Tensor],
    wanted: Sequence[Wanted],
) -> Callable[[], bytes]:
    """A call with the outputs. It allocates and frees as much, as a baseline's call does and a
    program's would."""
    empties = [each.empty for each in wanted]

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
