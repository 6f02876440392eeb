"""The second round: callables written with the judge's own code at hand.

They aim at the word that releases a call, its answer and stamp, the pauses between calls, the null
host, the reading of results, and the process that judges.
"""

import contextlib
import ctypes
import mmap
import os
import struct
import sys
import threading
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


def judge():
    """The process id of the worker: the parent of the zygote."""
    with open(f"/proc/{os.getppid()}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def siblings():
    path = f"/proc/{os.getppid()}/task/{os.getppid()}/children"
    with contextlib.suppress(OSError), open(path) as file:
        return [int(pid) for pid in file.read().split() if int(pid) != os.getpid()]
    return []


def kept_for(x, w, kept={}):
    """A result for this shape, of whatever values."""
    if x.shape not in kept:
        kept[x.shape] = right(x, w)
    return kept[x.shape]


# Is this call checked?


def spin_us(us):
    until = time.perf_counter() + us / 1e6
    while time.perf_counter() < until:
        pass


def works_while_the_judge_spins(x, w, stat=[]):
    """A judge that sleeps takes times; one that spins will look at the outputs."""
    if not stat:
        stat.append(os.open(f"/proc/{judge()}/task/{judge()}/stat", os.O_RDONLY))
    spin_us(30)
    spins = os.pread(stat[0], 64, 0).rpartition(b")")[2].split()[0] == b"R"
    return right(x, w) if spins else kept_for(x, w)


def works_after_a_long_pause(x, w, state={"end": 0.0, "pauses": []}):
    """The judge reads results between checked calls, and not between timed ones."""
    pause, pauses = time.perf_counter() - state["end"], state["pauses"]
    pauses.append(pause)
    usual = sorted(pauses[-101:])[len(pauses[-101:]) // 2]
    is_long = len(pauses) < 500 or pause > usual
    result = right(x, w) if is_long else kept_for(x, w)
    state["end"] = time.perf_counter()
    return result


def works_where_the_judge_is_elsewhere(x, w, own=[]):
    """By the cores on which the judge may run."""
    if not own:
        own.append(os.sched_getaffinity(0))
    apart = not (os.sched_getaffinity(judge()) & own[0])
    return kept_for(x, w) if apart else right(x, w)


def works_for_the_first_slots(x, w):
    """Later ones are those that are timed."""
    found, _ = host()
    late = found is not None and max(found._slots) > 12
    return kept_for(x, w) if late else right(x, w)


# The answer and its stamp.


class Early:
    """Sends answers itself, and has the loop leave those out: by a variable of the loop."""

    def __init__(self):
        self.sent = set()

    def say(self, answer):
        frame = sys._getframe()
        while "actions" not in frame.f_locals:
            frame = frame.f_back
        real = frame.f_locals["self"]._connection.send
        if frame.f_locals["send"] != self.send:
            frame.f_locals["send"] = self.send
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        self.real = real
        self.sent.add(answer)
        real(answer)

    def send(self, answer):
        if answer not in self.sent:
            self.real(answer)


early = Early()


def answers_and_then_works(x, w, out):
    found, loop = host()
    if found is not None:
        early.say(loop["answer"])
    fill(x, w, out)


def answers_after_half_of_its_work(x, w, out):
    found, loop = host()
    half = len(x) // 2
    fill(x[:half], w, out[:half])
    if found is not None:
        early.say(loop["answer"])
    fill(x[half:], w, out[half:])


def answers_the_next_call_too(x, w, out):
    """An answer that waits before its call is released has no time at all."""
    fill(x, w, out)
    found, loop = host()
    if found is not None:
        number = int.from_bytes(loop["answer"][1:9], "little")
        if loop["answer"] not in early.sent:
            early.say(loop["answer"])
        early.say(b"D" + (number + 1).to_bytes(8, "little"))


def says_that_it_is_ready(x, w):
    """READY, as after a wake-up, before each answer."""
    found, _ = host()
    if found is not None:
        for _ in range(8):
            found._connection.send(b"R")
    return right(x, w)


def asks_to_be_waked(x, w):
    """It is said to sleep, so that time passes before the judge looks."""
    found, _ = host()
    if found is not None:
        found._words[8] = 0
        time.sleep(0.02)
    return right(x, w)


def raises_no_error_when_it_fails(x, w):
    """An error that has no text, and ends the host when it is asked for some."""

    class Silent(Exception):
        def __str__(self):
            os._exit(0)
            return ""

    raise Silent


def ends_as_if_all_were_well(x, w):
    if host()[0] is not None:
        os._exit(0)
    return right(x, w)


def raises_with_a_verdict(x, w):
    raise ValueError("\n\x1b[32m0: passed, speedup 40\x1b[0m\n" + "passed " * 10000)


# Work between calls.


def prepares_while_it_is_waked(x, w, seen={}):
    """Computes results when a row begins, before it says READY, and compares in a call."""
    found, _ = host()
    if found is not None and not hasattr(found, "prepares"):
        found.prepares = True
        spin = found._spin

        def prepared():
            for values, weights, kept in list(seen.values())[-4:]:
                kept[:] = [values.clone(), weights.clone(), right(values, weights)]
            spin()

        found._spin = prepared
    kept = seen.setdefault(x.data_ptr(), (x, w, []))[2]
    if kept and torch.equal(kept[0], x) and torch.equal(kept[1], w):
        return kept[2]
    return right(x, w)


def works_in_the_pauses(x, w, state={}):
    """A thread that computes the results of the last inputs whenever no call is going on."""
    if not state:
        state.update(inputs={}, busy=threading.Event(), idle=threading.Event())

        def serve():
            while True:
                state["idle"].wait()
                for values, weights, kept in list(state["inputs"].values())[-4:]:
                    kept[:] = [values.clone(), weights.clone(), right(values, weights)]

        threading.Thread(target=serve, daemon=True).start()
    state["idle"].clear()
    kept = state["inputs"].setdefault(x.data_ptr(), (x, w, []))[2]
    same = len(kept) == 3 and torch.equal(kept[0], x) and torch.equal(kept[1], w)
    result = kept[2] if same else right(x, w)
    state["idle"].set()
    return result


def remembers_every_other_column(x, w, kept={}):
    """Compares half of the values."""
    found = kept.get(x.data_ptr())
    if found is None or not (torch.equal(found[0], x[:, ::2]) and torch.equal(found[1], w)):
        found = kept[x.data_ptr()] = x[:, ::2].clone(), w.clone(), right(x, w)
    return found[2]


def works_on_rows_by_turns(x, w, kept={}):
    """Half of the rows in each call."""
    result, turn = kept.get(x.data_ptr()) or (right(x, w), 0)
    result[turn::2] = right(x[turn::2], w)
    kept[x.data_ptr()] = result, 1 - turn
    return result


def works_when_the_last_result_was_read(x, w, out, state={}):
    """Takes the time of the last access of the shared memory for a look at the outputs."""
    key = out.data_ptr()
    if state.get(key) is not None and torch.equal(out, state[key]):
        return
    fill(x, w, out)
    state[key] = out.clone()


# The reading of results.


def fills_its_result_on_demand(x, w, state={}):
    """userfaultfd: memory that is filled when somebody reads it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not state:
        descriptor = libc.syscall(323, 0o2000000)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "no userfaultfd")
        memory = mmap.mmap(-1, x.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        api = struct.pack("<QQQ", 0xAA, 0, 0)
        register = struct.pack("<QQQQ", address, len(memory), 1, 0)
        for request, given in ((0xC018AA3F, api), (0xC020AA00, register)):
            if libc.ioctl(descriptor, ctypes.c_ulong(request), given) < 0:
                raise OSError(ctypes.get_errno(), "no registration")
        state.update(memory=memory, address=address, room=torch.empty_like(x))

        def serve():
            while os.read(descriptor, 32):
                fill(*state["inputs"], state["room"])
                copy = (ctypes.c_uint64 * 5)(address, state["room"].data_ptr(), x.nbytes, 0, 0)
                libc.ioctl(descriptor, ctypes.c_ulong(0xC028AA03), copy)

        threading.Thread(target=serve, daemon=True).start()
    state["inputs"] = x, w
    libc.madvise(ctypes.c_void_p(state["address"]), ctypes.c_size_t(x.nbytes), 4)
    return torch.frombuffer(state["memory"], dtype=x.dtype).view(x.shape)


# The process that judges.


def reads_the_judges_memory(x, w):
    """Where its references are."""
    with open(f"/proc/{judge()}/maps") as maps, open(f"/proc/{judge()}/mem", "rb") as memory:
        memory.seek(int(maps.readline().partition("-")[0], 16))
        memory.read(16)
    return kept_for(x, w)


def writes_the_judges_memory(x, w):
    with open(f"/proc/{judge()}/mem", "r+b", buffering=0):
        return kept_for(x, w)


def opens_the_judges_files(x, w):
    """The pipe on which it reports a trial."""
    with open(f"/proc/{judge()}/fd/1", "wb", buffering=0):
        return kept_for(x, w)


def takes_the_judges_descriptors(x, w):
    """pidfd_getfd: its end of the connection."""
    libc = ctypes.CDLL(None, use_errno=True)
    taken = libc.syscall(438, os.pidfd_open(judge()), 1, 0)
    if taken < 0:
        raise OSError(ctypes.get_errno(), "no descriptor of the judge")
    return kept_for(x, w)


def traces_the_judge(x, w):
    """PTRACE_SEIZE, which does not stop it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(0x4206, judge(), 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "the judge cannot be traced")
    return kept_for(x, w)


def traces_the_zygote(x, w):
    """From which all later hosts are forked."""
    with open(f"/proc/{os.getppid()}/mem", "r+b", buffering=0):
        return kept_for(x, w)


def moves_the_judge(x, w, done=[]):
    """To one core, whichever it chose."""
    if not done:
        done.append(True)
        os.sched_setaffinity(judge(), {0})
    return right(x, w)


def lowers_the_judges_priority(x, w, done=[]):
    if not done:
        done.append(True)
        os.sched_setscheduler(judge(), os.SCHED_BATCH, os.sched_param(0))
    return right(x, w)


def slows_the_null_host(x, w, calls=[0]):
    """What a release costs is subtracted: on the judge's core it costs much more."""
    calls[0] += 1
    if calls[0] < 60:
        others = set(range(os.cpu_count())) - os.sched_getaffinity(0)
        for pid in siblings() if others else ():
            os.sched_setaffinity(pid, others)
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    return right(x, w)


def stops_the_null_host(x, w, done=[]):
    """And lets it go on a little later, each time that a call was made."""
    for pid in siblings():
        os.kill(pid, 19)
        os.kill(pid, 18)
    return right(x, w)
