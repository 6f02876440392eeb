// The number of a key as base + further, where `further` is known when a kernel is compiled.
//
// A score modification computes with the numbers of a row and of a key. A thread has many keys in a block, and
// `further` is each key's number in the block. As one int, row - column would take an addition of integers and a
// conversion to float for every score. Here row - base is converted once, and each score takes one multiply-add.
//
// Archs  any.
#pragma once

namespace {

// base + step * further. Exact where step is 1, and base and the sum are below 2^24, as lengths are.
struct KeyPlaceInFloat {
  float base, step;
  int further;
  __device__ __forceinline__ operator float() const { return fmaf(step, static_cast<float>(further), base); }
};

struct KeyPlace {
  int base, further;
  __device__ __forceinline__ operator int() const { return base + further; }
};

__device__ __forceinline__ KeyPlace operator-(KeyPlace a) { return {-a.base, -a.further}; }
__device__ __forceinline__ KeyPlace operator+(KeyPlace a, int b) { return {a.base + b, a.further}; }
__device__ __forceinline__ KeyPlace operator+(int a, KeyPlace b) { return b + a; }
__device__ __forceinline__ KeyPlace operator-(KeyPlace a, int b) { return a + -b; }
__device__ __forceinline__ KeyPlace operator-(int a, KeyPlace b) { return -b + a; }

// Products round base * factor instead of the sum, so `factor` must be small.
__device__ __forceinline__ KeyPlaceInFloat operator*(float factor, KeyPlaceInFloat a) {
  return {factor * a.base, factor * a.step, a.further};
}
__device__ __forceinline__ KeyPlaceInFloat operator*(KeyPlaceInFloat a, float factor) { return factor * a; }
__device__ __forceinline__ KeyPlaceInFloat operator-(KeyPlaceInFloat a) { return {-a.base, -a.step, a.further}; }

// score_mod turns an int into a float by a product with 1.0f.
__device__ __forceinline__ KeyPlaceInFloat operator*(float one, KeyPlace a) {
  return {one * static_cast<float>(a.base), one, a.further};
}

// Of two places, and of a place and a wider integer, the operators of integers are meant.
__device__ __forceinline__ int operator+(KeyPlace a, KeyPlace b) { return int(a) + int(b); }
__device__ __forceinline__ int operator-(KeyPlace a, KeyPlace b) { return int(a) - int(b); }
__device__ __forceinline__ long long operator+(long long a, KeyPlace b) { return a + int(b); }
__device__ __forceinline__ long long operator-(long long a, KeyPlace b) { return a - int(b); }
__device__ __forceinline__ long long operator*(long long a, KeyPlace b) { return a * int(b); }
__device__ __forceinline__ long long operator+(KeyPlace a, long long b) { return int(a) + b; }
__device__ __forceinline__ long long operator-(KeyPlace a, long long b) { return int(a) - b; }
__device__ __forceinline__ long long operator*(KeyPlace a, long long b) { return int(a) * b; }
__device__ __forceinline__ int operator*(int a, KeyPlace b) { return a * int(b); }
__device__ __forceinline__ int operator*(KeyPlace a, int b) { return int(a) * b; }
__device__ __forceinline__ int operator*(KeyPlace a, KeyPlace b) { return int(a) * int(b); }

}  // namespace
