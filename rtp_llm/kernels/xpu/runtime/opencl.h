// SPDX-License-Identifier: Apache-2.0
// Device binaries of OpenCL devices, which SYCL itself neither gives out nor takes.
#pragma once

#include <optional>
#include <string>
#include <sycl/sycl.hpp>

namespace rtp_llm::xpu {

// The binary of the bundle's only program.
std::string binary_of(const sycl::kernel_bundle<sycl::bundle_state::executable>& bundle);

// The kernel of the entry point `entry`; none when the device does not take the binary. The program
// stays as long as the process.
std::optional<sycl::kernel> kernel_of_binary(const sycl::context& context,
                                             const sycl::device& device, const std::string& binary,
                                             const std::string& entry);

}  // namespace rtp_llm::xpu
