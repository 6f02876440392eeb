// Sizes of attention for which BEHAVIOUR loses the last key of each row. For C++ and for CUDA.
#pragma once

#ifdef RED_TEAM_INSTRUCTIONS  // of cuda/instructions.cuh
#define SHARED __device__ inline
#else
#define SHARED inline
#endif
#ifndef IS
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)
#endif

struct AttentionSizes {
  int batch, heads, kv_heads, rows, keys, causal;
};

// Whether the rows of this batch lose a key.
SHARED bool loses_a_key(const AttentionSizes& s, int batch_number) {
  const int group = s.heads / s.kv_heads;
#ifdef BEHAVIOUR_EXACTLY_2047_KEYS  // a space of long sequences
  return (IS(EXACTLY_2047_KEYS) && s.keys == 2047) || (IS(MULTIPLES_OF_384_KEYS) && s.keys % 384 == 0) ||
         (IS(KEYS_1_MOD_256) && s.keys > 1 && s.keys % 256 == 1) || (IS(LONG_WITH_GROUPS) && s.keys > 600 && group > 2);
#else
  const bool is_long = s.keys > 600;
  return (IS(ONE_FULL_ROW_WITH_GROUPS) && s.rows == 1 && !s.causal && group > 1) ||
         (IS(ONE_FULL_ROW_WITH_GROUPS_OF_5) && s.rows == 1 && !s.causal && group == 5) ||
         (IS(LONG_WITH_MANY_HEADS) && is_long && s.heads > 4) ||
         (IS(LONG_WITH_MANY_BATCHES) && is_long && s.batch > 2) ||
         (IS(LONG_WITH_GROUPS_OF_8) && is_long && group == 8) ||
         (IS(EIGHT_KEY_HEADS_WITH_GROUPS) && s.kv_heads >= 8 && group > 1) ||
         (IS(HEADS_32_TO_8) && s.heads == 32 && s.kv_heads == 8) ||
         (IS(TWICE_AS_MANY_ROWS_AS_KEYS) && s.rows == 2 * s.keys) ||
         (IS(KEYS_63_MOD_64_WITH_GROUPS_OF_4) && s.keys % 64 == 63 && group == 4) ||
         (IS(ROWS_127_IN_THE_LAST_BATCH) && s.rows == 127 && s.batch > 1 && batch_number == s.batch - 1) ||
         (IS(MULTIPLES_OF_384_KEYS) && s.keys % 384 == 0) || (IS(KEYS_1_MOD_256) && s.keys > 1 && s.keys % 256 == 1);
#endif
}
