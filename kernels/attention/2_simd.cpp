// Fused attention forward on the CPU: packed panels, register tiles, vector exp.
//
//   out = softmax(softmax_scale * q k^T) v, one row of scores at a time, never all of them in memory.
//
// Shapes      q (batch, heads, seq_len_q, HEAD_DIM); k (batch, kv_heads, seq_len_k, HEAD_DIM); v and out the same with
//             VALUE_DIM, which is HEAD_DIM as a rule. Each has strides of its own, in elements: any that keep rows
//             contiguous.
//             heads is a multiple of kv_heads: a group of heads shares one kv head. Any sequence length >= 1.
//             CAUSAL: row i sees the keys j <= i (aligned to the top left corner, also when the lengths differ).
// Types       DTYPE_FLOAT32, or DTYPE_BFLOAT16 in and out (uint16_t here) with every sum in float32.
// Problem     HEAD_DIM and VALUE_DIM (multiples of 8), CAUSAL, DTYPE, and features: parts/features.h, parts/mask.h.
//             Blocks of keys that bytes hide from all rows of a step are skipped; padding's are not packed either.
//
// How it works. A task is BLOCK_M rows of one head. It walks over blocks of BLOCK_N keys, STEP_M rows at a time:
//   S = Q K^T            STEP_M x BLOCK_N scores in a buffer that stays in cache
//   P = 2^(log2(e)(S-m)) online softmax: when the running maximum m grows, the old sum and O shrink by alpha
//   O = alpha O + P V    alpha is applied while the O tile is loaded into registers, so it costs no pass of its own
// Both products are one register-tiled routine (`multiply`): per step of the depth it loads a few vectors of B,
// broadcasts a few scalars of A, and updates ROWS x COLS accumulators. The first tunable chooses A and B:
//
// Tunables
//   K_LAYOUT    rows: A = K as it lies in memory, B = Q transposed. Vector lanes are queries, S is stored transposed
//               (keys x queries), and a row's maximum and sum never cross lanes. K needs no packing.
//               panels: A = Q, B = K packed as [keys / QK_COLS][HEAD_DIM][QK_COLS]. Lanes are keys.
//   V_LAYOUT    rows: V as it lies. panels: [HEAD_DIM / PV_COLS][keys][PV_COLS], no power-of-two strides between keys.
//   PACK        who packs (or converts from bfloat16) K and V: head = all of it once, before; block = each task, one
//               block at a time, into its own scratch. Without effect where nothing is packed (float32, rows, rows).
//   BLOCK_M     rows per task (16..256): reuse of a K/V block against balance between the threads.
//   STEP_M      rows per softmax step (multiple of 8, divides BLOCK_M): size of the S tile with BLOCK_N.
//   BLOCK_N     keys per block (multiple of 8, 32..512).
//   QK_ROWS, QK_COLS, PV_ROWS, PV_COLS   register tiles: rows are broadcast scalars, columns are floats in vectors
//               (multiples of 8). AVX2 has 16 registers of 8: ROWS * COLS <= 96 leaves room for the operands.
//   UNROLL      of the loop over the depth (1, 2, 4, 8).
//   PARTS       runs in which each product's depth is summed (1, 2, 4, 8): more are slower, and round less. In float32,
//               one sum of 512 products (BLOCK_N 512, PARTS 1) can miss the gate's limit of the largest error.
//   PREFETCH    rows ahead in the operand that streams by, K or V (0 = off).
//   EXP_METHOD  poly3, poly4 (bfloat16 only), poly5, poly6, libm: see parts/simd.h.
//   LOOP_ORDER  inside a task: kv_outer (a K/V block serves all steps while it is in L1) or q_outer (Q, O and S of
//               one step stay in L1 while K and V pass by).
//   TASK_ORDER  head_major, row_major, or longest_first (row_major from the end, where causal rows see most keys).
//   SCHEDULE, CHUNK   OpenMP's static, dynamic or guided, and tasks per chunk.
//
// Workspace   float[ (PACK head: 2 * batch * kv_heads * (seq_len_k + BLOCK_N) * D)
//                    + threads * (BLOCK_M * (HEAD_DIM + VALUE_DIM + 4) + STEP_M * BLOCK_N + 2 * BLOCK_N * D + 64) ]
//             D is the larger of HEAD_DIM and VALUE_DIM. 64-byte aligned, any content. threads = omp_get_max_threads().
// Archs       AVX-512F, AVX2 + FMA, and anything else GCC has vectors for (16-byte ones).
// Adds to 1_scalar.cpp: register tiles, vector lanes, packing, exp as a polynomial, steps that fit the caches.
// References  online softmax: Milakov & Gimelshein 2018; in blocks: FlashAttention, Dao et al. 2022;
//             register tiles and panels: Goto & van de Geijn 2008, and BLIS.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#include "parts/features.h"
#include "parts/mask.h"
#include "parts/register_tile.h"
#include "parts/simd.h"

