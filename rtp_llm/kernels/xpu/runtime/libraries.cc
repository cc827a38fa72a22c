// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/libraries.h"

#include <dlfcn.h>

#include <algorithm>
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

std::string describe_libsycl() {
  std::vector<std::string> parts;
  for (const auto& entry : fs::directory_iterator(fs::path(libsycl_path()).parent_path())) {
    const std::string name = entry.path().filename();
    const bool counts = name.rfind("libsycl.so.", 0) == 0 || name.rfind("libsycl-jit.so", 0) == 0;
    if (counts && entry.is_regular_file() && !entry.is_symlink()) {
      parts.push_back(name + " " + std::to_string(entry.file_size()));
    }
  }
  std::sort(parts.begin(), parts.end());
  std::string text;
  for (const std::string& part : parts) text += part + "; ";
  return text;
}

}  // namespace rtp_llm::xpu
