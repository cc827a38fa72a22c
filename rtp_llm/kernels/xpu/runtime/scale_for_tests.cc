// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/scale_for_tests.h"

#include <cstdint>
#include <sycl/sycl.hpp>

namespace rtp_llm::xpu {

namespace experimental = sycl::ext::oneapi::experimental;

constexpr int kGroup = 64;

// Through local memory, which has rules of its own in free functions.
experimental::work_group_static<float[kGroup]> values;

template <class T>
void scale(const ScaleArgs& args) {
  const auto group = sycl::ext::oneapi::this_work_item::get_work_group<1>();
  const int item = static_cast<int>(group.get_local_linear_id());
  const int index = static_cast<int>(group.get_group_linear_id()) * kGroup + item;
  T* const x = static_cast<T*>(args.x);
  values[kGroup - 1 - item] = index < args.size ? static_cast<float>(x[index]) : 0.0f;
  sycl::group_barrier(group);
  if (index < args.size) x[index] = static_cast<T>(args.factor * values[kGroup - 1 - item]);
}

}  // namespace rtp_llm::xpu

#define SCALE(name, T)                                            \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(                   \
      (sycl::ext::oneapi::experimental::nd_range_kernel<1>)) void \
  name(rtp_llm::xpu::ScaleArgs args) {                            \
    rtp_llm::xpu::scale<T>(args);                                 \
  }

SCALE(scale_float32, float)
SCALE(scale_int32, int32_t)
