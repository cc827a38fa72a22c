// SPDX-License-Identifier: Apache-2.0
// Finds the kernels of this library's sycl_library targets, and opens a queue to run them on.
#pragma once

#include <string>
#include <sycl/sycl.hpp>

namespace rtp_llm::xpu {

// The kernel `name`, an extern "C" free function, of the source file `program`.cc, for the queue's
// context and device. Where icpx did not compile it, the driver compiles its SPIR-V when it is
// first requested, or its binary is read from the cache on disk. The reference stays valid; any
// thread may call. std::runtime_error says what is missing, or why the driver refuses it.
const sycl::kernel& kernel(const sycl::queue& queue, const char* program, const std::string& name);

// An in-order queue on the best device, a CPU last. For tests and tools: operators get theirs from
// torch. std::runtime_error if there is no device.
sycl::queue open_queue();

// Points the OpenCL loader to the CPU device's library in the folder of libsycl, where the packages
// install it, unless OCL_ICD_FILENAMES is set. Call it before anything asks SYCL for devices;
// open_queue() does.
void use_packaged_opencl();

}  // namespace rtp_llm::xpu
