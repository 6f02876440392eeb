"""The worker's side of a host: starts it, releases its calls, takes their time, and ends it.

A release is a word in shared memory, for which the host spins. The answer is a message, which the
system's kernel stamps when the host sends it. So a call's time is taken by clocks that the host's
code does not reach.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from evotune.backends.base.time_limits import HeldUp, WatchedTime, allowance_s
from evotune.backends.python.host_messages import (
    AWAKE,
    CALL,
    CHOSEN,
    DONE,
    FROM_HOST,
    FROM_ZYGOTE,
    PAGE_BYTES,
    READY,
    REST,
    RUN,
    WAKE,
    WORD,
    Answer,
    Attach,
    Bind,
    End,
    Ended,
    Fork,
    Forked,
    Place,
    Raised,
    Row,
    ToHost,
    ToZygote,
    chosen,
    segments,
    word,
)
from evotune.trial import TOO_NOISY, OutcomeKind
from evotune.util.processes import (
    child_processes,
    describe_status,
    free_memory_bytes,
    module_command,
)

if TYPE_CHECKING:
    import torch

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""A candidate cannot make shared memory smaller: reading it would then kill this process."""
_SO_TIMESTAMPNS = 35  # Linux, asm-generic/socket.h
_STAMP = struct.Struct("qq")
_ADDRESS = struct.Struct("<Q")
_ROOM_FOR_STAMP = socket.CMSG_SPACE(_STAMP.size)
_MOST_MESSAGE = 1 << 17
_LOOK_S = 0.5
_LOST_WORD_MS = 10
_START_S = 120.0
_GRACE_S = 2.0
_SPIN_NS = 2_000_000
"""While a call takes longer, this process sleeps."""
_MOST_MEMORY_BYTES = 8 << 30
_BESIDE_A_GPU = 4  # times as much: CUDA takes gigabytes of address space
_ZYGOTE = "evotune.backends.python.host"
_FILE_BYTES = 64 << 20
_TAIL_BYTES = 4096
_MOST_WORDS = 400  # characters of what a candidate says
_PROCESS_CLOCK = 2  # Linux: CPUCLOCK_SCHED of a whole process
_READIES = 4
_CRASHES = (signal.SIGSEGV, signal.SIGBUS)
_clock_ns, _REALTIME = time.clock_gettime_ns, time.CLOCK_REALTIME  # stamps are of this clock


