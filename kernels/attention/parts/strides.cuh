// Where a row lies in a tensor (batch, heads, rows, HEAD_DIM) of 16-bit elements whose strides are arguments.
//
// The arguments count elements. Between batches and between heads they have 64 bits, since a tensor may have more than
// 2^31 elements. Between rows they are less than 2^30, and a number of rows times the distance is a product of 64 bits.
// Distances between rows and between heads can also be compiled in: then a copy's addresses differ by constants.
//
// Archs      sm_80 and later.
// Reference  PTX ISA, "mad" (.wide).
#pragma once

namespace {

// ROW and HEAD: the distances between rows and between heads, in elements. With ROW 0 both are arguments.
template <int ROW = 0, int HEAD = 0>
struct StridesOf {
  static constexpr int kRow = ROW;
  long long batch, head;
  int row_bytes;

  __device__ __forceinline__ StridesOf(long long batch, long long head, long long row)
      : batch(batch), head(ROW > 0 ? HEAD : head), row_bytes(ROW > 0 ? 2 * ROW : static_cast<int>(2 * row)) {}

  // From the tensor's beginning to the first row of a head, in elements.
  __device__ __forceinline__ long long head_at(int of_batch, int of_head) const {
    return of_batch * batch + of_head * head;
  }

  // The place `rows` rows further.
  template <class Element>
  __device__ __forceinline__ Element* further(Element* from, int rows) const {
    static_assert(sizeof(Element) == 2, "row_bytes counts two bytes an element");
    const long long bytes = static_cast<long long>(rows) * row_bytes;
    return const_cast<Element*>(reinterpret_cast<const Element*>(reinterpret_cast<const char*>(from) + bytes));
  }

  // The same, for a loop of many copies. The compiler cannot see into the instruction. Otherwise it would compute all
  // products before the loop, and each would take two registers.
  template <class Element>
  __device__ __forceinline__ Element* source(Element* from, int rows) const {
    if constexpr (ROW > 0) return further(from, rows);
    unsigned long long to;
    asm("mad.wide.s32 %0, %1, %2, %3;\n" : "=l"(to) : "r"(row_bytes), "r"(rows), "l"(from));
    return reinterpret_cast<Element*>(to);
  }
};

using Strides = StridesOf<>;

}  // namespace
