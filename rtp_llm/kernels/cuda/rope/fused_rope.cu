// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cuda/rope/fused_rope.h"

#include <stdexcept>
#include <string>

#include "rtp_llm/kernels/cuda/rope/fused_rope_heads.h"

namespace rtp_llm::cuda {

RTP_LLM_OPERATOR(rotate_and_store)
void rotate_and_store(const RotateAndStoreArgs& args, void* stream) {
  if (args.head_dim > 2 * kGroup * rope::kMaxUnits) {
    throw std::runtime_error("rotate_and_store: heads have " + std::to_string(args.head_dim) +
                             " elements; expected at most " +
                             std::to_string(2 * kGroup * rope::kMaxUnits) + " on a GPU");
  }
  if (args.tokens == 0) return;
  visit_float_dtype(args.dtype, [&](auto element) {
    rope::rotate_and_store_heads<decltype(element)>(args, static_cast<Stream>(stream));
  });
}

}  // namespace rtp_llm::cuda
