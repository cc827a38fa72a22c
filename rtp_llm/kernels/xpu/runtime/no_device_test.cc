// SPDX-License-Identifier: Apache-2.0
// Where SYCL finds no device, queues are refused, loudly. A process of its own: libsycl looks once.
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/xpu/runtime/kernel.h"

namespace rtp_llm::xpu {
namespace {

TEST(OpenQueue, says_what_to_install_when_there_is_no_device) {
  // No build of this repository has an adapter for it.
  setenv("ONEAPI_DEVICE_SELECTOR", "native_cpu:*", 1);
  try {
    open_queue();
    FAIL() << "a queue was opened";
  } catch (const std::runtime_error& error) {
    const std::string said = error.what();
    for (const char* part : {"no SYCL device: ", "OCL_ICD_FILENAMES=", "intel-opencl-rt"}) {
      EXPECT_NE(said.find(part), std::string::npos) << said;
    }
  }
}

}  // namespace
}  // namespace rtp_llm::xpu