class CallableFault(RuntimeError):
    """A candidate failed in its host: the outcome of the trial. This process goes on."""

    def __init__(self, kind: OutcomeKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class Stage(NamedTuple):
    """What a host is asked to do, in words that follow "while", and the outcomes if it fails by an
    error, by its end, or by taking longer than `limit_s`."""

    words: str
    raised: OutcomeKind
    ended: OutcomeKind
    late: OutcomeKind
    limit_s: float

    @classmethod
    def building(cls, limit_s: float) -> Stage:
        kinds = OutcomeKind.COMPILE_ERROR, OutcomeKind.COMPILE_CRASH, OutcomeKind.COMPILE_TIMEOUT
        return cls("it was built", *kinds, limit_s)

    @classmethod
    def calling(cls, limit_s: float) -> Stage:
        kinds = OutcomeKind.LAUNCH_ERROR, OutcomeKind.LAUNCH_ERROR, OutcomeKind.TIMEOUT
        return cls("it was called", *kinds, limit_s)


class SharedBlock(NamedTuple):
    """Memory that hosts may map, by its descriptor or, of a GPU, its handle. `address`: in this
    process."""

    number: int
    descriptor: int
    address: int
    nbytes: int
    handle: bytes = b""


class Mappable(Protocol):
    """Memory that hosts can map."""

    dropped: list[int]
    """The numbers of the blocks that are gone."""

    def find(self, address: int) -> tuple[SharedBlock, int]:
        """The block that holds the address, and the offset in it."""


class SharedMemory:
    """Allocates tensors that hosts can map; a block is gone when its tensor is."""

    def __init__(self) -> None:
        self._count = 0
        self._blocks: dict[int, SharedBlock] = {}
        self.dropped: list[int] = []
        """The numbers of the blocks that are gone."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """So many bytes. Raises RuntimeError if there is no memory."""
        import torch

        descriptor = os.memfd_create("evotune", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, max(nbytes, 1))
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            mapped = mmap.mmap(descriptor, max(nbytes, 1))
        except OSError as error:
            os.close(descriptor)
            raise RuntimeError(f"can't allocate memory: {error.strerror}") from error
        tensor = torch.frombuffer(mapped, dtype=torch.uint8)[:nbytes]
        self._count += 1
        block = SharedBlock(self._count, descriptor, tensor.data_ptr(), nbytes)
        self._blocks[block.number] = block
        weakref.finalize(mapped, self._drop, block.number).atexit = False
        return tensor

    def _drop(self, number: int) -> None:
        os.close(self._blocks.pop(number).descriptor)
        self.dropped.append(number)

    def find(self, address: int) -> tuple[SharedBlock, int]:
        """The block that holds the address, and the offset in it."""
        for block in self._blocks.values():
            if block.address <= address < block.address + max(block.nbytes, 1):
                return block, address - block.address
        raise KeyError(address)


class Zygote:
    """The process that forks hosts. It has imported PyTorch once, and executes no candidate."""

    def __init__(
        self,
        threads: int,
        environment: Mapping[str, str],
        gpu_share: Callable[[], float] = float,
    ) -> None:
        """Starts it, and does not wait until it is ready. `gpu_share`: the share of a GPU's memory
        that the next host may take; 0 if hosts use none."""
        self._threads = threads
        self._gpu_share = gpu_share
        self._hosts: set[int] = set()
        self.memory_bytes = 0
        """How much the latest host may take."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            module_command(_ZYGOTE, str(os.getpid()), str(theirs.fileno())),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **environment},
        )
        theirs.close()
        self._socket.settimeout(_START_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, connection: int, page: int, output: int) -> int:
        """Starts a host with these descriptors; its process id."""
        share = self._gpu_share()
        most_bytes = (_BESIDE_A_GPU if share else 1) * _MOST_MEMORY_BYTES
        self.memory_bytes = min(most_bytes, free_memory_bytes() * 3 // 4)
        request = Fork(self._threads, self.memory_bytes, _FILE_BYTES, share)
        answer = self._ask(request, [connection, page, output])
        assert isinstance(answer, Forked)
        self._hosts.add(answer.pid)
        return answer.pid

    def end(self, pid: int, grace_s: float = 0.0) -> int:
        """Kills a host, and all that hosts left behind; its status."""
        answer = self._ask(End(pid, grace_s))
        assert isinstance(answer, Ended)
        self._hosts.discard(pid)
        return answer.status

    def has_strangers(self) -> bool:
        """Whether a process that a host had started outlived its parent."""
        return bool(child_processes(self.pid) - self._hosts)

    def _ask(self, request: ToZygote, descriptors: Sequence[int] = ()) -> Forked | Ended:
        try:
            socket.send_fds(self._socket, [msgspec.msgpack.encode(request)], descriptors)
            data = self._socket.recv(_MOST_MESSAGE)
        except (OSError, TimeoutError):
            data = b""
        if not data:
            raise ZygoteLost
        return FROM_ZYGOTE.decode(data)

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


class ZygoteLost(Exception):
    """The process that forks hosts has ended: a candidate may have killed it."""


class Host:
    """One candidate's process."""

    def __init__(self, zygote: Zygote, memory: Mappable) -> None:
        self._zygote, self._memory = zygote, memory
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        page = os.memfd_create("evotune", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(page, PAGE_BYTES)
        fcntl.fcntl(page, fcntl.F_ADD_SEALS, _SEALS)
        self._words = memoryview(mmap.mmap(page, PAGE_BYTES)).cast("Q")
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the host)
        try:
            self.pid = zygote.fork(theirs.fileno(), page, self.output.fileno())
        except ZygoteLost:
            self._socket.close()
            self.output.close()
            raise
        finally:
            os.close(page)
            theirs.close()
        self._attached: set[int] = set()
        self._sent_drops = len(memory.dropped)
        self._slots = 0
        self._number = 0
        self._results = b""
        self.ended = False

    # Messages

    def ask(self, message: ToHost, stage: Stage, descriptors: Sequence[int] = ()) -> Answer:
        """Raises CallableFault if the candidate fails."""
        self._send(msgspec.msgpack.encode(message), stage, descriptors)
        data, _ = self._receive(stage)
        return self._understood(data, stage)

    def places(self, addresses: Sequence[int], stage: Stage) -> tuple[Place, ...]:
        """Places of memory that the host has mapped, now if need be. An address 0 has none."""
        found = []
        for address in addresses:
            if not address:
                found.append(Place(-1, 0))
                continue
            block, offset = self._memory.find(address)
            if block.number not in self._attached:
                self._attached.add(block.number)
                message = Attach(block.number, block.nbytes, block.handle)
                self.ask(message, stage, [] if block.handle else [block.descriptor])
            found.append(Place(block.number, offset))
        return tuple(found)

    def bind(self, message: Bind, stage: Stage) -> Bound:
        """Prepares calls of the bound callable."""
        dropped = self._memory.dropped[self._sent_drops :]
        self._sent_drops += len(dropped)
        gone = tuple(number for number in dropped if number in self._attached)
        self._attached.difference_update(gone)
        self._slots += 1
        self.ask(msgspec.structs.replace(message, slot=self._slots, dropped=gone), stage)
        return Bound(self, self._slots)

    def row(
        self, calls: Sequence[int], stage: Stage, *, copies: bool = False
    ) -> tuple[BoundRow, Answer]:
        """Prepares rows of the calls that were bound as these slots."""
        self._slots += 1
        answer = self.ask(Row(self._slots, tuple(calls), copies), stage)
        return BoundRow(self, self._slots, len(calls)), answer

    def _send(self, data: bytes, stage: Stage, descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._socket, [data], descriptors)
        except (OSError, TimeoutError):
            raise self._lost(stage) from None

    def _receive(self, stage: Stage) -> tuple[bytes, int]:
        """A message and its stamp, in ns of the realtime clock; 0 without a stamp."""
        watched, held = WatchedTime(), None
        while True:
            if self._poll.poll(1000 * _LOOK_S):
                try:
                    data, extra, *_ = self._socket.recvmsg(_MOST_MESSAGE, _ROOM_FOR_STAMP)
                except OSError:
                    data, extra = b"", []
                if not data:
                    raise self._lost(stage)
                return data, _stamp_ns(extra)
            held = held or HeldUp(self.pid)
            self._require_time(watched, held, stage)

    def _require_time(self, watched: WatchedTime, held: HeldUp, stage: Stage) -> None:
        more_s, is_longest = allowance_s(held, stage.limit_s)
        if watched.seconds() <= stage.limit_s + more_s:
            return
        self.end()
        if is_longest:
            reason = f"{TOO_NOISY}: the callable had no core for most of its time"
            raise CallableFault(OutcomeKind.UNDECIDED, reason)
        reason = f"more than {stage.limit_s:g} s passed while {stage.words}; killed"
        raise CallableFault(stage.late, reason)

    def _understood(self, data: bytes, stage: Stage) -> Answer:
        try:
            answer = FROM_HOST.decode(data)
        except (ValueError, RecursionError):
            raise CallableFault(stage.raised, "its process sent what no host sends") from None
        if isinstance(answer, Raised):
            raise self._fault(answer, stage)
        return answer

    def _fault(self, answer: Raised, stage: Stage) -> CallableFault:
        kind, words = stage.raised, _in_one_line(answer.words)
        if answer.lack == "memory":
            gib = self._zygote.memory_bytes / 2**30
            kind, words = OutcomeKind.DEVICE_OOM, f"it may take {gib:.1f} GiB: {words}"
        elif answer.lack == "file":
            words = f"it may write {_FILE_BYTES >> 20} MiB, prints included: {words}"
        elif answer.lack == "room":
            kind = OutcomeKind.DEVICE_OOM
        elif answer.lack == "address":
            kind = OutcomeKind.ILLEGAL_ACCESS
        return CallableFault(kind, words)

    def _lost(self, stage: Stage) -> CallableFault:
        """The fault of a host that ended, or closed its connection."""
        try:
            status = self.end(_GRACE_S)
        except ZygoteLost:
            return CallableFault(stage.ended, f"it killed its parent process while {stage.words}")
        kind = OutcomeKind.ILLEGAL_ACCESS if -status in _CRASHES else stage.ended
        words = f"its process {describe_status(status)} while {stage.words}"
        last = self.last_words()
        return CallableFault(kind, f"{words}: {last}" if last else words)

    def last_words(self) -> str:
        """The last line that the candidate printed."""
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self.output.fileno()).st_size
            tail = os.pread(self.output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
            lines = tail.decode(errors="replace").strip().splitlines()
            return _in_one_line(lines[-1]) if lines else ""
        return ""

    # Calls

    @property
    def is_awake(self) -> bool:
        """Whether it spins for its next word."""
        return bool(self._words[AWAKE])

    def wake(self, stage: Stage) -> None:
        """Makes the host spin for its next word, if it does not."""
        if not self.is_awake:
            self._send(WAKE, stage)
            data, _ = self._receive(stage)
            if data != READY:
                self._understood(data, stage)

    def call_ns(
        self, slot: int, stage: Stage, *, spin: bool = False, before: Callable[[], object] = int
    ) -> float:
        """Makes the call, after `before`; the time of both. With `spin` this process sees at once
        that the call has ended, and may slow it down meanwhile."""
        return self._release(CALL, slot, stage, spin=spin, before=before)

    def run_ns(self, slot: int, bits: int, stage: Stage, *, spin: bool) -> float:
        """Makes the calls of a row's segments. Their time by this process's own clock, from the
        release until it knows that they have ended."""
        self._words[CHOSEN] = bits
        self.wake(stage)
        begun_ns = time.perf_counter_ns()
        self._release(RUN, slot, stage, spin=spin)
        return float(time.perf_counter_ns() - begun_ns)

    def lets_read_results(self) -> bool:
        """Whether the system lets this process read the results of the last call."""
        found = ctypes.c_char()
        (address,) = _ADDRESS.unpack_from(self._results)
        return _read_memory(self.pid, address, ctypes.addressof(found), 1)

    def rest(self, stage: Stage) -> None:
        """Makes the host sleep, without threads of PyTorch's pool, which spin after their work."""
        if not self.ended and self.is_awake:
            self._release(REST, 0, stage)

    def _release(
        self,
        request: int,
        slot: int,
        stage: Stage,
        *,
        spin: bool = False,
        before: Callable[[], object] = int,
    ) -> float:
        self._number += 1
        value, words = word(self._number, slot, request), self._words
        wanted = DONE + self._number.to_bytes(8, "little")
        self.wake(stage)
        self._require_silence(stage)
        begun_ns = _clock_ns(_REALTIME)
        before()
        words[WORD] = value
        if spin:
            until_ns = time.perf_counter_ns() + _SPIN_NS
            while time.perf_counter_ns() < until_ns and not self._poll.poll(0):
                pass
        data, stamp_ns = self._answer(stage)
        now_ns = _clock_ns(_REALTIME)
        if not data.startswith(wanted):
            self._understood(data, stage)
            raise CallableFault(stage.raised, "its process answered what was not asked")
        self._results = data[len(wanted) :]
        # The clock may have been set meanwhile, or the system gives no stamps.
        return float((stamp_ns if begun_ns < stamp_ns <= now_ns else now_ns) - begun_ns)

    def _require_silence(self, stage: Stage) -> None:
        """Raises CallableFault if the host has already answered. It may say READY once more."""
        for _ in range(_READIES):
            if not self._poll.poll(0):
                return
            if self._receive(stage)[0] != READY:
                break
        raise CallableFault(stage.raised, "its process answered what was not asked")

    def read_results(self, targets: Sequence[tuple[int, int]], stage: Stage) -> None:
        """Copies the results of the last call out of the host's memory, to these addresses of so
        many bytes. The host has no part in it: work that it left undone is not done now."""
        if len(self._results) != _ADDRESS.size * len(targets):
            raise CallableFault(stage.raised, "its process answered what was not asked")
        for (address,), (target, nbytes) in zip(
            _ADDRESS.iter_unpack(self._results), targets, strict=True
        ):
            if not _read_memory(self.pid, address, target, nbytes):
                raise CallableFault(stage.raised, "its results cannot be read")

    def result_addresses(self) -> list[int]:
        """Where the results of the last call lie in the host's memory."""
        return [address for (address,) in _ADDRESS.iter_unpack(self._results)]

    def _answer(self, stage: Stage) -> tuple[bytes, int]:
        # It may have fallen asleep just before the word was written.
        if not (self.is_awake or self._poll.poll(_LOST_WORD_MS)):
            self._send(WAKE, stage)
        data, stamp_ns = self._receive(stage)
        return self._receive(stage) if data == READY else (data, stamp_ns)

    # Its end, and what it does meanwhile

    def processes(self) -> Iterator[int]:
        """The host's process id, then those of its descendants."""
        waiting = [self.pid]
        while waiting:
            pid = waiting.pop()
            yield pid
            waiting += child_processes(pid)

    def cpu_s(self) -> float:
        """The processor time of the host and its descendants."""
        total_s = 0.0
        for pid in self.processes():
            with contextlib.suppress(OSError, OverflowError):
                total_s += time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)
        return total_s

    def is_running(self) -> bool:
        """Whether a thread of these processes runs or waits for nothing but a core."""
        for pid in self.processes():
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii") as file:
                        if file.read().rpartition(")")[2].split()[0] == "R":
                            return True
        return False

    def end(self, grace_s: float = 0.0) -> int:
        """Kills the host; its status, or 0 if it was ended before."""
        if self.ended:
            return 0
        self.ended = True
        self._socket.close()
        return self._zygote.end(self.pid, grace_s)

    def close(self) -> None:
        """Ends the host, and forgets what it printed."""
        try:
            self.end()
        finally:
            self.output.close()


