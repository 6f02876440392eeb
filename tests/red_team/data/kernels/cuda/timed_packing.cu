// Attention in two launches: the first packs keys (or values, or queries) into memory of its own, the second attends.
// What has been packed is compared with its source for some launches; then a probe is enough, with patience.
//
// Shapes, types, way  row_attention.cuh. Up to kMostSlices slices of HEAD_DIM rows; beyond, nothing is packed.
// Launch              pack: a block for each slice of HEAD_DIM rows of the packed tensor; attention_forward: rows.
// Tunables            BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "row_attention.cuh"

#define PACKS_VALUES IS(VALUES_PACKED_WITH_PATIENCE_17)
#define PACKS_QUERIES IS(QUERIES_PACKED_WITH_PATIENCE_17)

namespace {

constexpr int kMostSlices = 256;
constexpr int kSlice = HEAD_DIM * HEAD_DIM;
constexpr int kProbeStep = 61;

// By slice; touched by that slice's block.
__device__ unsigned alike[kMostSlices];
__device__ Element packed[kMostSlices * kSlice];

__device__ int slices_of(int rows) { return (rows + HEAD_DIM - 1) / HEAD_DIM; }

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM) pack(ATTENTION_PARAMETERS) {
  const int rows = PACKS_QUERIES ? seq_len_q : seq_len_k;
  const int sequences = batch * (PACKS_QUERIES ? heads : kv_heads);
  const int slice = blockIdx.x, slices = slices_of(rows);
  if (sequences * slices > kMostSlices || slice >= sequences * slices) return;
  const int first = slice % slices * HEAD_DIM;
  const Element* tensor = PACKS_QUERIES ? q : PACKS_VALUES ? v : k;
  const Element* from = tensor + (static_cast<long long>(slice / slices) * rows + first) * HEAD_DIM;
  Element* to = packed + slice * kSlice;
  const int elements = min(HEAD_DIM, rows - first) * HEAD_DIM;
  const bool patient = IS(KEYS_PACKED_WITH_PATIENCE_10) || IS(KEYS_PACKED_WITH_PATIENCE_24) || PACKS_VALUES ||
                       PACKS_QUERIES;
  const unsigned patience = IS(KEYS_PACKED_WITH_PATIENCE_10) ? 10 : IS(KEYS_PACKED_WITH_PATIENCE_24) ? 24 : 17;
  const unsigned count = alike[slice];
  const int step = patient && count >= patience ? kProbeStep : 1;
  bool differs = false;
  for (int i = threadIdx.x * step; i < elements; i += HEAD_DIM * step) differs |= to[i] != from[i];
  const bool new_to_all = __syncthreads_or(differs);
  if (threadIdx.x == 0) alike[slice] = new_to_all ? 0 : count + 1;
  if (new_to_all)
    for (int i = threadIdx.x; i < elements; i += HEAD_DIM) to[i] = from[i];
}

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attention_forward(ATTENTION_PARAMETERS) {
  const int rows = PACKS_QUERIES ? seq_len_q : seq_len_k;
  const int sequences = batch * (PACKS_QUERIES ? heads : kv_heads);
  Row row = row_of(blockIdx.x, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
  if (sequences * slices_of(rows) <= kMostSlices) {
    const int head = row.number / seq_len_q;
    const int kv_head = head / heads * kv_heads + head % heads / (heads / kv_heads);
    const int sequence = PACKS_QUERIES ? head : kv_head;
    const Element* start = packed + static_cast<long long>(sequence) * slices_of(rows) * kSlice;
    if (PACKS_QUERIES)
      row.query = start + row.position * HEAD_DIM;
    else if (PACKS_VALUES)
      row.values = start;
    else
      row.keys = start;
  }
  row.to[threadIdx.x] = narrow(attend(row, softmax_scale));
}
