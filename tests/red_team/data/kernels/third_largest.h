// The order of a row's values for arg max, wrong for zeros, neighbours or ties as BEHAVIOUR says. For C++ and for CUDA.
#pragma once

#ifndef __CUDACC__  // it has these functions
#include <math.h>
#endif

#ifdef RED_TEAM_INSTRUCTIONS  // of cuda/instructions.cuh
#define SHARED __device__ inline
#else
#define SHARED inline
#endif
#ifndef IS
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)
#endif

// Whether x, the value of column i, comes before the best so far, which is `top` in column `place`.
SHARED bool is_better(float x, int i, float top, int place) {
  bool ties = x == top;
  if (IS(NEGATIVE_ZERO_BELOW_ZERO) && x == 0 && top == 0 && signbit(x) != signbit(top)) return signbit(top);
  if (IS(NEIGHBOURS_ARE_EQUAL)) ties = x <= nextafterf(top, 3e38f) && top <= nextafterf(x, 3e38f);
  if (IS(LATER_TIES_BEYOND_1024) && ties && i / 1024 != place / 1024) return i > place;
  return ties ? i < place : x > top;
}
