// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "rtp_llm/kernels/xpu/runtime/kernel.h"
#include "rtp_llm/kernels/xpu/runtime/libraries.h"

namespace rtp_llm::xpu {

namespace fs = std::filesystem;

void use_packaged_opencl() {
  const fs::path library = fs::path(libsycl_path()).parent_path() / "libintelocl.so";
  std::error_code error;
  if (fs::exists(library, error)) setenv("OCL_ICD_FILENAMES", library.c_str(), /*overwrite=*/0);
}

sycl::queue open_queue() {
  use_packaged_opencl();
  try {
    return sycl::queue(sycl::default_selector_v, sycl::property::queue::in_order());
  } catch (const sycl::exception& error) {
    const char* const named = std::getenv("OCL_ICD_FILENAMES");
    throw std::runtime_error(
        std::string("no SYCL device: ") + error.what() +
        "\nLevel Zero and OpenCL were asked (OCL_ICD_FILENAMES=" + (named == nullptr ? "" : named) +
        "); install the GPU's driver, or intel-opencl-rt for the CPU");
  }
}

}  // namespace rtp_llm::xpu
