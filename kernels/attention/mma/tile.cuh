// The problem of 3_mma.cu, and a tile of it: its rows, the keys that they see, and where all of them lie.
//
// A tile is BLOCK_M rows of one head. PACK_GQA: of one group of heads; then row r is head r % group of the group, and
// position r / group. Tensors are contiguous, or with STRIDED views, whose strides are further arguments.
//
// Contract   Tile has what mma/worker.cuh asks of one. Its last rows may lie past the end of the head: keys_seen() holds
//            for them, too, but nothing is read or stored there.
//
// Archs      sm_80 and later.
#pragma once

#include "../parts/arithmetic.cuh"
#include "../parts/features.h"
#include "../parts/mask.cuh"
#include "../parts/score_change.cuh"
#include "../parts/strides.cuh"
#include "block.cuh"

// The further arguments of views, in elements. The first ones lie near the arguments before them: a binary that has the
// distances between rows and heads compiled in reads no further line of the constant cache than one for contiguous
// tensors.
#if STRIDED
#define STRIDE_PARAMETERS                                                                                            \
  , long long q_stride_batch, long long k_stride_batch, long long v_stride_batch, long long out_stride_batch,        \
      long long q_stride_head, long long k_stride_head, long long v_stride_head, long long out_stride_head,          \
      long long q_stride_row, long long k_stride_row, long long v_stride_row, long long out_stride_row
#define STRIDE_ARGUMENTS                                                                                             \
  , q_stride_batch, k_stride_batch, v_stride_batch, out_stride_batch, q_stride_head, k_stride_head, v_stride_head,   \
      out_stride_head, q_stride_row, k_stride_row, v_stride_row, out_stride_row
#define STRIDE_MEMBERS                                                                                               \
  , q_strides(q_stride_batch, q_stride_head, q_stride_row), k_strides(k_stride_batch, k_stride_head, k_stride_row),  \
      v_strides(v_stride_batch, v_stride_head, v_stride_row),                                                        \
      out_strides(out_stride_batch, out_stride_head, out_stride_row)
#else
#define STRIDE_PARAMETERS
#define STRIDE_ARGUMENTS
#define STRIDE_MEMBERS
#endif

namespace {

struct Problem {
  const Element *q, *k, *v;
  Element* out;
  float* partials;
  int* counter;
  float softmax_scale, scale_log2;
  int group, tile_heads;  // group: query heads per kv head; tile_heads: of one batch, kv heads if packed
  int seq_len_q, seq_len_k;
  Features features;
  MASK_MEMBER;

  __device__ Problem(const Element* q, const Element* k, const Element* v, Element* out, float* partials, int* counter,
                     float softmax_scale, int heads, int kv_heads, int seq_len_q, int seq_len_k,
                     const Features& features MASK_FROM(const AttnMask& mask) STRIDE_PARAMETERS)
      : q(q), k(k), v(v), out(out), partials(partials), counter(counter), softmax_scale(softmax_scale),
        scale_log2(softmax_scale * kLog2e), group(heads == kv_heads ? 1 : heads / kv_heads),
        tile_heads(PACK_GQA ? kv_heads : heads), seq_len_q(seq_len_q), seq_len_k(seq_len_k),
        features(features) MASK_FROM(mask(mask)) STRIDE_MEMBERS {}

#if STRIDED
  StridesOf<Q_ROW, HEAD_DIM> q_strides;
  StridesOf<K_ROW, HEAD_DIM> k_strides;
  StridesOf<V_ROW, VALUE_DIM> v_strides;
  StridesOf<OUT_ROW, VALUE_DIM> out_strides;
#endif

  __device__ int rows() const { return PACK_GQA ? seq_len_q * group : seq_len_q; }  // of a head, or of a group
  __device__ int row_blocks() const { return (rows() + BLOCK_M - 1) / BLOCK_M; }
  // From scores, as the softmax meets them, to exponents of 2.
  __device__ float exponent_scale() const { return kScoresChange ? kChangedExponent : scale_log2; }
};

// BLOCK_M rows of one head, or of one group of heads.
struct Tile {
  const Problem& problem;
  int head, first_row, rows;  // head: over the batch, of kv heads if packed; rows: of the whole head

#if STRIDED || HAS_MASK
  int batch, of_batch, kv_head;  // head: of_batch of this batch, whose keys are those of kv_head
#endif

