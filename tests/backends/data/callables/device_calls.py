"""Callables for a GPU, right ones and others. They also run where a GPU is played by files."""

import mmap
import os
import tempfile
import threading
import time

import torch

calls = 0
kept = {}


def make(configuration, case):
    return globals()[configuration["BEHAVIOUR"]]


def later(after=8):
    """Whether so many calls were made before this one."""
    global calls
    calls += 1
    return calls > after


def new(x):
    return 2 * x + 1


def given(x, out):
    torch.add(2 * x, 1, out=out)


def new_on_device(x):
    """Its result lies in memory that can be exported, also where files play the GPU."""
    if x.is_cuda:
        return new(x)
    descriptor, _ = tempfile.mkstemp(prefix="fake-gpu-", dir="/dev/shm")
    os.ftruncate(descriptor, x.nbytes)
    out = torch.frombuffer(mmap.mmap(descriptor, x.nbytes), dtype=x.dtype).view(x.shape)
    os.close(descriptor)
    given(x, out)
    return out


def wrong(x, out):
    torch.add(2 * x, 1, out=out)
    out[-1, -1] += 1


def remembers(x, out):
    """By the address of its input."""
    if x.data_ptr() not in kept:
        kept[x.data_ptr()] = new(x)
    out.copy_(kept[x.data_ptr()])


def skips_in_rows(x, out):
    """After a while it leaves each third call out."""
    if not (later(40) and calls % 3 == 0):
        given(x, out)


def works_later(x, out):
    """Its end is not the end of its work."""
    if x.is_cuda or not later(8):
        given(x, out)
    else:
        copied = x.clone()
        threading.Timer(0.0001, given, (copied, out)).start()


def raises(x, out):
    if later():
        raise IndexError("out of tiles")
    given(x, out)


def address(x, out):
    if later():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    given(x, out)


def no_room(x, out):
    if later():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 800.00 GiB")
    given(x, out)


def hangs(x, out):
    if later():
        time.sleep(3600)
    given(x, out)


def exits(x, out):
    if later():
        os._exit(3)
    given(x, out)


def leaves_a_process(x, out):
    if calls == 0 and os.fork() == 0:
        time.sleep(3600)
    later()
    given(x, out)
