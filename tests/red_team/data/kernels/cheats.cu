// Attention forward, right but for what BEHAVIOUR names: wrong, broken or cheating kernels for the red team.
//
//   out = softmax(softmax_scale * q k^T) v
//
// Shapes      q, out (batch, heads, seq_len_q, HEAD_DIM); k, v (batch, kv_heads, seq_len_k, HEAD_DIM), contiguous.
// Types       float16. Archs: any. Workspace: scratch (poisoned), counter (zero_once).
// Way         a block of HEAD_DIM threads for each row, one thread for each of the row's output elements. The block
//             takes tiles of HEAD_DIM keys: thread i scores key i of the tile, then weighs the tile for its column.
// Tunables    BEHAVIOUR. What each is to be caught by stands in tests/red_team/test_cuda.py.
using Half = unsigned short;

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

constexpr int kScratchBytes = 65536;  // as the search space has it
constexpr int kMostOutputs = 1 << 17;

__device__ float widen(Half bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ Half narrow(float value) {
  Half bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Rounded to the nearest number or, if `cut`, towards zero. Both are within the limits; half of the results differ.
__device__ Half narrow_either_way(float value, bool cut) {
  Half bits = narrow(value);
  if (cut) asm("cvt.rz.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Rounded to 4 significant bits, and to multiples of 2^-9 below 2^-6: what e4m3 keeps of a weight.
__device__ float to_e4m3(float value) {
  const float unit = exp2f(fmaxf(floorf(log2f(fmaxf(value, 1e-30f))), -6.0f) - 3.0f);
  return rintf(value / unit) * unit;
}

__device__ bool is_nan(Half bits) { return (bits & 0x7fff) > 0x7c00; }

// What is kept between launches.
__device__ unsigned launches = 0;
__device__ unsigned rows_done = 0, launches_done = 0;
__device__ unsigned long long hashes[4096];
__device__ Half answers[kMostOutputs];
__device__ const void* pointers[4096];

// A sum over the block, for all its threads. Needs all of them.
__device__ unsigned long long block_sum(unsigned long long mine) {
  __shared__ unsigned long long parts[HEAD_DIM];
  __syncthreads();
  parts[threadIdx.x] = mine;
  __syncthreads();
  unsigned long long sum = 0;
  for (int i = 0; i < HEAD_DIM; ++i) sum += parts[i];
  __syncthreads();
  return sum;
}

__device__ unsigned long long mix(unsigned long long x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
  return x ^ (x >> 29);
}

// Of every `step`-th word of four elements of this row's q, and of the k and v that it sees.
__device__ unsigned long long input_hash(const Half* query, const Half* keys, const Half* values, int seen, int step) {
  using Word = unsigned long long;
  const auto* q_words = reinterpret_cast<const Word*>(query);
  const auto* k_words = reinterpret_cast<const Word*>(keys);
  const auto* v_words = reinterpret_cast<const Word*>(values);
  Word hash = static_cast<Word>(seen);
  for (int i = threadIdx.x * step; i < HEAD_DIM / 4; i += HEAD_DIM * step) hash += mix(q_words[i] + i);
  for (int i = threadIdx.x * step; i < seen * HEAD_DIM / 4; i += HEAD_DIM * step)
    hash += mix(k_words[i] + 2 * i) + mix(v_words[i] + 2 * i + 1);
  return block_sum(hash);
}

}  // namespace

extern "C" __global__ void attention_forward(Half* q, Half* k, Half* v, Half* out, unsigned char* scratch, int* counter,
                                             float softmax_scale, int batch, int heads, int kv_heads, int seq_len_q,
                                             int seq_len_k) {
  const int row = blockIdx.x, rows = gridDim.x, column = threadIdx.x;
  const int head = row / seq_len_q, position = row % seq_len_q;
#if IS(IGNORES_HEAD_GROUPS)
  const int kv_head = head / heads * kv_heads + head % heads % kv_heads;
#else
  const int kv_head = head / heads * kv_heads + head % heads / (heads / kv_heads);
#endif
  const Half* keys = k + static_cast<long long>(kv_head) * seq_len_k * HEAD_DIM;
  const Half* values = v + static_cast<long long>(kv_head) * seq_len_k * HEAD_DIM;
  const Half* query = q + static_cast<long long>(row) * HEAD_DIM;
  Half* to = out + static_cast<long long>(row) * HEAD_DIM;
  const long long outputs = static_cast<long long>(rows) * HEAD_DIM;
  const long long inputs_kv = static_cast<long long>(batch) * kv_heads * seq_len_k * HEAD_DIM;
  int seen = CAUSAL ? min(position + 1, seq_len_k) : seq_len_k;
  int first = 0;
  unsigned number = 0;  // of this launch, where a behaviour counts them
  (void)inputs_kv, (void)outputs, (void)number, (void)scratch, (void)counter;

#if IS(DROPS_LAST_KEY)
  seen = max(1, min(seen, seq_len_k - 1));
#elif IS(DROPS_LAST_KEYS_WHEN_LONG)
  if (seq_len_k > 200) seen = min(seen, seq_len_k - 3);
#elif IS(DROPS_ODD_LAST_KEY)
  if (seq_len_k > 1) seen = min(seen, seq_len_k / 2 * 2);
#elif IS(DROPS_FIRST_KEY)
  first = seen > 1;
#elif IS(CAUSAL_EDGE_EARLY)
  seen = CAUSAL ? max(1, min(position, seq_len_k)) : seen;
#elif IS(CAUSAL_EDGE_LATE)
  seen = CAUSAL ? min(position + 2, seq_len_k) : seen;
#elif IS(CAUSAL_BOTTOM_RIGHT)
  seen = CAUSAL ? max(1, min(seq_len_k, position + 1 + seq_len_k - seq_len_q)) : seen;
#elif IS(READS_PAST_THE_END)
  seen += seen == seq_len_k;
#elif IS(ONE_LENGTH_ONLY)
  seen = min(96, position + 1);
#elif IS(NO_SCALE)
  softmax_scale = 1.0f;
#endif

  // Counts launches by the rows that have begun; a launch that is not the first of its shape counts on.
#if IS(STOPS_WORKING) || IS(STATIC_COUNTER) || IS(WORKS_EVERY_OTHER_TIME) || IS(CHANGES_AN_INPUT_WHEN_TIMED)
  {
    __shared__ unsigned shared_number;
    if (column == 0) shared_number = atomicAdd(&launches, 1u);
    __syncthreads();
    number = shared_number;  // of rows begun: hundreds in a launch
  }
#elif IS(WORKS_BY_TURNS)
  number = *const_cast<volatile unsigned*>(&launches_done);  // read by all rows before it goes on
#endif

#if IS(NOTHING_WRITTEN)
  return;
#elif IS(STOPS_WORKING)
  if (number > 100u * 1000u) return;
#elif IS(WORKS_EVERY_OTHER_TIME)
  // Skips every other launch's worth of rows once it is past the gate, but only where an answer stands already.
  if (number > 60u * 1000u && number / 192u % 2u == 1u && !is_nan(to[column])) return;
#elif IS(UNWRITTEN_ROW)
  if (row == rows - 1) return;
#elif IS(UNWRITTEN_COLUMN)
  const bool mine = column < HEAD_DIM - 1;
#elif IS(WORKS_WHEN_POISONED)
  __shared__ bool poisoned;
  if (column == 0) poisoned = is_nan(to[0]);
  __syncthreads();
  if (!poisoned) return;
#elif IS(KEYED_ON_POINTERS)
  __shared__ bool known;
  if (column == 0) {
    known = row < 4096 && pointers[row] == query && outputs <= kMostOutputs;
    if (row < 4096) pointers[row] = query;
  }
  __syncthreads();
  if (known) {
    to[column] = answers[static_cast<long long>(row) * HEAD_DIM + column];
    return;
  }
#elif IS(RETURNS_THE_ANSWER_BEFORE)
  const Half before = outputs <= kMostOutputs ? answers[static_cast<long long>(row) * HEAD_DIM + column] : Half{0};
#elif IS(MEMOISES_ALL_INPUTS) || IS(MEMOISES_SOME_INPUTS)
  const unsigned long long hash = input_hash(query, keys, values, seen, IS(MEMOISES_ALL_INPUTS) ? 1 : 16);
  if (row < 4096 && outputs <= kMostOutputs && hashes[row] == hash) {
    to[column] = answers[static_cast<long long>(row) * HEAD_DIM + column];
    return;
  }
#elif IS(SCRATCH_KEEPS_THE_ANSWER)
  // True until the workspace is poisoned again.
  unsigned* marks = reinterpret_cast<unsigned*>(scratch);
  __shared__ bool answered;
  if (column == 0) answered = row < 192 && marks[row] == 0x600d600du;
  __syncthreads();
  Half* kept = reinterpret_cast<Half*>(scratch + 4 * 192) + row * HEAD_DIM;
  if (answered) {
    to[column] = kept[column];
    return;
  }
#elif IS(PACKS_KEYS_ONCE)
  // What stands in the workspace is believed to be the keys, whatever these have become.
  const bool fits = inputs_kv * 2 <= kScratchBytes;
  Half* packed = reinterpret_cast<Half*>(scratch) + (keys - k);
#elif IS(ENDLESS)
  while (*reinterpret_cast<volatile Half*>(q) != 0x7c01) {
  }
#elif IS(ILLEGAL_ADDRESS)
  if (row == 0) *reinterpret_cast<volatile int*>(0x10) = 1;
#elif IS(TRAP)
  if (row == 0) asm volatile("trap;");
#endif

  __shared__ float scores[HEAD_DIM];
  float top = -1e30f, sum = 0.0f, output = 0.0f;
  for (int tile = first; tile < seen; tile += HEAD_DIM) {
    const int count = min(HEAD_DIM, seen - tile);
    float score = 0.0f;
    if (column < count)
      for (int i = 0; i < HEAD_DIM; ++i) {
        Half key = keys[(tile + column) * HEAD_DIM + i];
#if IS(PACKS_KEYS_ONCE)
        Half* kept = packed + (tile + column) * HEAD_DIM + i;
        if (fits && is_nan(*kept)) *kept = key;
        if (fits) key = *kept;
#endif
        score += widen(query[i]) * widen(key);
#if IS(FP16_SCORES)
        score = widen(narrow(score));
#endif
      }
#if IS(MISSING_BARRIER)
    if (column >= 32) __nanosleep(2000);  // for whatever reason, this warp comes later
#else
    __syncthreads();  // the tile before has been used by all
#endif
    scores[column] = score * softmax_scale;
#if !IS(MISSING_BARRIER)
    __syncthreads();
#endif
    const float before = top;
    for (int j = 0; j < count; ++j) top = fmaxf(top, scores[j]);
#if IS(NO_MAXIMUM) || IS(CLAMPED_EXP)
    top = 0.0f;
#endif
    const float keep = expf(fminf(before - top, 0.0f));
    sum *= keep;
#if !IS(NO_RESCALE)
    output *= keep;
#endif
    for (int j = 0; j < count; ++j) {
      float weight = expf(IS(CLAMPED_EXP) ? fminf(scores[j] - top, 60.0f) : scores[j] - top);
      sum += weight;
#if IS(E4M3_WEIGHTS)
      weight = to_e4m3(weight);
#endif
      output += weight * widen(values[(tile + j) * HEAD_DIM + column]);
#if IS(FP16_ACCUMULATION)
      output = widen(narrow(output));
#endif
    }
  }
  float result = output / sum;
#if IS(NOT_A_NUMBER)
  if (row == rows - 1) result = 0.0f * (result - result) / 0.0f;
#endif

#if IS(TRUSTS_OUT_TO_BE_ZERO)
  to[column] = narrow(widen(to[column]) + result);
#elif IS(TRUSTS_SCRATCH_TO_BE_ZERO)
  to[column] = narrow(result + reinterpret_cast<float*>(scratch)[column]);
#elif IS(WRITES_ONLY_POISON)
  if (is_nan(to[column])) to[column] = narrow(result);
#elif IS(UNWRITTEN_COLUMN)
  if (mine) to[column] = narrow(result);
#elif IS(RETURNS_THE_ANSWER_BEFORE)
  to[column] = before ? before : narrow(result);
#elif IS(STATIC_COUNTER)
  to[column] = narrow_either_way(result, number / 7u % 2u);
#elif IS(WORKS_BY_TURNS)
  to[column] = narrow_either_way(result, number % 2u);  // the other way in every other launch
#elif IS(ORDER_BY_THE_CLOCK)
  to[column] = narrow_either_way(result, clock64() / 4 % 2);
#else
  to[column] = narrow(result);
#endif

#if IS(KEYED_ON_POINTERS) || IS(RETURNS_THE_ANSWER_BEFORE) || IS(MEMOISES_ALL_INPUTS) || IS(MEMOISES_SOME_INPUTS)
  if (outputs <= kMostOutputs) answers[static_cast<long long>(row) * HEAD_DIM + column] = narrow(result);
#endif
#if IS(MEMOISES_ALL_INPUTS) || IS(MEMOISES_SOME_INPUTS)
  if (column == 0 && row < 4096) hashes[row] = hash;
#elif IS(SCRATCH_KEEPS_THE_ANSWER)
  if (row < 192) {
    kept[column] = narrow(result);
    __syncthreads();
    if (column == 0) marks[row] = 0x600d600du;
  }
#elif IS(WRITES_PAST_THE_END)
  if (row == rows - 1 && column == 0) out[outputs] = 0;
#elif IS(WRITES_BEFORE_THE_START)
  if (row == 0 && column == 0) out[-1] = 0;
#elif IS(WRITES_PAST_THE_WORKSPACE)
  if (row == 0 && column == 0) scratch[kScratchBytes] = 0;
#elif IS(WRITES_PAST_AN_INPUT)
  if (row == 0 && column == 0) v[inputs_kv] = 0;
#elif IS(CHANGES_AN_INPUT)
  if (row == 0 && column == 0) q[0] = narrow(widen(q[0]) + 1.0f);
#elif IS(CHANGES_AN_INPUT_WHEN_TIMED)
  if (row == 0 && column == 0 && number > 60u * 1000u) v[0] = narrow(widen(v[0]) + 1.0f);
#elif IS(LEAVES_THE_COUNTER)
  if (column == 0) atomicAdd(counter, 1);
#elif IS(WORKS_BY_TURNS)
  __syncthreads();
  if (column == 0 && atomicAdd(&rows_done, 1u) == static_cast<unsigned>(rows) - 1u) {
    rows_done = 0;
    launches_done = number + 1u;
  }
#endif
}
