// SPDX-License-Identifier: Apache-2.0
// spirv_compiler SOURCE OPTION...: compiles SYCL code by the packages' libsycl-jit, in the build.
//
// With SYCL_DUMP_IMAGES=1, libsycl writes the SPIR-V into the working directory. No device code is
// made, but libsycl compiles for some device, which the packages' CPU device is anywhere.
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

#include "rtp_llm/kernels/xpu/runtime/kernel.h"

int main(int argc, char** argv) {
  namespace experimental = sycl::ext::oneapi::experimental;
  if (argc < 2) {
    std::cerr << "usage: spirv_compiler SOURCE OPTION...\n";
    return 2;
  }
  // A GPU of the build machine changes nothing.
  setenv("ONEAPI_DEVICE_SELECTOR", "opencl:cpu", 1);
  try {
    std::ostringstream text;
    text << std::ifstream(argv[1]).rdbuf();
    const sycl::queue queue = rtp_llm::xpu::open_queue();
    auto source = experimental::create_kernel_bundle_from_source(
        queue.get_context(), experimental::source_language::sycl, text.str());
    const std::vector<std::string> options(argv + 2, argv + argc);
    experimental::compile(source, {queue.get_device()},
                          experimental::properties{experimental::build_options{options}});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
