// Macros that the headers of 5_wgmma.cu and attention_varlen_wgmma.cu need beside the tunables: choices that a space
// leaves out, and names for what follows from several tunables.
//
// Choices that a space leaves out become 0. A space numbers its choices from 1, so no choice has that value.
//   PACKED          1: the kernel is attention_varlen_wgmma.cu (varlen/walk.cuh)
//   BLOCK_M         rows a tile
//   CLUSTER_BLOCKS  blocks of a cluster
//   SHARES_TAIL     whether a last round of tiles may be shared out
//   KEEPS_MAXIMUM   whether weights may be relative to an older maximum: not with a soft cap, which needs the largest
//                   score
//   READS_AHEAD     whether a tile's place is read before the end of the tile before
//   HIDES_BLOCKS    whether a tile may see no key, or none of the first ones
//   MASK_BITS       whether a mask of bytes hides keys; MASK_TILES  whether a bias comes through shared memory: see
//                   wgmma/mask_ring.cuh
//   HIDES_BY_BITS   whether hidden keys are known by a bit for each score
//
// Archs      any.
#pragma once

#include "../parts/features.h"
#include "../parts/mask.h"

#ifndef ROW_ORDER_DESCENDING
#define ROW_ORDER_DESCENDING 0
#endif
#ifndef WALK_SNAKE
#define WALK_SNAKE 0
#endif
#ifndef WALK_QUEUE
#define WALK_QUEUE 0
#endif
#ifndef HALF_BLOCKS
#define HALF_BLOCKS 0
#endif
#ifndef HIDE_ENDS
#define HIDE_ENDS 0
#endif
#ifndef KEEP_MAXIMUM
#define KEEP_MAXIMUM 0
#endif
#ifndef STORE_BULK
#define STORE_BULK 0
#endif
#ifndef PACKED
#define PACKED 0
#endif
#ifndef EXP2_FMA_SHARE
#define EXP2_FMA_SHARE 0
#endif
#ifndef WEIGHT_SETS
#define WEIGHT_SETS 1
#endif
#ifndef MASK_VIA
#define MASK_VIA 0
#define MASK_VIA_SHARED 1
#endif
#ifndef MASK_STAGES
#define MASK_STAGES 1
#endif

#define BLOCK_M (64 * CONSUMER_WARPGROUPS)
#define CLUSTER_BLOCKS (CLUSTER * SPLIT_KV)
#define SHARES_TAIL (SHARE_TAIL && !CAUSAL && !HAS_WINDOW)
#define KEEPS_MAXIMUM (KEEP_MAXIMUM && !HAS_SOFTCAP)
#define READS_AHEAD (HIDE_ENDS && HAS_WINDOW)
#define HIDES_BLOCKS (HAS_WINDOW || BOTTOM_RIGHT)
#define MASK_BITS (HAS_MASK && !MASK_IS_BIAS)
#define MASK_TILES (MASK_IS_BIAS && MASK_VIA == MASK_VIA_SHARED)
#define HIDES_BY_BITS (HAS_WINDOW || MASK_BITS)
