// SPDX-License-Identifier: Apache-2.0
// Programs from their text: compiled by libsycl's kernel compiler, kept on disk as what the device
// runs.
#pragma once

#include <functional>
#include <string>
#include <sycl/sycl.hpp>

#include "rtp_llm/kernels/xpu/runtime/program.h"

namespace rtp_llm::xpu {

// A kernel of a program by its name in the source; std::runtime_error when it has none of that
// name.
using KernelSource = std::function<sycl::kernel(const std::string& name)>;

// What the device compiler puts before the name of a free function.
inline const std::string kKernelPrefix = "__sycl_kernel_";

KernelSource build(const sycl::context& context, const sycl::device& device,
                   const Program& program);

}  // namespace rtp_llm::xpu
