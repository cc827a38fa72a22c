// Root-mean-square norms. Sums and products are float32, whatever the element type.
#pragma once

#include <cstdint>

#include "rtp_llm/kernels/common/cpu_features.h"
#include "rtp_llm/kernels/common/dtype.h"

namespace rtp_llm::cpu {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, rows of `size` elements. The strides are in
// elements.
struct RmsNormArgs {
  const void* x;
  const void* weight;
  void* out;
  int64_t size;
  int64_t x_stride;
  int64_t out_stride;
  DType dtype;
  float eps;
};

RTP_LLM_FOR_EACH_ISA(void rms_norm(const RmsNormArgs& args, int64_t begin, int64_t end);)

}  // namespace rtp_llm::cpu
