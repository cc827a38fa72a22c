// SPDX-License-Identifier: Apache-2.0
// What the host side of kernels shares: sizes of grids, errors, and the choice of a kernel by dtype
// and by the elements of an access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "rtp_llm/kernels/common/operator.h"
#include "rtp_llm/kernels/cuda/gpu.h"
#include "rtp_llm/kernels/cuda/launch_errors.h"

namespace rtp_llm::cuda {

constexpr int kAccessBytes = 16;  // the widest that a thread can do at once

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Whether all of these are multiples of `unit`.
inline bool multiples(int64_t unit, std::initializer_list<int64_t> values) {
  for (const int64_t value : values) {
    if (value % unit != 0) return false;
  }
  return true;
}

inline int64_t address(const void* pointer) { return reinterpret_cast<intptr_t>(pointer); }

// A size of the grid's x axis; throws if a grid cannot be that large.
inline unsigned int blocks(int64_t count, const char* what) {
  if (count < 0 || count > INT32_MAX) refuse_blocks(what, count);
  return static_cast<unsigned int>(count);
}

// The same for the y and z axes.
inline unsigned int side_blocks(int64_t count, const char* what) {
  constexpr int64_t kMax = 65535;
  if (count < 0 || count > kMax) refuse_side_blocks(what, count);
  return static_cast<unsigned int>(count);
}

// After a launch: throws when the device refused it. Waits for nothing.
inline void check_launch(const char* what) {
#if defined(__HIPCC__)
  const hipError_t error = hipGetLastError();
  const bool good = error == hipSuccess;
  const char* const text = hipGetErrorString(error);
#else
  const cudaError_t error = cudaGetLastError();
  const bool good = error == cudaSuccess;
  const char* const text = cudaGetErrorString(error);
#endif
  if (!good) refuse_launch(what, text);
}

#if !defined(__HIPCC__)
// An attribute of the current device, 0 if unknown; one process runs on one kind of GPU.
template <cudaDeviceAttr attribute>
inline int of_device() {
  static const int known = [] {
    int device = 0, value = 0;
    const bool good = cudaGetDevice(&device) == cudaSuccess &&
                      cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
    return good ? value : 0;
  }();
  return known;
}

inline int multiprocessors() { return of_device<cudaDevAttrMultiProcessorCount>(); }

// Lets blocks of `kernel` have so much shared memory; throws when a multiprocessor has less.
template <auto kernel>
inline void allow_shared(int64_t bytes, const char* what) {
  static int64_t allowed = 48 << 10;  // without being asked
  if (bytes <= allowed) return;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    refuse_shared(what, bytes);
  }
  allowed = bytes;
}

// Whether the code of `kernel` that this GPU runs was compiled for programmatic dependent launch:
// code for GPUs before Hopper waits for nothing, and could not be overlapped safely. One process
// runs on one kind of GPU, so the answer is kept.
template <auto kernel>
inline bool can_overlap() {
  static const bool can = [] {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
  }();
  return can;
}

// launch_overlapped for GPUs that can, in clusters of `cluster` neighbours on the grid's x axis.
template <auto kernel, class... Args>
inline void launch_clusters(dim3 grid, dim3 block, int cluster, size_t shared_bytes, void* stream,
                            const Args&... args) {
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned int>(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<Stream>(stream);
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  // A refusal is found by check_launch.
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, args...));
}
#endif

// Launches a kernel that calls wait_for_previous(): where the GPU can, it starts while the kernel
// in front still runs, once that has called let_next_start() (or ends). Graphs keep this.
template <auto kernel, class... Args>
inline void launch_overlapped(dim3 grid, dim3 block, size_t shared_bytes, void* stream,
                              const Args&... args) {
#if !defined(__HIPCC__)
  if (can_overlap<kernel>()) {
    return launch_clusters<kernel>(grid, block, 1, shared_bytes, stream, args...);
  }
#endif
  kernel<<<grid, block, shared_bytes, static_cast<Stream>(stream)>>>(args...);
}

// Calls body(T{}, integral_constant<int, N>{}): N elements of T are an access of 16 bytes when
// `wide`, otherwise N is 1.
template <class Body>
inline void visit_access(DType dtype, bool wide, Body&& body) {
  visit_float_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    if (wide) {
      body(element, std::integral_constant<int, kAccessBytes / sizeof(T)>{});
    } else {
      body(element, std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace rtp_llm::cuda
