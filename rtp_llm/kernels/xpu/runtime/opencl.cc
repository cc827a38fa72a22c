// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/xpu/runtime/opencl.h"

#include <CL/cl.h>
#include <dlfcn.h>

#include <stdexcept>
#include <vector>

namespace rtp_llm::xpu {
namespace {

// The OpenCL loader that libsycl runs on: linking one by name could bring another.
template <class Function>
Function* opencl(const char* name) {
  static void* const library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* const function = library == nullptr ? nullptr : dlsym(library, name);
  if (function == nullptr) {
    throw std::runtime_error(std::string("libsycl runs on an OpenCL without ") + name);
  }
  return reinterpret_cast<Function*>(function);
}

#define RTP_LLM_OPENCL(name) opencl<decltype(::name)>(#name)

void require(cl_int status, const char* what) {
  if (status != CL_SUCCESS) {
    throw std::runtime_error(std::string(what) + " failed with OpenCL error " +
                             std::to_string(status));
  }
}

}  // namespace

std::string binary_of(const sycl::kernel_bundle<sycl::bundle_state::executable>& bundle) {
  const std::vector<cl_program> programs = sycl::get_native<sycl::backend::opencl>(bundle);
  if (programs.size() != 1) {
    throw std::runtime_error("a SYCL program was compiled into " + std::to_string(programs.size()) +
                             " OpenCL programs, expected one");
  }
  const auto query = RTP_LLM_OPENCL(clGetProgramInfo);
  size_t size = 0;
  require(query(programs[0], CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr),
          "CL_PROGRAM_BINARY_SIZES");
  std::string binary(size, '\0');
  char* place = binary.data();
  require(query(programs[0], CL_PROGRAM_BINARIES, sizeof place, &place, nullptr),
          "CL_PROGRAM_BINARIES");
  return binary;
}

std::optional<sycl::kernel> kernel_of_binary(const sycl::context& context,
                                             const sycl::device& device, const std::string& binary,
                                             const std::string& entry) {
  const cl_context native_context = sycl::get_native<sycl::backend::opencl>(context);
  const cl_device_id native_device = sycl::get_native<sycl::backend::opencl>(device);
  const size_t size = binary.size();
  const auto* bytes = reinterpret_cast<const unsigned char*>(binary.data());
  cl_int taken = CL_SUCCESS;
  cl_int status = CL_SUCCESS;
  const cl_program native = RTP_LLM_OPENCL(clCreateProgramWithBinary)(
      native_context, 1, &native_device, &size, &bytes, &taken, &status);
  if (taken != CL_SUCCESS || status != CL_SUCCESS) return std::nullopt;
  if (RTP_LLM_OPENCL(clBuildProgram)(native, 1, &native_device, "", nullptr, nullptr) !=
      CL_SUCCESS) {
    return std::nullopt;
  }
  cl_int found = CL_SUCCESS;
  const cl_kernel kernel = RTP_LLM_OPENCL(clCreateKernel)(native, entry.c_str(), &found);
  if (found != CL_SUCCESS) return std::nullopt;
  return sycl::make_kernel<sycl::backend::opencl>(kernel, context);
}

}  // namespace rtp_llm::xpu
