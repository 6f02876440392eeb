// Attention over packed sequences of different lengths on the CPU: plain loops and online softmax.
//
//   out = softmax(softmax_scale * q k^T) v, each sequence by itself.
//
// Shapes      q, out (tokens_q, heads, HEAD_DIM); k, v (tokens_k, kv_heads, HEAD_DIM), contiguous. Sequence i has the
//             rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1, and the keys likewise; either may be none.
//             CAUSAL: a sequence's last row sees all of its keys, the row before one less, and so on.
// Types       float32; tables of int32. HEAD_DIM and CAUSAL are compiled in.
// Tunables, as in 1_scalar.cpp, which explains the algorithm
//   BLOCK_N           keys per block.
//   UNROLL            partial sums of a dot product; divides HEAD_DIM.
//   SCHEDULE, CHUNK   how OpenMP hands out rows, and how many at a time.
// Archs       any. Workspace: none.
// Adds        to 1_scalar.cpp: a search for the sequence of each row, since rows are dealt out one by one.
#include <algorithm>
#include <cstddef>

#include "parts/scalar_row.h"

extern "C" void attention_varlen(const float* q, const float* k, const float* v, const int* cu_seqlens_q,
                                 const int* cu_seqlens_k, float* out, float softmax_scale, int sequences, int heads,
                                 int kv_heads, int tokens_q) {
  const int group = heads / kv_heads;
#pragma omp parallel for collapse(2) schedule(OMP_SCHEDULE, CHUNK)
  for (int token = 0; token < tokens_q; ++token) {
    for (int head = 0; head < heads; ++head) {
      // The last sequence that begins at or before the row; empty ones before it begin there too.
      const int* behind = std::upper_bound(cu_seqlens_q, cu_seqlens_q + sequences, token);
      const int sequence = static_cast<int>(behind - cu_seqlens_q) - 1;
      const int first = cu_seqlens_k[sequence], keys = cu_seqlens_k[sequence + 1] - first;
      const int rows_behind = cu_seqlens_q[sequence + 1] - 1 - token;
      const int seen = CAUSAL ? std::max(0, keys - rows_behind) : keys;
      const std::ptrdiff_t row = (static_cast<std::ptrdiff_t>(token) * heads + head) * HEAD_DIM;
      const std::ptrdiff_t kv = (static_cast<std::ptrdiff_t>(first) * kv_heads + head / group) * HEAD_DIM;
      const std::ptrdiff_t step = static_cast<std::ptrdiff_t>(kv_heads) * HEAD_DIM;
      const auto place = [=](int key) { return kv + key * step; };
      attend_row(q + row, k, v, out + row, softmax_scale, seen, place);
    }
  }
}
