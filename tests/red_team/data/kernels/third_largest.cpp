// The largest value of each row, or its place, wrong for numbers or columns that BEHAVIOUR names.
//
// Shapes    x (rows, columns) float32; place (rows) int64, the first if there are several; largest (rows) float32.
// Tunables  BEHAVIOUR. third_largest.h says what each means.
#include <cstdint>

#ifdef BEHAVIOUR_READS_PAST_THE_END
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

extern "C" void row_maximum(const float* x, float* out, int rows, int columns) {
  for (int row = 0; row < rows; ++row, x += columns) {
    float top = x[0];
    const int end = columns + (IS(READS_PAST_THE_END) && row == rows - 1);  // past the whole matrix
    for (int i = 1; i < end; ++i)
      if (x[i] > top) top = x[i];
    out[row] = top;
  }
}
#else
#include "third_largest.h"

extern "C" void arg_max(const float* x, std::int64_t* out, int rows, int columns) {
  for (int row = 0; row < rows; ++row, x += columns) {
    int place = 0;
    for (int i = 1; i < columns; ++i)
      if (is_better(x[i], i, x[place], place)) place = i;
    out[row] = IS(PLACES_MODULO_65536) ? place % 65536 : place;
  }
}
#endif
