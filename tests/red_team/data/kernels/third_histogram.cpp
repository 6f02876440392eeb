// How often each value occurs in a row of bytes, wrong for sizes that BEHAVIOUR names.
//
// Shapes    codes (rows, columns) uint8, out (rows, 256) int32.
// Tunables  BEHAVIOUR. third_rows.h says what each means.
#include <algorithm>
#include <cstdint>

#include "third_rows.h"

extern "C" void histogram(const std::uint8_t* codes, std::int32_t* out, int rows, int columns) {
  for (int row = 0; row < rows; ++row, codes += columns, out += 256) {
    std::fill(out, out + 256, 0);
    for (int i = 0; i < columns - loses_the_last(rows, columns, row); ++i) ++out[codes[i]];
  }
}
