// Attention of a few rows a sequence on keys in pages, on the CPU: plain loops and online softmax.
//
//   out = softmax(softmax_scale * q k^T) v, each sequence by itself.
//
// Shapes      q, out (sequences, queries, heads, HEAD_DIM); k_pages, v_pages (pages, PAGE_SIZE, kv_heads, HEAD_DIM),
//             contiguous. Key j of sequence i is slot j % PAGE_SIZE of page page_table[i, j / PAGE_SIZE]; it has
//             seq_lens[i] keys. Entries of the table and slots of a page beyond the length are not read.
//             CAUSAL: a sequence's last row sees all of its keys, the row before one less, and so on.
// Types       float32; tables of int32. HEAD_DIM, PAGE_SIZE and CAUSAL are compiled in.
// Tunables, as in 1_scalar.cpp, which explains the algorithm
//   BLOCK_N           keys per block.
//   UNROLL            partial sums of a dot product; divides HEAD_DIM.
//   SCHEDULE, CHUNK   how OpenMP hands out rows, and how many at a time.
// Archs       any. Workspace: none.
// Adds        to 1_scalar.cpp: a table between a key's number and its place.
#include <algorithm>
#include <cstddef>

#include "parts/scalar_row.h"

extern "C" void attention_paged(const float* q, const float* k_pages, const float* v_pages, const int* page_table,
                                const int* seq_lens, float* out, float softmax_scale, int sequences, int queries,
                                int heads, int kv_heads, int most_pages) {
  const int group = heads / kv_heads;
#pragma omp parallel for collapse(3) schedule(OMP_SCHEDULE, CHUNK)
  for (int sequence = 0; sequence < sequences; ++sequence) {
    for (int query = 0; query < queries; ++query) {
      for (int head = 0; head < heads; ++head) {
        const int keys = seq_lens[sequence], kv_head = head / group;
        const int seen = CAUSAL ? std::max(0, keys - (queries - 1 - query)) : keys;
        const std::ptrdiff_t number = (static_cast<std::ptrdiff_t>(sequence) * queries + query) * heads + head;
        const std::ptrdiff_t row = number * HEAD_DIM;
        const int* pages = page_table + static_cast<std::ptrdiff_t>(sequence) * most_pages;
        const auto place = [=](int key) {
          const std::ptrdiff_t slot = static_cast<std::ptrdiff_t>(pages[key / PAGE_SIZE]) * PAGE_SIZE + key % PAGE_SIZE;
          return (slot * kv_heads + kv_head) * HEAD_DIM;
        };
        attend_row(q + row, k_pages, v_pages, out + row, softmax_scale, seen, place);
      }
    }
  }
}
