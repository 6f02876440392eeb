// Attention split over the keys, whose blocks make their parts known too early or merge before all are there.
//
// Shapes, types, way, workspace  split_attention.cuh.
// Tunables                       BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "split_attention.cuh"

namespace {

struct Handover {
  static constexpr int kMerger = kParts - 1;
  static __device__ void before_the_ticket() {
    if (!IS(TICKET_WITHOUT_FENCE) && !IS(TICKET_WITHOUT_BARRIER)) __threadfence();
    if (!IS(TICKET_WITHOUT_BARRIER)) __syncthreads();
  }
  static __device__ void behind_the_ticket() {
    if (!IS(TICKET_WITHOUT_FENCE)) __threadfence();
  }
};

struct EarlyHandover : RightHandover {
  static constexpr int kMerger = kParts - 2;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attention_forward(ATTENTION_PARAMETERS) {
  if (IS(MERGES_BEFORE_THE_LAST_PART))
    attend_by_parts<EarlyHandover>(ATTENTION_ARGUMENTS);
  else
    attend_by_parts<Handover>(ATTENTION_ARGUMENTS);
}
