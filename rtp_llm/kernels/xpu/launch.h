// SPDX-License-Identifier: Apache-2.0
// Submitting kernels; only launch.cc sees the SYCL headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "rtp_llm/kernels/common/dtype.h"
#include "rtp_llm/kernels/xpu/queue.h"

namespace rtp_llm::xpu {

// Every device takes groups of that many items.
constexpr int64_t kMaxItems = 256;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Items of a group that has `size` elements to share out: whole sub-groups.
constexpr int64_t items_for(int64_t size) {
  const int64_t items = ceil_div(size, 32) * 32;
  return items < 32 ? 32 : items < kMaxItems ? items : kMaxItems;
}

// Which kernel of which program, and how often it runs.
struct Launch {
  const char* program;
  std::string kernel;
  int64_t groups;
  int64_t items;
};

// The entry point of a kernel template: "rms_norm_bfloat16".
inline std::string entry(const char* kernel, DType dtype) {
  return std::string(kernel) + "_" + dtype_name(dtype);
}

// One submission; none at all without groups. std::runtime_error when the kernel does not build.
void submit(Queue& queue, const Launch& launch, const void* args, size_t bytes);

template <class Args>
void submit(Queue& queue, const Launch& launch, const Args& args) {
  static_assert(std::is_trivially_copyable_v<Args>, "kernels take plain structs");
  submit(queue, launch, &args, sizeof args);
}

void copy(Queue& queue, void* to, const void* from, int64_t bytes);
void fill_zero(Queue& queue, void* to, int64_t bytes);

}  // namespace rtp_llm::xpu
