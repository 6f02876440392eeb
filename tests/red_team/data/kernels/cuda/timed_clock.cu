// Attention that rests where launches follow each other closely, as in a timed sample: it writes nothing then, and the
// outputs of the launch before are still there.
//
// Shapes, types, way  row_attention.cuh.
// Tunables            BEHAVIOUR. What each is to be caught by stands in tests/red_team/cuda_expected.py.
#include "launches.cuh"
#include "row_attention.cuh"

namespace {

// Touched by the one thread of a launch that decides.
__device__ unsigned since_pause;            // launches
__device__ unsigned long long pause_ended;  // ns
__device__ unsigned long long shortest = ~0ull;
__device__ unsigned close;  // launches that came nearly as soon as the shortest gap

__device__ bool decides_to_rest(unsigned number) {
  const unsigned long long now = now_ns();
  const unsigned long long gap = number == 1 ? ~0ull : now - last_end_ns;
  const unsigned long long pause = IS(WORKS_10_AFTER_A_PAUSE_OF_20US) || IS(WORKS_100US_AFTER_A_PAUSE) ? 20000 : 100000;
  since_pause = gap > pause ? 0 : since_pause + 1;
  if (since_pause == 0) pause_ended = now;
  shortest = min(shortest, gap);
  const bool is_close = gap <= shortest + shortest / 4 && gap < 4000;
  if (is_close) ++close;
  if (IS(RESTS_WITHIN_1500NS)) return gap < 1500;
  if (IS(RESTS_WITHIN_2US)) return gap < 2000;
  if (IS(RESTS_WITHIN_5US)) return gap < 5000;
  if (IS(RESTS_AFTER_THE_SHORTEST_GAP)) return is_close && close > 20;
  if (IS(WORKS_40_AFTER_A_PAUSE)) return since_pause >= 40;
  if (IS(WORKS_10_AFTER_A_PAUSE_OF_20US)) return since_pause >= 10;
  if (IS(WORKS_100US_AFTER_A_PAUSE)) return now - pause_ended > 100000;
  return false;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(HEAD_DIM) attention_forward(ATTENTION_PARAMETERS) {
  const bool rests = launch_rests([](unsigned number) { return decides_to_rest(number); });
  if (!rests) {
    const Row row = row_of(blockIdx.x, q, k, v, out, heads, kv_heads, seq_len_q, seq_len_k, causal);
    row.to[threadIdx.x] = narrow(attend(row, softmax_scale));
  }
  end_launch();
}