class _Span(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def _read_memory(pid: int, address: int, target: int, nbytes: int) -> bool:
    """Copies memory of another process to the address `target`. False if the system refuses."""
    read = _reader()
    if read is None:
        return False
    here, there = _Span(target, nbytes), _Span(address, nbytes)
    return bool(read(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == nbytes)


@functools.cache
def _reader() -> Callable[..., int] | None:
    found = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    if found is not None:
        found.restype = ctypes.c_ssize_t
    return found


class Bound(NamedTuple):
    """A call that a host can make."""

    host: Host
    slot: int

    def call_ns(
        self, stage: Stage, *, spin: bool = False, before: Callable[[], object] = int
    ) -> float:
        """See `Host.call_ns`."""
        return self.host.call_ns(self.slot, stage, spin=spin, before=before)


class BoundRow(NamedTuple):
    """A row of calls that a host can make, any number of them at once."""

    host: Host
    slot: int
    calls: int

    def run_ns(
        self, wanted: int, stage: Stage, *, complement: bool = False, spin: bool = False
    ) -> tuple[float, list[int]]:
        """Makes so many calls at once; their time and which they were, in their order."""
        bits = chosen(wanted, self.calls, complement=complement)
        parts = list(enumerate(segments(self.calls)))
        made = [call for number, part in reversed(parts) if bits >> number & 1 for call in part]
        return self.host.run_ns(self.slot, bits, stage, spin=spin), made


def _stamp_ns(extra: Sequence[tuple[int, int, bytes]]) -> int:
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= _STAMP.size:
            seconds, nanoseconds = _STAMP.unpack_from(data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return 0


def _in_one_line(text: str) -> str:
    return "".join(filter(str.isprintable, " ".join(text[:_MOST_WORDS].split())))