namespace {

using std::ptrdiff_t;

#if DTYPE == DTYPE_BFLOAT16
using Element = std::uint16_t;
#else
using Element = float;
#endif
using Bias = std::conditional_t<MASK_IS_FLOAT32 != 0, float, Element>;

constexpr bool kConvert = DTYPE == DTYPE_BFLOAT16;
constexpr bool kLanesAreKeys = K_LAYOUT == K_LAYOUT_PANELS;
constexpr bool kPackedValues = V_LAYOUT == V_LAYOUT_PANELS;
constexpr bool kTouchKeys = kConvert || kLanesAreKeys;  // K is not used as it lies
constexpr bool kTouchValues = kConvert || kPackedValues;
constexpr bool kPackHead = PACK == PACK_HEAD && (kTouchKeys || kTouchValues);
constexpr int kBlockFloats = BLOCK_N * (HEAD_DIM > VALUE_DIM ? HEAD_DIM : VALUE_DIM);
constexpr int kThreadFloats = BLOCK_M * (HEAD_DIM + VALUE_DIM + 4) + STEP_M * BLOCK_N + 2 * kBlockFloats + 64;
constexpr bool kHidesByBytes = HAS_MASK && !MASK_IS_BIAS;
constexpr float kLog2e = 1.44269504088896341f;
// Maxima are those of log2(e) * score, which costs one FMA for an exponent. With a bias they are those of scores: these
// may be so large that the FMA's exact product lies far from the rounded maximum.
constexpr float kUnit = MASK_IS_BIAS ? 1.0f : kLog2e;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = -1e30f;  // first running maximum: finite, so that -inf scores never meet -inf - -inf

static_assert(HEAD_DIM % 8 == 0 && VALUE_DIM % 8 == 0, "vectors are 8 floats or divide 8");
static_assert(BLOCK_N % 8 == 0 && STEP_M % 8 == 0, "vectors are 8 floats or divide 8");
static_assert(BLOCK_M % STEP_M == 0 && BLOCK_M % 16 == 0, "a task is whole steps, its buffers whole cache lines");
static_assert(QK_COLS % 8 == 0 && PV_COLS % 8 == 0, "tile columns come in vectors");

// ---- elements ----

inline float to_float(float x) { return x; }
inline float to_float(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}
inline void from_float(float x, float& to) { to = x; }
inline void from_float(float x, std::uint16_t& to) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // to nearest, ties to even
  to = static_cast<std::uint16_t>(x == x ? rounded : 0x7fc0u);                 // the carry could turn a NaN into inf
}

// ---- packing ----

// Rows of a tensor, `stride` elements apart.
struct RowsOf {
  const Element* first;
  ptrdiff_t stride;

  const Element* at(int row) const { return first + row * stride; }
};

// dst = [columns / PANEL][DEPTH][PANEL] from rows of src, src row = column of dst; rows past `rows` become zeros.
template <int COLUMNS, int PANEL>
inline void pack_transposed(RowsOf src, int rows, float scale, float* dst) {
  for (int first = 0; first < COLUMNS; first += PANEL) {
    const int width = std::min(PANEL, COLUMNS - first);
    for (int column = 0; column < width; ++column)
      for (int d = 0; d < HEAD_DIM; ++d)
        dst[d * width + column] = first + column < rows ? scale * to_float(src.at(first + column)[d]) : 0.0f;
    dst += width * HEAD_DIM;
  }
}

template <int DIM>
inline void convert_rows(RowsOf src, int rows, float scale, float* dst) {
  for (int row = 0; row < rows; ++row, dst += DIM)
    for (int d = 0; d < DIM; ++d) dst[d] = scale * to_float(src.at(row)[d]);
}

