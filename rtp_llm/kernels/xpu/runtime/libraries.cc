// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/libraries.h"

#include <dlfcn.h>

#include <filesystem>
#include <stdexcept>
#include <sycl/sycl.hpp>
#include <vector>

namespace rtp_llm::xpu {

namespace fs = std::filesystem;

std::string libsycl_path() {
  // Any function of libsycl serves.
  std::vector<sycl::kernel_id> (*const function)() = &sycl::get_kernel_ids;
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(function), &info) == 0) {
    throw std::runtime_error("the dynamic linker does not know where libsycl was loaded from");
  }
  return fs::canonical(info.dli_fname);
}

}  // namespace rtp_llm::xpu
