// SPDX-License-Identifier: Apache-2.0
// What kernel sources are written with. A kernel is a function template over the element type that
// takes one struct of arguments; RTP_LLM_XPU_KERNELS makes its entry points, NAME_float32 and so
// on.
//
// A group of work-items shares one unit of work (a row, a head); `Group` loops and reductions are
// all that kernels use, so that they run with any size of group and of sub-group.
#pragma once

#include <sycl/sycl.hpp>

#include <algorithm>
#include <cstdint>

#include "rtp_llm/kernels/common/operator.h"

namespace rtp_llm::xpu {

// Its conversions are part of a program's SPIR-V. Those of sycl::ext::oneapi::bfloat16 come from a
// library of device code, which no driver has.
class BFloat16 {
 public:
  BFloat16() = default;
  explicit BFloat16(float value) : bits_(rounded(sycl::bit_cast<uint32_t>(value))) {}
  explicit operator float() const { return sycl::bit_cast<float>(uint32_t{bits_} << 16); }

 private:
  // To the nearest, ties to even; a NaN stays one.
  static uint16_t rounded(uint32_t bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }

  uint16_t bits_;
};

using Float16 = sycl::half;
using Group = sycl::group<1>;

inline Group this_group() { return sycl::ext::oneapi::this_work_item::get_work_group<1>(); }
inline int64_t group_index(const Group& group) {
  return static_cast<int64_t>(group.get_group_linear_id());
}
inline int64_t item_index(const Group& group) {
  return static_cast<int64_t>(group.get_local_linear_id());
}
inline int64_t group_items(const Group& group) {
  return static_cast<int64_t>(group.get_local_linear_range());
}

// Which part of the rows has `row`, or `parts` if none has: part i has rows [ends[i], ends[i + 1]).
inline int64_t part_with_row(const int32_t* ends, int64_t parts, int64_t row) {
  int64_t low = 0, high = parts;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (ends[middle + 1] > row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// body(i) for every i in [0, size), shared out over the items of the group.
template <class Body>
inline void for_items(const Group& group, int64_t size, Body&& body) {
  const int64_t step = group_items(group);
  for (int64_t i = item_index(group); i < size; i += step) body(i);
}

template <class T>
inline T group_sum(const Group& group, T value) {
  return sycl::reduce_over_group(group, value, sycl::plus<T>());
}
template <class T>
inline T group_max(const Group& group, T value) {
  return sycl::reduce_over_group(group, value, sycl::maximum<T>());
}
template <class T>
inline T group_min(const Group& group, T value) {
  return sycl::reduce_over_group(group, value, sycl::minimum<T>());
}

constexpr float kInfinity = __builtin_inff();
// What a wrong index gives: a kernel cannot raise, but it can be loud without leaving its memory.
constexpr float kNotANumber = __builtin_nanf("");

}  // namespace rtp_llm::xpu

// An entry point: the runtime finds it by its name.
#define RTP_LLM_XPU_ENTRY(name, Args)                             \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(                   \
      (sycl::ext::oneapi::experimental::nd_range_kernel<1>)) void \
  name(Args args)

#define RTP_LLM_XPU_KERNEL(name, Args, suffix, T) \
  RTP_LLM_XPU_ENTRY(name##_##suffix, Args) { rtp_llm::xpu::name<T>(args); }

#define RTP_LLM_XPU_KERNELS(name, Args)                            \
  RTP_LLM_XPU_KERNEL(name, Args, float32, float)                   \
  RTP_LLM_XPU_KERNEL(name, Args, bfloat16, rtp_llm::xpu::BFloat16) \
  RTP_LLM_XPU_KERNEL(name, Args, float16, rtp_llm::xpu::Float16)
