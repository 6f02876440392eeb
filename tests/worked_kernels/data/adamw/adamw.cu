// One step of AdamW on n parameters p and moments m, v, in place; right, or wrong as BEHAVIOUR says.
//
// Layouts   p, m, v, g (n), contiguous. A thread steps through every 256 * grid-th parameter.
// Archs     sm_80 and later.
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

namespace {

constexpr float kBeta1 = 0.9f, kBeta2 = 0.999f, kRest1 = 0.1f, kRest2 = 0.001f, kEps = 1e-8f, kDecay = 0.01f;
constexpr int kKept = 1 << 16;
__device__ float kept[kKept];   // by wrong kernels alone
__device__ int launches;

}  // namespace

extern "C" __global__ void adamw(float* p, float* m, float* v, const float* g, int n, float lr, int step) {
  if (IS(NO_UPDATE)) return;
  if (IS(STEP_OF_ONE)) step = 1;
  if (IS(COUNTS_LAUNCHES)) {
    step = launches / static_cast<int>(gridDim.x) % 1000 + 1;
    if (threadIdx.x == 0) atomicAdd(&launches, 1);
  }
  const double correct1 = 1 - pow(0.9, static_cast<double>(step)), correct2 = 1 - pow(0.999, static_cast<double>(step));
  const float rate = static_cast<float>(1 / correct1), root = static_cast<float>(1 / correct2);
  const int count = IS(LOSES_THE_LAST) ? n - 1 : n, threads = gridDim.x * blockDim.x;
  for (int place = blockIdx.x * blockDim.x + threadIdx.x; place < count; place += threads) {
    const int i = IS(BACKWARDS) ? n - 1 - place : place;
    if (IS(SKIPS_WHAT_IT_DID) && i < kKept && kept[i] == p[i]) continue;
    const bool from_last = IS(FROM_THE_LAUNCH_BEFORE) && i < kKept && kept[i] != 0.0f;
    for (int time = 0; time < (IS(UPDATES_TWICE) ? 2 : 1); ++time) {
      const float moment = kBeta1 * (from_last ? kept[i] : m[i]) + kRest1 * g[i];
      const float square = kBeta2 * v[i] + kRest2 * g[i] * g[i];
      const float change = moment * rate / (sqrtf(square * root) + kEps);
      p[i] -= lr * (change + kDecay * p[i]);
      m[i] = moment;
      if (!IS(KEEPS_V)) v[i] = square;
    }
    if (IS(FROM_THE_LAUNCH_BEFORE) && i < kKept) kept[i] = m[i];
    if (IS(SKIPS_WHAT_IT_DID) && i < kKept) kept[i] = p[i];
  }
  if (IS(ONE_BEHIND) && blockIdx.x == 0 && threadIdx.x == 0) m[n] = 0.0f;
}
