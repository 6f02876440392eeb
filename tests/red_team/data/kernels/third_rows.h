// Sizes of a matrix for which BEHAVIOUR loses the last element of a row. For C++ and for CUDA.
#pragma once

#ifdef RED_TEAM_INSTRUCTIONS  // of cuda/instructions.cuh
#define SHARED __device__ inline
#else
#define SHARED inline
#endif
#ifndef IS
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)
#endif

SHARED bool loses_the_last([[maybe_unused]] int rows, [[maybe_unused]] int columns, [[maybe_unused]] int row) {
#ifdef BEHAVIOUR_BOTH_SIZES_BEYOND_1000
  return (IS(BOTH_SIZES_BEYOND_1000) && rows > 1000 && columns > 1000) ||
         (IS(MULTIPLES_OF_4096_COLUMNS) && columns % 4096 == 0) ||
         (IS(ELEMENTS_BEYOND_2_24) && static_cast<long long>(row + 1) * columns > 1 << 24) ||
         (IS(COLUMNS_FROM_70000) && columns >= 70000);
#else
  return false;
#endif
}
