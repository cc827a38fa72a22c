// SPDX-License-Identifier: Apache-2.0
// Kernels from their SPIR-V, which the driver compiles for the device.
#pragma once

#include <string>
#include <sycl/sycl.hpp>

#include "rtp_llm/kernels/xpu/runtime/program.h"

namespace rtp_llm::xpu {

// What the device compiler puts before the name of a free function.
inline const std::string kKernelPrefix = "__sycl_kernel_";

// std::runtime_error when the program has no kernel of that name, or the driver refuses it.
sycl::kernel load(const sycl::context& context, const sycl::device& device, const Program& program,
                  const std::string& name);

}  // namespace rtp_llm::xpu
