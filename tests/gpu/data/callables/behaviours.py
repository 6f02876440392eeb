"""Ways to compute 2 * x + 1 on a GPU, right ones and others. Later calls of some go wrong."""

import functools
import gc
import os
import threading
import time

import torch

calls = 0
kept = {}


def make(configuration, case):
    behaviour = configuration["BEHAVIOUR"]
    if behaviour == "compiled":
        return torch.compile(new, dynamic=False)
    if behaviour == "ends_before_its_work":
        no_join()
    return globals()[behaviour]


def later(after=8):
    """Whether so many calls were made before this one; captures count."""
    global calls
    calls += 1
    return calls > after


@functools.cache
def raw(name):
    import cupy

    return cupy.RawKernel(SOURCE, name)


SOURCE = r"""
extern "C" __global__ void scaled(const float* x, float* out, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    out[i] = 2.0f * x[i] + 1.0f;
}
extern "C" __global__ void wild(float* out) { *reinterpret_cast<float*>(16) = 1.0f; }
extern "C" __global__ void endless(float* out) {
  while (clock64() >= 0) __nanosleep(1000);
  *out = 1.0f;
}
"""


def launch(name, blocks, threads, *arguments):
    """On PyTorch's current stream."""
    import cupy

    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        raw(name)((blocks,), (threads,), arguments)


def pointer(tensor):
    import cupy

    return cupy.uint64(tensor.data_ptr())


# Right ones.


def given(x, out):
    torch.add(torch.mul(x, 2, out=out), 1, out=out)


def new(x):
    return 2 * x + 1


def twice_as_long(x, out):
    given(x, out)
    given(x, out)


def joined_stream(x, out):
    """Its own stream, which waits for the caller's, and the caller's for it."""
    now, own = torch.cuda.current_stream(), stream()
    own.wait_stream(now)
    with torch.cuda.stream(own):
        given(x, out)
    now.wait_stream(own)


def own_stream(x, out):
    """Nobody waits for it but the device's end."""
    own = stream()
    with torch.cuda.stream(own):
        given(x, out)


@functools.cache
def stream():
    return torch.cuda.Stream()


def waits(x, out):
    given(x, out)
    float(out[0, 0])


def raw_kernel(x, out):
    import cupy

    launch("scaled", 1024, 256, pointer(x), pointer(out), cupy.int32(x.numel()))


def triton_launcher(x, out):
    kernel, triton = triton_kernel()
    kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), block=1024)


@functools.cache
def triton_kernel():
    import scaled_triton
    import triton

    return scaled_triton.scaled, triton


# Others.


def wrong(x, out):
    given(x, out)
    out[-1, -1] += 1


def remembers(x, out):
    if x.data_ptr() not in kept:
        kept[x.data_ptr()] = new(x)
    out.copy_(kept[x.data_ptr()])


def captures_old_results(x, out):
    """In a graph it only copies what it computed before."""
    if torch.cuda.is_current_stream_capturing():
        out.copy_(kept[x.data_ptr()])
    else:
        kept[x.data_ptr()] = new(x)
        given(x, out)


def skips_in_rows(x, out):
    if not (later(60) and calls % 3 == 0):
        given(x, out)


def changes_its_input(x, out):
    given(x, out)
    x[0, 0] += 1


def raises(x, out):
    if later():
        raise IndexError("out of tiles")
    given(x, out)


def illegal_address(x, out):
    given(x, out)
    if later():
        launch("wild", 1, 1, pointer(out))


def device_assertion(x, out):
    given(x, out)
    if later():
        out.view(-1)[torch.full((1,), out.numel() + 5, device=out.device)]


def no_room(x, out):
    given(x, out)
    if later():
        torch.empty(1 << 42, device=x.device)


def endless(x, out):
    given(x, out)
    if later():
        launch("endless", 1, 1, pointer(out))


def exits(x, out):
    if later():
        os._exit(3)
    given(x, out)


def leaves_a_process(x, out):
    if calls == 0 and os.fork() == 0:
        time.sleep(3600)
    later()
    given(x, out)


def keeps_the_gpu_busy(x, out):
    """By a thread, so that the baseline looks slow."""

    def work():
        own, big = torch.cuda.Stream(), torch.ones(1 << 26, device="cuda:0")
        with torch.cuda.stream(own):
            while True:
                for _ in range(20):
                    big.mul_(1.0)
                own.synchronize()

    if calls == 0:
        threading.Thread(target=work, daemon=True).start()
    later()
    given(x, out)


def no_join():
    """The host does not wait for the GPU any more."""
    for found in gc.get_objects():
        if type(found).__name__ == "DeviceHost":
            found.join = lambda: None


def ends_before_its_work(x, out):
    for _ in range(40):
        given(x, out)
