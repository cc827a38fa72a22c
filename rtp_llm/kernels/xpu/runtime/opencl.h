// SPDX-License-Identifier: Apache-2.0
// Device binaries of OpenCL devices, which SYCL itself neither gives out nor takes.
#pragma once

#include <string>
#include <sycl/sycl.hpp>

#include "rtp_llm/kernels/xpu/runtime/build.h"

namespace rtp_llm::xpu {

// The binary of the bundle's only program.
std::string binary_of(const sycl::kernel_bundle<sycl::bundle_state::executable>& bundle);

// Empty when the device does not take the binary. The program stays as long as the process.
KernelSource kernels_of_binary(const sycl::context& context, const sycl::device& device,
                               const std::string& binary, const std::string& program);

}  // namespace rtp_llm::xpu