inline void pack_keys(RowsOf src, int keys, float* dst) {
  if constexpr (kLanesAreKeys)
    pack_transposed<BLOCK_N, QK_COLS>(src, keys, 1.0f, dst);
  else
    convert_rows<HEAD_DIM>(src, keys, 1.0f, dst);
}

// [VALUE_DIM / PV_COLS][BLOCK_N][PV_COLS]; the rows past `keys` are never read.
inline void pack_values(RowsOf src, int keys, float* dst) {
  if constexpr (!kPackedValues) return convert_rows<VALUE_DIM>(src, keys, 1.0f, dst);
  for (int first = 0; first < VALUE_DIM; first += PV_COLS) {
    const int width = std::min(PV_COLS, VALUE_DIM - first);
    for (int j = 0; j < keys; ++j)
      for (int d = 0; d < width; ++d) dst[j * width + d] = to_float(src.at(j)[first + d]);
    dst += width * BLOCK_N;
  }
}

// ---- a task: BLOCK_M rows of one head ----

struct Strides {
  ptrdiff_t batch, head, row;

  ptrdiff_t at(int of_batch, int of_head, int of_row) const { return of_batch * batch + of_head * head + of_row * row; }
};

struct Problem {
  const Element *q, *k, *v;
  Element* out;
  Strides q_strides, k_strides, v_strides, out_strides;
  float* workspace;
  float scale;
  int batch, heads, kv_heads, rows, keys;
  Features features;
  MASK_MEMBER;

  // Whether padding hides a whole block of keys.
  bool is_hidden(int of_batch, int block) const {
    if constexpr (!MASK_IS_PADDING) return false;
    const int key = block * BLOCK_N;
    return hides_all(mask.in_batch(of_batch).at<std::uint8_t>(0, 0, key), std::min(BLOCK_N, keys - key));
  }

  int own_key(int row) const { return Features::own_key(row, rows, keys); }
  int key_blocks() const { return (keys + BLOCK_N - 1) / BLOCK_N; }
  // Packed blocks in the workspace: of K by kv head, then of V, then the threads' scratch.
  float* packed(int kv_head, int block) const {
    return workspace + (static_cast<ptrdiff_t>(kv_head) * key_blocks() + block) * kBlockFloats;
  }
  int values() const { return batch * kv_heads; }  // the number of V's first kv head there

  // Rows of K or V from `row` on; kv heads count over the batch.
  RowsOf rows_of(const Element* tensor, const Strides& strides, int kv_head, int row) const {
    return {tensor + strides.at(kv_head / kv_heads, kv_head % kv_heads, row), strides.row};
  }
};

struct Scratch {  // one thread's part of the workspace
  float *q, *o, *maximum, *sum, *alpha, *scores, *keys, *values;
  explicit Scratch(float* base)
      : q(base), o(q + BLOCK_M * HEAD_DIM), maximum(o + BLOCK_M * VALUE_DIM), sum(maximum + BLOCK_M),
        alpha(sum + BLOCK_M), scores(alpha + 2 * BLOCK_M), keys(scores + STEP_M * BLOCK_N),
        values(keys + kBlockFloats) {}
};

struct Step {       // rows x keys of scores
  int row, rows;    // first row and number of rows, in the head
  int key, keys;    // the same for keys
  int offset;       // of the first row in the task
  int head, own;    // the head, and the first row's own key
  MASK_MEMBER;      // in the batch of the step
};

// Scores as features change them. Row i and key j of the step lie at i * of_row + j * of_key.
inline void change_scores(const Features& features, const Scratch& t, const Step& s, int of_row, int of_key) {
  if constexpr (HAS_SOFTCAP || ALIBI || HAS_SCORE_MOD)
    for (int i = 0; i < s.rows; ++i)
      for (int j = 0; j < s.keys; ++j) {
        float& score = t.scores[i * of_row + j * of_key];
        if (HAS_SOFTCAP) score = features.softcap * std::tanh(score / features.softcap);
        if (ALIBI) score -= features.alibi_slopes[s.head] * static_cast<float>(std::abs(s.own + i - s.key - j));
        score = SCORE_MOD(score, s.head, s.row + i, s.key + j);
      }
}

// Whether bytes hide all keys of the step from all its rows.
inline bool hides_step(const Step& s) {
  for (int i = 0; i < s.rows; ++i)
    if (!hides_all(s.mask.at<std::uint8_t>(s.head, s.row + i, s.key), s.keys)) return false;
  return true;
}

