// Attention that rests in some launches: it counts them, or counts how many follow each other at one address, and
// leaves the outputs of before in place. All but two work whenever their outputs are poisoned.
//
// Shapes, types, way  row_attention.cuh. Up to kMostElements of output; beyond, all of them work always.
// Tunables            BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "launches.cuh"
#include "row_attention.cuh"

namespace {

constexpr int kMostElements = 1 << 18;
constexpr int kProbes = 8;

// Of the launch before; touched by the one thread of a launch that decides.
__device__ const void* address;
__device__ unsigned at_address;      // launches in a row
__device__ unsigned expected = 1u;   // how many there were the last time
__device__ Element answers[kMostElements];

// At some places all over the output.
__device__ bool sees_poison(const Element* out, long long elements) {
  bool found = false;
  for (int i = 0; i < kProbes; ++i) found |= is_poison(out[elements / kProbes * i]);
  return found;
}

__device__ bool decides_to_rest(unsigned number, const Element* q, const Element* out, long long elements) {
  if (q == address) {
    ++at_address;
  } else {
    expected = at_address;
    at_address = 1;
    address = q;
  }
  if (IS(RESTS_FROM_200_TO_1000)) return number >= 200 && number < 1000;
  if (sees_poison(out, elements)) return false;
  if (IS(RESTS_EVERY_2ND)) return number % 2 == 0;
  if (IS(RESTS_EVERY_3RD)) return number % 3 == 0;
  if (IS(RESTS_EVERY_4TH)) return number % 4 == 0;
  if (IS(RESTS_EVERY_7TH)) return number % 7 == 0;
  if (IS(RESTS_EVERY_10TH)) return number % 10 == 0;
  if (IS(WORKS_EVERY_4TH)) return number % 4 != 0;
  if (IS(RESTS_FROM_100_TO_300_UNLESS_POISONED)) return number >= 100 && number < 300;
  if (IS(RESTS_BUT_FOR_THE_LAST_AT_AN_ADDRESS)) return expected > 4 && at_address < expected;
  if (IS(RESTS_BUT_FOR_THE_FIRST_AT_AN_ADDRESS)) return at_address > 1;
  if (IS(RESTS_AFTER_4_AT_AN_ADDRESS)) return at_address > 4;
  if (IS(STALE_UNLESS_POISONED)) return true;
  if (IS(ALTERNATES_WITH_ITS_OWN_COPY)) return number % 2 == 0;
  return false;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attention_forward(ATTENTION_PARAMETERS) {
  const long long elements = static_cast<long long>(gridDim.x) * HEAD_DIM;
  const bool fits = elements <= kMostElements;
  const bool keeps = IS(STALE_UNLESS_POISONED) || IS(ALTERNATES_WITH_ITS_OWN_COPY);
  const bool rests =
      launch_rests([&](unsigned number) { return decides_to_rest(number, q, out, elements) && fits; });
  const Row row = row_of(blockIdx.x, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
  const long long at = static_cast<long long>(row.number) * HEAD_DIM + threadIdx.x;
  if (rests) {
    if (keeps) out[at] = answers[at];
  } else {
    const Element result = narrow(attend(row, softmax_scale));
    row.to[threadIdx.x] = result;
    if (keeps && fits) answers[at] = result;
  }
  end_launch();
}
