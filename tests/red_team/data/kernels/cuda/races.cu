// Attention by tiles that leaves out a wait or a barrier. Which data arrive too late, or are overwritten too early, is
// up to the device.
//
// Shapes, types, way  tiled_attention.cuh.
// Tunables            BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "tiled_attention.cuh"

namespace {

struct Sync {
  static __device__ void copies_of_this_step() {
    if (IS(WAIT_OFF_BY_ONE))
      wait_for_copies<2>();  // the next step's keys may still be under way
    else if (IS(WAIT_OFF_BY_TWO))
      wait_for_copies<3>();  // this step's values, too
    else if (!IS(WAITS_BEHIND_THE_BARRIER))
      wait_for_copies<1>();
  }
  static __device__ void before_weights_are_read() {
    if (!IS(NO_BARRIER_BEFORE_READING)) __syncthreads();
    if (IS(WAITS_BEHIND_THE_BARRIER)) wait_for_copies<1>();  // others' copies may still be under way
  }
  static __device__ void before_weights_are_overwritten() {
    if (!IS(NO_BARRIER_BEFORE_OVERWRITING)) __syncthreads();
  }
  static __device__ void before_maxima_are_shared() {
    if (!IS(NO_SYNCWARP)) __syncwarp();
  }
  static __device__ void close_an_empty_group() {
    if (!IS(LAST_WAIT_OFF_BY_ONE)) close_copies();  // else the newest group is this step's values
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) attention_forward(ATTENTION_PARAMETERS) {
  attend_by_tiles<Sync>(ATTENTION_ARGUMENTS);
}
