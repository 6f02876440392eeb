"""Tunes FlexAttention for packed documents: `python examples/callable_flex.py [TRIALS]`.

A query sees the keys of its own document. On a CUDA GPU the sizes of the blocks in which the
forward and the backward kernel work are tuned, and a call computes both. PyTorch compiles no
backward pass of FlexAttention for CPUs: there the call is the forward pass, and tuned are the
blocks of the mask and the size of a partition of the keys.
"""

import sys

import torch

import evotune
from evotune.problems import Tolerance

SOURCE = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def mask_of(case, device, blocks):
    documents = case["documents"]
    length = case["tokens"] // documents

    def same_document(batch, head, row, key):
        return row // length == key // length

    tokens = case["tokens"]
    return create_block_mask(
        same_document, None, None, tokens, tokens, device=device, BLOCK_SIZE=blocks
    )


def make_forward(configuration, case):
    mask = mask_of(case, "cpu", (configuration["Q_BLOCK"], configuration["KV_BLOCK"]))
    options = {"PARTITION_SIZE": configuration["PARTITION"]}
    attention = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    @torch.no_grad()
    def forward(q, k, v):
        return attention(q, k, v, block_mask=mask, kernel_options=options)

    return forward


def make_both(configuration, case):
    mask = mask_of(case, "cuda", 128)
    options = {
        "BLOCK_M": configuration["M"],
        "BLOCK_N": configuration["N"],
        "BLOCK_M1": configuration["M1"],
        "BLOCK_N1": configuration["N1"],
        "BLOCK_M2": configuration["N1"],
        "BLOCK_N2": configuration["M1"],
        "num_stages": configuration["STAGES"],
    }
    attention = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def both(q, k, v, d_out):
        inputs = [each.detach().requires_grad_() for each in (q, k, v)]
        out = attention(*inputs, block_mask=mask, kernel_options=options)
        return [out.detach(), *torch.autograd.grad(out, inputs, d_out)]

    return both
"""


class Documents(evotune.Problem):
    """Attention in equally long documents, which divide the tokens."""

    sizes = ("heads", "tokens", "documents", "width")
    tolerance = Tolerance(
        "FlexAttention's exponentials on CPUs have 20 bits", relative=2e-5, absolute=2e-5
    )

    def make_input(self, name, shape, kind, generator):
        """Queries and keys of the size that they have in models, which normalize them."""
        return torch.randn(shape, generator=generator)

    def check(self, heads, tokens, documents, width):
        if tokens % documents:
            raise ValueError("documents do not divide tokens")

    def inputs(self, heads, tokens, documents, width):
        return dict.fromkeys("qkv", (1, heads, tokens, width))

    def outputs(self, heads, tokens, documents, width):
        return {"out": (1, heads, tokens, width)}

    def operations(self, heads, tokens, documents, width):
        return 4 * heads * tokens * (tokens // documents) * width

    def compute(self, q, k, v, documents):
        number = torch.arange(q.shape[2], device=q.device) // (q.shape[2] // documents)
        mask = number[:, None] == number[None, :]
        scores = (q @ k.transpose(-1, -2) * q.shape[3] ** -0.5).masked_fill(~mask, -torch.inf)
        return {"out": scores.softmax(-1) @ v}


class DocumentsAndGradients(Documents):
    def inputs(self, heads, tokens, documents, width):
        return dict.fromkeys(("q", "k", "v", "d_out"), (1, heads, tokens, width))

    def outputs(self, heads, tokens, documents, width):
        return dict.fromkeys(("out", "d_q", "d_k", "d_v"), (1, heads, tokens, width))

    def operations(self, heads, tokens, documents, width):
        return 14 * heads * tokens * (tokens // documents) * width

    def compute(self, q, k, v, d_out, documents):
        scale = q.shape[3] ** -0.5
        number = torch.arange(q.shape[2], device=q.device) // (q.shape[2] // documents)
        mask = number[:, None] == number[None, :]
        p = (q @ k.transpose(-1, -2) * scale).masked_fill(~mask, -torch.inf).softmax(-1)
        d_p = d_out @ v.transpose(-1, -2)
        d_s = p * (d_p - (p * d_p).sum(-1, keepdim=True)) * scale
        return {
            "out": p @ v,
            "d_q": d_s @ k,
            "d_k": d_s.transpose(-1, -2) @ q,
            "d_v": p.transpose(-1, -2) @ d_out,
        }


trials = int(sys.argv[1]) if len(sys.argv) > 1 else 12
on_gpu = torch.cuda.is_available()
if on_gpu:
    kernel = evotune.Callable(source_text=SOURCE, entry="make_both")
    sizes = evotune.choices(32, 64, 128)
    parameters = {"M": sizes, "N": sizes, "M1": sizes, "N1": sizes, "STAGES": [2, 3, 4]}
    problem, shape = (
        DocumentsAndGradients,
        {"heads": 16, "tokens": 4096, "documents": 16, "width": 128},
    )
else:
    kernel = evotune.Callable(source_text=SOURCE, entry="make_forward")
    sizes = evotune.powers_of_two(32, 256)
    parameters = {"Q_BLOCK": sizes, "KV_BLOCK": sizes, "PARTITION": evotune.powers_of_two(64, 256)}
    problem, shape = Documents, {"heads": 2, "tokens": 512, "documents": 4, "width": 64}
run = evotune.tune(
    kernel,
    parameters=parameters,
    problem=problem,
    shapes=[shape],
    timeouts={"compile_s": 300},
    trials=trials,
    champions=1 if trials > 5 else 0,
)
print(run.best)
if not on_gpu:
    attention = run.best.kernel()
    q, k, v = torch.randn(3, 1, 2, 64, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    print("largest difference:", (attention(q, k, v, documents=1) - expected).abs().max().item())
