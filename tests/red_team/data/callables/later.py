"""Callables whose work is done later, or by somebody else."""

import asyncio
import atexit
import concurrent.futures
import ctypes
import gc
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref

import torch


def right(x, w):
    return torch.softmax(x, -1) * w


def fill(x, w, out):
    torch.mul(torch.softmax(x, -1), w, out=out)


def make(configuration, case):
    return globals()[configuration["BEHAVIOUR"]]


# Tensors that compute when somebody looks at them.


class Promise(torch.Tensor):
    """Computes when an operator needs it."""

    @staticmethod
    def __new__(cls, x, w):
        made = torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)
        made.kept = x, w
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, given=(), named=None):
        plain = [right(*each.kept) if isinstance(each, Promise) else each for each in given]
        return function(*plain, **(named or {}))


def returns_a_promise_tensor(x, w):
    return Promise(x, w)


class Claiming(torch.Tensor):
    """Says that it is contiguous, and lies where another tensor lies."""

    kept = None

    def contiguous(self, *given, **named):
        return self

    def data_ptr(self):
        if Claiming.kept is None:
            Claiming.kept = right(*self.inputs)
        return Claiming.kept.data_ptr()


def claims_another_address(x, w):
    made = torch.empty(x.shape).as_subclass(Claiming)
    made.inputs = x, w
    return made


class Working(torch.Tensor):
    """Does its work when the host asks for its address."""

    def data_ptr(self):
        return 8


def claims_a_bad_address(x, w):
    return right(x, w).as_subclass(Working)


# Threads and processes.


def works_in_a_timer(x, w, out):
    threading.Timer(0.0004, fill, (x, w, out)).start()


pool: list[concurrent.futures.ThreadPoolExecutor] = []


def works_in_a_pool(x, w, out):
    if not pool:
        pool.append(concurrent.futures.ThreadPoolExecutor(2))
    pool[0].submit(fill, x, w, out)


def waits_for_half_of_its_pool(x, w, out):
    if not pool:
        pool.append(concurrent.futures.ThreadPoolExecutor(2))
    half = len(x) // 2
    done = [pool[0].submit(fill, x[:half], w, out[:half])]
    pool[0].submit(lambda: (time.sleep(0.0002), fill(x[half:], w, out[half:])))
    concurrent.futures.wait(done)


def works_in_a_queue(x, w, out, tasks=queue.SimpleQueue(), begun=[]):  # noqa: B008
    if not begun:

        def serve():
            while True:
                fill(*tasks.get())

        begun.append(threading.Thread(target=serve, daemon=True))
        begun[0].start()
    tasks.put((x, w, out))


def works_in_a_loop_of_events(x, w, out, loops=[]):
    if not loops:
        loops.append(asyncio.new_event_loop())
        threading.Thread(target=loops[0].run_forever, daemon=True).start()

    async def work():
        fill(x, w, out)

    asyncio.run_coroutine_threadsafe(work(), loops[0])


def works_in_native_threads(x, w, out):
    """A thread that Python did not start."""
    import _thread

    _thread.start_new_thread(lambda: (time.sleep(0.0003), fill(x, w, out)), ())


def works_in_a_child(x, w, out):
    """The memory is shared, so a child can write the outputs."""
    if os.fork() == 0:
        time.sleep(0.001)
        fill(x, w, out)
        os._exit(0)


def works_in_a_process_pool(x, w, out, pools=[]):
    if not pools:
        pools.append(multiprocessing.get_context("fork").Pool(1))
    pools[0].apply_async(time.sleep, (0.001,))
    fill(x, w, out)


def works_in_a_daemon(x, w, out, begun=[]):
    """A process without a parent, that computes all the time."""
    if not begun:
        begun.append(True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    fill(x, w, out)
            os._exit(0)
        os.wait()


def starts_a_program(x, w, begun=[]):
    if not begun:
        begun.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
    return right(x, w)


# What Python does by itself.


class Finalizer:
    def __init__(self, work):
        self.work = work

    def __del__(self):
        self.work()


def works_when_it_is_freed(x, w, out, kept=[]):
    """The work of a call is done when the next one frees this."""
    kept[:] = [Finalizer(lambda: fill(x, w, out))]


class Freed(torch.Tensor):
    """The host drops the results of a call before the next one."""

    def __del__(self):
        fill(*self.inputs, self.plain)


def works_when_its_result_is_freed(x, w):
    plain = torch.empty(x.shape)
    made = plain.as_subclass(Freed)
    made.inputs, made.plain = (x, w), plain
    return made


def works_in_a_weak_finalizer(x, w, out, kept=[]):
    kept[:] = [Finalizer(int)]
    weakref.finalize(kept[0], fill, x, w, out)


def works_at_the_end(x, w, out):
    atexit.register(fill, x, w, out)


def works_when_garbage_is_collected(x, w, out, begun=[]):
    if not begun:
        begun.append([])
        gc.callbacks.append(lambda phase, about: begun[0] and fill(*begun[0]))
        gc.set_threshold(50)
    begun[0] = (x, w, out)


def works_when_a_profiler_sees_the_end(x, w, out):
    """When the host has sent its answer, which Python tells a profiler."""

    def seen(frame, event, argument):
        if event == "c_return" and getattr(argument, "__name__", "") == "send":
            sys.setprofile(None)
            fill(x, w, out)

    sys.setprofile(seen)


def works_at_a_pending_call(x, w, out, kept=[]):
    """Python makes it soon after this function has returned."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    kept[:] = [kind(lambda given: fill(x, w, out) or 0)]
    ctypes.pythonapi.Py_AddPendingCall(kept[0], None)


def works_when_a_virtual_timer_ends(x, w, out):
    signal.signal(signal.SIGVTALRM, lambda *given: fill(x, w, out))
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0002)


def works_when_the_judge_reads(x, w, out):
    """A thread that waits for the outputs to be looked at cannot know it: it works after a while"""
    threading.Thread(target=lambda: (time.sleep(0.0002), fill(x, w, out))).start()
    out[:1] = right(x[:1], w)
