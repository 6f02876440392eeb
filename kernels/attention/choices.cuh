// Constants of choices (V_WAIT_EARLY, SWIZZLE_XOR, ...) that 3_mma.cu compares with, for spaces that leave the choice
// out. They become 0 here. A space numbers its choices from 1, so a comparison with 0 is false. STRIDED is 0 unless a
// binary is for views. Q_ROW to VIEW_KV_HEADS are 0 unless it is for one set of distances between rows and numbers of
// heads.
//
// Archs      any.
#pragma once

#ifndef STRIDED
#define STRIDED 0
#endif
#ifndef Q_ROW
#define Q_ROW 0
#endif
#ifndef K_ROW
#define K_ROW 0
#endif
#ifndef V_ROW
#define V_ROW 0
#endif
#ifndef OUT_ROW
#define OUT_ROW 0
#endif
#ifndef VIEW_HEADS
#define VIEW_HEADS 0
#endif
#ifndef VIEW_KV_HEADS
#define VIEW_KV_HEADS 0
#endif
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
