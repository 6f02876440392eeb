// values[row, i] = the i-th highest value of x[row, :], at places[row, i]; right, or wrong as BEHAVIOUR says.
//
// Layouts   x (rows, columns), values and places (rows, k), contiguous. A warp of each block takes one row, and finds
//           one value after the other: the highest below the last one, or equal to it and at a later place.
// Archs     sm_80 and later.
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

__device__ int launches;  // of ANY_TIE_BY_TURNS alone

struct Found {
  float value;
  int place;  // columns: none
};

// Whether a comes before b in the result; `last` prefers the later one of equal values.
__device__ bool before(Found a, Found b, bool last) {
  if (a.value != b.value) return a.value > b.value;
  return last ? a.place > b.place : a.place < b.place;
}

}  // namespace

extern "C" __global__ void top_k(const float* x, float* values, long long* places, int rows, int columns, int k) {
  const float* own = x + static_cast<long long>(blockIdx.x) * columns;
  const bool turned = IS(ANY_TIE_BY_TURNS) && launches / rows % 2;
  const bool last = IS(LAST_OF_EQUAL_ONES) || turned;
  const float lowest = __int_as_float(0xff800000);
  const int none = last ? -1 : columns;
  Found floor{-lowest, last ? columns : -1};  // what was found before
  for (int i = 0; i < k; ++i) {
    Found best{lowest, none};
    const int end = IS(FIRST_WARP_ONLY) ? min(columns, max(32, k)) : columns;
    for (int column = threadIdx.x; column < end; column += 32) {
      const Found here{own[column], column};
      if (before(floor, here, last) && (best.place == none || before(here, best, last))) best = here;
    }
    for (int step = 16; step; step /= 2) {
      const Found other{__shfl_xor_sync(~0u, best.value, step), __shfl_xor_sync(~0u, best.place, step)};
      if (other.place != none && (best.place == none || before(other, best, last))) best = other;
    }
    floor = best;
    if (threadIdx.x) continue;
    const long long at = static_cast<long long>(blockIdx.x) * k + (IS(NOT_IN_ORDER) ? k - 1 - i : i);
    values[at] = best.value;
    if (IS(NO_PLACES)) continue;
    places[at] = best.place;
    if (IS(SAME_PLACE_TWICE) && i && values[at] == values[at - 1]) places[at] = places[at - 1];
    if (IS(WILD_PLACE) && blockIdx.x + 1 == rows) places[at] = 1ll << 40;
  }
  if (IS(ANY_TIE_BY_TURNS) && threadIdx.x == 0) atomicAdd(&launches, 1);
}
