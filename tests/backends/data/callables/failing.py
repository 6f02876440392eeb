"""Callables that fail, each in a way of its own; `new`, `given` and `several` are right."""

import ctypes
import os
import sys
import threading
import time

import torch
from helper import weighted


def make(configuration, case):
    behaviour = configuration["BEHAVIOUR"]
    if behaviour == "raises_when_made":
        raise ValueError("no such tile")
    if behaviour == "exits_when_made":
        os._exit(7)
    if behaviour == "compiles_for_long":
        time.sleep(3600)
    if behaviour == "makes_no_function":
        return 3
    if behaviour == "dies_when_made":
        ctypes.string_at(0)
    return globals()[behaviour]


def new(x, w):
    return weighted(x, w)


def given(x, w, out):
    torch.mul(torch.softmax(x, -1), w, out=out)


def several(x, w):
    return {"out": weighted(x, w), "other": x}


calls = 0


def later(after=8):
    """Whether so many calls were made before this one."""
    global calls
    calls += 1
    return calls > after


def raises(x, w):
    if later():
        raise IndexError("out of tiles")
    return weighted(x, w)


def exits(x, w):
    if later():
        os._exit(3)
    return weighted(x, w)


def leaves_by_sys_exit(x, w):
    if later():
        sys.exit(0)
    return weighted(x, w)


def crashes(x, w):
    if later():
        ctypes.string_at(0)
    return weighted(x, w)


def hangs(x, w):
    if later():
        time.sleep(3600)
    return weighted(x, w)


kept = []


def leaks(x, w):
    if later():
        kept.append(torch.ones(1 << 28))
    return weighted(x, w)


def prints_without_end(x, w):
    line = "x" * (1 << 20)
    for _ in range(1024 if later() else 0):
        print(line)
    return weighted(x, w)


def leaves_a_process(x, w):
    if calls == 0 and os.fork() == 0:
        time.sleep(3600)
    later()
    return weighted(x, w)


def leaves_a_daemon(x, w):
    pid = os.fork() if calls == 0 else -1
    if pid == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(3600)
    if pid > 0:
        os.waitpid(pid, 0)
    later()
    return weighted(x, w)


def leaves_a_thread(x, w):
    def spin():
        while True:
            pass

    if calls == 0:
        threading.Thread(target=spin, daemon=True).start()
    later()
    return weighted(x, w)


def returns_nothing(x, w):
    return None


def returns_another_shape(x, w):
    return weighted(x, w)[:1]


def returns_another_type(x, w):
    return weighted(x, w).double()


def kills_its_parent(x, w):
    if later():
        os.kill(os.getppid(), 9)
    return weighted(x, w)
