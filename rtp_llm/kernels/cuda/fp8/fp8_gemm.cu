// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/fp8/fp8_gemm.h"

#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/cuda/fp8/fp8_groups.h"
#include "rtp_llm/kernels/cuda/fp8/fp8_kernels.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/tensor_map.h"

namespace rtp_llm::cuda {

void fp8_gemm(const Fp8GemmArgs& args, void* stream) {
  constexpr int kHopper = 9;
  const int major = of_device<cudaDevAttrComputeCapabilityMajor>();
  if (major != kHopper || tensor_map_encoder() == nullptr) {
    throw std::runtime_error("fp8_gemm: this GPU has compute capability " + std::to_string(major) +
                             ".x; block-scaled FP8 needs 9.0 (H100, H200)");
  }
  if (args.groups == 0 || args.rows == 0 || args.outputs == 0) return;
  if (args.groups > kMaxGroups && args.form != Fp8Form::kContiguous) {
    throw std::runtime_error("fp8_gemm: " + std::to_string(args.groups) + " groups; at most " +
                             std::to_string(kMaxGroups) + " are supported");
  }
  const bool limited = args.num_sms > 0 && args.num_sms < multiprocessors();
  const int sms = limited ? args.num_sms : multiprocessors();
  if (!args.swap_ab || args.form == Fp8Form::kContiguous) return fp8_tiles(args, sms, stream);
  if (args.form != Fp8Form::kPlain || limited) return fp8_stream_masked(args, sms, stream);
  fp8_stream(args, sms, stream);
}

RTP_LLM_OPERATOR(fp8_linear)
void fp8_linear(const Fp8LinearArgs& args, void* stream) { fp8_gemm(args, stream); }

RTP_LLM_OPERATOR(fp8_grouped_masked)
void fp8_grouped_masked(const Fp8GroupedMaskedArgs& args, void* stream) { fp8_gemm(args, stream); }

RTP_LLM_OPERATOR(fp8_grouped_contiguous)
void fp8_grouped_contiguous(const Fp8GroupedContiguousArgs& args, void* stream) {
  fp8_gemm(args, stream);
}

RTP_LLM_OPERATOR(fp8_grouped_ragged)
void fp8_grouped_ragged(const Fp8GroupedRaggedArgs& args, void* stream) { fp8_gemm(args, stream); }

}  // namespace rtp_llm::cuda
