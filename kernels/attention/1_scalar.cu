// Fused attention forward, the first rung on a GPU: one warp per row of queries, plain arithmetic, online softmax.
//
//   out = softmax(softmax_scale * q k^T) v, without ever holding a full row of scores.
//
// Shapes      q (batch, heads, seq_len_q, HEAD_DIM); k (batch, kv_heads, seq_len_k, HEAD_DIM); v and out the same with
//             VALUE_DIM, which is HEAD_DIM as a rule; contiguous, 16-byte aligned. heads is a multiple of kv_heads: a
//             group of heads shares one kv head. Lengths >= 1.
//             CAUSAL: row i sees the keys j <= i (aligned to the top left corner, also when the lengths differ).
// Types       DTYPE_FLOAT16 or DTYPE_BFLOAT16 in and out, every sum in float32.
// Problem     HEAD_DIM and VALUE_DIM (multiples of 8, up to 256), CAUSAL, DTYPE, and features: parts/features.h,
//             parts/mask.h.
//
// How it works. WARPS rows of one head share a block of threads, and with it the BLOCK_N keys and values that lie in
// shared memory at a time. A lane's share changes within a step:
//   scores    a lane has whole keys (lane, lane + 32, ...): its dot product needs no other lane
//   softmax   maximum and sum go through the warp; the weights 2^(s - m) go to shared memory
//   output    a lane has columns (lane, lane + 32, ...): it walks over the weights and adds its columns of V
// When a block raises the row's maximum from m to m', the sums so far are too large by 2^(m' - m), and are scaled
// down: the online softmax, which 1_scalar.cpp explains. Scores are kept times log2(e), so that 2^x serves.
// Lanes read the mask where their keys are. A block of keys that bytes hide from all rows of the block of threads is not
// copied. With a bias scores stay as they are, since the lowest float times log2(e) would be infinite.
//
// Tunables
//   BLOCK_N    keys at a time (32, 64, 96, 128): more keys share the barriers and the softmax's shuffles, and need more
//              memory.
//   WARPS      rows per block of threads (1, 2, 4, 8, 16): each key that was copied serves that many rows.
//   VEC_WIDTH  elements a thread moves at once (1, 2, 4, 8; 8 are 16 bytes): more need fewer instructions per byte.
//              Rows of K are padded by VEC_WIDTH elements. Lanes read different keys at the same column, and so they
//              meet different banks (with VEC_WIDTH 1, two lanes share each bank).
//
// Launch       grid (ceil(seq_len_q / WARPS) * batch * heads), block (32 * WARPS)
// Shared bytes 2 * BLOCK_N * (HEAD_DIM + VALUE_DIM + VEC_WIDTH) + 4 * WARPS * (HEAD_DIM + BLOCK_N)
// Workspace    none.
// Archs        sm_80 and later.
// Adds to 1_scalar.cpp: a warp for each row, keys and values in shared memory, 16-bit types.
// References   Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; PTX ISA, "cvt".
#include "parts/arithmetic.cuh"
#include "parts/features.h"
#include "parts/mask.h"

