// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/gemm/linear_int8.h"

#include "rtp_llm/kernels/xpu/launch.h"

namespace rtp_llm::xpu {
namespace {

void multiply(Queue& queue, const Int8LinearArgs& args, const char* kernel) {
  const int64_t groups = ceil_div(args.m, kInt8Rows) * ceil_div(args.n, kInt8BlockRows);
  submit(queue, {"linear_int8_kernel", entry(kernel, args.dtype), groups, kInt8Items}, args);
}

}  // namespace

void int8_linear(Queue& queue, const Int8LinearArgs& args) { multiply(queue, args, "int8_linear"); }

void w8a8_int8_linear(Queue& queue, const Int8LinearArgs& args) {
  multiply(queue, args, "w8a8_int8_linear");
}

}  // namespace rtp_llm::xpu
