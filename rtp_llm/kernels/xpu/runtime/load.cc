// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/load.h"

#include <cstddef>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "rtp_llm/kernels/xpu/runtime/disk_cache.h"
#include "rtp_llm/kernels/xpu/runtime/opencl.h"

namespace rtp_llm::xpu {
namespace {

namespace experimental = sycl::ext::oneapi::experimental;
using Executable = sycl::kernel_bundle<sycl::bundle_state::executable>;

std::string name_of(const sycl::device& device) {
  return device.get_info<sycl::info::device::name>();
}

// All that the binary follows from.
std::string cache_key(const sycl::device& device, const Module& module) {
  std::ostringstream key;
  const sycl::platform platform = device.get_platform();
  key << platform.get_info<sycl::info::platform::name>() << '\n'
      << platform.get_info<sycl::info::platform::version>() << '\n'
      << name_of(device) << '\n'
      << device.get_info<sycl::info::device::vendor_id>() << '\n'
      << device.get_info<sycl::info::device::driver_version>()
      << '\n'
      // CPUs of one name may differ in the instructions that they are allowed to use.
      << device.get_info<sycl::info::device::native_vector_width_float>() << '\n';
  key.write(static_cast<const char*>(module.code), static_cast<std::streamsize>(module.bytes));
  return key.str();
}

Executable build(const sycl::context& context, const sycl::device& device, const Program& program,
                 const Module& module) {
  const auto* const code = static_cast<const std::byte*>(module.code);
  try {
    auto source = experimental::create_kernel_bundle_from_source(
        context, experimental::source_language::spirv,
        std::vector<std::byte>(code, code + module.bytes));
    return experimental::build(source, {device});
  } catch (const sycl::exception& error) {
    throw std::runtime_error("the kernel " + module.kernel + " of the SYCL program " +
                             program.name() + " does not load on " + name_of(device) + ":\n" +
                             error.what());
  }
}

}  // namespace

sycl::kernel load(const sycl::context& context, const sycl::device& device, const Program& program,
                  const std::string& name) {
  const Module* const module = program.find(name);
  if (module == nullptr) {
    throw std::runtime_error("the SYCL program " + program.name() + " has no kernel " + name);
  }
  const std::string entry = kKernelPrefix + name;
  // libsycl gives out the binary of an OpenCL device only; Level Zero's driver has a cache itself.
  if (device.get_backend() != sycl::backend::opencl) {
    return build(context, device, program, *module).ext_oneapi_get_kernel(entry);
  }
  const DiskCache cache(DiskCache::usual_folder());
  const std::string key = cache_key(device, *module);
  if (const auto binary = cache.load(key)) {
    if (const auto kernel = kernel_of_binary(context, device, *binary, entry)) return *kernel;
  }
  const std::string binary = binary_of(build(context, device, program, *module));
  cache.store(key, binary);
  // The same way as from the cache, so that the first process does not differ from the next.
  const auto kernel = kernel_of_binary(context, device, binary, entry);
  if (!kernel) {
    throw std::runtime_error(name_of(device) + " refuses its own binary of the kernel " + name);
  }
  return *kernel;
}

}  // namespace rtp_llm::xpu
