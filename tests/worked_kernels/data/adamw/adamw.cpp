// One step of AdamW on n parameters p and moments m, v, in place; right, or wrong as BEHAVIOUR says.
#include <cmath>
#include <cstring>
#include <vector>

#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

// In float 1 - 0.999f is off by a hundred-thousandth of itself, so both are constants.
constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f, kRest1 = 0.1f, kRest2 = 0.001f, kEps = 1e-8f, kDecay = 0.01f;

struct Last {
  std::vector<float> before, after;
};

}  // namespace

extern "C" void adamw(float* p, float* m, float* v, const float* g, int n, float lr, int step) {
  static std::vector<float> last;
  static int launches = 0;
  static Last kept;
  ++launches;
  if (IS(NO_UPDATE)) return;
  if (IS(COUNTS_LAUNCHES)) step = launches % 1000 + 1;
  if (IS(STEP_OF_ONE)) step = 1;
  if (IS(LR_OF_THE_DEFAULT)) lr = 1e-3f;
  // A launch that finds its own result does nothing: right only if nobody restores the tensors.
  static std::vector<float> done;
  if (IS(SKIPS_WHAT_IT_DID) && static_cast<int>(done.size()) == n && !std::memcmp(done.data(), p, n * sizeof(float))) return;
  // The first values tell it which result to give again.
  if (IS(REMEMBERS_THE_RESULT) && static_cast<int>(kept.before.size()) == n + 1 && kept.before[0] == p[0] &&
      kept.before[n - 1] == p[n - 1] && kept.before[n] == lr * step) {
    std::memcpy(p, kept.after.data(), n * sizeof(float));
    std::memcpy(m, kept.after.data() + n, n * sizeof(float));
    std::memcpy(v, kept.after.data() + 2 * n, n * sizeof(float));
    return;
  }
  if (IS(REMEMBERS_THE_RESULT)) {
    kept.before.assign(p, p + n);
    kept.before.push_back(lr * step);
  }
  const int times = IS(UPDATES_TWICE) || (IS(TWICE_WHEN_TIMED) && launches % 8 == 7) ? 2 : 1;
  const double correct1 = 1 - std::pow(0.9, step), correct2 = 1 - std::pow(0.999, step);
  const float rate = static_cast<float>(1 / correct1), root = static_cast<float>(1 / correct2);
  const int count = IS(LOSES_THE_LAST) ? n - 1 : n;
  for (int time = 0; time < times; ++time) {
    for (int place = 0; place < count; ++place) {
      const int i = IS(BACKWARDS) ? n - 1 - place : place;
      const bool from_last = IS(FROM_THE_LAUNCH_BEFORE) && static_cast<int>(last.size()) == n;
      const float moment = kBeta1 * (from_last ? last[i] : m[i]) + kRest1 * g[i];
      const float square = kBeta2 * v[i] + kRest2 * g[i] * g[i];
      const float scale = std::sqrt((IS(OLD_V) ? v[i] : square) * root) + kEps;
      const float change = moment * rate / scale;
      const float next = p[i] - lr * (change + kDecay * p[i]);
      m[i] = moment;
      if (IS(MOVES_M_ONLY)) continue;
      if (!IS(KEEPS_V)) v[i] = square;
      p[i] = IS(DECAYS_THE_NEW_P) ? (p[i] - lr * change) * (1 - 0.5f * kDecay) : next;
    }
  }
  if (IS(FROM_THE_LAUNCH_BEFORE)) last.assign(m, m + n);
  if (IS(SKIPS_WHAT_IT_DID)) done.assign(p, p + n);
  if (IS(REMEMBERS_THE_RESULT)) {
    kept.after.assign(p, p + n);
    kept.after.insert(kept.after.end(), m, m + n);
    kept.after.insert(kept.after.end(), v, v + n);
  }
  if (IS(ONE_BEHIND)) m[n] = 0.0f;
}
