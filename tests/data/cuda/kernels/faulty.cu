// Not attention: a kernel that fails to compile, spills or asks for too much, as FAULT says.
#include "accumulate.cuh"

#if FAULT == FAULT_COMPILE_ERROR
#error this kernel does not compile
#elif FAULT == FAULT_ENDLESS
// 2^40 distinct instantiations.
template <int DEPTH, long PATH>
struct Tree {
    static constexpr long value = Tree<DEPTH - 1, 2 * PATH>::value + Tree<DEPTH - 1, 2 * PATH + 1>::value;
};
template <long PATH>
struct Tree<0, PATH> {
    static constexpr long value = PATH;
};
#endif

#if FAULT == FAULT_SPILLS
constexpr int KEPT = 128;
#define BOUNDS __launch_bounds__(1024)  // at most 64 registers a thread
#else
constexpr int KEPT = 4;
#define BOUNDS
#endif

extern "C" __global__ void BOUNDS attention_forward(
    const float *q, const float *k, const float *v, float *out, float *partials, int length) {
#if FAULT == FAULT_STATIC_SHARED
    __shared__ float tile[10000];  // with the dynamic memory beside it more than a block may have
    tile[threadIdx.x] = q[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[length];
#elif FAULT == FAULT_ENDLESS
    out[0] = Tree<40, 1>::value;
#else
    accumulate<KEPT>(q, k, out, length);
#endif
}

extern "C" __global__ void merge_parts(
    const float *q, const float *k, const float *v, float *out, float *partials, int length) {
    out[threadIdx.x] = partials[threadIdx.x] + partials[threadIdx.x + length];
}