  __device__ Tile(const Problem& of, int head, int row_block)
      : problem(of), head(head), first_row(row_block * BLOCK_M), rows(of.rows()) {
#if STRIDED || HAS_MASK  // divisions take long: the first batch needs none, nor does a head with keys of its own
    batch = head < of.tile_heads ? 0 : head / of.tile_heads;
    of_batch = head - batch * of.tile_heads;
    kv_head = PACK_GQA || of.group == 1 ? of_batch : of_batch / of.group;
#endif
  }

  __device__ int valid_rows() const { return min(BLOCK_M, rows - first_row); }
  __device__ int last_row() const { return min(first_row + BLOCK_M, rows) - 1; }
  __device__ int position(int row) const { return PACK_GQA ? row / problem.group : row; }
  // The number of a row's head of queries in its batch.
  __device__ int query_head(int row) const {
#if !STRIDED && !HAS_MASK
    const int of_batch = head % problem.tile_heads;
#endif
    return PACK_GQA ? of_batch * problem.group + row % problem.group : of_batch;
  }

  // ---- where they lie ----

#if STRIDED
  // A row of q or out, and the first row of this tile's head of k or v.
  template <class T, class Distances>
  __device__ T* row_at(T* tensor, const Distances& strides, int row) const {
    if constexpr (PACK_GQA)
      return strides.further(tensor + strides.head_at(batch, of_batch * problem.group + row % problem.group),
                             row / problem.group);
    return strides.further(tensor + strides.head_at(batch, of_batch), row);
  }
  template <class Distances>
  __device__ const Element* keys_at(const Element* tensor, const Distances& strides) const {
    return tensor + strides.head_at(batch, kv_head);
  }
#endif
  // Of a row in a contiguous tensor with DIM elements a row, and of the first key of this tile's head.
  template <int DIM>
  __device__ long long offset(int row) const {
    if constexpr (PACK_GQA) {
      const int of_head = head * problem.group + row % problem.group;
      return (static_cast<long long>(of_head) * problem.seq_len_q + row / problem.group) * DIM;
    }
    return (static_cast<long long>(head) * problem.seq_len_q + row) * DIM;
  }
  template <int DIM>
  __device__ long long keys_offset() const {
    const int of_kv = PACK_GQA || problem.group == 1 ? head : head / problem.group;  // divisions take long
    return static_cast<long long>(of_kv) * problem.seq_len_k * DIM;
  }

#if HAS_MASK
  // Where a row of the mask begins. A row past the end has that of the last one; of padding a batch has one.
  __device__ const char* mask_row(int row) const {
    const int existing = min(row, rows - 1);
    const int of_head = MASK_IS_PADDING ? 0 : query_head(existing), of_row = MASK_IS_PADDING ? 0 : position(existing);
    return reinterpret_cast<const char*>(problem.mask.in_batch(batch).template at<MaskElement>(of_head, of_row, 0));
  }
#endif

  // ---- which keys a row sees: those before keys_seen(row), from first_seen(row) on ----

  __device__ int own_key(int row) const {
    return Features::own_key(position(row), problem.seq_len_q, problem.seq_len_k);
  }
  __device__ int keys_seen(int row) const {
    const int end = problem.features.end_key(own_key(row), problem.seq_len_k);
    return BOTTOM_RIGHT ? max(end, 0) : end;
  }
  __device__ int first_seen(int row) const { return problem.features.first_key(own_key(row)); }

  // ---- at a row's end ----

  // The sum of a row's weights, its sink's weight included; the weights are relative to the score `maximum`. With
  // `tells` this lane stores the logarithm of the sum: one lane of each row does.
  __device__ __forceinline__ float total(int row, bool tells, float sum, float maximum) const {
    const float sink = SINKS ? kLog2e * problem.features.sinks[query_head(row)] : 0.0f;
    float shift = maximum * problem.exponent_scale();
    if constexpr (kReachesFar) shift = fminf(fmaxf(shift, kLowestFloat), -kLowestFloat);  // it may be infinite
    if constexpr (LSE)
      if (tells) problem.features.lse[offset<1>(row)] = logarithm(sum, shift, sink);
    // A sink far above all scores makes the sum infinite, and the row 0.
    return SINKS ? sum + exp2_approximate(sink - shift) : sum;
  }
};

}  // namespace
