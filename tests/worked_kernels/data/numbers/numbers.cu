// Results of rows of numbers of several types, a thread for each row; right, or wrong as BEHAVIOUR says.
//
// Layouts   contiguous rows: codes int8, steps int16, keys int64, seen bool, x double, z complex of two floats.
// Archs     sm_80 and later.
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

extern "C" __global__ void numbers(const signed char* codes, const short* steps, const long long* keys,
                                   const bool* seen, const double* x, const float2* z, signed char* total, short* twice,
                                   long long* least, unsigned char* any, double* mean, double* shifted, float2* squares,
                                   int rows, int columns) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const long long first = static_cast<long long>(row) * columns;
  int sum = 0, count = 0;
  double wide = 0.0, highest = x[first];
  float narrow_sum = 0.0f;
  long long low = IS(STARTS_AT_2_TO_62) ? 1ll << 62 : 0x7fffffffffffffffll;
  for (int i = 0; i < columns; ++i) {
    const long long at = first + (IS(BACKWARDS) ? columns - 1 - i : i);
    low = keys[at] < low ? keys[at] : low;
    highest = x[at] > highest ? x[at] : highest;
    if (!seen[at]) continue;
    ++count;
    sum += IS(UNSIGNED_CODES) ? static_cast<unsigned char>(codes[at]) : codes[at];
    wide += IS(READS_FLOATS) ? static_cast<float>(x[at]) : x[at];
    narrow_sum += static_cast<float>(x[at]);
  }
  total[row] = static_cast<signed char>(sum > 127 ? 127 : sum < -128 ? -128 : sum);
  const int doubled = 2 * steps[row], most = 32767, bottom = -32768;
  const int held = doubled > most ? most : doubled < bottom ? bottom : doubled;
  twice[row] = static_cast<short>(IS(DOUBLES_AND_WRAPS) ? doubled : held);
  least[row] = low;
  if (!IS(ONLY_WRITES_TRUE) || count) any[row] = IS(COUNTS_IN_A_BOOL) ? count : count > 0;
  mean[row] = (IS(SUMS_IN_FLOAT) ? narrow_sum : wide) / columns;
  for (long long at = first; at < first + columns; ++at) {
    const double off = x[at] - highest;
    shifted[at] = (IS(EXPF_OF_DOUBLE) ? expf(static_cast<float>(off)) : exp(off)) + 0.1;
    const float a = z[at].x, b = z[at].y;
    squares[at].x = a * a - b * b + a;
    if (!IS(REAL_PART_ONLY)) squares[at].y = (IS(CONJUGATES_BOTH) ? -2 : 2) * a * b - b;
  }
  if (IS(ONE_BOOL_BEHIND) && row == 0) any[rows] = 0;
}
