// Asynchronous MMA of a warpgroup (128 threads): wgmma m64nNk16, sums in registers.
//
// B (N x 16) is in shared memory, and A (64 x 16) there or in registers. Warp w has rows 16 w .. 16 w + 15, spread over
// its lanes as in mma.m16n8k16: with g = lane / 4 and t = lane % 4, register 4 i + 2 h + e of the sums is row g + 8 h,
// column 8 i + 2 t + e; A's four registers are pairs (row g, k 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8). So sums,
// rounded and packed in pairs, are the A operand of the next product.
//
// Products run asynchronously. fence_products() comes before the first product after other instructions touched its
// registers; close_products() makes those issued since the last one a group; wait_products<N>() waits until at most the
// latest N groups are under way. Only then may sums be read, A's registers written, or shared memory given back. The
// compiler believes that sums are ready as soon as the product is issued: pin() keeps their uses behind the wait.
//
// Archs      sm_90a.
// References PTX ISA: "wgmma.mma_async", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group", "Register Fragments
//            and Shared Memory Matrix Layouts" of m64nNk16.
#pragma once

namespace {

__device__ __forceinline__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }

template <int GROUPS>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(GROUPS) : "memory");
}

template <int COUNT>
__device__ __forceinline__ void pin(float (&values)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// Keeps loads from there behind the products that were issued before.
__device__ __forceinline__ void pin(const char*& from) { asm volatile("" : "+l"(from)::"memory"); }

// Keeps the code that makes `value` (never negative) before this place. ptxas 12.9 moves a softmax behind the wait that
// follows it in the source, to where no MMA runs beside it (seen in the SASS: all of its ex2), and neither pin()
// nor the vote of the lazy rescale prevents that. A store that depends on `value` does, though it never happens. (A
// conditional trap does too, but ends the basic block: ptxas then serializes MMA, C7512.)
__device__ __forceinline__ void finish_first(float value) {
  asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p st.shared.f32 [%1], %0;\n}\n" ::"f"(value), "r"(0)
               : "memory");
}

// Does the same for `words`, by stores that never happen unless `value` is negative.
template <int COUNT>
__device__ __forceinline__ void finish_first(float value, const unsigned (&words)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i += 4)
    asm volatile(
        "{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p st.shared.v4.b32 [%1], {%2, %3, %4, %5};\n}\n" ::"f"(
            value),
        "r"(0), "r"(words[i]), "r"(words[i + 1]), "r"(words[i + 2]), "r"(words[i + 3])
        : "memory");
}

// d (+)= a b for N columns; TRANSPOSED: B's rows in shared memory are the summed-over index. `a` and `b` are
// shared-memory matrix descriptors, which wgmma/panels.cuh makes; `a0` to `a3` are A's registers.
template <int N>
struct Product;

#define REGISTERS_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define REGISTERS_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define REGISTERS_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define REGISTERS_9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define REGISTERS_10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define REGISTERS_11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define REGISTERS_13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define REGISTERS_14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define REGISTERS_15 "%120, %121, %122, %123, %124, %125, %126, %127"

#define NAMES_1 REGISTERS_0
#define NAMES_2 NAMES_1 ", " REGISTERS_1
#define NAMES_3 NAMES_2 ", " REGISTERS_2
#define NAMES_4 NAMES_3 ", " REGISTERS_3
#define NAMES_5 NAMES_4 ", " REGISTERS_4
#define NAMES_6 NAMES_5 ", " REGISTERS_5
#define NAMES_7 NAMES_6 ", " REGISTERS_6
#define NAMES_8 NAMES_7 ", " REGISTERS_7
#define NAMES_9 NAMES_8 ", " REGISTERS_8
#define NAMES_10 NAMES_9 ", " REGISTERS_9
#define NAMES_11 NAMES_10 ", " REGISTERS_10
#define NAMES_12 NAMES_11 ", " REGISTERS_11
#define NAMES_13 NAMES_12 ", " REGISTERS_12
#define NAMES_14 NAMES_13 ", " REGISTERS_13
#define NAMES_15 NAMES_14 ", " REGISTERS_14
#define NAMES_16 NAMES_15 ", " REGISTERS_15