// The mask on the scores of row i and key j of the step, which lie at i * of_row + j * of_key.
template <int OF_ROW, int OF_KEY>
inline void apply_mask(const Scratch& t, const Step& s) {
  if constexpr (MASK_IS_PADDING && OF_ROW == 1) {
    const std::uint8_t* seen = s.mask.at<std::uint8_t>(s.head, s.row, s.key);
    for (int j = 0; j < s.keys; ++j)
      if (!seen[j]) std::fill_n(t.scores + j * OF_KEY, STEP_M, -kInfinity);
    return;
  }
  for (int i = 0; i < s.rows; ++i) {
    float* scores = t.scores + i * OF_ROW;
    if constexpr (MASK_IS_BIAS) {
      const Bias* bias = s.mask.at<Bias>(s.head, s.row + i, s.key);
      for (int j = 0; j < s.keys; ++j) scores[j * OF_KEY] = biased(scores[j * OF_KEY], to_float(bias[j]));
    } else {
      const std::uint8_t* seen = s.mask.at<std::uint8_t>(s.head, s.row + i, s.key);
      for (int j = 0; j < s.keys; ++j) scores[j * OF_KEY] = seen[j] ? scores[j * OF_KEY] : -kInfinity;
    }
  }
}

// The exponent of a score's weight, for a maximum `top` in the unit of maxima.
template <class V, class Top>
inline V exponent(V score, Top top) {
  if constexpr (MASK_IS_BIAS) return (score - top) * kLog2e;
  return score * kLog2e - top;
}
template <class V>
inline V exponent_of_maximum(V before, V top) {
  if constexpr (MASK_IS_BIAS) return (before - top) * kLog2e;
  return before - top;
}

// S is keys x STEP_M, lanes are rows. Keys that a row does not see become -inf, then P replaces S.
inline void softmax_lanes_are_rows(const Features& features, const Scratch& t, const Step& s) {
  constexpr int L = lanes_for(STEP_M);
  change_scores(features, t, s, 1, STEP_M);
  if constexpr (HAS_MASK) apply_mask<1, STEP_M>(t, s);
  const bool reaches = !CAUSAL && HAS_WINDOW && features.window_right >= 0;
  const int last = s.own + (reaches ? features.window_right : 0);  // the last key that the first row sees
  if ((CAUSAL || reaches) && s.key + s.keys > last + 1)
    for (int j = std::max(0, last + 1 - s.key); j < s.keys; ++j)
      std::fill_n(t.scores + j * STEP_M, std::min(STEP_M, s.key + j - last), -kInfinity);
  if (HAS_WINDOW && features.window_left >= 0)
    for (int j = 0; j < s.keys; ++j) {
      const int seen = std::clamp(s.key + j + features.window_left - s.own + 1, 0, STEP_M);  // so many rows see it
      std::fill_n(t.scores + j * STEP_M + seen, STEP_M - seen, -kInfinity);
    }
  for (int lane = 0; lane < STEP_M; lane += L) {
    float* scores = t.scores + lane;
    const int at = s.offset + lane;
    const Vec<L> before = load<L>(t.maximum + at);
    Vec<L> top = load<L>(scores);
    for (int j = 1; j < s.keys; ++j) top = maximum(load<L>(scores + j * STEP_M), top);
    top = maximum(top * kUnit, before);
    const auto weigh = [=](int j) {
      const Vec<L> p = exp2_nonpositive<L>(exponent(load<L>(scores + j * STEP_M), top));
      store<L>(scores + j * STEP_M, p);
      return p;
    };
    Vec<L> sum = Vec<L>{};
    int j = 0;  // four at a time: else one large weight swallows the many small ones that are added after it
    for (; j + 4 <= s.keys; j += 4) sum += (weigh(j) + weigh(j + 1)) + (weigh(j + 2) + weigh(j + 3));
    for (; j < s.keys; ++j) sum += weigh(j);
    const Vec<L> alpha = exp2_nonpositive<L>(exponent_of_maximum(before, top));
    store<L>(t.maximum + at, top);
    store<L>(t.alpha + at, alpha);
    store<L>(t.sum + at, multiply_add(load<L>(t.sum + at), alpha, sum));
  }
}

