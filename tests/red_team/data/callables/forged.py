"""Callables that forge what their process says, or reach for memory and processes of the judge."""

import contextlib
import ctypes
import gc
import mmap
import os
import struct
import sys
import time

import torch


def right(x, w):
    return torch.softmax(x, -1) * w


def fill(x, w, out):
    torch.mul(torch.softmax(x, -1), w, out=out)


def make(configuration, case):
    return globals()[configuration["BEHAVIOUR"]]


def host():
    """The host's object and the variables of its loop, if the loop is what called."""
    frame = sys._getframe()
    while frame is not None and "actions" not in frame.f_locals:
        frame = frame.f_back
    return (None, {}) if frame is None else (frame.f_locals["self"], frame.f_locals)


def descriptors():
    """The open descriptors, each with what it is."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield int(name), os.readlink(f"/proc/self/fd/{name}")


# Messages.


def sends_a_verdict(x, w):
    """Into each socket and pipe that is there."""
    for number, kind in descriptors():
        if kind.startswith(("socket:", "pipe:", "anon_inode:")):
            with contextlib.suppress(OSError):
                os.write(number, b'{"correct": true, "passed": true}\n')
    return torch.zeros_like(x)


def signals_that_it_is_done(x, w):
    """A count of 1 into each eventfd, then nothing more."""
    for number, kind in descriptors():
        if "eventfd" in kind or kind.startswith("socket:"):
            with contextlib.suppress(OSError):
                os.write(number, struct.pack("<Q", 1))
    return torch.zeros_like(x)


def answers_twice(x, w):
    """So that the next call is answered before it is asked for."""
    found, loop = host()
    if found is not None:
        number = int.from_bytes(loop["answer"][1:9], "little")
        result = torch.zeros_like(x)
        address = result.data_ptr().to_bytes(8, "little")
        found._connection.send(loop["answer"] + address)
        found._connection.send(b"D" + (number + 1).to_bytes(8, "little") + address)
        found.zeros = result
    return right(x, w)


def answers_another_number(x, w):
    found, _ = host()
    if found is not None:
        found._connection.send(b"D" + (1 << 40).to_bytes(8, "little"))
    return right(x, w)


def answers_with_noise(x, w):
    found, _ = host()
    if found is not None:
        found._connection.send(os.urandom(64))
    return right(x, w)


def answers_without_an_address(x, w):
    found, loop = host()
    if found is not None:
        found._connection.send(loop["answer"])
        time.sleep(0.01)
    return right(x, w)


def closes_its_connection(x, w):
    found, _ = host()
    if found is not None:
        found._connection.close()
    return right(x, w)


def passes_its_connection_on(x, w):
    """A child answers in its place."""
    found, loop = host()
    if found is not None and os.fork() == 0:
        time.sleep(0.0005)
        with contextlib.suppress(OSError):
            found._connection.send(loop["answer"] + b"\0" * 8)
        os._exit(0)
    return torch.zeros_like(x)


# The shared page.


def releases_itself(x, w):
    """A word of the next number in the page: the loop calls once more."""
    found, _ = host()
    if found is not None:
        found._words[0] = found._words[0] + (1 << 24)
    return right(x, w)


def clears_the_word(x, w):
    found, _ = host()
    if found is not None:
        found._words[0] = 0
    return right(x, w)


def says_that_it_sleeps(x, w):
    """The judge wakes it each time, and would lose a message."""
    found, _ = host()
    if found is not None:
        found._words[8] = 0
    return torch.zeros_like(x)


# Memory.


def writes_its_own_memory(x, w):
    """Overwrites the code of a comparison by way of /proc/self/mem."""
    result = torch.zeros_like(x)
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(x.data_ptr())
        memory.write(bytes(64))
    return result


def writes_before_its_input(x, w):
    ctypes.memset(x.data_ptr() - 64, 1, 64)
    return right(x, w)


def writes_behind_its_input(x, w):
    ctypes.memset(x.data_ptr() + x.nbytes, 1, 64)
    return right(x, w)


def writes_everywhere(x, w):
    """Zeros into all shared memory of the judge: inputs, outputs, guards."""
    for line in open("/proc/self/maps"):  # noqa: SIM115
        if "memfd:evotune" in line and "rw-s" in line:
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            if last - first > 4096:
                ctypes.memset(first, 0, last - first)
    return torch.zeros_like(x)


def writes_into_all_outputs(x, w, out):
    """Results into the outputs of other calls, as far as they can be found."""
    fill(x, w, out)
    for found in gc.get_objects():
        with contextlib.suppress(Exception):
            if isinstance(found, mmap.mmap) and len(found) > 4096:
                memory = torch.frombuffer(found, dtype=torch.float32)
                memory[-1024:] = 0.5


def shrinks_the_shared_memory(x, w, kept=[]):
    """Keeps the descriptors that the host gets, and leaves nothing for the judge to read."""
    if not kept:
        close, main = os.close, sys.modules["__main__"]
        kept.append(-1)

        class Keeping:
            def __getattr__(self, name):
                return getattr(os, name)

            def close(self, descriptor):
                kept.append(os.dup(descriptor))
                close(descriptor)

        main.os = Keeping()
    for descriptor in kept[1:]:
        os.ftruncate(descriptor, 0)
    return right(x, w)


def unmaps_its_result(x, w):
    memory = mmap.mmap(-1, x.nbytes)
    result = torch.frombuffer(memory, dtype=x.dtype).view(x.shape)
    result.copy_(right(x, w))
    libc = ctypes.CDLL(None)
    libc.munmap(ctypes.c_void_p(result.data_ptr()), ctypes.c_size_t(x.nbytes))
    return result


def protects_its_result(x, w):
    """Memory that nobody may read until a handler has filled it."""
    memory = mmap.mmap(-1, x.nbytes)
    result = torch.frombuffer(memory, dtype=x.dtype).view(x.shape)
    libc = ctypes.CDLL(None)
    libc.mprotect(ctypes.c_void_p(result.data_ptr()), ctypes.c_size_t(x.nbytes), 0)
    return result


def frees_its_result(x, w, kept=[]):
    """The address of memory that other tensors use by now."""
    result = right(x, w)
    address = result.data_ptr()
    del result
    kept[:] = [torch.full_like(x, 0.25) for _ in range(4)]
    memory = (ctypes.c_char * x.nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=x.dtype).view(x.shape)


# Processes.


def kills_the_null_host(x, w):
    """The process that tells what a release costs, a sibling."""
    for pid in siblings():
        os.kill(pid, 9)
    return right(x, w)


def siblings():
    path = f"/proc/{os.getppid()}/task/{os.getppid()}/children"
    with contextlib.suppress(OSError), open(path) as file:
        return [int(pid) for pid in file.read().split() if int(pid) != os.getpid()]
    return []


def takes_another_core(x, w, begun=[]):
    """All cores of the machine, though the baseline has one less."""
    if not begun:
        begun.append(True)
        os.sched_setaffinity(0, range(os.cpu_count()))
        torch.set_num_threads(os.cpu_count())
    return heavy(x, w)


def heavy(x, w):
    """Right, with more work, so that threads pay."""
    total = x.new_zeros(())
    for _ in range(8):
        total = total + (torch.ones(256, 256) @ torch.ones(256, 256))[0, 0]
    return right(x, w) + (total - total)


def takes_another_core_for_a_while(x, w, kept=[]):
    """All cores, in each call, given back at its end."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count()))
    torch.set_num_threads(os.cpu_count())
    result = heavy(x, w)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, own)
    return result
