// Sizes of packed and of paged sequences for which BEHAVIOUR loses a key. For C++ and for CUDA.
#pragma once

#ifdef RED_TEAM_INSTRUCTIONS  // of cuda/instructions.cuh
#define SHARED __device__ inline
#else
#define SHARED inline
#endif
#ifndef IS
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)
#endif

// Of one sequence, whose first row is `token` of all.
struct SequenceSizes {
  int group, kv_heads, sequence, token, rows, keys, page_size;
};

SHARED bool loses_a_key(const SequenceSizes& s) {
  if (IS(GROUPS_OF_6)) return s.group == 6;
  if (IS(GROUPS_OF_7)) return s.group == 7;
  if (IS(GROUPS_OF_16)) return s.group == 16;
#ifdef BEHAVIOUR_PAGES_OF_32
  if (IS(FIVE_KEY_HEADS)) return s.kv_heads > 4;
  if (IS(NINTH_SEQUENCE)) return s.sequence >= 8;
  if (IS(KEYS_FROM_512)) return s.keys >= 512;
  if (IS(SIXTEEN_QUERIES)) return s.rows >= 16;
  if (IS(PAGES_OF_32)) return s.page_size == 32;
  if (IS(PAGES_OF_128)) return s.page_size == 128;
  if (IS(PAGES_OF_256)) return s.page_size == 256;
#else
  if (IS(GROUPS_OF_5)) return s.group == 5;
  if (IS(EIGHTEENTH_SEQUENCE)) return s.sequence >= 17;
  if (IS(ROWS_BEYOND_200)) return s.rows > 200;
  if (IS(KEYS_BEYOND_400)) return s.keys > 400;
  if (IS(TOKENS_FROM_8192)) return s.token + s.rows > 8192;
#endif
  return false;
}
