// SPDX-License-Identifier: Apache-2.0
// Finds the kernels of this library's sycl_library targets, and opens a queue to run them on.
#pragma once

#include <string>
#include <sycl/sycl.hpp>

namespace rtp_llm::xpu {

// The kernel `name`, an extern "C" free function, of the source file `program`.cc, for the queue's
// context and device. A program that was not compiled ahead of time is compiled when the first of
// its kernels is asked for, or read from the cache on disk. What is returned stays; any thread may
// ask. std::runtime_error says what is missing, with the compiler's log where it has one.
const sycl::kernel& kernel(const sycl::queue& queue, const char* program, const std::string& name);

// An in-order queue on the best device, a CPU last. For tests and tools: operators get theirs from
// torch. std::runtime_error when there is no device.
sycl::queue open_queue();

// Lets the OpenCL loader know the CPU device whose library is in the folder of libsycl, where the
// packages put it; OCL_ICD_FILENAMES says otherwise when it is set. To be called before anything
// asks SYCL for devices; open_queue() does.
void use_packaged_opencl();

}  // namespace rtp_llm::xpu