namespace {

static_assert(HEAD_DIM % 8 == 0 && VALUE_DIM % 8 == 0 && BLOCK_N % 32 == 0, "whole vectors, and whole keys of lanes");

using Vector = VectorOf<VEC_WIDTH>;

constexpr bool kBfloat16 = DTYPE == DTYPE_BFLOAT16;
constexpr int kThreads = 32 * WARPS;
constexpr int kLaneKeys = BLOCK_N / 32;
constexpr int kLaneColumns = (VALUE_DIM + 31) / 32;
constexpr int kKeyStride = HEAD_DIM + VEC_WIDTH;
// First running maximum: finite, so that -inf scores never meet -inf - -inf. A bias may be the lowest float.
constexpr float kLowest = MASK_IS_BIAS ? -3.402823466e38f : -1e30f;
// Scores are times UNIT, and differences of scores times TO_LOG2 are exponents of 2. Macros: a constant would be part of
// each binary.
#define LOG2E 1.44269504088896341f
#if MASK_IS_BIAS
#define UNIT 1.0f
#define TO_LOG2 LOG2E
#else
#define UNIT LOG2E
#define TO_LOG2 1.0f
#endif

#if MASK_IS_FLOAT32
using MaskElement = float;
#elif MASK_IS_BIAS
using MaskElement = Element;
#else
using MaskElement = unsigned char;
#endif
__device__ float bias_of(float element) { return element; }
__device__ float bias_of(Element element) { return to_float<kBfloat16>(element); }

extern __shared__ __align__(16) unsigned char shared_memory[];

__device__ float warp_maximum(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// All threads of the block copy `rows` rows of DIM elements to shared memory, `stride` elements apart.
template <int DIM>
__device__ void copy_rows(Element* to, int stride, const Element* from, int rows) {
  constexpr int vectors = DIM / VEC_WIDTH;
  for (int i = threadIdx.x; i < rows * vectors; i += kThreads) {
    const int row = i / vectors, column = i % vectors * VEC_WIDTH;
    *reinterpret_cast<Vector*>(to + row * stride + column) = load_vector<VEC_WIDTH>(from + row * DIM + column);
  }
}

// q is in float, scaled; key is a row in shared memory.
__device__ float dot(const float* q, const Element* key) {
  float sum = 0.0f;
#pragma unroll
  for (int d = 0; d < HEAD_DIM; d += VEC_WIDTH) {
    const Vector elements = load_vector<VEC_WIDTH>(key + d);
#pragma unroll
    for (int e = 0; e < VEC_WIDTH; ++e) sum += q[d + e] * to_float<kBfloat16>(elements.at[e]);
  }
  return sum;
}

// Whether a lane has a column: all have, where the columns are a multiple of 32.
__device__ bool has_column(int column) { return VALUE_DIM % 32 == 0 || column < VALUE_DIM; }

// A score times UNIT, as a feature changes it.
__device__ float changed(float score, const Features& features, int head, int row, int key, int own) {
  if (HAS_SOFTCAP) score = UNIT * features.softcap * tanhf(score / (UNIT * features.softcap));
  if (ALIBI) score -= UNIT * features.alibi_slopes[head] * static_cast<float>(abs(own - key));
  if (HAS_SCORE_MOD) score = UNIT * SCORE_MOD(score / UNIT, head, row, key);
  return score;
}

}  // namespace

// The 1 asks for at least one block a multiprocessor. Without it, the compiler spills registers to fit more blocks.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    attention_forward(const Element* q, const Element* k, const Element* v, Element* out, float softmax_scale,
                      int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k FEATURE_ARGUMENTS MASK_ARGUMENTS) {
  const Features features FEATURES_GIVEN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row_blocks = (seq_len_q + WARPS - 1) / WARPS;
  const int head = blockIdx.x / row_blocks;  // over the batch: batch * heads of them
  const int first_row = blockIdx.x % row_blocks * WARPS;
  const int row = min(first_row + warp, seq_len_q - 1);  // a warp without a row of its own stores nothing
  const long long row_at = static_cast<long long>(head) * seq_len_q + row;
  const long long keys_at = static_cast<long long>(head / (heads / kv_heads)) * seq_len_k;

  Element* keys = reinterpret_cast<Element*>(shared_memory);
  Element* values = keys + BLOCK_N * kKeyStride;
  float* query = reinterpret_cast<float*>(values + BLOCK_N * VALUE_DIM) + warp * (HEAD_DIM + BLOCK_N);
  float* weights = query + HEAD_DIM;

#if HAS_MASK
  const AttnMask mask = MASK_GIVEN.in_batch(head / heads);
  const MaskElement* mask_row = mask.at<MaskElement>(head % heads, row, 0);
#endif

  const float scale = softmax_scale * UNIT;
  for (int d = lane; d < HEAD_DIM; d += 32) query[d] = scale * to_float<kBfloat16>(q[row_at * HEAD_DIM + d]);

  const int last_row = min(first_row + WARPS, seq_len_q) - 1;
  const int own = Features::own_key(row, seq_len_q, seq_len_k);
  const int first_own = Features::own_key(first_row, seq_len_q, seq_len_k);
  const int last_own = Features::own_key(last_row, seq_len_q, seq_len_k);
  // The keys that some row of the block sees, from a whole block of them on, and those that this row sees.
  const int block_first = features.first_key(first_own) / BLOCK_N * BLOCK_N;
  const int block_keys = features.end_key(last_own, seq_len_k);
  const int row_first = features.first_key(own), row_keys = features.end_key(own, seq_len_k);
  float maximum = kLowest, sum = 0.0f, output[kLaneColumns] = {};
  if (SINKS) {  // a key that comes first and has no value; one lane's part of the sum has it. -inf: no sink
    const float sink = UNIT * features.sinks[head % heads];
    maximum = fmaxf(kLowest, sink);
    sum = lane == 0 ? exp2f(TO_LOG2 * (sink - maximum)) : 0.0f;
  }

  for (int first = block_first; first < block_keys; first += BLOCK_N) {
    const int count = min(BLOCK_N, block_keys - first);
#if HAS_MASK && !MASK_IS_BIAS
    unsigned hidden = 0;  // a bit for each of this lane's keys
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i)
      if (const int key = first + lane + 32 * i; key >= row_keys || mask_row[key] == 0) hidden |= 1u << i;
    if (!__syncthreads_or(hidden != (1u << kLaneKeys) - 1)) continue;
#else
    __syncthreads();  // all have read the last block
#endif
    copy_rows<HEAD_DIM>(keys, kKeyStride, k + (keys_at + first) * HEAD_DIM, count);
    copy_rows<VALUE_DIM>(values, VALUE_DIM, v + (keys_at + first) * VALUE_DIM, count);
    __syncthreads();

    float scores[kLaneKeys], top = maximum;
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      const int key = lane + 32 * i;
      bool seen = first + key < row_keys && (!HAS_WINDOW || first + key >= row_first);
#if HAS_MASK && !MASK_IS_BIAS
      seen = seen && !(hidden >> i & 1);
#endif
      scores[i] = seen ? changed(dot(query, keys + key * kKeyStride), features, head % heads, row, first + key, own)
                       : __int_as_float(0xff800000);  // -inf
#if MASK_IS_BIAS
      if (seen) scores[i] += bias_of(mask_row[first + key]);
#endif
      top = fmaxf(top, scores[i]);
    }
    top = warp_maximum(top);
    const float alpha = exp2f(TO_LOG2 * (maximum - top));
    maximum = top;
    sum *= alpha;
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      const float weight = exp2f(TO_LOG2 * (scores[i] - top));
      weights[lane + 32 * i] = weight;
      sum += weight;
    }
    __syncwarp();  // only this warp reads its weights

#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) output[i] *= alpha;
    const int seen = min(count, row_keys - first);
    for (int j = 0; j < seen; ++j)
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i)
        if (has_column(lane + 32 * i))
          output[i] += weights[j] * to_float<kBfloat16>(values[j * VALUE_DIM + lane + 32 * i]);
  }

  sum = warp_sum(sum);
  if (first_row + warp >= seq_len_q) return;
  // Without a window or a mask, and with the top left corner, each row sees a key.
  const bool empty = (HAS_WINDOW || BOTTOM_RIGHT || HAS_MASK) && sum == 0.0f;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i)
    if (has_column(lane + 32 * i))
      out[row_at * VALUE_DIM + lane + 32 * i] = to_element<kBfloat16>(empty ? 0.0f : output[i] / sum);
  if (LSE && lane == 0)
    features.lse[row_at] = empty          ? __int_as_float(0xff800000)
                           : MASK_IS_BIAS ? maximum + 0.693147180559945309f * log2f(sum)
                                          : 0.693147180559945309f * (maximum + log2f(sum));
}
