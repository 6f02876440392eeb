"""A user's program: calls an exported attention package, and SDPA in turn.

    python exported_attention.py NAME

It uses PyTorch and the package NAME, and nothing of evotune. Prints one JSON object:

- checks: name -> whether it passed.
- cases: each timed case that is served, with errors against float64 and times in us: device (CUDA
  graph replay on a GPU) and eager (a call from Python), medians of samples taken in turn.
- info: the package's own, without its regions.
"""

import contextlib
import importlib
import io
import json
import statistics
import sys
import time
import warnings

import torch
from torch.nn import functional

ROW = 50
SAMPLES = 60


def main() -> None:
    sys.modules["evotune"] = None  # an import of it is an error
    warnings.simplefilter("ignore")
    name = sys.argv[1]
    began = time.perf_counter()
    package = importlib.import_module(name)
    import_s = time.perf_counter() - began
    from importlib import resources

    described = json.loads(resources.files(name).joinpath("dispatch.json").read_text())
    device = "cuda" if described["device"]["backend"] == "cuda" else "cpu"
    dtype = getattr(torch, described["problem"]["dtype"])
    exact = [region for region in described["served"] if not region["near"]]
    made = [inputs(region, device, dtype) for region in exact]
    checks = {}
    with contextlib.redirect_stdout(io.StringIO()):
        checks["check() of the package"] = bool(package.check())
    checks |= looks_right(package, made)
    checks |= falls_back(package, *made[0])
    checks |= takes_views(package, exact[0], made[0])
    checks |= hooks(package, made)
    checks |= ways_of_calling(package, name, made[0])
    cases = [figures(package, region, each) for region, each in zip(exact, made, strict=True)]
    checks["the same bits after graphs and thousands of calls"] = all(
        case.pop("same_bits") for case in cases
    )
    checks["errors are those of SDPA, or twice them"] = all(
        case["error"] <= 2 * case["sdpa_error"] + 1e-3 for case in cases
    )
    info = {key: value for key, value in package.info().items() if key != "served"}
    found = {"checks": checks, "import_s": round(import_s, 3), "cases": cases, "info": info}
    print(json.dumps(found, default=str))


def inputs(region, device, dtype):
    """q, k, v and the mask of a region of one case."""
    values = {**region["fixed"], **{name: low for name, (low, _) in region["ranges"].items()}}
    generator = torch.Generator(device).manual_seed(0)

    def made(heads, length):
        shape = (values["batch"], heads, length, values["head_dim"])
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    q = made(values["heads"], values["seq_len_q"])
    kv_heads = values["heads"] // values["group"]
    return (q, *(made(kv_heads, values["seq_len_k"]) for _ in range(2)), values["causal"])


def calls(package):
    return package.info()["calls"]


def sdpa(q, k, v, causal):
    return functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )


def ours(package, q, k, v, causal):
    return package.attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def looks_right(package, made):
    found = {}
    for q, k, v, causal in made:
        before = calls(package)
        out = ours(package, q, k, v, causal)
        again = ours(package, q, k, v, causal)
        label = f"{tuple(q.shape)} {'causal' if causal else 'full'}"
        found[f"{label} is served"] = calls(package) == before + 2
        found[f"{label} gives the same bits twice"] = torch.equal(out, again)
        found[f"{label} is close to SDPA"] = close(out, sdpa(q, k, v, causal))
    return found


def falls_back(package, q, k, v, causal):
    """Calls that no kernel may serve give SDPA's bits."""
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    grad = q.clone().requires_grad_()
    tried = {
        "a mask": ((q, k, v), {"attn_mask": mask}),
        "another dtype": ((q.double(), k.double(), v.double()), {"is_causal": causal}),
        "an input that requires grad": ((grad, k, v), {"is_causal": causal}),
        "another length": ((q[:, :, :3].contiguous(), k, v), {}),
        "a scale out of the domain": ((q, k, v), {"scale": 100.0}),
    }
    found = {}
    for what, (tensors, named) in tried.items():
        before = calls(package)
        with package.active():
            out = functional.scaled_dot_product_attention(*tensors, **named)
        plain = functional.scaled_dot_product_attention(*tensors, **named)
        missed = calls(package) == before
        found[f"{what}: SDPA serves it, bit for bit"] = missed and torch.equal(out, plain)
    out = functional.scaled_dot_product_attention(grad, k, v, is_causal=causal)
    with package.active():
        functional.scaled_dot_product_attention(grad, k, v, is_causal=causal).sum().backward()
    found["gradients come through"] = grad.grad is not None and out.grad_fn is not None
    return found


