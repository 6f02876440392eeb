// counts[b] += how often b is among the n keys; right, or wrong as BEHAVIOUR says.
//
// Layouts   keys (n), counts (bins), contiguous.
// Shared    16 KiB, which BY_BLOCKS uses: a block adds up its own counts first.
// Archs     sm_80 and later.
#define IS(name) (BEHAVIOUR == BEHAVIOUR_##name)

extern "C" __global__ void histogram(const short* keys, int* counts, int n, int bins) {
  __shared__ unsigned own[4096];
  const bool by_blocks = IS(BY_BLOCKS) || IS(BLOCKS_OF_7_BITS);
  const int count = IS(LOSES_THE_LAST) ? n - 1 : n, used = IS(NO_LAST_BIN) && bins > 1 ? bins - 1 : bins;
  if (by_blocks) {
    for (int bin = threadIdx.x; bin < bins; bin += blockDim.x) own[bin] = 0;
    __syncthreads();
  }
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const int key = keys[i], by = IS(TWICE) ? 2 : 1;
    if (key >= used) continue;
    if (by_blocks)
      atomicAdd(&own[key], 1u);
    else if (IS(WITHOUT_ATOMICS))
      counts[key] += by;
    else
      atomicAdd(&counts[key], by);
  }
  if (by_blocks) {
    __syncthreads();
    for (int bin = threadIdx.x; bin < bins; bin += blockDim.x)
      atomicAdd(&counts[bin], static_cast<int>(IS(BLOCKS_OF_7_BITS) ? own[bin] % 128 : own[bin]));
  }
  if (IS(ONE_BEHIND) && blockIdx.x == 0 && threadIdx.x == 0) ++counts[bins];
}
