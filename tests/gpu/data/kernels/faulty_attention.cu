// Attention forward, one thread a row, that misbehaves as BEHAVIOUR says: what the gate and the worker must survive.
//
// Layouts as in kernels/attention/1_scalar.cu, float16 only. Tunables: BEHAVIOUR, THREADS (a block).
using Half = unsigned short;

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

extern "C" __global__ void attention_forward(Half* q, const Half* k, const Half* v, Half* out, float softmax_scale,
                                             int batch, int heads, int kv_heads, int seq_len_q, int seq_len_k) {
  extern __shared__ float unused_shared[];
  const int rows = batch * heads * seq_len_q;
  const int row = blockIdx.x * THREADS + threadIdx.x;
#if BEHAVIOUR == BEHAVIOUR_COMPILE_ERROR
#error "this configuration does not compile"
#endif
#if BEHAVIOUR == BEHAVIOUR_ILLEGAL_ADDRESS
  if (row == 0) *reinterpret_cast<volatile int*>(0x10) = 1;
#elif BEHAVIOUR == BEHAVIOUR_MISALIGNED
  if (row == 0) *reinterpret_cast<volatile int*>(reinterpret_cast<char*>(out) + 1) = 1;
#elif BEHAVIOUR == BEHAVIOUR_ENDLESS
  while (*reinterpret_cast<volatile Half*>(q) != 0x7c01) {
  }
#elif BEHAVIOUR == BEHAVIOUR_TRAP
  if (row == 0) asm volatile("trap;");
#endif
  if (row >= rows) return;
#if BEHAVIOUR == BEHAVIOUR_TOO_MANY_REGISTERS  // 96 values that live at once, and 1024 threads
  float many[96], folded = 0.0f;
  for (int i = 0; i < 96; ++i) many[i] = *reinterpret_cast<volatile float*>(q + 2 * i);
  for (int i = 95; i >= 0; --i) folded = folded * many[i] + 1.0f;
  softmax_scale = folded == 0.5f ? 0.0f : softmax_scale;
#endif
#if BEHAVIOUR == BEHAVIOUR_UNWRITTEN
  if (row == rows - 1) return;
#endif
  const int head = row / seq_len_q, position = row % seq_len_q;
  const int kv_head = head / heads * kv_heads + head % heads / (heads / kv_heads);
  const Half* keys = k + static_cast<long long>(kv_head) * seq_len_k * HEAD_DIM;
  const Half* values = v + static_cast<long long>(kv_head) * seq_len_k * HEAD_DIM;
  const Half* query = q + static_cast<long long>(row) * HEAD_DIM;
  const int seen = CAUSAL ? min(position + 1, seq_len_k) : seq_len_k;
  float top = -1e30f, sum = 0.0f, output[HEAD_DIM] = {};
  for (int key = 0; key < seen; ++key) {
    float score = 0.0f;
    for (int i = 0; i < HEAD_DIM; ++i) score += widen(query[i]) * widen(keys[key * HEAD_DIM + i]);
    score *= softmax_scale;
    const float before = top;
    top = fmaxf(top, score);
    const float keep = expf(before - top), weight = expf(score - top);
    sum = sum * keep + weight;
    for (int i = 0; i < HEAD_DIM; ++i) output[i] = output[i] * keep + weight * widen(values[key * HEAD_DIM + i]);
  }
#if BEHAVIOUR == BEHAVIOUR_WRONG
  sum *= 1.01f;
#elif BEHAVIOUR == BEHAVIOUR_NOT_A_NUMBER
  if (row == 0) sum = 0.0f * (sum - sum) / 0.0f;
#elif BEHAVIOUR == BEHAVIOUR_RANDOM
  if (clock64() % 64 < 32) sum *= 1.0005f;
#endif
  Half* to = out + static_cast<long long>(row) * HEAD_DIM;
  for (int i = 0; i < HEAD_DIM; ++i) to[i] = narrow(output[i] / sum);
#if BEHAVIOUR == BEHAVIOUR_OUT_OF_BOUNDS
  if (row == rows - 1) to[HEAD_DIM] = 0;
#elif BEHAVIOUR == BEHAVIOUR_CHANGES_INPUT
  if (row == 0) q[0] = narrow(widen(q[0]) + 1.0f);
#endif
}