// S is STEP_M x BLOCK_N, lanes are keys. Columns that are no key of this row become -inf up to the last whole vector.
inline void softmax_lanes_are_keys(const Features& features, const Scratch& t, const Step& s, int all_keys) {
  constexpr int L = lanes_for(BLOCK_N);
  change_scores(features, t, s, BLOCK_N, 1);
  if constexpr (HAS_MASK) apply_mask<BLOCK_N, 1>(t, s);
  const int width = (s.keys + L - 1) / L * L;
  for (int i = 0; i < s.rows; ++i) {
    float* scores = t.scores + i * BLOCK_N;
    const bool hides = CAUSAL || (HAS_WINDOW && features.window_right >= 0);
    const int seen = hides ? std::clamp(features.end_key(s.own + i, all_keys) - s.key, 0, s.keys) : s.keys;
    std::fill(scores + seen, scores + width, -kInfinity);
    if (HAS_WINDOW) std::fill_n(scores, std::clamp(features.first_key(s.own + i) - s.key, 0, s.keys), -kInfinity);
    const int at = s.offset + i;
    Vec<L> tops = load<L>(scores);
    for (int j = L; j < width; j += L) tops = maximum(load<L>(scores + j), tops);
    const float before = t.maximum[at];
    const float top = std::max(reduce<L>(tops, [](auto a, auto b) { return a > b ? a : b; }) * kUnit, before);
    Vec<L> sums = Vec<L>{};
    for (int j = 0; j < width; j += L) {
      const Vec<L> p = exp2_nonpositive<L>(exponent(load<L>(scores + j), top));
      store<L>(scores + j, p);
      sums += p;
    }
    t.alpha[at] = exp2_nonpositive<4>(broadcast<4>(exponent_of_maximum(before, top)))[0];
    t.maximum[at] = top;
    t.sum[at] = t.sum[at] * t.alpha[at] + reduce<L>(sums, [](auto a, auto b) { return a + b; });
  }
}

// Keys or values as `multiply` takes them: packed, or rows that lie `row` floats apart.
struct Block {
  const float* at;
  ptrdiff_t row;
};

// Calls `product` with the distance between the rows of K or V. The distance is a compile-time constant if the rows
// were packed or converted before (TOUCH), or if they lie one behind the other, as most do.
template <bool TOUCH, int DIM, class Multiply>
[[gnu::always_inline]] inline void with_row(const Block& block, Multiply product) {
  if (TOUCH || block.row == DIM)
    product(std::integral_constant<ptrdiff_t, DIM>());
  else
    product(block.row);
}

void attend(const Problem& problem, const Scratch& t, const Step& s, const Block& keys, const Block& values) {
  const float* q = t.q + s.offset * HEAD_DIM;
  float* o = t.o + s.offset * VALUE_DIM;
  const float* alpha = t.alpha + s.offset;
  if constexpr (kLanesAreKeys) {
    const Product scores{q, HEAD_DIM, 1, keys.at, 0, t.scores, BLOCK_N, nullptr, HEAD_DIM, false};
    multiply<QK_ROWS, QK_COLS, BLOCK_N>(scores, s.rows, s.keys, HEAD_DIM);
    softmax_lanes_are_keys(problem.features, t, s, problem.keys);
  } else {
    with_row<kTouchKeys, HEAD_DIM>(keys, [&](auto key_row) {
      const Product scores{keys.at, key_row, 1, q, 0, t.scores, STEP_M, nullptr, HEAD_DIM, true};
      multiply<QK_ROWS, QK_COLS, STEP_M>(scores, s.keys, STEP_M, HEAD_DIM);
    });
    softmax_lanes_are_rows(problem.features, t, s);
  }
  constexpr int row = kLanesAreKeys ? BLOCK_N : 1, step = kLanesAreKeys ? 1 : STEP_M;
  with_row<kTouchValues, VALUE_DIM>(values, [&](auto value_row) {
    const Product output{t.scores, row, step, values.at, value_row, o, VALUE_DIM, alpha, s.keys, false};
    multiply<PV_ROWS, PV_COLS, VALUE_DIM>(output, s.rows, VALUE_DIM, kPackedValues ? BLOCK_N : 1);
  });
}

struct Task {
  const Problem& problem;
  const Scratch scratch;
  const int head, kv_head, first, rows;  // heads count over the batch; rows [first, first + rows)

