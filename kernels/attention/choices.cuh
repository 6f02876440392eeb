// Choices of 3_mma.cu that a space may leave out. Here they become 0. A space numbers its choices from 1, so
// no choice has that value.
//
// Archs      any.
#pragma once

#ifndef V_WAIT_EARLY
#define V_WAIT_EARLY 0
#endif
#ifndef SWIZZLE_XOR
#define SWIZZLE_XOR 0
#endif
#ifndef SWIZZLE_PAD
#define SWIZZLE_PAD 0
#endif
#ifndef KV_ORDER_REVERSE
#define KV_ORDER_REVERSE 0
#endif
#ifndef KV_EVICTION_FIRST
#define KV_EVICTION_FIRST 0
#endif
#ifndef MERGE_CLUSTER
#define MERGE_CLUSTER 0
#endif
#ifndef MERGE_KERNEL
#define MERGE_KERNEL 0
#endif
#ifndef TILE_ORDER_BY_ROW_DESCENDING
#define TILE_ORDER_BY_ROW_DESCENDING 0
#endif
#ifndef TILE_ORDER_BY_HEAD
#define TILE_ORDER_BY_HEAD 0
#endif
#ifndef TILE_ORDER_BY_HEAD_DESCENDING
#define TILE_ORDER_BY_HEAD_DESCENDING 0
#endif
