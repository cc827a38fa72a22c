// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/launch.h"

#include <sycl/sycl.hpp>

#include "rtp_llm/kernels/xpu/runtime/kernel.h"

namespace rtp_llm::xpu {

void submit(Queue& queue, const Launch& launch, const void* args, size_t bytes) {
  if (launch.groups == 0) return;
  const sycl::kernel& code = kernel(queue, launch.program, launch.kernel);
  const auto items = static_cast<size_t>(launch.items);
  const sycl::nd_range<1> range(static_cast<size_t>(launch.groups) * items, items);
  queue.submit([&](sycl::handler& handler) {
    handler.set_args(sycl::ext::oneapi::experimental::raw_kernel_arg(args, bytes));
    handler.parallel_for(range, code);
  });
}

void copy(Queue& queue, void* to, const void* from, int64_t bytes) {
  if (bytes > 0) queue.memcpy(to, from, static_cast<size_t>(bytes));
}

void fill_zero(Queue& queue, void* to, int64_t bytes) {
  if (bytes > 0) queue.memset(to, 0, static_cast<size_t>(bytes));
}

}  // namespace rtp_llm::xpu
