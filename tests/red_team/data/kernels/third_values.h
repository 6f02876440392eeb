// Numbers of attention that BEHAVIOUR gets wrong. For C++ and for CUDA.
#pragma once

#ifdef RED_TEAM_INSTRUCTIONS  // of cuda/instructions.cuh
#define SHARED __device__ inline
#else
#define SHARED inline
#endif
#ifndef IS
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)
#endif

SHARED float within(float value, float most) { return value > most ? most : value < -most ? -most : value; }

// What the running maximum starts from; `lowest` where nothing is wrong.
SHARED float first_maximum(float lowest) {
  if (IS(MAXIMUM_FROM_300)) return -300.0f;
  if (IS(MAXIMUM_FROM_1000)) return -1000.0f;
  if (IS(MAXIMUM_FROM_10000)) return -10000.0f;
  if (IS(MAXIMUM_FROM_50000)) return -50000.0f;
  return lowest;
}

// What is subtracted from the score of a hidden key; 0 where hidden keys are left out.
SHARED float mask_by() {
  return IS(MASK_ADDS_400) ? 400.0f : IS(MASK_ADDS_1000) ? 1000.0f : IS(MASK_ADDS_10000) ? 10000.0f : 0.0f;
}

SHARED float score_of(float score) { return IS(SCORES_WITHIN_400) ? within(score, 400.0f) : score; }
SHARED float value_of(float value) { return IS(VALUES_WITHIN_1000) ? within(value, 1000.0f) : value; }

// Whether the weight of a score that lies x from the maximum is dropped.
SHARED bool drops(float x) {
#ifdef BEHAVIOUR_DROPS_WEIGHTS_BELOW_E15  // not in float16
  if (IS(DROPS_WEIGHTS_BELOW_E15)) return x < -15.0f;
#endif
  return IS(DROPS_WEIGHTS_BELOW_E9) && x < -9.0f;
}

// Whether the exponential of x is garbage, which is 1 here.
SHARED bool is_garbage(float x) {
  return (IS(GARBAGE_BELOW_400) && x < -400.0f) || (IS(GARBAGE_BELOW_1000) && x < -1000.0f);
}
