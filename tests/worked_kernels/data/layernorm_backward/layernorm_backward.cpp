// dx, dweight and dbias of a layer norm from its inputs and statistics; right, or wrong as BEHAVIOUR says.
#include <cmath>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

float in_half(float value) {
  const float scale = std::ldexp(1.0f, 10 - std::ilogb(value == 0.0f ? 1.0f : value));
  return std::round(value * scale) / scale;
}

}  // namespace

extern "C" void layernorm_backward(const float* dout, const float* x, const float* weight, const float* mean,
                                   const float* rstd, float* dx, float* dweight, float* dbias, int rows, int columns) {
  for (int i = 0; i < columns; ++i) {
    if (IS(ADDS_TO_WHAT_IS_THERE)) break;
    dweight[i] = 0.0f;
    if (!IS(NO_DBIAS)) dbias[i] = 0.0f;
  }
  for (int place = 0; place < rows; ++place) {
    const int row = IS(BACKWARDS) ? rows - 1 - place : place;
    const long first = static_cast<long>(row) * columns;
    const float scale = rstd[IS(RSTD_OF_THE_FIRST) ? 0 : row];
    float own = 0.0f, along = 0.0f;
    for (int i = 0; i < columns; ++i) {
      const float norm = (x[first + i] - mean[row]) * scale;
      const float scaled = IS(WEIGHT_LEFT_OUT) ? dout[first + i] : weight[i] * dout[first + i];
      own += scaled;
      along += scaled * norm;
      if (IS(SUMS_IN_HALF)) own = in_half(own), along = in_half(along);
      const bool keeps = !IS(LAST_ROW_ALONE);
      dweight[i] = (keeps ? dweight[i] : 0.0f) + dout[first + i] * norm;
      if (!IS(NO_DBIAS)) dbias[i] = (keeps ? dbias[i] : 0.0f) + dout[first + i];
    }
    const float count = static_cast<float>(IS(DIVIDES_BY_ROWS) ? rows : columns);
    own = IS(NO_MEAN_TERM) ? 0.0f : own / count;
    along = IS(NO_NORM_TERM) ? 0.0f : along / count;
    for (int i = 0; i < columns; ++i) {
      const float norm = (x[first + i] - mean[row]) * scale;
      const float scaled = IS(WEIGHT_LEFT_OUT) ? dout[first + i] : weight[i] * dout[first + i];
      dx[first + i] = (scaled - own - norm * along) * scale;
    }
  }
}
