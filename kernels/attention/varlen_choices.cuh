// The choices of the shared headers that are fixed in attention_varlen_wgmma.cu, which includes this file before them.
//
// Archs      any.
#pragma once

#define PACKED 1
#define PRODUCER_WARPS 4
#define OVERLAP 1
#define WEIGHT_SETS 1
#define CLUSTER 1
#define SPLIT_KV 1
#define SHARE_TAIL 0

#include "wgmma_choices.cuh"
