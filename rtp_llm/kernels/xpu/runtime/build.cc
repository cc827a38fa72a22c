// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/build.h"

#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "rtp_llm/kernels/xpu/runtime/disk_cache.h"
#include "rtp_llm/kernels/xpu/runtime/libraries.h"
#include "rtp_llm/kernels/xpu/runtime/opencl.h"

namespace rtp_llm::xpu {
namespace {

namespace experimental = sycl::ext::oneapi::experimental;
using Executable = sycl::kernel_bundle<sycl::bundle_state::executable>;

std::string name_of(const sycl::device& device) {
  return device.get_info<sycl::info::device::name>();
}

// The same options as for icpx in //3rdparty/gpus/sycl:toolchain.bzl: NaN and infinity have a
// meaning in masks, and a kernel read from a binary keeps every argument of its source. One binary
// holds all kernels: without the option, float16 kernels would get a binary of their own.
std::vector<std::string> options_for(const sycl::device& device) {
  std::vector<std::string> options = {"-std=c++17", "-O2", "-ffp-model=precise",
                                      "-fno-sycl-dead-args-optimization",
                                      "-fsycl-device-code-split=off"};
  if (!device.has(sycl::aspect::fp16)) options.emplace_back("-DRTP_LLM_XPU_NO_FLOAT16");
  return options;
}

// All that the binary follows from.
std::string cache_key(const sycl::device& device, const std::vector<std::string>& options,
                      const Program& program) {
  std::ostringstream key;
  const sycl::platform platform = device.get_platform();
  key << platform.get_info<sycl::info::platform::name>() << '\n'
      << platform.get_info<sycl::info::platform::version>() << '\n'
      << name_of(device) << '\n'
      << device.get_info<sycl::info::device::vendor_id>() << '\n'
      << device.get_info<sycl::info::device::driver_version>()
      << '\n'
      // CPUs of one name may differ in the instructions that they are allowed to use.
      << device.get_info<sycl::info::device::native_vector_width_float>() << '\n'
      << describe_libsycl() << '\n';
  for (const std::string& option : options) key << option << '\n';
  key << program.text();
  return key.str();
}

// Takes the device by value: the queries are not const.
Executable compile(const sycl::context& context, sycl::device device,
                   const std::vector<std::string>& options, const Program& program) {
  if (!device.ext_oneapi_can_build(experimental::source_language::sycl)) {
    throw std::runtime_error(
        "the SYCL program " + program.name() + " must be compiled, but " + name_of(device) +
        " has no run-time compiler: libsycl-jit.so must be in the same folder as " +
        libsycl_path() + " (the package intel-sycl-rt has it)");
  }
  auto source = experimental::create_kernel_bundle_from_source(
      context, experimental::source_language::sycl, program.text());
  try {
    return experimental::build(source, {device},
                               experimental::properties{experimental::build_options{options}});
  } catch (const sycl::exception& error) {
    throw std::runtime_error("the SYCL program " + program.name() + " does not compile for " +
                             name_of(device) + ":\n" + error.what());
  }
}

KernelSource kernels_of(Executable executable, const std::string& program) {
  return [executable = std::move(executable), program](const std::string& name) mutable {
    if (!executable.ext_oneapi_has_kernel(name)) {
      throw std::runtime_error("the SYCL program " + program + " has no kernel " + name);
    }
    return executable.ext_oneapi_get_kernel(name);
  };
}

}  // namespace

KernelSource build(const sycl::context& context, const sycl::device& device,
                   const Program& program) {
  const std::vector<std::string> options = options_for(device);
  // libsycl gives out the binary of an OpenCL device only: others compile in each process.
  if (device.get_backend() != sycl::backend::opencl) {
    return kernels_of(compile(context, device, options, program), program.name());
  }
  const DiskCache cache(DiskCache::usual_folder());
  const std::string key = cache_key(device, options, program);
  if (const auto binary = cache.load(key)) {
    if (auto kernels = kernels_of_binary(context, device, *binary, program.name())) return kernels;
  }
  const std::string binary = binary_of(compile(context, device, options, program));
  cache.store(key, binary);
  // The same way as from the cache, so that the first process does not differ from the next.
  auto kernels = kernels_of_binary(context, device, binary, program.name());
  if (!kernels) {
    throw std::runtime_error(name_of(device) + " refuses its own binary of the SYCL program " +
                             program.name());
  }
  return kernels;
}

}  // namespace rtp_llm::xpu
