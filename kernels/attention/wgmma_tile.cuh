// The tiles of the kernel that a consumer or a producer is part of: Problem, Walk and Place, of 5_wgmma.cu or of
// attention_varlen_wgmma.cu.
//
// Archs      sm_90 and later.
#pragma once

#include "wgmma_choices.cuh"

#if PACKED
#include "varlen_place.cuh"
#else
#include "wgmma_place.cuh"
#endif