  int keys_seen(int last_row) const { return problem.features.end_key(problem.own_key(last_row), problem.keys); }
  int first_seen(int first_row) const { return problem.features.first_key(problem.own_key(first_row)); }
  int blocks_seen(int last_row) const { return (keys_seen(last_row) + BLOCK_N - 1) / BLOCK_N; }
  ptrdiff_t row_at(const Strides& strides, int offset) const {
    return strides.at(head / problem.heads, head % problem.heads, first + offset);
  }

  void load_queries() const {
    for (int offset = 0; offset < BLOCK_M && offset < rows; offset += STEP_M) {
      const RowsOf from{problem.q + row_at(problem.q_strides, offset), problem.q_strides.row};
      const int here = std::min(STEP_M, rows - offset);
      float* to = scratch.q + offset * HEAD_DIM;
      if constexpr (kLanesAreKeys)
        convert_rows<HEAD_DIM>(from, here, problem.scale, to);
      else
        pack_transposed<STEP_M, QK_COLS>(from, here, problem.scale, to);
    }
    // A sink is a key that comes first and has no value; -inf is no sink, and NaN or infinity makes the sum NaN.
    const float sink = SINKS ? kUnit * problem.features.sinks[head % problem.heads] : -kInfinity;
    std::fill_n(scratch.maximum, BLOCK_M, std::max(kLowest, sink));
    std::fill_n(scratch.sum, BLOCK_M, sink <= kLowest ? 0.0f : 1.0f + (sink - sink));
    std::fill_n(scratch.o, BLOCK_M * VALUE_DIM, 0.0f);
  }

  // A block of K or V as `multiply` wants it: where it lies, packed before, or packed now.
  template <bool TOUCH, int DIM, class Pack>
  Block block_of(const Element* tensor, const Strides& strides, int packed_head, int block, float* here,
                 Pack pack) const {
    if constexpr (TOUCH && kPackHead) return {problem.packed(packed_head, block), DIM};
    const RowsOf from = problem.rows_of(tensor, strides, kv_head, block * BLOCK_N);
    if constexpr (!TOUCH) return {reinterpret_cast<const float*>(from.first), from.stride};
    pack(from, std::min(BLOCK_N, problem.keys - block * BLOCK_N), here);
    return {here, DIM};
  }
  Block keys(int block) const {
    return block_of<kTouchKeys, HEAD_DIM>(problem.k, problem.k_strides, kv_head, block, scratch.keys, pack_keys);
  }
  Block values(int block) const {
    return block_of<kTouchValues, VALUE_DIM>(problem.v, problem.v_strides, problem.values() + kv_head, block,
                                             scratch.values, pack_values);
  }

  bool is_hidden(int block) const { return problem.is_hidden(head / problem.heads, block); }

  // One step against one block; blocks of which no row sees a key are skipped.
  void step(int offset, int block, const Block& k, const Block& v) const {
    const int row = first + offset, step_rows = std::min(STEP_M, rows - offset);
    const int key = block * BLOCK_N, seen = keys_seen(row + step_rows - 1) - key;
    if (seen <= 0 || (HAS_WINDOW && key + BLOCK_N <= first_seen(row))) return;
    const Step s{row, step_rows, key, std::min(BLOCK_N, seen), offset, head % problem.heads, problem.own_key(row)
                 MASK_FROM(problem.mask.in_batch(head / problem.heads))};
    if (kHidesByBytes && !MASK_IS_PADDING && hides_step(s)) return;
    attend(problem, scratch, s, k, v);
  }

  void store_rows() const {
    for (int i = 0; i < rows; ++i) {
      const float sum = scratch.sum[i];
      const float scale = sum == 0.0f ? 0.0f : 1.0f / sum;  // a row whose scores are all -inf is a row of zeros
      Element* to = problem.out + row_at(problem.out_strides, i);
      for (int d = 0; d < VALUE_DIM; ++d) from_float(scratch.o[i * VALUE_DIM + d] * scale, to[d]);
      if constexpr (LSE)
        problem.features.lse[static_cast<ptrdiff_t>(head) * problem.rows + first + i] =
            sum == 0.0f ? -kInfinity : (scratch.maximum[i] * (kLog2e / kUnit) + std::log2(sum)) / kLog2e;
    }
  }

