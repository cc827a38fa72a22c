// SPDX-License-Identifier: Apache-2.0
// Descriptions of tensors for Hopper's copy engine.
#pragma once

#include <cuda.h>

#include "rtp_llm/kernels/cuda/launch.h"

namespace rtp_llm::cuda {

using EncodeTensorMap = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                     const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                     const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                     CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, found at run time, so that nothing links against the driver; null where
// the driver has none.
inline EncodeTensorMap tensor_map_encoder() {
  static const EncodeTensorMap found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
    return error == cudaSuccess ? reinterpret_cast<EncodeTensorMap>(function) : nullptr;
  }();
  return found;
}

// Whether this process's GPU runs the code that `kernel` has for sm_90a alone, and the driver
// describes tensors.
template <auto kernel>
inline bool runs_hopper_code() {
  return of_device<cudaDevAttrComputeCapabilityMajor>() == 9 && can_overlap<kernel>() &&
         tensor_map_encoder() != nullptr;
}

// A tensor of three dimensions, the innermost first, and the box that a copy brings.
struct TensorBoxes {
  const void* data;
  CUtensorMapDataType type;
  int64_t sizes[3];
  int64_t stride_bytes[2];  // of the outer two; multiples of 16
  int box[3];
  bool swizzle;  // rows of 128 bytes, as wgmma needs them
};

inline CUtensorMap tensor_map(const TensorBoxes& tensor, const char* what) {
  cuuint64_t sizes[3], strides[2];
  cuuint32_t box[3];
  const cuuint32_t steps[] = {1, 1, 1};
  for (int i = 0; i < 3; ++i) {
    sizes[i] = static_cast<cuuint64_t>(tensor.sizes[i]);
    box[i] = static_cast<cuuint32_t>(tensor.box[i]);
  }
  for (int i = 0; i < 2; ++i) strides[i] = static_cast<cuuint64_t>(tensor.stride_bytes[i]);
  CUtensorMap map;
  const CUresult error =
      tensor_map_encoder()(&map, tensor.type, 3, const_cast<void*>(tensor.data), sizes, strides,
                           box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                           tensor.swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != CUDA_SUCCESS) refuse_tensor_map(what, error);
  return map;
}

}  // namespace rtp_llm::cuda
