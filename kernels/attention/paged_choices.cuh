// The choices of the shared headers that are fixed in attention_paged.cu, which includes this file before them.
//
// Archs      any.
#pragma once

#define STRIDED 1
#define PACK_GQA 1
#define Q_IN_REGS 1
#define SHARE_QK_SMEM 1  // Q comes straight into registers: it has no room of its own
#define SPLIT_KV 1
#define V_WAIT_EARLY 1
#define V_WAIT V_WAIT_EARLY
#define SWIZZLE_XOR 1
#define SWIZZLE SWIZZLE_XOR
#define KV_ORDER_FORWARD 1
#define KV_ORDER KV_ORDER_FORWARD

#include "choices.cuh"
