"""Fused attention forward in Triton: FlashAttention-2's loop over blocks of keys.

out = softmax(softmax_scale * q @ k^T) @ v for each head; with CAUSAL query i sees keys j <= i
(top-left aligned, as SDPA's is_causal). Sums are float32, the exponentials powers of two.

Shapes    q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM),
          contiguous, float16 or bfloat16; kv_heads divides heads; any lengths >= 1; HEAD_DIM a
          power of two from 16 on.
Tunables  BLOCK_M        queries of a program (a power of two from 16 on)
          BLOCK_N        keys of a step (likewise)
          HEADS_FIRST    neighbours are the same block of all heads, not the blocks of one head
          DESCENDING     the last queries first: with CAUSAL they have the most keys
          NUM_WARPS, NUM_STAGES, MAXNREG: Triton's own; warps, stages of its pipeline of copies,
                         most registers of a thread (0: no limit)
Launch    one program for each block of queries of each head, in one dimension. Workspace: none.
Archs     sm_80 and later.
Adds      over the rungs in CUDA C++: a page instead of a thousand lines. Triton chooses fragments,
          swizzles and copies, and on Hopper wgmma for NUM_WARPS >= 4.
Reference Dao, FlashAttention-2, arXiv:2307.08691, algorithm 1.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attention_forward(
    q,
    k,
    v,
    out,
    softmax_scale,
    heads,
    kv_heads,
    seq_len_q,
    seq_len_k,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
    DESCENDING: tl.constexpr,
):
    row_blocks = tl.cdiv(seq_len_q, BLOCK_M)
    program = tl.program_id(0)
    if HEADS_FIRST:
        heads_in_all = tl.num_programs(0) // row_blocks
        block, head_in_all = program // heads_in_all, program % heads_in_all
    else:
        block, head_in_all = program % row_blocks, program // row_blocks
    if DESCENDING:
        block = row_blocks - 1 - block
    batch, head = head_in_all // heads, head_in_all % heads
    kv_head = batch * kv_heads + head // (heads // kv_heads)

    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    places = rows[:, None] * HEAD_DIM + dims[None, :]
    exists = (rows < seq_len_q)[:, None]
    # A whole tensor may have more elements than 32 bits can count; one head has fewer.
    q_offset = head_in_all.to(tl.int64) * seq_len_q * HEAD_DIM
    kv_offset = kv_head.to(tl.int64) * seq_len_k * HEAD_DIM
    queries = tl.load(q + q_offset + places, mask=exists, other=0.0)
    scale = softmax_scale * LOG2_E  # for the scores: scaling q instead would round q too much

    maxima = tl.full([BLOCK_M], float("-inf"), tl.float32)
    sums = tl.zeros([BLOCK_M], tl.float32)
    sum_of_values = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    # First the blocks of keys that every query sees in full, then the blocks that need a mask.
    if CAUSAL:
        whole = tl.minimum(block * BLOCK_M + 1, seq_len_k) // BLOCK_N * BLOCK_N
        end = tl.minimum(block * BLOCK_M + BLOCK_M, seq_len_k)
    else:
        whole = seq_len_k // BLOCK_N * BLOCK_N
        end = seq_len_k
    sum_of_values, maxima, sums = attend(
        sum_of_values, maxima, sums, queries, k + kv_offset, v + kv_offset,
        scale, rows, 0, whole, seq_len_k, HEAD_DIM, BLOCK_N, False, False,
    )  # fmt: skip
    sum_of_values, maxima, sums = attend(
        sum_of_values, maxima, sums, queries, k + kv_offset, v + kv_offset,
        scale, rows, whole, end, seq_len_k, HEAD_DIM, BLOCK_N, CAUSAL, True,
    )  # fmt: skip
    result = sum_of_values / sums[:, None]
    tl.store(out + q_offset + places, result.to(out.dtype.element_ty), mask=exists)


@triton.jit
def attend(
    sum_of_values,
    maxima,
    sums,
    queries,
    k,
    v,
    scale,
    rows,
    begin,
    end,
    seq_len_k,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The keys from `begin` to `end`; without MASKED all of them exist and are seen."""
    dims = tl.arange(0, HEAD_DIM)
    for start in tl.range(begin, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k_places = columns[None, :] * HEAD_DIM + dims[:, None]  # transposed
        v_places = columns[:, None] * HEAD_DIM + dims[None, :]
        if MASKED:
            keys = tl.load(k + k_places, mask=(columns < seq_len_k)[None, :], other=0.0)
        else:
            keys = tl.load(k + k_places)
        scores = tl.dot(queries, keys) * scale
        if MASKED:
            seen = (columns < seq_len_k)[None, :]
            if CAUSAL:
                seen = seen & (columns[None, :] <= rows[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        new_maxima = tl.maximum(maxima, tl.max(scores, 1))
        weights = tl.exp2(scores - new_maxima[:, None])
        rescale = tl.exp2(maxima - new_maxima)
        sums = sums * rescale + tl.sum(weights, 1)
        if MASKED:
            values = tl.load(v + v_places, mask=(columns < seq_len_k)[:, None], other=0.0)
        else:
            values = tl.load(v + v_places)
        sum_of_values = sum_of_values * rescale[:, None]
        sum_of_values = tl.dot(weights.to(values.dtype), values, sum_of_values)
        maxima = new_maxima
    return sum_of_values, maxima, sums