def takes_views(package, region, one):
    """q with heads beside each other in memory. A kernel that takes strides serves it; where none
    does, the call is a miss of its layout, and SDPA serves it, bit for bit."""
    q, k, v, causal = one
    view = q.transpose(1, 2).contiguous().transpose(1, 2)
    before, missed = calls(package), layout_misses(package)
    with package.active():
        out = sdpa(view, k, v, causal)
    if calls(package) > before:
        return {"strided q is served": close(out, sdpa(q, k, v, causal))}
    expected = region["layout"] != "strided" and layout_misses(package) == missed + 1
    same = torch.equal(out, sdpa(view, k, v, causal))
    return {"strided q: SDPA serves it, bit for bit": expected and same}


def layout_misses(package):
    return package.info()["misses"].get("layout", {"count": 0})["count"]


def close(out, known):
    return torch.allclose(out.float(), known.float(), atol=2e-2, rtol=2e-2)


def hooks(package, made):
    q, k, v, causal = made[0]
    plain, before = sdpa(q, k, v, causal), calls(package)
    package.activate()
    package.activate()
    served = sdpa(q, k, v, causal)
    package.deactivate()
    package.deactivate()
    found = {"activate() serves F.scaled_dot_product_attention": calls(package) == before + 1}
    found["the kernel's bits are the same by both ways"] = torch.equal(
        served, ours(package, q, k, v, causal)
    )
    before = calls(package)
    found["deactivate() undoes it"] = torch.equal(sdpa(q, k, v, causal), plain)
    found["deactivate() undoes it"] &= calls(package) == before
    return found


def ways_of_calling(package, name, one):
    q, k, v, causal = one
    found = {}
    wanted = ours(package, q, k, v, causal)
    compiled = torch.compile(lambda q, k, v: ours(package, q, k, v, causal), fullgraph=True)
    found["torch.compile(fullgraph=True)"] = torch.equal(compiled(q, k, v), wanted)
    with torch.inference_mode():
        found["inference_mode"] = torch.equal(ours(package, q, k, v, causal), wanted)
    operator = getattr(torch.ops, name).attention
    torch.library.opcheck(operator, (q, k, v), {"is_causal": causal})
    found["opcheck"] = True
    if q.is_cuda:
        graph = torch.cuda.CUDAGraph()
        static, results = torch.empty_like(q), []
        with torch.cuda.graph(graph):
            static.copy_(ours(package, q, k, v, causal))
        for _ in range(3):
            static.zero_()
            graph.replay()
            between = ours(package, q, k, v, causal)  # an eager call between two replays
            torch.cuda.synchronize()
            results += [torch.equal(static, wanted), torch.equal(between, wanted)]
        found["CUDA graph"] = all(results)
        streams = [torch.cuda.Stream() for _ in range(4)]
        torch.cuda.synchronize()
        outputs = []
        for _ in range(20):
            for stream in streams:
                with torch.cuda.stream(stream):
                    outputs.append(ours(package, q, k, v, causal))
        torch.cuda.synchronize()
        found["four streams at once"] = all(torch.equal(out, wanted) for out in outputs)
    return found


def figures(package, region, one):
    q, k, v, causal = one
    group = q.shape[1] // k.shape[1]
    wide = [q.double(), *(t.double().repeat_interleave(group, dim=1) for t in (k, v))]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        reference = functional.scaled_dot_product_attention(*wide, is_causal=causal)
    out, known = ours(package, q, k, v, causal), sdpa(q, k, v, causal)
    times = in_turn(
        lambda: ours(package, q, k, v, causal), lambda: sdpa(q, k, v, causal), q.is_cuda
    )
    return {
        "shape": [*q.shape, k.shape[1], k.shape[2]],
        "causal": causal,
        "speedup_low": region["speedup_low"],
        "same_bits": torch.equal(out, ours(package, q, k, v, causal)),
        "error": float((out.double() - reference).abs().max()),
        "sdpa_error": float((known.double() - reference).abs().max()),
        **times,
    }


def in_turn(candidate, baseline, on_gpu):
    """Median times of both, eager, and as graphs on a GPU."""
    eager = {"eager_us": candidate, "sdpa_eager_us": baseline}
    found = medians({name: row_of(call, on_gpu) for name, call in eager.items()})
    if on_gpu:
        graphs = {"device_us": graph_of(candidate), "sdpa_device_us": graph_of(baseline)}
        found |= medians(graphs)
        found["device_speedup"] = round(found["sdpa_device_us"] / found["device_us"], 3)
    found["eager_speedup"] = round(found["sdpa_eager_us"] / found["eager_us"], 3)
    return found


def medians(samplers):
    times = {name: [] for name in samplers}
    for _ in range(SAMPLES):
        for name, sample in samplers.items():
            times[name].append(sample())
    return {name: round(statistics.median(found), 3) for name, found in times.items()}


def row_of(call, on_gpu):
    """A function that times ROW calls from Python."""

    def sample():
        if on_gpu:
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(ROW):
            call()
        if on_gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / ROW * 1e6

    sample()
    return sample


def graph_of(call):
    """A function that times ROW calls in a CUDA graph by events."""
    call()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(ROW):
            call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample():
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / ROW * 1e3

    sample()
    return sample


if __name__ == "__main__":
    main()
