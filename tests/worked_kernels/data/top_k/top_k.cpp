// values[row, i] = the i-th highest value of x[row, :], at places[row, i]; right, or wrong as BEHAVIOUR says.
#include <cmath>
#include <cstdint>
#include <vector>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

extern "C" void top_k(const float* x, float* values, std::int64_t* places, int rows, int columns, int k) {
  static int launches = 0;
  ++launches;
  std::vector<bool> taken(columns);
  for (int row = 0; row < rows; ++row) {
    const float* own = x + static_cast<long>(row) * columns;
    taken.assign(columns, false);
    for (int i = 0; i < k; ++i) {
      int best = -1;
      float highest = IS(STARTS_AT_ZERO) ? 0.0f : -INFINITY;
      const bool last = IS(LAST_OF_EQUAL_ONES) || (IS(ANY_TIE_BY_TURNS) && launches % 2);
      for (int column = 0; column < columns; ++column) {
        if (taken[column]) continue;
        const bool higher = last ? own[column] >= highest : own[column] > highest;
        if (!higher && best >= 0) continue;
        if (!higher && IS(STARTS_AT_ZERO)) continue;
        highest = own[column], best = column;
      }
      if (best < 0) best = 0;
      const long at = static_cast<long>(row) * k + (IS(NOT_IN_ORDER) ? k - 1 - i : i);
      values[at] = own[best];
      if (!IS(NO_PLACES)) places[at] = best;
      if (IS(ONE_PLACE_BEHIND)) places[at] = best + 1;
      if (IS(PLACE_OF_MINUS_ONE) && i == k - 1 && k > 1) places[at] = -1;
      if (IS(WILD_PLACE) && row == rows - 1) places[at] = std::int64_t{1} << 40;
      if (IS(SECOND_BEST) && i == 0 && columns > 1) taken[best] = true, best = best ? 0 : 1, places[at] = best;
      if (IS(VALUES_OF_OTHERS) && i) values[at] = values[at - 1];
      // Of equal values the first is found again, as its place was not remembered but its value.
      if (IS(SAME_PLACE_TWICE) && i + 1 < k) {
        for (int column = best + 1; column < columns; ++column)
          if (own[column] == own[best]) { taken[column] = true, values[at + 1] = own[column], places[at + 1] = best, ++i; break; }
      }
      taken[best] = true;
    }
  }
}