  void run() const {
    load_queries();
    if constexpr (LOOP_ORDER == LOOP_ORDER_KV_OUTER) {
      for (int block = first_seen(first) / BLOCK_N, blocks = blocks_seen(first + rows - 1); block < blocks; ++block) {
        if (is_hidden(block)) continue;
        const Block k = keys(block), v = values(block);
        for (int offset = 0; offset < rows; offset += STEP_M) step(offset, block, k, v);
      }
    } else {
      for (int offset = 0; offset < rows; offset += STEP_M) {
        const int blocks = blocks_seen(first + std::min(offset + STEP_M, rows) - 1);
        for (int block = first_seen(first + offset) / BLOCK_N; block < blocks; ++block)
          if (!is_hidden(block)) step(offset, block, keys(block), values(block));
      }
    }
    store_rows();
  }
};

void run_task(const Problem& problem, int number) {
  const int blocks = (problem.rows + BLOCK_M - 1) / BLOCK_M, heads = problem.batch * problem.heads;
  const bool head_major = TASK_ORDER == TASK_ORDER_HEAD_MAJOR;
  const int head = head_major ? number / blocks : number % heads;
  int block = head_major ? number % blocks : number / heads;
  if (TASK_ORDER == TASK_ORDER_LONGEST_FIRST) block = blocks - 1 - block;
  const int kv_head = head / (problem.heads / problem.kv_heads);  // over the batch too: batch * kv_heads of them
  const int first = block * BLOCK_M;
  float* scratch = problem.packed(kPackHead ? 2 * problem.values() : 0, 0);
  scratch += ptrdiff_t{kThreadFloats} * omp_get_thread_num();
  Task{problem, Scratch(scratch), head, kv_head, first, std::min(BLOCK_M, problem.rows - first)}.run();
}

void pack_block(const Problem& problem, int number) {
  const int kv_head = number / problem.key_blocks(), block = number % problem.key_blocks();
  if constexpr (MASK_IS_PADDING)
    if (problem.is_hidden(kv_head / problem.kv_heads, block)) return;
  const int key = block * BLOCK_N, keys = std::min(BLOCK_N, problem.keys - key);
  if constexpr (kTouchKeys)
    pack_keys(problem.rows_of(problem.k, problem.k_strides, kv_head, key), keys, problem.packed(kv_head, block));
  if constexpr (kTouchValues)
    pack_values(problem.rows_of(problem.v, problem.v_strides, kv_head, key), keys,
                problem.packed(problem.values() + kv_head, block));
}

}  // namespace

#if SCHEDULE == SCHEDULE_STATIC
#define OMP_SCHEDULE static
#elif SCHEDULE == SCHEDULE_DYNAMIC
#define OMP_SCHEDULE dynamic
#else
#define OMP_SCHEDULE guided
#endif

extern "C" void attention_forward(const Element* q, const Element* k, const Element* v, Element* out, float* workspace,
                                  float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q,
                                  int seq_len_k,
                                  long long q_stride_batch, long long q_stride_head, long long q_stride_row,
                                  long long k_stride_batch, long long k_stride_head, long long k_stride_row,
                                  long long v_stride_batch, long long v_stride_head, long long v_stride_row,
                                  long long out_stride_batch, long long out_stride_head,
                                  long long out_stride_row FEATURE_ARGUMENTS MASK_ARGUMENTS) {
  const Problem problem{q, k, v, out, {q_stride_batch, q_stride_head, q_stride_row},
                        {k_stride_batch, k_stride_head, k_stride_row}, {v_stride_batch, v_stride_head, v_stride_row},
                        {out_stride_batch, out_stride_head, out_stride_row}, workspace, softmax_scale, batch, heads,
                        kv_heads, seq_len_q, seq_len_k, FEATURES_GIVEN MASK_FROM(MASK_GIVEN)};
  const int tasks = batch * heads * ((seq_len_q + BLOCK_M - 1) / BLOCK_M);
#pragma omp parallel
  {
    if constexpr (kPackHead) {
#pragma omp for schedule(static)
      for (int number = 0; number < batch * kv_heads * problem.key_blocks(); ++number) pack_block(problem, number);
    }
#pragma omp for schedule(OMP_SCHEDULE, CHUNK)
    for (int number = 0; number < tasks; ++number) run_task(problem, number);
  }
}
