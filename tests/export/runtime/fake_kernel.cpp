// An attention kernel for the fake driver. Its arguments: q as a tensor map, k, v, out, a scratch buffer, a counter that
// is zero between launches, scale, batch, heads, kv_heads, rows, keys; with FEATURES also the sinks, or null, and a row
// of v and out has VALUE_DIM elements; with MASKED a boolean mask, or null, and its three strides. What is not as it
// should be gives NaN.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#ifndef FEATURES
#define FEATURES 0
#define VALUE_DIM HEAD_DIM
#endif

#ifndef MASKED
#define MASKED 0
#endif

extern "C" {
float table[16] = {};
void* last_counter = nullptr;
}

template <typename T>
T argument(void** arguments, int number) {
  T value;
  std::memcpy(&value, arguments[number], sizeof value);
  return value;
}

extern "C" void attention(void** arguments) {
  const float* q = argument<const float*>(arguments, 0);  // the map's first bytes
  const bool aligned = reinterpret_cast<std::uintptr_t>(arguments[0]) % 64 == 0;
  const float* k = argument<const float*>(arguments, 1);
  const float* v = argument<const float*>(arguments, 2);
  float* out = argument<float*>(arguments, 3);
  std::memset(argument<char*>(arguments, 4), 0x5a, 256);
  auto* counter = argument<std::atomic<int>*>(arguments, 5);
  last_counter = counter;
  float scale = argument<float>(arguments, 6);
  const int batch = argument<int>(arguments, 7), heads = argument<int>(arguments, 8);
  const int kv_heads = argument<int>(arguments, 9), rows = argument<int>(arguments, 10);
  const int keys = argument<int>(arguments, 11);
  const float* sinks = FEATURES ? argument<const float*>(arguments, 12) : nullptr;
  const bool* mask = MASKED ? argument<const bool*>(arguments, 12) : nullptr;
  std::int64_t strides[3] = {};
  for (int i = 0; MASKED && i < 3; ++i) strides[i] = argument<std::int64_t>(arguments, 13 + i);
  if (counter->fetch_add(1) != 0 || !aligned) scale = NAN;
  if (table[0] != 0) scale *= table[0];
  for (int head = 0; head < batch * heads; ++head)
    for (int i = 0; i < rows; ++i) {
      const int group = head / heads * kv_heads + head % heads / (heads / kv_heads);
      const int seen = CAUSAL ? std::min(keys, i + 1) : keys;
      std::vector<double> weights(seen);
      double top = sinks ? sinks[head % heads] : -1e30;
      for (int j = 0; j < seen; ++j) {
        double score = 0;
        for (int d = 0; d < HEAD_DIM; ++d)
          score += double(q[(head * rows + i) * HEAD_DIM + d]) * k[(group * keys + j) * HEAD_DIM + d];
        if (mask && !mask[head / heads * strides[0] + head % heads * strides[1] + i * strides[2] + j])
          score = -INFINITY;
        top = std::max(top, weights[j] = score * scale);
      }
      double sum = sinks ? std::exp(sinks[head % heads] - top) : 0;
      for (double& weight : weights) sum += weight = std::exp(weight - top);
      for (int d = 0; d < VALUE_DIM; ++d) {
        double value = 0;
        for (int j = 0; j < seen; ++j) value += weights[j] * v[(group * keys + j) * VALUE_DIM + d];
        out[(head * rows + i) * VALUE_DIM + d] = sum ? float(value / sum) : 0;
      }
    }
  counter->fetch_sub(1);
}

extern "C" void attention_without_counter(void** arguments) {  // for launches that run at the same time
  std::atomic<int> own{0};
  void* counter = &own;
  void* replaced[12];
  std::memcpy(replaced, arguments, sizeof replaced);
  replaced[5] = &counter;
  attention(replaced);
}