#define PAIR_OF(i) "+f"(d[i]), "+f"(d[i + 1])
#define SUMS_OF(i) PAIR_OF(i), PAIR_OF(i + 2), PAIR_OF(i + 4), PAIR_OF(i + 6)
#define SUMS_1 SUMS_OF(0)
#define SUMS_2 SUMS_1, SUMS_OF(8)
#define SUMS_3 SUMS_2, SUMS_OF(16)
#define SUMS_4 SUMS_3, SUMS_OF(24)
#define SUMS_5 SUMS_4, SUMS_OF(32)
#define SUMS_6 SUMS_5, SUMS_OF(40)
#define SUMS_7 SUMS_6, SUMS_OF(48)
#define SUMS_8 SUMS_7, SUMS_OF(56)
#define SUMS_9 SUMS_8, SUMS_OF(64)
#define SUMS_10 SUMS_9, SUMS_OF(72)
#define SUMS_11 SUMS_10, SUMS_OF(80)
#define SUMS_12 SUMS_11, SUMS_OF(88)
#define SUMS_13 SUMS_12, SUMS_OF(96)
#define SUMS_14 SUMS_13, SUMS_OF(104)
#define SUMS_15 SUMS_14, SUMS_OF(112)
#define SUMS_16 SUMS_15, SUMS_OF(120)

// p0 .. p6 are the names of the operands after the sums; `a` and `b` are descriptors, 64 bits each.
#define SHARED_PRODUCT(N, BLOCKS, TYPE, p0, p1, p2)                                                                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE     \
               "." TYPE " {" NAMES_##BLOCKS "}, " p0 ", " p1 ", p, 1, 1, 0, 0;\n}\n"                                   \
               : SUMS_##BLOCKS                                                                                         \
               : "l"(a), "l"(b), "r"(static_cast<int>(ADD))                                                            \
               : "memory")
#define REGISTER_PRODUCT(N, BLOCKS, TYPE, p0, p1, p2, p3, p4, p5, p6)                                                  \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE     \
               "." TYPE " {" NAMES_##BLOCKS "}, {" p0 ", " p1 ", " p2 ", " p3 "}, " p4 ", p, 1, 1, " p6 ";\n}\n"       \
               : SUMS_##BLOCKS                                                                                         \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(static_cast<int>(ADD)), "n"(TRANSPOSED)               \
               : "memory")

#define PRODUCT(N, BLOCKS, p0, p1, p2, p3, p4, p5, p6)                                                                 \
  template <>                                                                                                          \
  struct Product<N> {                                                                                                  \
    template <bool BFLOAT16, bool ADD>                                                                                 \
    static __device__ __forceinline__ void of_shared(float (&d)[N / 2], unsigned long long a, unsigned long long b) {  \
      if constexpr (BFLOAT16)                                                                                          \
        SHARED_PRODUCT(N, BLOCKS, "bf16", p0, p1, p2);                                                                 \
      else                                                                                                             \
        SHARED_PRODUCT(N, BLOCKS, "f16", p0, p1, p2);                                                                  \
    }                                                                                                                  \
    template <bool BFLOAT16, bool ADD, int TRANSPOSED>                                                                 \
    static __device__ __forceinline__ void of_registers(float (&d)[N / 2], unsigned a0, unsigned a1, unsigned a2,      \
                                                        unsigned a3, unsigned long long b) {                           \
      if constexpr (BFLOAT16)                                                                                          \
        REGISTER_PRODUCT(N, BLOCKS, "bf16", p0, p1, p2, p3, p4, p5, p6);                                               \
      else                                                                                                             \
        REGISTER_PRODUCT(N, BLOCKS, "f16", p0, p1, p2, p3, p4, p5, p6);                                                \
    }                                                                                                                  \
  };

PRODUCT(16, 1, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
PRODUCT(32, 2, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
PRODUCT(48, 3, "%24", "%25", "%26", "%27", "%28", "%29", "%30")
PRODUCT(64, 4, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
PRODUCT(80, 5, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
PRODUCT(96, 6, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
PRODUCT(112, 7, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
PRODUCT(128, 8, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
PRODUCT(144, 9, "%72", "%73", "%74", "%75", "%76", "%77", "%78")
PRODUCT(160, 10, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
PRODUCT(176, 11, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
PRODUCT(192, 12, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
PRODUCT(208, 13, "%104", "%105", "%106", "%107", "%108", "%109", "%110")
PRODUCT(224, 14, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
PRODUCT(240, 15, "%120", "%121", "%122", "%123", "%124", "%125", "%126")
PRODUCT(256, 16, "%128", "%129", "%130", "%131", "%132", "%133", "%134")

#undef PRODUCT
#undef REGISTER_PRODUCT
#undef SHARED_PRODUCT

}  // namespace
