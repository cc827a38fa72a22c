// SPDX-License-Identifier: Apache-2.0
// What CUDA and HIP spell differently. Kernels include this and neither of their headers, and are
// compiled by nvcc and by hipcc from one source.
//
// Nothing here or in a kernel knows how wide a warp is (32 lanes, or 64 on CDNA): lanes work in
// groups of at most 32 neighbours, which lie within one warp everywhere.
#pragma once

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

#include <cstdint>

#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm::cuda {

#if defined(__HIPCC__)
using Stream = hipStream_t;
using Words4 = uint4::Native_vec_;  // HIP's uint4 is a class that no bits can be cast to
#else
using Stream = cudaStream_t;
using Words4 = uint4;
#endif

constexpr int kGroup = 32;  // lanes that exchange values
constexpr int kMaxThreads = 1024;

// The calling thread in its block, and how many there are: signed, as what they are compared with.
__device__ inline int thread_index() { return static_cast<int>(threadIdx.x); }
__device__ inline int thread_count() { return static_cast<int>(blockDim.x); }

// The value of the lane with number lane ^ mask, mask < 32. Every lane of the group must call it.
template <class T>
__device__ inline T exchange(T value, int mask) {
#if defined(__HIPCC__)
  return __shfl_xor(value, mask, kGroup);
#else
  return __shfl_xor_sync(0xffffffffU, value, mask);
#endif
}

// The same with `mask` below `lanes` (a power of two): only that many neighbours need to call it.
template <int lanes, class T>
__device__ inline T exchange_among(T value, int mask) {
#if defined(__HIPCC__)
  return __shfl_xor(value, mask, kGroup);
#else
  const int first = thread_index() % kGroup / lanes * lanes;
  return __shfl_xor_sync((0xffffffffU >> (kGroup - lanes)) << first, value, mask);
#endif
}

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(BFloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
__device__ inline float to_float(Float16 value) {
#if defined(__HIPCC__)
  return static_cast<float>(__builtin_bit_cast(_Float16, value.bits));
#else
  return __half2float(__ushort_as_half(value.bits));
#endif
}

// Rounds to the nearest value, ties to even, as torch does.
template <class T>
__device__ inline T from_float(float value);

template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline BFloat16 from_float<BFloat16>(float value) {
#if defined(__HIPCC__)
  const uint32_t bits = __float_as_uint(value);
  if (value != value) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
#else
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#endif
}
template <>
__device__ inline Float16 from_float<Float16>(float value) {
#if defined(__HIPCC__)
  return {__builtin_bit_cast(uint16_t, static_cast<_Float16>(value))};
#else
  return {__half_as_ushort(__float2half_rn(value))};
#endif
}

// The same for two neighbours, in one instruction where there is one.
template <class T>
__device__ inline void from_floats(float a, float b, T* first, T* second) {
  *first = from_float<T>(a);
  *second = from_float<T>(b);
}

#if !defined(__HIPCC__)
template <>
__device__ inline void from_floats<BFloat16>(float a, float b, BFloat16* first, BFloat16* second) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
  *first = {__bfloat16_as_ushort(__low2bfloat16(both))};
  *second = {__bfloat16_as_ushort(__high2bfloat16(both))};
}
template <>
__device__ inline void from_floats<Float16>(float a, float b, Float16* first, Float16* second) {
  const __half2 both = __floats2half2_rn(a, b);
  *first = {__half_as_ushort(__low2half(both))};
  *second = {__half_as_ushort(__high2half(both))};
}
#endif

// Kernels that overlap (launch_overlapped of launch.h): the next one may start once every block of
// this one has called let_next_start() or ended, and takes part of the machine from then on.
__device__ inline void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernels in front have ended and what they wrote can be read. Every thread of an
// overlapped kernel calls it before it reads what they write, and before it writes at all.
__device__ inline void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace rtp_llm::cuda
