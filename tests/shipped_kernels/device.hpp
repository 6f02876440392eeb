// CUDA's language on the CPU as far as the kernels for rows and for GEMM use it, beside the attention rungs' model.
#pragma once

#include "../attention_kernels/warps/device.hpp"

inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
template <class Word>
Word __ldcs(const Word* from) {
  return *from;
}
template <class Word>
void __stcs(Word* to, const Word& word) {
  *to = word;
}

inline float erff(float x) { return std::erf(x); }
inline void load_box_2d(unsigned shared, const TensorMap& map, unsigned full, int column, int row) {
  load_box(shared, map, full, column, row, 0, 0);
}

template <int BYTES>
struct WordOf;
template <> struct WordOf<2> { using Type = unsigned short; };
template <> struct WordOf<4> { using Type = unsigned; };
template <> struct WordOf<8> { using Type = uint2; };
template <> struct WordOf<16> { using Type = uint4; };
